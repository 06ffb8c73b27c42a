"""Go clients. The module in `go/` tests gomemcache, the library that memcached_exporter uses, and go-redis. Another
module, which needs a newer Go, tests rueidis."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

# The first run takes two minutes, because it compiles Go's standard library.
pytestmark = pytest.mark.long

MODULE = Path(__file__).parent / "go"


def run(package, module=MODULE, **environment):
    """Runs the tests of one package in the module."""
    assert shutil.which("go"), "Go is not installed"
    done = subprocess.run(
        ["go", "test", "-count=1", "-v", package],
        cwd=module,
        env={**os.environ, **environment, "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--- PASS" in done.stdout and "--- SKIP" not in done.stdout, done.stdout


@pytest.mark.timeout(900)
def test_gomemcache(server):
    run(".", LARDER_ADDRESS=server.address)


@pytest.mark.timeout(900)
@pytest.mark.larder
@pytest.mark.parametrize("kind", ["segment", "delayed"])
def test_go_redis(start, kind):
    with start(engine=kind, resp=True) as server:
        run("./resp", LARDER_RESP_ADDRESS=f"127.0.0.1:{server.resp_port}")


@pytest.mark.timeout(900)
@pytest.mark.larder
def test_rueidis(start):
    """The near cache of rueidis, with `CLIENT TRACKING`."""
    module = MODULE / "rueidis"
    needed = re.search(r"^go (\d+)\.(\d+)", (module / "go.mod").read_text(), re.M)
    found = re.search(r"go(\d+)\.(\d+)", subprocess.run(["go", "version"], capture_output=True, text=True).stdout)
    if tuple(map(int, found.groups())) < tuple(map(int, needed.groups())):
        pytest.skip(f"rueidis needs Go {needed[1]}.{needed[2]}; this is {found[0]}")
    with start(resp=True) as server:
        run(".", module, LARDER_RESP_ADDRESS=f"127.0.0.1:{server.resp_port}")
