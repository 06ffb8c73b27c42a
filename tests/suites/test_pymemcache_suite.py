"""Runs pymemcache's own integration tests against larderd. pymemcache's package contains these tests."""

import re
import subprocess
import sys
from pathlib import Path

import pymemcache.test
import pytest

pytestmark = [pytest.mark.larder, pytest.mark.long]

TESTS = Path(pymemcache.test.__file__).parent / "test_integration.py"


@pytest.mark.timeout(300)
def test_pymemcache(start, tmp_path):
    with start() as server:
        command = [sys.executable, "-m", "pytest", "-q", "--rootdir", TESTS.parent, "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "--server", "127.0.0.1", "--port", str(server.port), TESTS],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    # The tests over TLS need certificates that the package does not contain.
    passed, skipped = map(int, re.search(r"(\d+) passed, (\d+) skipped", done.stdout).groups())
    assert passed >= 100 and skipped <= 3, done.stdout[-4000:]
