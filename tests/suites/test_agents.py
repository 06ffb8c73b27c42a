"""Monitoring agents with an empty, a full, an evicting, a flash and a tagged server: the agents report no errors, their
figures equal those of the server, and the server's figures are plausible.

Of ten agents, these eight run:

- check_memcached, check_redis, collectd, munin, prometheus-redis-exporter and zabbix-agent2, from Debian
- netdata, from Debian: its collector for memcached, python.d.plugin, without the daemon that stores the figures
- Telegraf, a Go module: its inputs for memcached and Redis, in the program in telegraf/

Two do not run:

- memcached_exporter: neither Debian nor the Go module proxy provides it. clients/test_exporter_statistics.py applies
  its rules, and clients/go/exporter_test.go tests its client library.
- Datadog: PyPI provides the base of its checks, but datadog-mcache 0.0.1, the package of the check for memcached,
  contains no code.

memcached-tool, from Debian's package of memcached, also runs.

The test unpacks Debian's packages instead of installing them, because some of them would start services."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from debian import unpacked
from server import ROOT, free_ports, wait_until

pytestmark = [pytest.mark.larder, pytest.mark.long]

PACKAGES = """
    collectd-core libhiredis0.14 munin-plugins-extra libcache-memcached-perl libstring-crc32-perl
    monitoring-plugins-contrib libredis-perl libio-socket-timeout-perl libperlio-via-timeout-perl libtry-tiny-perl
    prometheus-redis-exporter zabbix-agent2
    """.split()
ITEMS = 100_000
LIMIT = 32 << 20
READS = 100
MEMCACHED_TOOL = "/usr/share/memcached/scripts/memcached-tool"


@pytest.fixture(scope="session")
def root():
    return unpacked("agents", PACKAGES)


@pytest.fixture(scope="session")
def netdata():
    return unpacked("netdata", ["netdata-plugins-python"])


@pytest.fixture(scope="session")
def telegraf():
    """Returns the program in telegraf/. The first build takes half a minute."""
    assert shutil.which("go"), "Go is not installed"
    program = ROOT / "target" / "suites" / "telegraf" / "telegraf"
    done = subprocess.run(
        ["go", "build", "-o", program, "."], cwd=Path(__file__).parent / "telegraf", capture_output=True, text=True,
        env={**os.environ, "GOTOOLCHAIN": "local"}, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return program


@pytest.fixture(scope="module", params=["empty", "full", "evicting", "flash", "tagged"])
def server(request, start, tmp_path_factory):
    kind = request.param
    options = {"full": ["-M"], "flash": ["-o", f"ext_path={tmp_path_factory.mktemp('flash')}/file:128m"]}
    with start("-m", str(LIMIT >> 20), *options.get(kind, []), resp=True) as server:
        hits = 0
        if kind == "tagged":
            fill_with_tags(server)
            wait_until(lambda: server.stats()["curr_items"] == "1000", "the removal of the expired and dropped items")
            hits = read(server, 3000)
        elif kind != "empty":
            fill(server)
            hits = read(server, ITEMS)
        assert_plausible(server, kind, hits)
        server.kind = kind
        yield server


def fill(server):
    """Stores items of 600 bytes, which need twice the limit. A server that does not evict rejects half of them."""
    with server.connect(timeout=60) as sock, sock.makefile("rb") as replies:
        for first in range(0, ITEMS, 1000):
            numbers = range(first, first + 1000)
            sock.sendall(b"".join(b"set key-%d 0 0 600\r\n%s\r\n" % (number, b"x" * 600) for number in numbers))
            answers = {replies.readline() for _ in range(1000)}
            assert answers <= {b"STORED\r\n", b"SERVER_ERROR out of memory storing object\r\n"}, answers


def fill_with_tags(server):
    """Stores 1000 items that expire, 1000 items whose tag is dropped, and 1000 items that stay."""
    with server.connect(timeout=60) as sock, sock.makefile("rb") as replies:
        for first, flag in [(0, b"T1"), (1000, b"Gdropped"), (2000, b"Gkept")]:
            numbers = range(first, first + 1000)
            sock.sendall(b"".join(b"ms key-%d 1 %s q\r\nx\r\n" % (number, flag) for number in numbers))
        sock.sendall(b"mt dropped\r\nmn\r\n")
        assert [replies.readline() for _ in range(2)] == [b"HD\r\n", b"MN\r\n"]


def read(server, count):
    """Reads READS of the first `count` keys, evenly distributed, and as many missing keys. Returns the number of
    hits."""
    hits = 0
    with server.connect(timeout=60) as sock, sock.makefile("rb") as replies:
        for number in range(0, count, count // READS):
            sock.sendall(b"mg none-%d\r\nmg key-%d v\r\n" % (number, number))
            assert replies.readline() == b"EN\r\n"
            if (reply := replies.readline()) != b"EN\r\n":
                assert re.fullmatch(rb"VA (1|600)\r\n", reply) and replies.readline().strip(b"x") == b"\r\n"
                hits += 1
    return hits


def assert_plausible(server, kind, hits):
    """Checks the server's figures with the items that the test has stored and read."""
    stats = {name: int(value) for name, value in server.stats().items() if value.isdigit()}
    reads = 0 if kind == "empty" else 2 * READS
    assert (stats["cmd_get"], stats["get_hits"], stats["get_misses"]) == (reads, hits, reads - hits)
    assert {"empty": hits == 0, "tagged": READS // 4 < hits < READS // 2}.get(kind, hits > READS // 4)
    assert stats["limit_maxbytes"] == LIMIT
    least, most = {"empty": (0, 0), "tagged": (8_000, 100_000)}.get(kind, (LIMIT * 3 // 4, LIMIT))
    assert least <= stats["bytes"] <= most
    items, stored = stats["curr_items"], stats["cmd_set"]
    evictions, rejected = stats["evictions"], stats["store_no_memory"]
    if kind == "evicting":
        assert evictions > 10_000
    elif kind != "flash":  # Flash may be too slow for all evicted items.
        assert evictions == 0
    assert rejected > 10_000 if kind == "full" else rejected == 0
    if kind == "tagged":
        assert (stored, items) == (3000, 1000)
    elif kind != "empty":
        assert stored == ITEMS - rejected
        # With flash, a set may replace an item on flash whose key has the same hash bits in the index (docs/flash.md).
        assert 0 <= stored - evictions - items <= (10 if kind == "flash" else 0)
    # An item takes its 600 bytes, its key and a header.
    if kind in ["full", "evicting"]:
        assert 600 < stats["bytes"] / items < 660
    if kind == "flash":
        assert 10_000 < stats["extstore_objects_used"] < items and stats["get_extstore"] > 0
        assert 600 < stats["extstore_bytes_used"] / stats["extstore_objects_used"] < 660


def environment(root):
    libraries = root / "usr/lib/x86_64-linux-gnu"
    perl = f"{root}/usr/share/perl5:{libraries}/perl5/5.36"
    return {**os.environ, "PERL5LIB": perl, "LD_LIBRARY_PATH": str(libraries)}


def run(root, *command, code=0):
    """Returns the output of a program. Fails if its exit status is not `code`."""
    command = list(map(str, command))
    done = subprocess.run(command, env=environment(root), capture_output=True, text=True, timeout=120)
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def run_until(root, pattern, *command):
    """Returns the output of an agent up to the line that contains the regular expression, and then stops the agent."""
    command = ["timeout", "60", *map(str, command)]
    output = ""
    with subprocess.Popen(
        command, env=environment(root), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as agent:
        for line in agent.stdout:
            output += line
            if re.search(pattern, line):
                agent.terminate()
                return output
    raise AssertionError(f"no line contains {pattern}: {output}")


def numbers(text, separator):
    found = re.findall(rf"^(\S+?){separator}(-?[0-9]+(?:\.[0-9]+)?)$", text, re.M)
    return {name: float(value) for name, value in found}


def assert_equal(server, figures, statistics, stats=None):
    """Compares figures with statistics of the server, by default the present ones. `statistics` maps the agent's names
    to those of the server, or is a list of names that both share. The tolerance allows for items that the server still
    moves to flash. All other figures must be plausible numbers."""
    assert all(0 <= number < 10**18 for number in figures.values()), figures
    stats = stats or {**server.stats(), **server.stats("memory")}
    names = statistics if isinstance(statistics, dict) else {name: name for name in statistics}
    for name, statistic in names.items():
        expected = float(stats[statistic])
        assert abs(figures[name] - expected) <= expected / 50, (name, figures[name], expected)


COMMON = "bytes limit_maxbytes curr_items total_items cmd_get cmd_set get_hits get_misses evictions".split()


def test_check_redis(root, server):
    plugin = root / "usr/lib/nagios/plugins/check_redis"
    options = ["-H", "127.0.0.1", "-p", server.resp_port, "-T", "10,20", "-R", "-f", "-A", "-M", "1G", "-m", "80,90"]
    variables = ["-a", "connected_clients,evicted_keys,expired_keys,used_memory", "-w", ",,,", "-c", ",,,"]
    shown = run(root, "perl", "-w", plugin, *options, *variables)
    assert shown.startswith("OK: REDIS 7.4.0"), shown
    figures = numbers(shown.replace(" ", "\n").replace("c\n", "\n"), "=")
    names = {"evicted_keys": "evictions", "expired_keys": "removed_expired", "used_memory": "bytes"}
    assert_equal(server, figures, names)
    assert figures["maxmemory"] == LIMIT


def test_check_memcached(root, server):
    """The plugin keeps the last figures in the server itself, so it fails if the server is full and does not evict."""
    plugin = root / "usr/lib/nagios/plugins/check_memcached"
    stats, is_full = server.stats(), server.kind == "full"
    command = [plugin, "-H", "127.0.0.1", "-p", server.port, "-T", 1, "-v", "-r", "-E", 1]
    shown = run(root, *command, code=2 if is_full else 0)
    assert ("Could not store" in shown) == is_full, shown
    names = ["cmd_get", "cmd_set", "get_hits", "get_misses", "evictions"]
    assert_equal(server, numbers(shown.replace(" ", "\n"), "="), names, stats)


def test_memcached_tool(root, server):
    def output(mode):
        return run(root, "perl", MEMCACHED_TOOL, f"127.0.0.1:{server.port}", mode)

    def figures(mode):
        return numbers(re.sub("^ +", "", output(mode), flags=re.M), " +")

    assert_equal(server, figures("stats"), COMMON)
    assert figures("settings")["maxbytes"] == LIMIT
    header, *classes = (line.split() for line in output("display").splitlines())
    assert header == "# Item_Size Max_age Pages Count Full? Evicted Evict_Time OOM".split()
    count, evicted = (sum(int(row[column]) for row in classes) for column in [4, 6])
    assert_equal(server, {"count": count, "evicted": evicted}, {"count": "curr_items", "evicted": "evictions"})
    keys = re.findall(r"^key=\S+ ", output("keys"), re.M)
    assert_equal(server, {"keys": len(set(keys))}, {"keys": "curr_items"})


def test_netdata(netdata, server, tmp_path):
    folder = netdata / "usr/lib/netdata"
    (tmp_path / "python.d").mkdir()
    (tmp_path / "python.d.conf").write_text("default_run: no\nmemcached: yes\n")
    (tmp_path / "python.d/memcached.conf").write_text(f"i:\n  name: i\n  host: 127.0.0.1\n  port: {server.port}\n")
    folders = {
        "USER_CONFIG": tmp_path, "STOCK_CONFIG": folder / "conf.d", "PLUGINS": folder / "plugins.d", "LIB": tmp_path,
        "LOCK": tmp_path,
    }  # fmt: skip
    variables = [f"NETDATA_{name}_DIR={path}" for name, path in folders.items()]
    command = [sys.executable, folder / "plugins.d/python.d.plugin", "memcached"]
    # The last chart has the number of touches.
    shown = run_until(netdata, "SET 'cmd_touch'", "env", *variables, *command)
    assert "ERROR" not in shown and "memcached[i] : check success" in shown, shown
    figures = {name: float(value) for name, value in re.findall(r"^SET '(\w+)' = (\S+)$", shown, re.M)}
    names = {name: name for name in COMMON if name not in ["bytes", "limit_maxbytes"]}
    assert_equal(server, figures, {"used": "bytes", **names})
    assert figures["used"] + figures["avail"] == LIMIT


@pytest.mark.timeout(900)
def test_telegraf(root, telegraf, server):
    shown = run(root, telegraf, f"127.0.0.1:{server.port}", f"127.0.0.1:{server.resp_port}")
    figures = numbers(shown, " ")
    names = {
        "used_memory": "bytes", "evicted_keys": "evictions", "expired_keys": "removed_expired",
        "keyspace_hits": "get_hits", "keyspace_misses": "get_misses", "maxmemory": "limit_maxbytes",
    }  # fmt: skip
    names = {f"redis.{name}": statistic for name, statistic in names.items()}
    assert_equal(server, figures, {**{f"memcached.{name}": name for name in COMMON}, **names})
    hits, misses = figures["memcached.get_hits"], figures["memcached.get_misses"]
    assert figures["redis.keyspace_hitrate"] == pytest.approx(hits / max(hits + misses, 1))


def test_munin(root, server, tmp_path):
    figures = {}
    for kind in ["bytes", "counters", "rates"]:
        plugin = tmp_path / f"memcached_{kind}"
        plugin.symlink_to(root / "usr/share/munin/plugins/memcached_")
        shown = run(root, "env", "host=127.0.0.1", f"port={server.port}", "perl", plugin)
        figures |= numbers(shown, r"\.value ")
    names = {
        "bytes_allocated": "bytes", "curr_items": "curr_items", "cache_hits": "get_hits", "cache_misses": "get_misses",
        "cmd_set": "cmd_set",
    }  # fmt: skip
    assert_equal(server, figures, {f"memcache_{name}": statistic for name, statistic in names.items()})


def test_collectd(root, server, tmp_path):
    folders = {"PluginDir": root / "usr/lib/collectd", "TypesDB": root / "usr/share/collectd/types.db"}
    lines = [f'{name} "{path}"' for name, path in {**folders, "BaseDir": tmp_path, "PIDFile": tmp_path / "pid"}.items()]
    lines += ["Interval 1", "WriteThreads 1", "LoadPlugin csv", "LoadPlugin memcached", '<Plugin csv>\nDataDir "stdout"\n</Plugin>']
    lines += [f'<Plugin memcached>\n<Instance "i">\nHost "127.0.0.1"\nPort "{server.port}"\n</Instance>\n</Plugin>']
    (tmp_path / "conf").write_text("\n".join(["Hostname h", "FQDNLookup false", *lines, ""]))
    command = [root / "usr/sbin/collectd", "-f", "-C", tmp_path / "conf"]
    shown = run_until(root, "memcached_octets", *command)
    figures = {}
    for name, values in re.findall(r"h/memcached-i/(\S+) interval=\S+ [0-9.]+:(\S+)", shown):
        # collectd writes nan for the number of processes, which it does not know, and for the ratio of no reads.
        figures |= {f"{name}:{place}": float(value) for place, value in enumerate(values.split(":")) if value != "nan"}
    names = {
        "df-cache:0": "bytes", "memcached_items-current:0": "curr_items", "memcached_command-get:0": "cmd_get",
        "memcached_command-set:0": "cmd_set", "memcached_ops-hits:0": "get_hits", "memcached_ops-misses:0": "get_misses",
        "memcached_ops-evictions:0": "evictions",
    }  # fmt: skip
    assert_equal(server, figures, names)
    assert abs(figures["df-cache:0"] + figures["df-cache:1"] - LIMIT) <= 1


@contextlib.contextmanager
def scraped(root, server):
    (port,) = free_ports(1)
    exporter = root / "usr/bin/prometheus-redis-exporter"
    address = ["-redis.addr", f"redis://127.0.0.1:{server.resp_port}", "-web.listen-address", f"127.0.0.1:{port}"]
    process = subprocess.Popen([exporter, *address], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        process.terminate()
        log = process.communicate()[1]
    yield page, log


def test_redis_exporter(root, server):
    with scraped(root, server) as (page, log):
        assert "level=error" not in log, log
    figures = {name: float(value) for name, value in re.findall(r"^(redis_\w+) (\S+)$", page, re.M)}
    assert figures["redis_up"] == 1 and figures["redis_memory_max_bytes"] == LIMIT and figures["redis_slowlog_length"] == 0
    names = {
        "memory_used_bytes": "bytes", "evicted_keys_total": "evictions", "expired_keys_total": "removed_expired",
        "keyspace_hits_total": "get_hits", "keyspace_misses_total": "get_misses", "config_maxclients": "max_connections",
    }  # fmt: skip
    assert_equal(server, figures, {f"redis_{name}": statistic for name, statistic in names.items()})


def test_zabbix(root, server, tmp_path):
    conf = tmp_path / "conf"
    conf.write_text(f"Server=127.0.0.1\nLogType=console\nHostname=h\nControlSocket={tmp_path}/sock\nPidFile={tmp_path}/pid\n")
    agent = root / "usr/sbin/zabbix_agent2"
    memcached, redis = f"tcp://127.0.0.1:{server.port}", f"tcp://127.0.0.1:{server.resp_port}"

    def value(key, *parameters):
        shown = run(root, agent, "-c", conf, "-t", f"{key}[{','.join(parameters)}]")
        assert "NOTSUPPORTED" not in shown, shown
        found = re.search(r"\[s\|(.*)\]\s*$", shown, re.S)
        assert found, shown
        return json.loads(found[1])

    def figures(page):
        return numbers("\n".join(f"{name} {text}" for name, text in page.items()), " ")

    for kind in ["items", "sizes", "slabs", "settings"]:
        assert_equal(server, figures(value("memcached.stats", memcached, "", "", kind)), [])
    assert_equal(server, figures(value("memcached.stats", memcached)), COMMON)
    pages = value("redis.info", redis).values()
    names = {
        "used_memory": "bytes", "maxmemory": "limit_maxbytes", "keyspace_hits": "get_hits",
        "keyspace_misses": "get_misses", "evicted_keys": "evictions", "expired_keys": "removed_expired",
    }  # fmt: skip
    assert_equal(server, {name: number for page in pages for name, number in figures(page).items()}, names)
    assert value("memcached.ping", memcached) == value("redis.ping", redis) == 1
    assert value("redis.slowlog.count", redis) == 0
    assert value("redis.config", redis)["maxmemory"] == str(LIMIT)
