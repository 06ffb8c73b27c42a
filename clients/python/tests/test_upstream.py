"""Runs pymemcache's own tests with the classes of larder_client. docs/python.md lists the failing tests with their
reasons."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pymemcache
from conftest import start

HERE = Path(__file__).resolve().parent
UPSTREAM = Path(pymemcache.__file__).parent / "test"
DOCS = HERE.parents[2] / "docs" / "python.md"

WITH_MOCKS = ["test_client", "test_client_hash", "test_client_retry", "test_rendezvous", "test_serde"]
WITH_SERVER = ["test_integration"]


def run(modules, tmp_path, *options, **environment):
    """Runs test modules of pymemcache. Returns the names of the failed tests, and the number of passed tests."""
    failed = tmp_path / "failed"
    paths = [str(UPSTREAM / f"{module}.py") for module in modules]
    plugins = ["-p", "larder_plugin", "-p", "no:cacheprovider", "-W", "ignore"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *options, *paths]
    settings = {"PYTHONPATH": str(HERE / "upstream"), "LARDER_UPSTREAM_FAILED": str(failed)}
    output = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **settings, **environment}, capture_output=True, text=True
    ).stdout
    passed = re.search(r"(\d+) passed", output)
    assert passed, output
    return set(failed.read_text().split()), int(passed[1])


def test_the_list_in_the_documentation_is_right(tmp_path):
    listed = set(re.findall(r"^\| `(test_\w+\.py::[^`]+)` \|", DOCS.read_text(), re.MULTILINE))
    failed, passed = run(WITH_MOCKS, tmp_path)
    assert sorted(failed) == sorted(listed)
    assert passed > 300


def test_with_a_server_all_pass(tmp_path):
    with start("memcached") as server:
        options = ["--server", server.host, "--port", str(server.port)]
        failed, passed = run(WITH_SERVER, tmp_path, *options, LARDER_UPSTREAM_PORT=str(server.port))
    assert failed == set()
    assert passed > 50
