"""Output of larderd to a full disk or a closed pipe."""

import subprocess

import pytest
from server import LARDERD

pytestmark = pytest.mark.larder


@pytest.mark.parametrize(
    "options, status",
    [("--help", 0), ("-h", 0), ("-V", 0), ("-i", 0), ("--check-config", 0), ("--no-such-option", 1), ("-u nobody-here", 67)],
)
def test_the_status_does_not_depend_on_the_output(options, status):
    with open("/dev/full", "wb") as full:
        command = [LARDERD, *options.split(), "-l", "127.0.0.1:0"]
        assert subprocess.run(command, stdout=full, stderr=full, timeout=20).returncode == status
