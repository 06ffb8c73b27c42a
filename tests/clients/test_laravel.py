"""Laravel's cache with its locks and its rate limiter, with each of Laravel's clients for Redis."""

import shutil
import subprocess
from pathlib import Path

import pytest

# Debian has the packages.
pytestmark = [pytest.mark.larder, pytest.mark.long]


@pytest.mark.parametrize("client", ["phpredis", "predis"])
@pytest.mark.parametrize("kind", ["segment", "delayed"])
def test_laravel(start, kind, client):
    assert shutil.which("php"), "PHP is not installed"
    script = Path(__file__).with_name("laravel.php")
    with start(engine=kind, resp=True) as server:
        test = ["php", script, str(server.resp_port), client]
        done = subprocess.run(test, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "ok\n", done.stdout + done.stderr
