"""`larder bench` logs in to larderd."""

import json
import subprocess

import pytest

from bench import LARDER


def run(server, tmp_path, protocol, credentials):
    report = tmp_path / "report.json"
    done = subprocess.run(
        [
            str(LARDER), "bench", "-s", server.host, "-p", str(server.port), "-q", "-t", "1", "-c", "3",
            "-n", "20", "-P", protocol, "--reconnect-interval=5", "--ratio=0:1", "--key-maximum=9",
            "--fill", "--hide-histogram", f"--authenticate={credentials}", f"--json-out-file={report}",
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done, report


@pytest.mark.larder
@pytest.mark.parametrize(
    "protocol, options",
    [("binary", ["-S", "--sasl-pwdb"]), ("text", ["-Y"]), ("meta", ["-Y"])],
)
def test_every_connection_logs_in(start, tmp_path, protocol, options):
    passwords = tmp_path / "passwords"
    passwords.write_text("ann:a longer:one\n")
    with start("-t", "1", *options, str(passwords)) as server:
        done, report = run(server, tmp_path, protocol, "ann:a longer:one")
        assert done.returncode == 0, done.stderr
        results = json.loads(report.read_text())
        assert results["median"]["commands"]["get"]["hits"] == 60
        assert results["server_version"], "the question for the version is asked after a login"
        assert "longer" not in report.read_text()
        refused, _ = run(server, tmp_path, protocol, "ann:another")
        assert refused.returncode == 1
        assert "refused the login" in refused.stderr
        assert "another" not in refused.stderr
