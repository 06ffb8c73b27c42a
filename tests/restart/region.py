"""A region file on tmpfs, and the servers that use it one after the other."""

import os
import signal
import tempfile
import time
from pathlib import Path

from server import TIMEOUT_SECS

TMPFS = Path("/dev/shm")
# The signals with which most tests stop a server. The items survive each of them.
ENDS = ["SIGTERM", "SIGINT", "SIGUSR1", "SIGKILL"]


def end(server, name):
    """Stops the server with a signal and waits until its process has exited. Returns its output."""
    os.kill(server.pid, getattr(signal, name))
    status = server.process.wait(TIMEOUT_SECS)
    output = server.output()
    server.stop()
    assert status == (-signal.SIGKILL if name == "SIGKILL" else 0), f"{name}: {status}: {output}"
    return output


class Region:
    """A directory on tmpfs with the region `file`. `launch(*options)` creates a `Server`."""

    def __init__(self, launch):
        self.launch, self.servers = launch, []
        self.dir = tempfile.TemporaryDirectory(prefix="larder-restart-", dir=TMPFS)
        self.folder = Path(self.dir.name)
        self.file = self.folder / "region"

    def start(self, *options, **more):
        """Starts a server with this file. The end of the `with` block stops a server that still runs."""
        server = self.launch("-e", str(self.file), *options, **more)
        self.servers.append(server)
        return server

    def restart(self, server, name, *options, **more):
        """Stops the server with a signal and starts another server, which must find the items."""
        end(server, name)
        server = self.start(*options, **more)
        assert_warm(server)
        return server

    def allocated(self):
        """Returns the memory that the file occupies, in bytes."""
        return self.file.stat().st_blocks * 512

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for server in self.servers:
            if exc[0] is not None and server.log.exists():
                print(f"log of server {server.pid}: {server.output()}")
            server.stop()
        self.dir.cleanup()


def state(server):
    """Returns `restart_state` of the server: cold, warm or repaired."""
    return server.stats()["restart_state"]


def assert_warm(server):
    """Checks that the server has found the items of the previous server."""
    assert state(server) in ("warm", "repaired"), server.output()


def wait_past(moment):
    """Waits until a moment of the monotonic clock has passed."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)
