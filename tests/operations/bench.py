"""`larder bench` beside a test: load as fast as it goes, and what it saw."""

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path

from server import BUILT

LARDER = BUILT / "larder"
# The load's own time, and a machine that is busy with other things.
GRACE_SECS = 60


class Load:
    """A load that runs. `report()` waits for its end: requests, errors, latencies and the server's CPU
    time a request in µs."""

    def __init__(self, server, seconds, *options):
        self.dir = tempfile.TemporaryDirectory(prefix="larder-load-")
        self.file = Path(self.dir.name) / "report.json"
        self.seconds = seconds
        command = [
            str(LARDER), "bench", "-s", server.host, "-p", str(server.port), "--verify", "-q",
            "--hide-histogram", f"--test-time={seconds}", f"--json-out-file={self.file}", *options,
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
    """A `Load` that does not outlive its block."""
    running = Load(server, seconds, *options)
    try:
        yield running
    finally:
        running.stop()
