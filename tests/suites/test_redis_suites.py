"""The tests of redis-py (commands, locks, pipelines, near caches) and of django-redis, against larderd.

The source archives of the installed versions contain these tests. A test may fail only because it uses a command in
`UNKNOWN` or `UNKNOWN_OF_COMMANDS`, or for a reason in `REASONS`.
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
# Additional unknown commands and subcommands that redis-py's tests of commands use.
UNKNOWN_OF_COMMANDS = UNKNOWN | set("""
    acl bgsave bitop bitpos dump geoadd geopos getkeys getkeysandflags hincrby hincrbyfloat history hmset hrandfield
    hsetnx lastsave lcs lolwut lpushx malloc-stats module object pause pfadd randomkey replicaof reply rpush rpushx stats
    unblock unpause xack xadd xdel xgroup xlen xtrim zmscore
    """.split())
COMMANDS = "Larder has fewer commands"
NAMES = "CLIENT LIST shows no names of other connections"
SETTINGS = "settings that Larder does not have"
YEARS = "an expiry after 2106"
# Tests of commands that fail for another reason.
REASONS = {
    "test_auth": SETTINGS,
    "test_client_kill": NAMES,
    "test_client_kill_filter_by_addr": NAMES,
    "test_client_kill_filter_by_id": NAMES,
    "test_client_kill_filter_by_laddr": NAMES,
    "test_client_kill_filter_by_maxage": NAMES,
    "test_client_setinfo": "CLIENT LIST does not show the name of the library",
    "test_client_setinfo_with_driver_info": "connects to a server at the default port",
    "test_command": COMMANDS,
    "test_command_count": COMMANDS,
    "test_command_list": COMMANDS,
    "test_config_get": SETTINGS,
    "test_config_get_multi_params": SETTINGS,
    "test_config_set": SETTINGS,
    "test_config_set_multi_params": SETTINGS,
    "test_expiretime": YEARS,
    "test_large_responses": "a value of 5 MB: the limit of items is 1 MB (-I)",
    "test_pexpiretime": YEARS,
    "test_slowlog_get": SETTINGS,
    "test_slowlog_get_limit": SETTINGS,
    "test_slowlog_length": SETTINGS,
}
# Excludes tests of Redis Cluster, of Redis Sentinel, and of servers with certificates.
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


def outcomes(report):
    """Returns the messages of failed tests by class and name, and the names of passed tests."""
    failed, passed = {}, []
    for case in xml.parse(report).getroot().iter("testcase"):
        bad = [part for part in case if part.tag in ("failure", "error")]
        if bad:
            failed[case.get("classname"), case.get("name")] = "".join(f"{part.get('message')}{part.text}" for part in bad)
        elif not any(part.tag == "skipped" for part in case):
            passed.append(case.get("name"))
    return failed, passed


def is_unknown(message, commands):
    command = re.search(r"unknown (?:sub)?command '([^']+)'", message)
    return bool(command) and command[1].lower() in commands


def check(report, done, count, unknown=UNKNOWN, reasons=()):
    """Fails if a test outside `reasons` has failed for a reason other than a command in `unknown`, if a test in
    `reasons` has passed, or if fewer than `count` tests have passed. Does not check why the tests in `reasons` have
    failed."""
    assert report.exists(), done.stdout[-4000:] + done.stderr[-4000:]
    failed, passed = outcomes(report)
    unexplained = {
        test: message[:500] for test, message in failed.items() if test[1] not in reasons and not is_unknown(message, unknown)
    }
    assert not unexplained, unexplained
    assert not set(reasons) & set(passed), f"these tests pass now: {set(reasons) & set(passed)}"
    assert len(passed) >= count, f"{len(passed)} passed, {len(failed)} failed"


def run_redis_py(server, report, tests, *options):
    """Runs files of redis-py's tests. Limits tracebacks to one line, because pytest needs minutes to format longer
    ones."""
    url = f"redis://127.0.0.1:{server.resp_port}/0"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-o", f"cache_dir={report.parent}", "--timeout", "60"]
    return subprocess.run(
        [*command, *options, "--redis-url", url, f"--junitxml={report}", *tests],
        cwd=source("redis"), capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_redis_py(start, tmp_path):
    tests, report = ["tests/test_lock.py", "tests/test_pipeline.py", "tests/test_cache.py"], tmp_path / "report.xml"
    with start("-o", "resp_db=15", resp=True) as server:
        done = run_redis_py(server, report, tests, "-k", LEFT_OUT)
    check(report, done, 100)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("protocol", ["2", "3"])
def test_commands_of_redis_py(start, tmp_path, protocol):
    report, left_out = tmp_path / "report.xml", "not onlycluster and not redismod and not replica"
    with start("-o", "resp_db=15", resp=True) as server:
        done = run_redis_py(server, report, ["tests/test_commands.py"], "-m", left_out, "--protocol", protocol)
    check(report, done, 165, UNKNOWN_OF_COMMANDS, REASONS)


# Excludes all settings of django-redis's tests except one: the names of the others contain these words.
OTHER_SETTINGS = "gzip or herd or json or lz4 or msgpack or sentinel or sharding or usock or zlib or zstd"


@pytest.mark.timeout(900)
def test_django_redis(start, tmp_path):
    sources, report = tmp_path / "sources", tmp_path / "report.xml"
    shutil.copytree(source("django-redis"), sources)
    with start("-o", "resp_db=15", resp=True) as server:
        # The settings contain the port of a server. Replaces it by the port of this server.
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
