"""Agents of Debian (check_memcached, check_redis, collectd, munin, prometheus-redis-exporter, zabbix-agent2) with an
empty server, an evicting server, a server with flash and a server with tags: the agents' figures equal those of the
server, and are plausible.

The test unpacks the packages instead of installing them, because some of them would start services."""

import contextlib
import os
import re
import subprocess
import time
import urllib.request

import pytest

from debian import unpacked
from server import free_ports, wait_until

pytestmark = [pytest.mark.larder, pytest.mark.long]

PACKAGES = """
    collectd-core libhiredis0.14 munin-plugins-extra libcache-memcached-perl libstring-crc32-perl
    monitoring-plugins-contrib libredis-perl libio-socket-timeout-perl libperlio-via-timeout-perl libtry-tiny-perl
    prometheus-redis-exporter zabbix-agent2
    """.split()
ITEMS = 100_000
LIMIT = 32 << 20


@pytest.fixture(scope="session")
def root():
    return unpacked("agents", PACKAGES)


@pytest.fixture(scope="module", params=["empty", "evicting", "flash", "tagged"])
def server(request, start, tmp_path_factory):
    flash = ["-o", f"ext_path={tmp_path_factory.mktemp('flash')}/file:128m"] if request.param == "flash" else []
    with start("-m", str(LIMIT >> 20), *flash, resp=True) as server:
        fill(server, request.param)
        yield server


def fill(server, kind):
    """Stores items, reads some items and some missing keys, and makes some items expire or drops their tags."""
    if kind == "empty":
        return
    value, count = (b"x" * 600, ITEMS) if kind != "tagged" else (b"x" * 10, 2000)
    with server.connect(timeout=60) as sock, sock.makefile("rb") as replies:
        for first in range(0, count, 1000):
            numbers = range(first, first + 1000)
            if kind == "tagged":
                tag = b" Gtag" if first else b" T1"
                sets = [b"ms key-%d %d%s q\r\n%s\r\n" % (number, len(value), tag, value) for number in numbers]
            else:
                sets = [b"set key-%d 0 0 %d noreply\r\n%s\r\n" % (number, len(value), value) for number in numbers]
            sock.sendall(b"".join(sets) + b"mn\r\n")
            assert replies.readline() == b"MN\r\n"
        sock.sendall(b"mt tag\r\n" if kind == "tagged" else b"mn\r\n")
        replies.readline()
        for number in range(100):
            sock.sendall(b"mg key-%d\r\nmg none-%d\r\n" % (count - 1 - number, number))
            assert replies.readline() in (b"HD\r\n", b"EN\r\n") and replies.readline() == b"EN\r\n"
    if kind == "tagged":
        wait_until(lambda: server.stats()["curr_items"] == "0", "the removal of all items")
    elif kind == "evicting":
        assert int(server.stats()["evictions"]) > 10_000
    else:
        assert int(server.stats()["extstore_objects_used"]) > 10_000


def run(root, *command, code=0):
    libraries = root / "usr/lib/x86_64-linux-gnu"
    perl = f"{root}/usr/share/perl5:{libraries}/perl5/5.36"
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, "PERL5LIB": perl, "LD_LIBRARY_PATH": str(libraries)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def numbers(text, separator):
    found = re.findall(rf"^(\S+?){separator}(-?[0-9]+(?:\.[0-9]+)?)$", text, re.M)
    return {name: float(value) for name, value in found}


def is_near(number, expected):
    """Returns whether a figure equals that of the server, with a tolerance for the agent's own requests."""
    return abs(number - int(expected)) <= 50 + int(expected) // 50


def test_check_redis(root, server):
    plugin = root / "usr/lib/nagios/plugins/check_redis"
    options = ["-H", "127.0.0.1", "-p", server.resp_port, "-T", "10,20", "-R", "-f", "-A", "-M", "1G", "-m", "80,90"]
    variables = ["-a", "connected_clients,evicted_keys,expired_keys,used_memory", "-w", ",,,", "-c", ",,,"]
    shown = run(root, "perl", "-w", plugin, *options, *variables)
    assert shown.startswith("OK: REDIS 7.4.0"), shown
    figures = numbers(shown.replace(" ", "\n").replace("c\n", "\n"), "=")
    stats = {**server.stats(), **server.stats("memory")}
    assert is_near(figures["evicted_keys"], stats["evictions"])
    assert is_near(figures["expired_keys"], stats["removed_expired"])
    assert 0 <= figures["used_memory"] <= figures["maxmemory"] == LIMIT


def test_check_memcached(root, server):
    plugin = root / "usr/lib/nagios/plugins/check_memcached"
    shown = run(root, plugin, "-H", "127.0.0.1", "-p", server.port, "-T", 1, "-v", "-r", "-E", 1)
    stats = server.stats()
    figures = numbers(shown.replace(" ", "\n"), "=")
    for name in ["cmd_get", "cmd_set", "get_hits", "get_misses", "evictions"]:
        assert is_near(figures[name], stats[name]), shown


def test_munin(root, server, tmp_path):
    figures = {}
    for kind in ["bytes", "counters", "rates"]:
        plugin = tmp_path / f"memcached_{kind}"
        plugin.symlink_to(root / "usr/share/munin/plugins/memcached_")
        shown = run(root, "env", "host=127.0.0.1", f"port={server.port}", "perl", plugin)
        figures |= numbers(shown, r"\.value ")
    stats = server.stats()
    for name, statistic in [
        ("bytes_allocated", "bytes"), ("curr_items", "curr_items"), ("cache_hits", "get_hits"),
        ("cache_misses", "get_misses"), ("cmd_set", "cmd_set"),
    ]:  # fmt: skip
        assert is_near(figures[f"memcache_{name}"], stats[statistic]), (name, figures)
    assert figures["memcache_bytes_allocated"] <= LIMIT


def test_collectd(root, server, tmp_path):
    folders = {"PluginDir": root / "usr/lib/collectd", "TypesDB": root / "usr/share/collectd/types.db"}
    lines = [f'{name} "{path}"' for name, path in {**folders, "BaseDir": tmp_path, "PIDFile": tmp_path / "pid"}.items()]
    lines += ["Interval 1", "LoadPlugin csv", "LoadPlugin memcached", '<Plugin csv>\nDataDir "stdout"\n</Plugin>']
    lines += [f'<Plugin memcached>\n<Instance "i">\nHost "127.0.0.1"\nPort "{server.port}"\n</Instance>\n</Plugin>']
    (tmp_path / "conf").write_text("\n".join(["Hostname h", "FQDNLookup false", *lines, ""]))
    command = [root / "usr/sbin/collectd", "-f", "-C", tmp_path / "conf"]
    shown = run(root, "timeout", 5, *command, code=124)
    df = [float(number) for number in re.findall(r"memcached-i/df-cache\S* interval=\S+ [0-9.]+:([0-9.]+):([0-9.]+)", shown)[-1]]
    stats = server.stats()
    assert is_near(df[0], stats["bytes"]) and abs(sum(df) - LIMIT) <= 1, df
    items = re.findall(r"memcached_items-current\S* interval=\S+ [0-9.]+:([0-9.]+)", shown)
    assert is_near(float(items[-1]), stats["curr_items"])


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
        figures = numbers(page, " ")
    stats = {**server.stats(), **server.stats("memory")}
    for name, expected in [
        ("redis_up", 1), ("redis_memory_used_bytes", stats["bytes"]), ("redis_memory_max_bytes", LIMIT),
        ("redis_evicted_keys_total", stats["evictions"]), ("redis_expired_keys_total", stats["removed_expired"]),
        ("redis_keyspace_hits_total", stats["get_hits"]), ("redis_config_maxclients", stats["max_connections"]),
        ("redis_slowlog_length", 0),
    ]:  # fmt: skip
        found = re.search(rf"^{name} (\S+)$", page, re.M)
        assert found and is_near(float(found[1]), expected), (name, figures.get(name), expected)


def test_zabbix(root, server, tmp_path):
    conf = tmp_path / "conf"
    conf.write_text(f"Server=127.0.0.1\nLogType=console\nHostname=h\nControlSocket={tmp_path}/sock\nPidFile={tmp_path}/pid\n")
    agent = root / "usr/sbin/zabbix_agent2"
    memcached, redis = f"tcp://127.0.0.1:{server.port}", f"tcp://127.0.0.1:{server.resp_port}"
    keys = [f"memcached.stats[{memcached},,,{kind}]" for kind in ["", "items", "sizes", "slabs", "settings"]]
    keys += [f"memcached.ping[{memcached}]", f"redis.slowlog.count[{redis}]"]
    keys += [f"redis.{name}[{redis}]" for name in ["ping", "info", "config"]]
    for key in keys:
        shown = run(root, agent, "-c", conf, "-t", key.replace(",,,]", "]"))
        assert "NOTSUPPORTED" not in shown, shown
