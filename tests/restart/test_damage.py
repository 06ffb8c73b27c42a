"""Damaged files, and files of other programs. The server either refuses to start, with a clear message, or starts with
or without the items. It never returns a wrong value."""

import os
import random
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from contents import Contents, client, value
from items import look_up
from region import Region, assert_warm, end, state
from server import MIB, ExitedAtStart, Server, wait_until
from tiers import long

pytestmark = pytest.mark.larder

HEAD = 64 << 10
OPTIONS = ["-m", "32", "-t", "2"]
SEEDS, SEEDS_OF_LONG = range(8), range(8, 40)


@pytest.fixture(scope="module")
def stored(start):
    """Provides the region file of a server that has exited, and its items."""
    with Region(start) as region:
        server = region.start(*OPTIONS)
        contents = Contents(server, [10, 1000, 300_000], small=3000)
        end(server, "SIGTERM")
        yield region, contents


@pytest.fixture
def damaged(stored, start):
    """Provides the items, and a copy of that file for the test to damage."""
    source, contents = stored
    with Region(start) as region:
        # `cp` keeps the holes of the file.
        subprocess.run(["cp", "--sparse=always", "-p", source.file, region.file], check=True)
        yield region, contents


def survives(region, contents=None):
    """Starts a server with the file. If the server starts, checks that no value is wrong, that the server works, and
    that the next server has its items. Returns `restart_state`, or None if the server refuses to start."""
    try:
        server = region.start(*OPTIONS)
    except ExitedAtStart as refused:
        refuses(region, refused)
        return None
    found = look_up(server, contents.items) if contents else {}
    for key, item in found.items():
        expected = contents.items[key]
        assert item is None or (expected and item.value == expected[0]), (key, item.value[:60])
    began = state(server)
    if began == "cold":
        assert not any(found.values())
    # These commands visit all items, and all data to which the index and the table refer.
    with server.connect() as sock, sock.makefile("rb") as replies:
        sock.sendall(b"lru_crawler metadump all\r\n")
        for line in iter(replies.readline, b"END\r\n"):
            assert line.startswith((b"key=", b"OK")), line
    with client(server) as user:
        for size in (1, 1000, 300_000):
            assert user.set(f"new-{size}", value(1, size))
        for first in range(0, 40 * MIB, MIB):
            user.set_many({f"more-{first + n}": value(n, 10_000) for n in range(100)}, noreply=True)
        assert user.set("last", b"1")
        assert user.get("last") == b"1"
    server = region.restart(server, "SIGKILL", *OPTIONS)
    with client(server) as user:
        assert user.get("last") == b"1"
        assert user.flush_all()
    end(server, "SIGTERM")
    return began


def refuses(region, refused):
    """Checks the exit status and the message of a server that refused the file."""
    assert refused.status in (64, 71), refused
    assert str(region.file) in refused.output, refused
    assert "panicked" not in refused.output, refused


def is_refused(region):
    with pytest.raises(ExitedAtStart) as refused:
        region.start(*OPTIONS)
    refuses(region, refused.value)


def test_the_copy_of_a_file_is_used(damaged):
    """Checks that an undamaged copy works, because the other tests damage such copies."""
    region, contents = damaged
    server = region.start(*OPTIONS)
    assert_warm(server)
    contents.check(server)


def data_end(path):
    """Returns the offset of the end of the last data in a file, after which there are only holes."""
    with open(path, "rb") as file:
        end = 0
        try:
            while True:
                end = os.lseek(file.fileno(), os.lseek(file.fileno(), end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError:
            return end


@pytest.mark.parametrize(
    "length",
    [0, 1, 4095, 4096, 8192, HEAD, MIB, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, -4096, -1],
)
def test_a_truncated_file(damaged, length):
    """Truncates the file to a number of bytes, to a share of its data, or by a number of bytes."""
    region, contents = damaged
    if isinstance(length, float):
        length = int(length * data_end(region.file))
    elif length < 0:
        length += region.file.stat().st_size
    os.truncate(region.file, length)
    survives(region, contents)


@pytest.mark.parametrize("more", [1, 4096, 64 * MIB])
def test_a_longer_file(damaged, more):
    region, contents = damaged
    os.truncate(region.file, region.file.stat().st_size + more)
    survives(region, contents)


def flip(region, offsets, rng):
    """Changes the bytes at these offsets."""
    with open(region.file, "r+b") as file:
        for offset in offsets:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ rng.randrange(1, 256)]))


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 12, 16, 24, 32, 40, 48, 56, 64, 100, 128, 256, 1000, 4095])
def test_a_flipped_byte_of_the_header(damaged, offset):
    region, contents = damaged
    flip(region, [offset], random.Random(offset))
    survives(region, contents)


@pytest.mark.parametrize("seed", [*SEEDS, *map(long, SEEDS_OF_LONG)])
def test_flipped_bytes_anywhere_at_the_beginning(damaged, seed):
    region, contents = damaged
    rng = random.Random(seed)
    flip(region, [rng.randrange(HEAD) for _ in range(rng.choice([1, 3, 30, 1000]))], rng)
    survives(region, contents)


@pytest.mark.parametrize("first, last", [(0, 4096), (4096, 8192), (8192, HEAD), (0, HEAD), (HEAD, 4 * HEAD)])
def test_zeros_at_the_beginning(damaged, first, last):
    region, contents = damaged
    with open(region.file, "r+b") as file:
        file.seek(first)
        file.write(bytes(last - first))
    survives(region, contents)


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"this is no region\n" * 1000, bytes(64 * MIB), random.Random(1).randbytes(33 * MIB)],
    ids=["empty", "one byte", "text", "zeros", "random"],
)
def test_a_file_of_other_content(region, content):
    region.file.write_bytes(content)
    os.chmod(region.file, 0o600)
    assert survives(region) in ("cold", None)
    if any(content[:8]):
        assert region.file.read_bytes() == content, "the content of others is not overwritten"


def test_a_region_of_another_boot(damaged):
    """The header contains the kernel's boot ID. A copy from before a reboot has a different boot ID."""
    region, contents = damaged
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    big = bytes.fromhex(boot)
    with open(region.file, "rb") as file:
        head = file.read(HEAD)
    forms = [big, big[::-1], big[7::-1] + big[:7:-1], boot.encode()]
    offset = max(head.find(form) for form in forms)
    if offset < 0:
        pytest.skip("the header has the boot id in another form")
    flip(region, [offset], random.Random(1))
    assert survives(region, contents) in ("cold", None)


def test_a_directory_is_refused(region):
    region.file.mkdir()
    is_refused(region)


@pytest.mark.parametrize("aim", ["region", "missing", "text"])
def test_a_symbolic_link_is_refused(damaged, aim):
    region, _ = damaged
    target = region.folder / aim
    if aim == "region":
        region.file.rename(region.folder / "moved")
        target = region.folder / "moved"
    elif aim == "text":
        target.write_text("a text\n")
    if region.file.exists():
        region.file.unlink()
    region.file.symlink_to(target)
    is_refused(region)
    assert aim != "missing" or not target.exists()
    assert aim != "text" or target.read_text() == "a text\n"


def test_a_pipe_is_refused(region):
    os.mkfifo(region.file, 0o600)
    is_refused(region)


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/dev/full", "/proc/self/status", "/"])
def test_special_files_are_refused(start, path):
    with pytest.raises(ExitedAtStart) as refused:
        start("-e", path).stop()
    assert refused.value.status in (64, 71) and path in refused.value.output


def test_a_missing_directory_is_refused(region):
    region.file = region.folder / "missing" / "region"
    is_refused(region)
    assert not region.file.parent.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_the_file_of_another_user_is_refused(damaged, mode):
    region, _ = damaged
    os.chmod(region.file, mode)
    os.chown(region.file, 65534, 65534)
    is_refused(region)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written_is_refused(damaged):
    region, _ = damaged
    os.chmod(region.file, stat.S_IRUSR)
    is_refused(region)


def test_a_file_of_memcached_is_refused(region):
    """memcached writes FILE.meta when it exits. larderd cannot read its items."""
    meta = region.folder / "region.meta"
    meta.write_text("Kthis is memcached's\n")
    is_refused(region)
    assert meta.read_text() == "Kthis is memcached's\n"
    meta.unlink()
    assert survives(region) == "cold"


def test_a_region_that_memcached_left_is_refused(region):
    program = shutil.which("memcached")
    assert program, "memcached is not installed"
    theirs = Server(program, "upstream", ["-e", str(region.file), "-m", "64"])
    region.servers.append(theirs)
    with client(theirs) as user:
        assert user.set("key", b"1")
    end(theirs, "SIGUSR1")
    before = region.file.read_bytes()
    is_refused(region)
    assert region.file.read_bytes() == before


def test_a_file_that_is_not_on_tmpfs_works_with_a_warning(region, tmp_path):
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True).stdout
    if kind.strip() == "tmpfs":
        pytest.skip(f"{tmp_path} is on tmpfs")
    region.file = tmp_path / "region"
    server = region.start(*OPTIONS)
    assert str(region.file) in server.output() and "tmpfs" in server.output()
    contents = Contents(server, [10, 300_000], small=100)
    contents.check(region.restart(server, "SIGKILL", *OPTIONS))


@pytest.fixture
def narrow(region):
    """Provides a tmpfs of 24 MiB for the region."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", region.folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a file system can't be mounted")
    try:
        yield region
    finally:
        for server in region.servers:
            server.stop()
        subprocess.run(["umount", region.folder], check=True)


def test_a_small_tmpfs_does_not_crash_the_server(narrow):
    """The server refuses to start, or uses less memory than its limit and logs a warning."""
    try:
        server = narrow.start("-m", "64", "-t", "2")
    except ExitedAtStart as refused:
        refuses(narrow, refused)
        return
    with client(server) as user:
        keys = [f"more-{n}" for n in range(6000)]
        for n, key in enumerate(keys):
            user.set(key, value(n, 10_000), noreply=True)
        assert user.set("last", b"1") and user.get("last") == b"1"
        for n, key in enumerate(keys):
            found = user.get(key)
            assert found in (None, value(n, 10_000)), key
        assert user.stats()[b"curr_items"] > 500
    wait_until(lambda: "file system of -e is full" in server.output() or "room" in server.output(), "a warning")
    server = narrow.restart(server, "SIGKILL", "-m", "64", "-t", "2")
    with client(server) as user:
        assert user.get("last") == b"1"
