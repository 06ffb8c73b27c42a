"""libmemcached's tools for operators: what they show of larderd is what is there."""

import shutil
import subprocess

import pytest


def tool(server, name, *options):
    program = shutil.which(name)
    assert program, "libmemcached-tools is not installed"
    command = [program, f"--servers={server.host}:{server.port}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def filled(start, engine):
    with start(engine=engine) as server:
        with server.connect() as sock:
            for i in range(1000):
                size = i * 3
                sock.sendall(f"set key-{i} 0 0 {size}\r\n{'x' * size}\r\n".encode())
                assert sock.recv(64) == b"STORED\r\n"
        yield server


# memcached shows what has sunk to its cold list, which may be nothing yet.
@pytest.mark.larder
def test_memcdump_shows_every_key(filled):
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
