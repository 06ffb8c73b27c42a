"""The tests of redis-py (locks, pipelines, near caches) and of django-redis, against larderd.

The source archive of the installed version contains them. A test may fail only because it uses a command in `UNKNOWN`.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as xml

import pytest

from server import ROOT

pytestmark = [pytest.mark.larder, pytest.mark.long]

# Commands that these tests use and that Larder does not have (docs/compatibility-redis.md).
UNKNOWN = {"bitfield", "hlen", "hset", "lpush", "monitor", "sadd", "zadd"}
# Tests of Redis Cluster, Redis Sentinel, and of servers with certificates.
LEFT_OUT = "not ClusterCache and not SentinelCache and not SSLCache"


def source(package):
    """Returns the unpacked source archive of the installed version of a package."""
    version = importlib.metadata.version(package)
    name = f"{package.replace('-', '_')}-{version}"
    folder = ROOT / "target" / "suites"
    if not (folder / name).exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", folder]
        subprocess.run([*command, f"{package}=={version}"], check=True)
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name


def failures(report):
    """Returns the failed tests with their messages, and the number of passed tests."""
    failed, passed = {}, 0
    for case in xml.parse(report).getroot().iter("testcase"):
        bad = [part for part in case if part.tag in ("failure", "error")]
        if bad:
            failed[f"{case.get('classname')}::{case.get('name')}"] = "".join(f"{part.get('message')}{part.text}" for part in bad)
        elif not any(part.tag == "skipped" for part in case):
            passed += 1
    return failed, passed


def is_explained(message):
    command = re.search(r"unknown command '([^']+)'", message)
    return bool(command) and command[1].lower() in UNKNOWN


def check(report, done, count):
    """Fails if a test has failed for another reason than an unknown command, or if fewer than `count` tests have
    passed."""
    assert report.exists(), done.stdout[-4000:] + done.stderr[-4000:]
    failed, passed = failures(report)
    unexplained = {test: message[:500] for test, message in failed.items() if not is_explained(message)}
    assert not unexplained, unexplained
    assert passed >= count, f"{passed} passed, {len(failed)} failed"


@pytest.mark.timeout(900)
def test_redis_py(start, tmp_path):
    tests, report = ["tests/test_lock.py", "tests/test_pipeline.py", "tests/test_cache.py"], tmp_path / "report.xml"
    with start("-o", "resp_db=15", resp=True) as server:
        command = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={tmp_path}", "-k", LEFT_OUT, "--timeout", "60"]
        url = f"redis://127.0.0.1:{server.resp_port}/0"
        done = subprocess.run(
            [*command, "--redis-url", url, f"--junitxml={report}", *tests],
            cwd=source("redis"), capture_output=True, text=True,
        )  # fmt: skip
    check(report, done, 100)


# An expression that excludes all settings of django-redis's tests except one. The names of the others contain these
# words.
OTHER_SETTINGS = "gzip or herd or json or lz4 or msgpack or sentinel or sharding or usock or zlib or zstd"


@pytest.mark.timeout(900)
def test_django_redis(start, tmp_path):
    sources, report = tmp_path / "sources", tmp_path / "report.xml"
    shutil.copytree(source("django-redis"), sources)
    with start("-o", "resp_db=15", resp=True) as server:
        # The settings name the port of a server.
        for file in (sources / "tests").rglob("*.py"):
            file.write_text(file.read_text().replace(":6379", f":{server.resp_port}"))
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", sources, "--timeout", "60",
                "-k", f"not ({OTHER_SETTINGS})", f"--junitxml={report}",
                "tests/test_backend.py", "tests/test_client.py", "tests/test_session.py",
            ],
            cwd=sources, env={**os.environ, "PYTHONPATH": str(sources)}, capture_output=True, text=True,
        )  # fmt: skip
    check(report, done, 100)
