"""Silent connections to the port on which a node accepts its peers."""

import contextlib
import socket
import threading

import pytest

from group import Group, client
from server import wait_until

pytestmark = pytest.mark.larder


@contextlib.contextmanager
def silent_connections(address, count=100):
    """Keeps this number of silent connections to an address open, and replaces connections that the node closes."""
    host, _, port = address.rpartition(":")
    stop = threading.Event()

    def keep():
        open_ones = []
        while not stop.wait(0.25):
            # The node may have exited.
            with contextlib.suppress(OSError):
                while len(open_ones) < count and not stop.is_set():
                    open_ones.append(socket.create_connection((host, int(port)), 5))
            closed = [one for one in open_ones if has_ended(one)]
            open_ones = [one for one in open_ones if one not in closed]
        for one in open_ones:
            one.close()

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def has_ended(connection):
    try:
        return connection.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_silent_connections_keep_no_member_out(etcd):
    with Group(etcd, 2, "--cluster", "silent") as group, contextlib.ExitStack() as stack:
        leader, follower = group.leader(), group.followers()[0]
        client(leader).set("a", "1")
        for node in group:
            address = etcd.value(f"silent/nodes/0/{node.name}")["members"]
            stack.enter_context(silent_connections(address))
        third = group.start("n3")
        group.wait_until_in_sync()
        assert client(third).get("a") == b"1"
        group.kill(leader)
        wait_until(lambda: follower.leads() or third.leads(), "the next leader")
        group.wait_until_in_sync()
        assert all(client(node).get("a") == b"1" for node in group)
