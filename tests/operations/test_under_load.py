"""Administrative commands on a server under full load. No request may fail or hang."""

import os
import signal
import ssl
import subprocess
import time

import pytest

from bench import load
from server import MIB, TIMEOUT_SECS, wait_until

pytestmark = pytest.mark.larder

# Durations of the load in seconds. On a busy machine, the load may end before all commands were sent. The test then
# tries a longer load.
LOAD_SECS = (6, 20, 60)
# Maximum duration of each reply. The limit is high enough for a machine of two cores with other load. `pytest -s` shows
# the measured durations.
SLOWEST_SECS_MAX = 5.0
# The load has 400 MB of values, so memory is full after at most a few seconds.
BUSY = [
    "-t", "1", "-c", "50", "--pipeline=4", "--ratio=1:3", "--key-maximum=100000",
    "--data-size=4000", "--distinct-client-seed",
]  # fmt: skip


class Operator:
    """Sends administrative commands on its own connection and records the duration of each reply."""

    def __init__(self, sock):
        self.sock, self.replies, self.took = sock, sock.makefile("rb"), {}

    def ask(self, line):
        began = time.monotonic()
        self.sock.sendall(line.encode() + b"\r\n")
        answer = self.replies.readline().decode().strip()
        verb = line.split()[0]
        self.took[verb] = max(self.took.get(verb, 0), time.monotonic() - began)
        return answer

    def stat(self, name):
        self.sock.sendall(b"stats\r\n")
        found = dict(line.split()[1:3] for line in iter(self.replies.readline, b"END\r\n"))
        return int(found[name.encode()])

    def await_full(self, items):
        wait_until(lambda: self.stat("curr_items") >= items, "filling the server")


def judge(operator, report, record_property):
    """Checks that no request failed or took too long. Adds the durations to the test's record."""
    slowest = {**operator.took, "load": report["latency"]["max"] / 1e6}
    record_property("slowest_secs", slowest)
    print(f"requests/s {report['per_second']:.0f}, slowest answers in s: {slowest}")
    assert report["errors"] == 0, report
    assert report["hits"] > 0, report
    assert max(slowest.values()) <= SLOWEST_SECS_MAX, slowest


def fill(sock, items):
    """Stores values of the load's size under keys that the load does not use."""
    value = b" 0 0 4000 noreply\r\n" + b"x" * 4000 + b"\r\n"
    for first in range(0, items, 1000):
        keys = range(first, min(first + 1000, items))
        sock.sendall(b"".join(b"set fill-%d" % key + value for key in keys))


def under_load(server, operate, *options):
    """Runs `operate()` during a load that lasts longer than the call. Returns the load's report."""
    for seconds in LOAD_SECS:
        with load(server, seconds, *options) as running:
            operate()
            if running.running():
                return running.report()
    raise AssertionError("the load ended before the commands")


def test_memory_shrinks_and_everything_is_flushed(start, record_property):
    with start("-m", "1024", "-t", "2") as server, server.connect() as sock:
        operator = Operator(sock)

        def shrink():
            operator.await_full(10_000)
            for limit in (256, 1024, 256):
                assert operator.ask(f"cache_memlimit {limit}") == "OK"
                time.sleep(0.5)
                assert operator.ask("flush_all") == "OK"
                time.sleep(0.2)

        fill(sock, 225_000)
        operator.await_full(225_000)
        report = under_load(server, shrink, *BUSY)
        assert operator.stat("limit_maxbytes") == 256 * MIB
        wait_until(lambda: server.rss() <= (256 + 32) * MIB, "shrinking to the limit")
    judge(operator, report, record_property)


def certify(folder):
    """Creates a self-signed certificate, which replaces the existing one."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", "new-key.pem", "-out", "new-chain.pem", "-subj", "/CN=cache.test",
         "-addext", "subjectAltName=DNS:cache.test", "-days", "2"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    for name in ("key", "chain"):
        os.replace(folder / f"new-{name}.pem", folder / f"{name}.pem")
    return ssl.PEM_cert_to_DER_cert((folder / "chain.pem").read_text())


def shown(server):
    """Returns the certificate that a new connection receives."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(server.connect()) as sock:
        return sock.getpeercert(True)


def test_certificates_are_reloaded(start, tmp_path, record_property):
    certify(tmp_path)
    files = f"ssl_chain_cert={tmp_path}/chain.pem,ssl_key={tmp_path}/key.pem"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with start("-m", "256", "-t", "2", "-Z", "-o", files) as server:
        with context.wrap_socket(server.connect()) as sock:
            operator = Operator(sock)

            def read_again():
                operator.await_full(1000)
                for _ in range(3):
                    expected = certify(tmp_path)
                    assert operator.ask("refresh_certs") == "OK"
                    assert shown(server) == expected
                    expected = certify(tmp_path)
                    os.kill(server.pid, signal.SIGHUP)
                    wait_until(lambda: shown(server) == expected, "reading certificates at SIGHUP")
                    assert operator.ask("mn") == "MN"

            report = under_load(server, read_again, "--tls", "--tls-skip-verify", *BUSY)
    judge(operator, report, record_property)


# Seconds by which a shutdown with each signal may exceed `SLOWEST_SECS_MAX`. A graceful shutdown waits up to ten
# seconds for pending requests.
ENDS = {"SIGTERM": 0, "SIGINT": 0, "SIGUSR1": 10}


@pytest.mark.parametrize("name", ENDS)
def test_shutdown_under_load_is_quick(start, name):
    server = start("-m", "64", "-t", "2")
    try:
        with load(server, 120, *BUSY) as running, server.connect() as sock:
            Operator(sock).await_full(1000)
            assert running.running(), "the load ended before the signal"
            began = time.monotonic()
            os.kill(server.pid, getattr(signal, name))
            assert server.process.wait(TIMEOUT_SECS) == 0
            assert time.monotonic() - began <= SLOWEST_SECS_MAX + ENDS[name]
    finally:
        server.stop()
