"""CPU time per request with TLS and pipelines of ten, compared with memcached's."""

import shutil
import subprocess

import pytest

from bench import load
from server import Server

# Number of requests on each of 50 connections. On a busy machine, a run with a time limit could complete few requests,
# and would then mostly measure handshakes.
REQUESTS = 1000
# The maximum ratio of larderd's CPU time to memcached's. The measured ratio is 0.15 or less.
RATIO_MAX = 1.3
WORDS = [
    "--tls", "--tls-skip-verify", "-t", "1", "-c", "50", "--pipeline=10", "--ratio=1:9",
    "--key-maximum=100000", "--data-size=100",
]  # fmt: skip


@pytest.fixture
def options(tmp_path):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem",
         "-out", "chain.pem", "-subj", "/CN=cache.test", "-days", "2"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    files = f"ssl_chain_cert={tmp_path}/chain.pem,ssl_key={tmp_path}/key.pem"
    return ["-t", "1", "-m", "512", "-Z", "-o", files]


def micros(server):
    """Returns the user and system CPU time per request, in µs."""
    with load(server, None, f"--requests={REQUESTS}", *WORDS) as running:
        report = running.report()
    assert report["errors"] == 0, report
    return report["server"]["user_micros"] + report["server"]["system_micros"]


@pytest.mark.larder
def test_tls_takes_no_more_cpu_time_than_memcacheds(start, options, record_property):
    program = shutil.which("memcached")
    assert program, "memcached is not installed"
    with start(*options) as server:
        ours = micros(server)
    with Server(program, "upstream", options) as server:
        theirs = micros(server)
    record_property("micros", {"larderd": ours, "memcached": theirs})
    print(f"larderd {ours:.2f} µs, memcached {theirs:.2f} µs, ratio {ours / theirs:.2f}")
    assert ours <= RATIO_MAX * theirs
