"""libmemcached's conformance suite (Debian's name is `memccapable`), with both protocols."""

import shutil
import subprocess

import pytest

PROGRAM = shutil.which("memccapable") or shutil.which("memcapable")
CASES = 27


@pytest.mark.parametrize("protocol", ["-a", "-b"])
def test_every_case_passes(start, engine, protocol):
    assert PROGRAM, "libmemcached-tools is not installed"
    with start(engine=engine) as server:
        where = ["-h", server.host, "-p", str(server.port)]
        done = subprocess.run(
            [PROGRAM, *where, protocol, "-v"], capture_output=True, text=True, timeout=120
        )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    assert "All tests passed" in report, report
    assert report.count("[pass]") == CASES, report
