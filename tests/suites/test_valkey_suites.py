"""Valkey's own tests of strings, expiries, keys, transactions, the protocol and tracking, against larderd.

Debian's source archive of Valkey contains these tests. A test may fail because of a command or a setting that Larder
does not have, or for another reason that this file lists.
"""

import re
import subprocess

import pytest

from debian import source
from server import free_ports

pytestmark = [pytest.mark.larder, pytest.mark.long]

# Commands that these tests use and that Larder does not have (docs/compatibility-redis.md).
UNKNOWN_COMMANDS = """
    debug hmset hset lcs lpush reply rpush sadd save shutdown srandmember xgroup zadd
    """.split()
# Settings that Larder does not have, for replication, files on disk, scripts, and types other than strings.
UNKNOWN_SETTINGS = """
    appendonly availability-zone import-mode list-max-listpack-size lua-time-limit min-replicas-to-write
    repl-ping-replica-period replica-serve-stale-data tracking-table-max-keys
    """.split()
FLUSHED = "flushed items are counted until they are removed, within seconds"
SCRIPTS = "scripts are known ones"
REASONS = {
    "Very big payload in GET/SET": "a value of 4 MB: the limit of items is 1 MB (-I)",
    "EXPIRE / EXPIREAT / PEXPIRE / PEXPIREAT Expiration time is already expired": "items with a past expiry are deleted, not expired",
    "PEXPIRETIME returns absolute expiration time in milliseconds": "expiries of a minute and more are kept in seconds",
    "PEXPIREAT with big integer works": "expiries end in 2106",
    "Server should actively expire keys incrementally": FLUSHED,
    "DBSIZE": FLUSHED,
    "DEL all keys": FLUSHED,
    "DEL all keys again (DB 0)": FLUSHED,
    "COPY basic usage for string": FLUSHED,
    "Nested MULTI are not allowed": "MULTI within MULTI does not abort the transaction, as in redis-server",
    "Tracking invalidation message of eviction keys should be before response": "an eviction of chosen items, by CONFIG SET maxmemory-policy",
    "CLIENT GETREDIR provides correct client id": "continues a test that is left out",
    "Tracking only occurs for scripts when a command calls a read-only command": SCRIPTS,
}
# These tests would fail for reasons like those above. The run skips them, because they would also leave connections
# open and make later tests fail.
SKIPPED = [
    "Invalid keys should not be tracked for scripts in NOLOOP mode",
    "Tracking info is correct",
    "/OOM|use-memory|while queueing commands #2",
]
PASSES_MIN = {
    "type/string": 60,
    "expire": 40,
    "keyspace": 20,
    "scan": 6,
    "multi": 20,
    "protocol": 15,
    "tracking": 20,
}


@pytest.fixture(scope="session")
def valkey():
    return source("valkey", "trixie")


def adapted(sources, folder):
    """Returns a copy of the tests without the functions and the setting that Larder does not have. In the copy, the
    test after a failed test uses a new connection."""
    subprocess.run(["cp", "-r", sources / "tests", folder], check=True)
    for name, old, new in [
        ("support/server.tcl", "    r function flush\n", ""),
        ("support/test.tcl", "            lappend ::tests_failed $details\n", "            lappend ::tests_failed $details\n            catch {reconnect}\n"),
        ("unit/tracking.tcl", "            r config set tracking-table-max-keys 1000000\n", ""),
    ]:  # fmt: skip
        file = folder / "tests" / name
        text = file.read_text()
        assert old in text, f"{name} has changed"
        file.write_text(text.replace(old, new))
    return folder


def reason(name, message):
    """Returns whether the failure has an accepted reason."""
    if command := re.search(r"unknown (?:sub)?command '([^']+)'", message):
        return command[1].lower() in UNKNOWN_COMMANDS
    if setting := re.search(r"number of arguments for CONFIG SET - '([^']+)'", message):
        return setting[1] in UNKNOWN_SETTINGS
    return name in REASONS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", PASSES_MIN)
def test_valkey(valkey, start, tmp_path, suite):
    with start(resp=True) as server:
        skipped = [word for name in SKIPPED for word in ("--skiptest", name)]
        command = ["tclsh", "tests/test_helper.tcl", "--host", "127.0.0.1", "--port", str(server.resp_port)]
        options = ["--singledb", "--durable", "--clients", "1", "--ignore-encoding", "--ignore-digest", "--timeout", "300"]
        done = subprocess.run(
            [*command, *options, "--baseport", str(free_ports(1)[0] + 32), "--single", f"unit/{suite}", *skipped],
            cwd=adapted(valkey, tmp_path), capture_output=True, text=True, errors="replace",
        )  # fmt: skip
    output = re.sub(r"\x1b?\[[0-9;]*m", "", done.stdout)
    # The output repeats the failures at its end.
    report = output.split("\n*** [err]")[0]
    parts = re.split(r"\n(?=\[(?:ok|err|ignore|skip|testing|exception)\])", report)
    passed = sum(part.startswith("[ok]") for part in parts)
    failed = dict(re.match(r"\[err\]: (.*?)(?: in tests/\S+)?\n(.*)", part, re.S).groups() for part in parts if part.startswith("[err]"))
    unexplained = {name: message[:500] for name, message in failed.items() if not reason(name, message)}
    assert not unexplained, "\n".join(f"{name}: {message}" for name, message in unexplained.items())
    assert passed >= PASSES_MIN[suite], f"{passed} passed, {len(failed)} failed: {output[-2000:]}{done.stderr[-2000:]}"
