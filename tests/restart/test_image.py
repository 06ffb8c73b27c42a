"""Planned restarts of the machine: SIGUSR1 writes the items to the file of `-o memory_image`, and the next
start reads them once."""

import os
import random
import shutil
import time

import pytest

from contents import Contents, client, value
from items import look_up
from region import Region, assert_warm, end, wait_past
from server import MIB, ExitedAtStart
from tiers import long

pytestmark = pytest.mark.larder

OPTIONS = ["-m", "64", "-t", "2"]
SIZES = [10, 3000, 400_000]
SEEDS, SEEDS_OF_LONG = range(6), range(6, 24)


class Image:
    """Servers with an image, in a directory on tmpfs. `rebooted()` removes the region."""

    def __init__(self, region, with_region):
        self.region, self.with_region = region, with_region
        self.file = region.folder / "image"

    def start(self, *options):
        words = ["-o", f"memory_image={self.file}", *(options or OPTIONS)]
        if self.with_region:
            return self.region.start(*words)
        server = self.region.launch(*words)
        self.region.servers.append(server)
        return server

    def rebooted(self):
        if self.with_region:
            self.region.file.unlink()


@pytest.fixture(params=[True, False], ids=["with -e", "without -e"])
def image(request, region):
    return Image(region, request.param)


def test_items_are_kept_once(image):
    server = image.start()
    contents = Contents(server, SIZES, small=5000)
    contents.check(server)
    end(server, "SIGUSR1")
    assert image.file.stat().st_mode & 0o777 == 0o600
    image.rebooted()
    server = image.start()
    contents.check(server)
    # The server may accept connections earlier, but answers only after it has removed the image.
    assert not image.file.exists(), "an image is used once"
    assert int(server.stats()["curr_items"]) == contents.live()
    # An image is written and used a second time, with later changes.
    with client(server) as user:
        for key, expected in list(contents.items.items())[::3]:
            assert user.delete(key) == (expected is not None)
            contents.items[key] = None
    contents.snapshot = None
    contents.check(server)
    end(server, "SIGUSR1")
    image.rebooted()
    contents.check(image.start())


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_other_ends_write_no_image(image, name):
    server = image.start()
    with client(server) as user:
        user.set("key", b"1")
    end(server, name)
    assert not image.file.exists()
    server = image.start()
    with client(server) as user:
        assert user.get("key") == (b"1" if image.with_region else None)


def test_the_region_is_newer_than_the_image(region):
    """If the region exists, the server removes the image, because items that were deleted after the image was written
    must not reappear."""
    image = Image(region, True)
    server = image.start()
    with client(server) as user:
        user.set_many({"kept": b"1", "deleted": b"1"})
    end(server, "SIGUSR1")
    saved = image.file.read_bytes()
    server = image.start()
    assert_warm(server)
    assert not image.file.exists()
    with client(server) as user:
        assert user.delete("deleted")
    end(server, "SIGKILL")
    image.file.write_bytes(saved)
    os.chmod(image.file, 0o600)
    server = image.start()
    with client(server) as user:
        assert user.get_many(["kept", "deleted"]) == {"kept": b"1"}


def test_the_image_is_newer_than_the_region(region):
    """If a server without -e has written the image, the items of the region are older and must not reappear."""
    image, without = Image(region, True), Image(region, False)
    server = image.start()
    with client(server) as user:
        user.set_many({"deleted": b"1", "changed": b"1"})
    end(server, "SIGTERM")
    server = without.start()
    with client(server) as user:
        assert user.get_many(["deleted", "changed"]) == {}
        user.set("changed", b"2")
    end(server, "SIGUSR1")
    server = image.start()
    with client(server) as user:
        assert user.get_many(["deleted", "changed"]) == {"changed": b"2"}
    assert not image.file.exists()
    # From now on, the region is newer than the image again.
    with client(server) as user:
        user.set("changed", b"3")
    end(server, "SIGKILL")
    server = image.start()
    assert server.stats()["restart_state"] == "repaired"
    with client(server) as user:
        assert user.get("changed") == b"3"


def test_a_newer_image_that_is_damaged(region):
    """The items of the region are older than the image. They must not reappear, even though the image is unusable."""
    image, without = Image(region, True), Image(region, False)
    server = image.start()
    with client(server) as user:
        user.set("deleted", b"1")
    end(server, "SIGTERM")
    end(without.start(), "SIGUSR1")
    os.truncate(image.file, image.file.stat().st_size - 100)
    server = image.start()
    assert server.stats()["restart_state"] == "cold"
    assert "starts empty" in server.output()
    with client(server) as user:
        assert user.get("deleted") is None


def test_the_path_of_an_image_is_too_long_for_the_region(region):
    image = Image(region, True)
    image.file = region.folder / ("x" * 250)
    with pytest.raises(ExitedAtStart, match="at most 248 bytes"):
        image.start()


@pytest.mark.parametrize("other", ["", ".other"], ids=["no image", "another image"])
def test_a_start_without_the_option_removes_the_image(region, other):
    """A server with the region but without the image has made a change after the image was written."""
    image = Image(region, True)
    server = image.start()
    with client(server) as user:
        user.set_many({"kept": b"1", "deleted": b"1"})
    end(server, "SIGUSR1")
    assert image.file.exists()
    server = region.start(*OPTIONS, *(["-o", f"memory_image={image.file}{other}"] if other else []))
    assert_warm(server)
    with client(server) as user:
        assert user.delete("deleted") and user.get("kept") == b"1"
    end(server, "SIGKILL")
    image.rebooted()
    server = image.start()
    with client(server) as user:
        assert user.get_many(["kept", "deleted"]) == {}


def test_an_image_that_is_older_than_the_flash(region):
    """A server without the image has used the flash file. It may have changed or deleted items of the image."""
    image = Image(region, False)
    flash = f"ext_path={region.folder / 'flash'}:64m"
    server = image.start("-m", "16", "-o", flash)
    with client(server) as user:
        user.set("deleted", b"1")
    end(server, "SIGUSR1")
    server = region.launch("-m", "16", "-o", flash)
    region.servers.append(server)
    end(server, "SIGTERM")
    server = image.start("-m", "16", "-o", flash)
    with client(server) as user:
        assert user.get("deleted") is None
    assert "another server has used the files of -o ext_path" in server.output()


def test_the_image_of_another_server_is_kept(region):
    """The region names the path of an image. A later image at this path belongs to another server."""
    image, without = Image(region, True), Image(region, False)
    server = image.start()
    end(server, "SIGUSR1")
    image.file.unlink()
    server = without.start()
    with client(server) as user:
        user.set("other", b"1")
    end(server, "SIGUSR1")
    assert_warm(region.start(*OPTIONS))
    assert image.file.exists()


def test_time_passes_while_the_machine_is_down(image):
    server = image.start()
    with client(server) as user:
        user.set("short", b"1", expire=2)
        user.set("long", b"1", expire=1000)
        stored = time.monotonic()
    end(server, "SIGUSR1")
    image.rebooted()
    wait_past(stored + 3)
    server = image.start()
    found = look_up(server, ["short", "long"])
    assert found["short"] is None
    assert 900 <= found["long"].ttl <= 998


@pytest.mark.parametrize("mib", [32, 128])
def test_another_limit(image, mib):
    server = image.start()
    contents = Contents(server, [10, 3000], small=5000)
    end(server, "SIGUSR1")
    image.rebooted()
    server = image.start("-m", str(mib), "-t", "4")
    contents.check(server)


@pytest.fixture(scope="module")
def saved(start):
    """Provides an image that a server has written, and its items."""
    with Region(start) as region:
        image = Image(region, False)
        server = image.start()
        contents = Contents(server, [10, 3000, 400_000], small=2000)
        end(server, "SIGUSR1")
        yield image.file, contents


def check_damaged(image, contents):
    """Starts a server with a damaged image. Checks that it either refuses to start with a clear message, or works and
    has all or none of the items."""
    try:
        server = image.start()
    except ExitedAtStart as refused:
        assert refused.status in (64, 71) and str(image.file) in refused.output
        assert "panicked" not in refused.output
        return
    found = look_up(server, contents.items)
    if any(found.values()):
        contents.snapshot = None
        contents.check(server)
    else:
        assert "image" in server.output(), "the log says that the image is not used"
    with client(server) as user:
        assert user.set("new", value(1, 10_000)) and user.get("new") == value(1, 10_000)
    end(server, "SIGTERM")


@pytest.mark.parametrize("seed", [*SEEDS, *map(long, SEEDS_OF_LONG)])
def test_a_flipped_byte_anywhere_in_an_image(saved, image, seed):
    file, contents = saved
    rng = random.Random(seed)
    content = bytearray(file.read_bytes())
    # The damaged byte is one of the first 200, one of the last 200, or any byte.
    ends = [(0, 200), (len(content) - 200, len(content)), (0, len(content))][seed % 3]
    content[rng.randrange(*ends)] ^= rng.randrange(1, 256)
    image.file.write_bytes(content)
    os.chmod(image.file, 0o600)
    check_damaged(image, contents)


@pytest.mark.parametrize("share", [0, 0.0001, 0.01, 0.3, 0.99, 0.999999])
def test_a_truncated_image(saved, image, share):
    file, contents = saved
    shutil.copy(file, image.file)
    os.truncate(image.file, int(file.stat().st_size * share))
    os.chmod(image.file, 0o600)
    check_damaged(image, contents)


def test_the_copy_of_an_image_is_used(saved, image):
    """Checks that an undamaged copy works, because the other tests damage such copies."""
    file, contents = saved
    shutil.copy(file, image.file)
    os.chmod(image.file, 0o600)
    contents.snapshot = None
    contents.check(image.start())


def test_a_large_image_of_a_full_cache(image):
    server = image.start()
    stored = {}
    with client(server) as user:
        for n in range(12_000):
            stored[f"more-{n}"] = value(n, n % 16_000)
            user.set(f"more-{n}", stored[f"more-{n}"], noreply=True)
        assert user.version()
    before = look_up(server, stored)
    assert sum(item is not None for item in before.values()) * 8000 > 30 * MIB
    end(server, "SIGUSR1")
    image.rebooted()
    server = image.start()
    after = look_up(server, stored)
    kept = sum(item is not None for item in after.values())
    for key, item in after.items():
        assert item is None or (before[key] and item.value == stored[key]), key
    assert kept >= 0.999 * sum(item is not None for item in before.values())
