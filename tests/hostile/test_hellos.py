"""Floods of TLS handshakes. A handshake costs the server a thousand times as much CPU time as the client.

The server has one worker thread. The test pauses the server while it sends the messages, so that all messages are
waiting when the worker resumes. The order of replies, or the CPU time, then shows how the worker divides its time.
Neither depends on other load on the machine."""

import contextlib
import os
import select
import signal
import ssl
import subprocess
from pathlib import Path

import pytest

from server import wait_until

pytestmark = pytest.mark.larder

# Exceeds the number of events that the worker handles in a batch, so that the last request is in a later batch.
BATCH = 400
ROUNDS = 3
# A worker serves other connections after a millisecond of handshakes. In this time, it completes only a few handshakes,
# far fewer than this limit.
ANSWERED_BEFORE_MAX = BATCH // 4
# The maximum CPU time for a closed connection ÷ the CPU time for a handshake. The actual ratio is about a twentieth.
CLOSED_COST_SHARE_MAX = 1 / 3


@pytest.fixture
def server(start, tmp_path):
    """Provides a server with a TLS listener and a listener without TLS, whose port is `server.port`."""
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    subprocess.run([*command, "-keyout", key, "-out", chain], check=True, capture_output=True)
    files = f"ssl_chain_cert={chain},ssl_key={key}"
    with start("-Z", "-o", files, "-l", "notls:127.0.0.1", "-t", "1", "-c", "4000") as server:
        ports = server.ports_file.read_text().splitlines()
        server.tls_port = int(ports[1].split()[-1])
        assert server.tls_port != server.port
        yield server


def hello():
    """Returns the ClientHello of a handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def connections(server):
    return int(server.stats()["curr_connections"])


@contextlib.contextmanager
def silent_connections(server, others=0):
    """Provides `BATCH` silent connections to the TLS listener, in addition to `others` of the test. At the end of the
    block, waits until the server has closed these connections, because the next count must not include them."""
    # The count includes the connection that reads it.
    rest = 1 + others
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(server.connect(port=server.tls_port)) for _ in range(BATCH)]
        wait_until(lambda: connections(server) >= rest + BATCH, "accepting the connections")
        yield socks
    wait_until(lambda: connections(server) <= rest, "the end of the connections")


@contextlib.contextmanager
def paused(server):
    """Pauses the server in the `with` block. At the end of the block, the server resumes, and receives all messages
    that were sent during the block."""
    tasks = Path(f"/proc/{server.pid}/task")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: all(state(task) == "T" for task in tasks.iterdir()), "the pause of all threads")
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def state(task):
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def cpu_secs(server):
    """Returns the CPU time of all threads of the server in seconds, from the kernel's statistics."""
    tasks = Path(f"/proc/{server.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def await_input(socks):
    """Waits until each connection has input."""
    waiting = select.poll()
    for sock in socks:
        waiting.register(sock, select.POLLIN)
    wait_until(lambda: len(waiting.poll(0)) == len(socks), "an answer on each connection")


# Without a time limit for handshakes, the worker would answer a full batch of at least 256 handshakes before the
# request without TLS.
def test_clients_without_tls_do_not_wait_for_handshakes(server):
    message = hello()
    with server.connect() as plain:
        for _ in range(ROUNDS):
            with silent_connections(server, others=1) as socks, select.epoll() as ready:
                # epoll reports descriptors in the order in which they became ready, which is the order of the server's
                # replies.
                for sock in (*socks, plain):
                    ready.register(sock, select.EPOLLIN | select.EPOLLET)
                with paused(server):
                    for sock in socks:
                        sock.sendall(message)
                    plain.sendall(b"mn\r\n")
                await_input([*socks, plain])
                order = [descriptor for descriptor, _ in ready.poll(0, BATCH + 1)]
                assert plain.recv(100) == b"MN\r\n"
            assert len(order) == BATCH + 1
            before = order.index(plain.fileno())
            print(f"{before} handshakes were answered before the request")
            assert before <= ANSWERED_BEFORE_MAX


def test_closed_connections_cost_no_handshakes(server):
    message = hello()
    costs = {"open": [], "closed": []}
    for _ in range(ROUNDS):
        for kind, took in costs.items():
            with silent_connections(server) as socks:
                began = cpu_secs(server)
                with paused(server):
                    for sock in socks:
                        sock.sendall(message)
                    if kind == "closed":
                        for sock in socks:
                            sock.close()
                if kind == "open":
                    await_input(socks)
                    took.append(cpu_secs(server) - began)
            if kind == "closed":
                took.append(cpu_secs(server) - began)
    print(f"CPU seconds for {BATCH} connections: {costs}")
    assert min(costs["closed"]) <= CLOSED_COST_SHARE_MAX * min(costs["open"])
