"""Go clients, tested by the module in `go/`: gomemcache, and the library that memcached_exporter uses."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MODULE = Path(__file__).parent / "go"


# The first run downloads modules and compiles Go's standard library.
@pytest.mark.timeout(900)
def test_gomemcache(server):
    assert shutil.which("go"), "Go is not installed"
    done = subprocess.run(
        ["go", "test", "-count=1", "-v", "./..."],
        cwd=MODULE,
        env={**os.environ, "LARDER_ADDRESS": server.address, "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--- PASS" in done.stdout and "--- SKIP" not in done.stdout, done.stdout
