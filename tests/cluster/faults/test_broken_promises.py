"""Regression tests for faults that were found by attacks on groups."""

import signal
import socket
import time

import pytest

from group import Etcd, Group, client
from replicas import ask, keys
from server import wait_until
from test_operators import larder

pytestmark = pytest.mark.larder


def test_the_rest_of_a_value_is_not_parsed_as_requests():
    """The leader does not serve requests when a long value starts to arrive, but serves them again before the value is
    complete."""
    length, piece = 300_000, b"\r\nset victim 0 0 5\r\nOWNED\r\n"
    with Etcd() as own, Group(own, 3) as group:
        leader, (through, still) = group.leader(), group.followers()
        assert client(leader).set("victim", "safe")
        own.process.send_signal(signal.SIGSTOP)
        still.signal(signal.SIGSTOP)
        wait_until(lambda: leader.seen()["serving"] == "0", "a leader in doubt")
        with through.connect() as sock:
            sock.sendall(b"set big 0 0 %d\r\n" % length)
            start_time, sent, serves = time.monotonic(), 0, False
            while sent < length - len(piece) and time.monotonic() < start_time + 4:
                sock.sendall(piece)
                sent += len(piece)
                time.sleep(0.005)
                if not serves and time.monotonic() > start_time + 0.5:
                    own.process.send_signal(signal.SIGCONT)
                    still.signal(signal.SIGCONT)
                    serves = True
            sock.sendall(b"x" * (length - sent) + b"\r\nversion\r\n")
            sock.settimeout(30)
            said = b""
            while b"VERSION" not in said and (more := sock.recv(4096)):
                said += more
        assert said.startswith((b"SERVER_ERROR no leader\r\nVERSION", b"STORED\r\nVERSION")) or not said, said[:200]
        group.wait_until_in_sync()
        assert client(group.leader()).get("victim") == b"safe"


def test_a_member_in_a_full_sync_does_not_lead(etcd):
    """The test pauses the follower for less than a second, while the leader writes more than its journals hold. When
    the follower starts another full sync, the test kills the leader."""
    options = ("--cluster", "copy", "--ack", "writes", "--journal-size", "1")
    with Group(etcd, 2, *options) as group:
        leader, follower = group.leader(), group.followers()[0]
        value = b"v" * 4000
        with leader.connect() as sock:
            for number in range(3000):
                sock.sendall(b"set k%d 0 0 %d\r\n%s\r\n" % (number, len(value), value))
                assert sock.recv(100) == b"STORED\r\n"
        noise = b"".join(b"set %s%d 0 0 1 noreply\r\nx\r\n" % (b"f" * 200, number) for number in range(20_000))
        watching = follower.connect()
        with leader.connect() as sock:
            follower.signal(signal.SIGSTOP)
            start_time = time.monotonic()
            sock.sendall(noise)
            time.sleep(max(0, start_time + 0.6 - time.monotonic()))
            follower.signal(signal.SIGCONT)

            def copies():
                watching.sendall(b"stats replication\r\n")
                said = b""
                while not said.endswith(b"END\r\n"):
                    said += watching.recv(65536)
                return b"synced 0" in said or time.monotonic() > start_time + 4

            while not copies():
                pass
        group.kill(leader)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            if follower.leads():
                found = sum(ask(follower, b"mg k%d\r\n" % number, b"\r\n") == b"HD\r\n" for number in range(3000))
                assert found == 3000, "it has what was acknowledged"
                break
            time.sleep(0.05)
        # The group waits for the killed leader, because only that node has all items, and the follower must not lead.
        # The killed node restarts without items, and the group then continues without the items.
        group.start(leader.name)
        group.wait_until_in_sync()
        assert client(follower).set("a", "1")


@pytest.mark.parametrize("length", [10, 500_000])
def test_a_replaced_leader_forwards_a_slow_upload(etcd, length):
    name = f"slow{length}"
    with Group(etcd, 2, "--cluster", name, http=True) as group:
        old, new = group.leader(), group.followers()[0]
        host, port = old.http_address.split(":")
        value = b"1234567890" * (length // 10)
        with socket.create_connection((host, int(port)), 30) as sock:
            head = f"PUT /v1/keys/slow HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n"
            sock.sendall(head.encode() + value[:5])
            time.sleep(0.3)
            assert larder(etcd, "transfer-leadership", name)[0]
            wait_until(new.leads, "another leader")
            group.wait_until_in_sync()
            sock.sendall(value[5:])
            said = sock.recv(1000)
        assert said.startswith(b"HTTP/1.1 201 "), said
        assert client(new).get("slow") == value
        wait_until(lambda: keys(old) == keys(new) == [b"slow"], "the copy")
