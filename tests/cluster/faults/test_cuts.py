"""Groups on partitioned networks: runs each scenario of `cuts.py`."""

import subprocess
import sys

import pytest

import cuts

pytestmark = pytest.mark.larder


@pytest.mark.parametrize("scenario", [scenario.__name__ for scenario in cuts.SCENARIOS])
def test_cuts(scenario):
    try:
        subprocess.run(["unshare", "--net", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces need root")
    command = ["unshare", "--net", sys.executable, cuts.__file__, scenario]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
