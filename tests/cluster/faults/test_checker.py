"""A short run of the checker. `scripts/test --long checker` runs it for half an hour."""

import subprocess
import sys
from pathlib import Path

import pytest

import cuts

pytestmark = [pytest.mark.larder, pytest.mark.long]

# The schedule of this seed has a kill, pauses, a cut between nodes, a cut from etcd, a kill of etcd, transfers and
# moves.
SEED, SECONDS = 110, 20


@pytest.mark.parametrize("ack", ["deletes", "writes"])
def test_the_guarantees_hold_under_faults(ack):
    if not cuts.has_namespaces():
        pytest.skip("network namespaces need root")
    checker = Path(cuts.__file__).with_name("checker.py")
    command = [sys.executable, checker, "--seconds", str(SECONDS), "--seed", str(SEED), "--ack", ack]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
