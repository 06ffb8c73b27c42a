"""Groups on partitioned networks: runs each scenario of `cuts.py`."""

import subprocess
import sys

import pytest

import cuts
from tiers import long

pytestmark = pytest.mark.larder

OF_LONG_TIER = [cuts.the_importing_leader_can_not_reach_the_exporting_one, cuts.the_importing_leader_can_not_reach_etcd]


def params():
    names = [(scenario.__name__, scenario in OF_LONG_TIER) for scenario in cuts.SCENARIOS]
    return [long(name) if is_long else name for name, is_long in names]


@pytest.mark.parametrize("scenario", params())
def test_cuts(scenario):
    if not cuts.has_namespaces():
        pytest.skip("network namespaces need root")
    command = ["unshare", "--net", sys.executable, cuts.__file__, scenario]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
