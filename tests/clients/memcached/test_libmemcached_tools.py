"""libmemcached's command-line tools and memcached-tool: with larderd, their output is correct, and their output and
exit status are the same as with Debian's memcached."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from server import Server


def tool(server, name, *options, folder=None):
    program = shutil.which(name)
    assert program, "libmemcached-tools is not installed"
    command = [program, f"--servers={server.host}:{server.port}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)


@pytest.fixture
def folder(tmp_path):
    """Creates files that `memccp` copies to a server."""
    (tmp_path / "first").write_text("one line\n")
    (tmp_path / "second").write_text("two\nlines\n")
    return tmp_path


@pytest.fixture(scope="module")
def filled(start, engine):
    with start(engine=engine) as server:
        with server.connect() as sock:
            for i in range(1000):
                size = i * 3
                sock.sendall(f"set key-{i} 0 0 {size}\r\n{'x' * size}\r\n".encode())
                assert sock.recv(64) == b"STORED\r\n"
        yield server


# Not run with memcached: it lists only the items of its cold LRU list, which may still be empty.
@pytest.mark.larder
def test_memcdump_lists_every_key(filled):
    done = tool(filled, "memcdump")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(f"key-{i}" for i in range(1000))


def test_memcstat_shows_the_statistics(filled):
    done = tool(filled, "memcstat")
    assert done.returncode == 0, done.stderr
    shown = dict(line.strip().split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert shown["curr_items"] == "1000"
    assert shown["pid"] == str(filled.pid)


def test_memcping_finds_it(filled):
    assert tool(filled, "memcping").returncode == 0


# Commands on two keys, as in a shell script. The test compares the output and exit status of each step.
STEPS = """
    memcping
    memccp first second
    memccat first second
    memccat --flags first
    memccat absent
    memccp --add first
    memccp --replace second
    memccp --set --flags=7 --expire=1000 first
    memccat --flags first
    memcexist first
    memcexist absent
    memctouch --expire=1000 second
    memctouch --expire=1000 absent
    memcrm first
    memcrm first
    memccat first second
    memcflush
    memccat second
    memcexist second
    memccp second
    memcflush --expire=1000
    memccat second
"""


@pytest.mark.parametrize("protocol", [[], ["--binary"]], ids=["text", "binary"])
def test_the_tools_have_the_same_output_and_status(start, engine, memcached, folder, protocol):
    def transcript(server):
        tool(server, "memcflush")
        for name, *options in map(str.split, STEPS.strip().splitlines()):
            # memcping has no option for the protocol, so it always uses the default one.
            spoken = [] if name == "memcping" else protocol
            done = tool(server, name, *spoken, *options, folder=folder)
            yield (name, *options), done.returncode, done.stdout, done.stderr

    with start(engine=engine) as server:
        assert list(transcript(server)) == list(transcript(memcached))


@pytest.mark.parametrize("page", [[], ["--args=settings"], ["--args=items"], ["--args=slabs"]])
def test_memcstat_lists_all_names_of_memcached(start, engine, memcached, page):
    def names(server):
        with server.connect() as sock:
            sock.sendall(b"set key 0 0 5\r\nvalue\r\n")
            assert sock.recv(64) == b"STORED\r\n"
        done = tool(server, "memcstat", *page)
        assert done.returncode == 0, done.stderr
        first, *lines = done.stdout.splitlines()
        assert first.startswith("Server: ")
        return {line.strip().split(": ")[0] for line in lines if line.strip()}

    with start(engine=engine) as server:
        missing = names(memcached) - names(server)
    # Debian's memcached 1.6.18 shows these lines and lines about external storage. Version 1.6.45 shows neither.
    former = {"slab_reassign_evictions_nomem", "slab_automove_freeratio"}
    assert {name for name in missing if not name.startswith("ext_")} <= former


def test_memcstat_shows_the_version_and_an_analysis(start, engine, memcached):
    def shown(server, option):
        done = tool(server, "memcstat", option)
        assert done.returncode == 0, done.stderr
        # Numbers may differ between the servers, but the lines must be the same.
        return [re.sub(r"[0-9.]+", "0", line) for line in done.stdout.splitlines()]

    with start(engine=engine) as server:
        for option in ("--server-version", "--analyze", "--analyze=latency"):
            assert shown(server, option) == shown(memcached, option)


def test_memcaslap_loads_without_an_error(start, engine):
    program = shutil.which("memcaslap")
    assert program, "libmemcached-tools is not installed"
    with start(engine=engine) as server:
        servers = f"--servers={server.host}:{server.port}"
        load = ["--threads=1", "--concurrency=8", "--execute_number=2000", "--verify=1"]
        command = [program, servers, *load]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        shown = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
        assert int(shown["cmd_set"]) > 0 and int(shown["cmd_get"]) > 0, done.stdout
        wrong = ("get_misses", "verify_misses", "verify_failed")
        assert [int(shown[name]) for name in wrong] == [0, 0, 0], done.stdout


SCRIPT = Path("/usr/share/memcached/scripts/memcached-tool")
FEW = b"set small 7 0 1\r\n1\r\nset large 0 0 2000\r\n" + b"x" * 2000 + b"\r\nget small\r\nquit\r\n"


def script(server, command):
    """Returns the output of memcached-tool, without ages and times."""
    assert SCRIPT.exists(), "Debian's memcached has it"
    with server.connect() as sock:
        sock.sendall(FEW)
        while sock.recv(4096):
            pass
    address = f"{server.host}:{server.port}"
    done = subprocess.run([SCRIPT, address, command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return re.sub(r"\d+s\b", "s", done.stdout.replace(address, "")), done.stderr


@pytest.mark.parametrize("command", ["display", "dump", "sizes"])
def test_memcached_tool_shows_the_same(start, engine, command):
    with start(engine=engine) as server, Server(shutil.which("memcached"), "upstream") as memcached:
        (ours, said), (theirs, also_said) = script(server, command), script(memcached, command)
    assert said == also_said
    if command == "dump":
        ours, theirs = sorted(ours.split("\n")), sorted(theirs.split("\n"))
    assert ours == theirs


@pytest.mark.parametrize("command", ["stats", "settings"])
def test_memcached_tool_shows_the_statistics(start, engine, command):
    with start(engine=engine) as server:
        shown, _ = script(server, command)
    names = {"stats": ["curr_items", "get_hits"], "settings": ["maxconns", "evictions"]}[command]
    assert all(re.search(rf"^\s*{name}\s+\w+$", shown, re.MULTILINE) for name in names), shown
