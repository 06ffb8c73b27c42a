"""Starts and exits that the other tests do not cover."""

import os
import pwd
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

import bmemcached
import pytest

from contents import Contents, client
from items import look_up
from region import assert_warm, end
from rounds import Interrupted
from server import TIMEOUT_SECS, wait_until
from tiers import by_tier

pytestmark = pytest.mark.larder

SIZES = [10, 3000, 400_000]
INTERRUPTED, INTERRUPTED_OF_LONG = 10, 30


def test_crashes_while_starting(request, region):
    """A server that is killed at any moment of its start leaves the file intact. The test kills at most two starts in
    succession, because after three failed starts the server discards the file."""
    asked, rng = request.config.getoption, random.Random(1)
    server = region.start("-m", "128")
    contents = Contents(server, SIZES, small=20_000)
    contents.check(server)
    for _ in range(by_tier(request.config, INTERRUPTED, INTERRUPTED_OF_LONG)):
        end(server, "SIGKILL")
        for _ in range(2):
            options = ["-e", str(region.file), "-m", "128", "-t", str(rng.choice([1, 4]))]
            delay = rng.uniform(0, rng.choice([0.008, 0.03]))
            Interrupted(delay, asked("--server"), options=options, runtime=asked("--runtime")).stop()
        server = region.start("-m", "128")
        assert_warm(server)
        assert int(server.stats()["curr_items"]) == contents.live()
    contents.check(server)


# SIGQUIT is not tested, because background processes of a shell ignore it.
@pytest.mark.parametrize("name", ["SIGABRT", "SIGXCPU"])
def test_other_signals_keep_the_items(region, name):
    server = region.start()
    contents = Contents(server, SIZES, small=1000)
    contents.check(server)
    number = getattr(signal, name)
    os.kill(server.pid, number)
    assert server.process.wait(TIMEOUT_SECS) == -number
    server.stop()
    server = region.start()
    assert_warm(server)
    contents.check(server)


@pytest.mark.parametrize("command", [b"shutdown", b"shutdown graceful"])
def test_shutdown_by_command_keeps_the_items(region, command):
    server = region.start("-A")
    contents = Contents(server, SIZES, small=1000)
    contents.check(server)
    with server.connect() as sock:
        sock.sendall(command + b"\r\n")
        assert server.process.wait(TIMEOUT_SECS) == 0
    server.stop()
    server = region.start("-A")
    assert_warm(server)
    contents.check(server)


@pytest.mark.parametrize("option", ["-k", "-L"])
def test_locked_and_huge_pages(region, option):
    server = region.start("-m", "32", option)
    contents = Contents(server, SIZES, small=1000)
    contents.check(server)
    for options in ([], [option]):
        server = region.restart(server, "SIGKILL", "-m", "32", *options)
        contents.check(server)


class Daemon:
    """A server that the test starts with its own options, possibly in the background."""

    def __init__(self, binary, folder, *options):
        self.path, self.host = str(folder / "socket"), None
        self.pid_file = folder / "pid"
        command = [binary, "-s", self.path, "-a", "777", "-P", str(self.pid_file), *options]
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        wait_until(self.serves, "listening")
        self.pid = int(self.pid_file.read_text())

    def serves(self):
        assert self.process.poll() in (None, 0), self.process.stderr.read()
        try:
            self.connect().close()
            return self.pid_file.exists() and self.pid_file.read_text().strip() != ""
        except OSError:
            return False

    def connect(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(TIMEOUT_SECS)
        sock.connect(self.path)
        return sock

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        for path in (self.path, self.pid_file):
            Path(path).unlink(missing_ok=True)
        if self.process.poll() is None:
            self.process.wait(TIMEOUT_SECS)
        self.process.stderr.close()


def user_options():
    return ["-u", "root"] if os.geteuid() == 0 else []


@pytest.mark.parametrize("path", ["region", "./region", None])
def test_a_daemon_keeps_its_items(request, region, path):
    """The server runs in the background. Some paths are relative to the directory in which it was started."""
    binary = request.config.getoption("--server")
    options = [*user_options(), "-d", "-e", path or str(region.file)]
    for value in (None, b"1", b"2"):
        server = Daemon(binary, region.folder, *options)
        try:
            with client(server) as user:
                assert user.get("key") == value
                assert user.set("key", b"%d" % (int(value or 0) + 1))
        finally:
            server.kill()
        time.sleep(0.1)
    assert region.file.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_server_that_becomes_another_user_keeps_its_items(request, region):
    binary = request.config.getoption("--server")
    nobody = pwd.getpwnam("nobody")
    os.chown(region.folder, nobody.pw_uid, nobody.pw_gid)
    for value in (None, b"1", b"2"):
        server = Daemon(binary, region.folder, "-u", "nobody", "-e", str(region.file))
        try:
            with client(server) as user:
                assert user.get("key") == value
                assert user.set("key", b"%d" % (int(value or 0) + 1))
        finally:
            server.kill()


def test_items_of_the_binary_protocol_are_kept(region):
    server = region.start()
    for value in (None, "1", "2"):
        other = bmemcached.Client(server.address, "", "", socket_timeout=60)
        assert other.get("key") == value
        assert other.set("key", str(int(value or 0) + 1), time=1000)
        other.disconnect_all()
        assert look_up(server, ["key"])["key"].ttl >= 990
        server = region.restart(server, "SIGKILL")
