"""Go libraries, by the module in `go/`: gomemcache, the usual client, and the one that
memcached_exporter scrapes through."""

import os
import shutil
import subprocess
from pathlib import Path

MODULE = Path(__file__).parent / "go"


def test_gomemcache(server):
    assert shutil.which("go"), "Go is not installed"
    done = subprocess.run(
        ["go", "test", "-count=1", "-v", "./..."],
        cwd=MODULE,
        env={**os.environ, "LARDER_ADDRESS": server.address, "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--- PASS" in done.stdout and "--- SKIP" not in done.stdout, done.stdout
