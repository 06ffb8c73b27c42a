"""One server for each module, engine and way in; every test has it to itself, flushed."""

import socket

import pytest

from server import Server


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


TRANSPORTS = {"tcp4": {"host": "127.0.0.1"}, "tcp6": {"host": "::1"}, "unix": {"unix": True}}


@pytest.fixture(scope="module", params=TRANSPORTS)
def running(request, start, engine):
    if request.param == "tcp6" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with start("-t", "2", engine=engine, **TRANSPORTS[request.param]) as server:
        yield server


@pytest.fixture
def server(running) -> Server:
    with running.connect() as sock:
        sock.sendall(b"flush_all\r\n")
        assert sock.recv(16) == b"OK\r\n"
    return running
