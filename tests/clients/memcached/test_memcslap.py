"""A short run of libmemcached's load generator, which uses the C client in several threads."""

import shutil
import subprocess

import pytest

PROGRAM = shutil.which("memcslap")


@pytest.mark.parametrize("protocol", [[], ["--binary"]], ids=["text", "binary"])
@pytest.mark.parametrize("test", ["set", "get", "mget"])
def test_a_short_load_leaves_the_server_counting_it(start, engine, protocol, test):
    assert PROGRAM, "libmemcached-tools is not installed"
    with start(engine=engine) as server:
        command = [
            PROGRAM,
            f"--servers={server.host}:{server.port}",
            f"--test={test}",
            "--concurrency=4",
            "--execute-number=500",
            "--initial-load=500",
            *protocol,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        stats = server.stats()
    assert int(stats["cmd_set"]) >= 500
    if test != "set":
        assert int(stats["get_hits"]) >= 500
