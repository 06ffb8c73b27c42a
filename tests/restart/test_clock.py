"""The system clock is wrong at the first start with a memory file. After a restart with the correct clock, absolute
times are interpreted as Unix times, and items keep their lifetimes."""

import struct
import time

import pytest
import redis

from contents import client
from region import assert_warm, end

pytestmark = pytest.mark.larder

HOUR_SECS = 3600
LIFE_SECS, SLACK_SECS = 1000, 20
HEADER_LEN = 4096


def note_at(file):
    """Returns the offset and the value of the field in the memory file's header that contains the server's clock at the
    boot of the machine, in microseconds."""
    expected = (time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)) * 1e6
    header = struct.unpack_from(f"<{HEADER_LEN // 8}Q", file)
    [index] = [n for n, word in enumerate(header) if abs(word - expected) < SLACK_SECS * 1e6]
    return 8 * index, header[index]


def ask(server, line):
    """Sends one line on a new connection. Returns the reply's lines."""
    with server.connect() as sock:
        sock.sendall(line + b"\r\nquit\r\n")
        return sock.makefile("rb").read().splitlines()


def check_items(server, ends):
    """Checks the lifetimes of the items that `store_items` has stored, over memcached's protocol and RESP."""
    for key in ["absolute", "relative", "touched", "resp"]:
        [line, *_] = ask(server, b"mg %s t" % key.encode())
        assert line.startswith(b"HD t"), (key, line)
        assert is_near(line[4:], ends - time.time()), (key, line)
    with redis.Redis(port=server.resp_port) as user:
        assert is_near(user.expiretime("absolute"), ends)
        assert is_near(user.pexpiretime("resp") // 1000, ends)
        assert is_near(user.time()[0], time.time())
    assert is_near(server.stats()["time"], time.time())
    dumped = [line for line in ask(server, b"lru_crawler metadump all") if line.startswith(b"key=")]
    assert len(dumped) == 4
    for line in dumped:
        fields = dict(field.split(b"=") for field in line.split())
        assert is_near(fields[b"exp"], ends), line
        assert is_near(fields[b"la"], time.time()), line


def store_items(server, ends):
    """Stores items that expire at `ends`, and one that has expired."""
    with client(server) as user:
        assert user.set("absolute", b"1", expire=ends)
        assert user.set("relative", b"1", expire=LIFE_SECS)
        assert user.set("touched", b"1") and user.touch("touched", expire=ends)
        assert user.set("past", b"1", expire=int(time.time()) - SLACK_SECS)
        assert user.get("past") is None
    with redis.Redis(port=server.resp_port) as user:
        assert user.set("resp", b"1", pxat=ends * 1000)


def is_near(value, expected):
    return abs(int(value) - expected) < SLACK_SECS


def set_clock(region, wrong_by):
    """Changes the memory file as if its server had started while the clock was wrong."""
    with open(region.file, "r+b") as file:
        at, note = note_at(file.read(HEADER_LEN))
        file.seek(at)
        file.write(struct.pack("<Q", note + wrong_by * 1_000_000))


@pytest.mark.parametrize("wrong_by", [HOUR_SECS, -HOUR_SECS])
@pytest.mark.parametrize("kept_in", ["region", "image"])
def test_a_restart_corrects_a_clock_that_was_wrong(start, region, kept_in, wrong_by):
    image = region.folder / "image"
    options = ["-o", f"memory_image={image}"] if kept_in == "image" else []
    end(region.start(*options), "SIGTERM")
    set_clock(region, wrong_by)
    server = region.start(*options, resp=True)
    assert_warm(server)
    ends = int(time.time()) + LIFE_SECS
    store_items(server, ends)
    check_items(server, ends)
    end(server, "SIGUSR1" if kept_in == "image" else "SIGTERM")
    if kept_in == "image":
        assert image.exists()
        region.file.unlink()
    server = region.start(*options, resp=True)
    check_items(server, ends)
    if kept_in == "image":
        assert not image.exists(), "the items come from the image"
    else:
        assert_warm(server)
