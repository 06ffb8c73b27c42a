"""Provides a server for each module, engine and transport; it is flushed before every test."""

import socket

import pytest

from server import Server, engines


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


TRANSPORTS = {"tcp4": {"host": "127.0.0.1"}, "tcp6": {"host": "::1"}, "unix": {"unix": True}}


def pytest_generate_tests(metafunc):
    """Uses every transport with the first engine and only TCP with the others, because transports do not
    depend on the engine."""
    if "running" in metafunc.fixturenames:
        first, *others = engines(metafunc.config)
        ways = getattr(metafunc.module, "WAYS", TRANSPORTS)
        pairs = [(first, way) for way in ways] + [(engine, "tcp4") for engine in others]
        names = [f"{engine}-{way}" for engine, way in pairs]
        metafunc.parametrize("running", pairs, ids=names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def running(request, start):
    engine, way = request.param
    if way == "tcp6" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with start("-t", "2", engine=engine, **TRANSPORTS[way]) as server:
        yield server


@pytest.fixture
def server(running) -> Server:
    with running.connect() as sock:
        sock.sendall(b"flush_all\r\n")
        assert sock.recv(16) == b"OK\r\n"
    return running
