"""Runs `larder bench` during a test, at the maximum rate, and returns its report."""

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path

from server import BUILT

LARDER = BUILT / "larder"
# Additional seconds to start and stop the load on a busy machine.
GRACE_SECS = 60


class Load:
    """A running load. `report()` waits until the load exits, and returns requests, errors, latencies and the server's
    CPU time per request in µs."""

    def __init__(self, server, seconds, *options):
        ends = [f"--test-time={seconds}"] if seconds else []
        self.dir = tempfile.TemporaryDirectory(prefix="larder-load-")
        self.file = Path(self.dir.name) / "report.json"
        self.seconds = seconds or 0
        command = [
            str(LARDER), "bench", "-s", server.host, "-p", str(server.port), "--verify", "-q",
            "--hide-histogram", *ends, f"--json-out-file={self.file}", *options,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def running(self):
        return self.process.poll() is None

    def report(self):
        _, said = self.process.communicate(timeout=self.seconds + GRACE_SECS)
        assert self.process.returncode == 0, said
        median = json.loads(self.file.read_text())["median"]
        return {**median["commands"]["total"], "server": median["server"]}

    def stop(self):
        if self.running():
            self.process.kill()
        self.process.communicate()
        self.dir.cleanup()


@contextlib.contextmanager
def load(server, seconds, *options):
    """Provides a `Load` with this duration in seconds. If `seconds` is None, `options` contain the number of requests.
    The end of the `with` block stops the load."""
    running = Load(server, seconds, *options)
    try:
        yield running
    finally:
        running.stop()
