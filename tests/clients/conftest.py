"""Provides a server for each combination of module, engine and transport, and flushes it before every test.

The default tier uses every transport with the first engine. The long tier adds the other engines only over TCP, because
transports do not depend on the engine."""

import shutil
import socket
import subprocess

import pytest

from server import Server, engines, free_ports, wait_until
from tiers import long


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


TRANSPORTS = {"tcp4": {"host": "127.0.0.1"}, "tcp6": {"host": "::1"}, "unix": {"unix": True}}


def pytest_generate_tests(metafunc):
    if "running" in metafunc.fixturenames:
        first, *others = engines(metafunc.config)
        ways = getattr(metafunc.module, "WAYS", TRANSPORTS)
        params = [pytest.param((first, way), id=f"{first}-{way}") for way in ways]
        params += [long((engine, "tcp4"), id=f"{engine}-tcp4") for engine in others]
        metafunc.parametrize("running", params, indirect=True, scope="module")


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


@pytest.fixture(scope="module")
def reference():
    """Provides the port of Debian's redis-server."""
    program = shutil.which("redis-server")
    assert program, "redis-server is not installed"
    (port,) = free_ports(1)
    process = subprocess.Popen([program, "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "the start of redis-server")
        yield port
    finally:
        process.terminate()
        process.wait()
