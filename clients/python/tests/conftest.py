"""Servers for tests: larderd and Debian's memcached."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))

from server import LARDERD, Server, wait_until  # noqa: E402

from larder_client import PooledClient  # noqa: E402

#: The larderd that the server's own tests use. If it does not exist, the tests use the debug build. scripts/test-python
#: builds larderd if necessary.
LARDERD = next((path for path in [LARDERD, LARDERD.parents[1] / "debug" / "larderd"] if path.exists()), LARDERD)

#: Long time limits, so that no test fails because the machine is busy.
PATIENT = {"timeout": 60.0, "connect_timeout": 60.0}


def start(kind, **settings):
    """Returns a server as a context manager."""
    if kind == "larderd":
        return Server(LARDERD, **settings)
    program = shutil.which("memcached")
    assert program, "memcached is not installed"
    return Server(program, "upstream", **settings)


class Restartable:
    """A context manager for a server that tests can kill and start again on the same port."""

    def __init__(self, kind):
        program = str(LARDERD) if kind == "larderd" else shutil.which("memcached")
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self.address = unused.getsockname()
        user = ["-u", "root"] if os.geteuid() == 0 else []
        self.command = [program, "-l", "127.0.0.1", "-p", str(self.address[1]), "-U", "0", *user]

    def start(self):
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(self.command, stdin=quiet, stdout=quiet, stderr=quiet)
        wait_until(self._listens, "the server's start")

    def _listens(self):
        assert self.process.poll() is None, "the server has exited"
        with socket.socket() as probe:
            return probe.connect_ex(self.address) == 0

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()


@pytest.fixture(scope="session", params=["larderd", "memcached"])
def server(request):
    with start(request.param) as server:
        yield server


@pytest.fixture
def client(server):
    """A client of an empty server."""
    client = PooledClient(server.address, default_noreply=False, **PATIENT)
    client.flush_all()
    yield client
    client.close()
