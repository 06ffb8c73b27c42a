"""Items on flash after restarts: after crashes under load, and with changed or damaged flash files."""

import os
import random
import shutil
import threading
import time

import pytest

from contents import client
from flash_rounds import KINDS, FlashCampaign
from items import look_up
from region import assert_warm, end, state
from rounds import Totals
from server import MIB, ExitedAtStart, wait_until
from tiers import by_tier

pytestmark = pytest.mark.larder

# The numbers of rounds of each kind in the long tier and in the default tier.
ROUNDS, ROUNDS_OF_DEFAULT = int(os.environ.get("FLASH_ROUNDS", "10")), 2
SEED = int(os.environ.get("LARDER_SEED", random.randrange(2**32)))
SIZE_MIB = 64
ITEMS, VALUE_LEN = 30_000, 1000
# How long a server waits for a file while another server that uses it shuts down, in seconds.
WAIT_SECS, SLACK_SECS = 10, 10
HEADER_LEN = 4096


@pytest.mark.timeout(max(300, 10 * ROUNDS))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_crash_under_load_loses_nothing_on_flash(request, capsys, kind):
    asked, totals = request.config.getoption, Totals(SEED)
    rounds = by_tier(request.config, ROUNDS_OF_DEFAULT, ROUNDS)
    FlashCampaign(totals, SEED, kind, asked("--server"), asked("--runtime")).run(0, rounds)
    with capsys.disabled():
        print(f"\nrestart: {kind.name}, {rounds} rounds, {totals.line()}, seed {SEED}")
    assert totals.passed, totals.line()


def value(number):
    return b"%d:" % number + random.Random(number).randbytes(VALUE_LEN)


KEYS = {f"item-{n}": value(n) for n in range(ITEMS)}


class Flash:
    """A region and a flash file in the same directory."""

    def __init__(self, region):
        self.region, self.file = region, region.folder / "flash"

    def start(self, file=None, size_mib=SIZE_MIB):
        options = f"ext_path={file or self.file}:{size_mib}m,ext_item_size=0,ext_recache_rate=0"
        return self.region.start("-m", "16", "-t", "2", "-o", options)

    def stored(self):
        """Starts a server and stores items, most of them on flash."""
        server, keys = self.start(), list(KEYS)
        with client(server) as user:
            for first in range(0, ITEMS, 100):
                user.set_many({key: KEYS[key] for key in keys[first : first + 100]}, noreply=True)
                wait_until(lambda: int(server.stats()["extstore_io_queue"]) < 2, "writing to flash")
            assert user.version()
        assert on_flash(server) > ITEMS / 3
        return server


@pytest.fixture
def flash(region):
    return Flash(region)


def on_flash(server):
    return int(server.stats()["extstore_objects_used"])


def check(server):
    """Looks up all items and checks their values. Returns the number of found items."""
    found = look_up(server, KEYS)
    for key, item in found.items():
        assert item is None or item.value == KEYS[key], key
    return sum(item is not None for item in found.values())


def check_use(server):
    """Checks that the server stores items and finds them again, including items on flash."""
    keys = {f"new-{n}": value(n) for n in range(20_000)}
    with client(server) as user:
        for key, stored in keys.items():
            user.set(key, stored, noreply=True)
        assert user.version()
    found = look_up(server, keys)
    assert all(item is None or item.value == keys[key] for key, item in found.items())
    assert sum(item is not None for item in found.values()) > 5000


def test_another_file_of_the_same_size(flash):
    server = flash.stored()
    in_memory = ITEMS - on_flash(server)
    end(server, "SIGKILL")
    # Another server stores other values under the same keys, in a file of the same size.
    other = flash.region.folder / "other"
    server = flash.region.launch(
        "-m", "16", "-e", str(flash.region.folder / "other-region"), "-o", f"ext_path={other}:{SIZE_MIB}m"
    )
    with server:
        with client(server) as user:
            for n in range(ITEMS):
                user.set(f"item-{n}", b"another value" * 100, noreply=True)
            assert user.version()
    os.replace(other, flash.file)
    server = flash.start()
    assert_warm(server)
    # Allow some items on flash, because the server writes its pending demotions to the new file.
    assert on_flash(server) < 1000
    assert 0 < check(server) <= in_memory
    check_use(server)
    # Another restart, this time without flash, also brings back no item of the first file.
    server = flash.region.restart(server, "SIGKILL", "-m", "16")
    check(server)


def test_an_older_copy_of_the_file(flash):
    """The older copy has the same header as the current file, but the server has written items since then."""
    server = flash.stored()
    end(server, "SIGTERM")
    copy = flash.region.folder / "copy"
    shutil.copy(flash.file, copy)
    server = flash.start()
    there = check(server)
    check_use(server)
    end(server, "SIGKILL")
    os.replace(copy, flash.file)
    server = flash.start()
    assert_warm(server)
    assert 0 < check(server) <= there
    found = look_up(server, [f"new-{n}" for n in range(20_000)])
    assert all(item is None or item.value == value(int(key[4:])) for key, item in found.items())


def test_flipped_bytes(flash):
    server = flash.stored()
    before = check(server)
    used = int(server.stats()["extstore_bytes_used"])
    end(server, "SIGKILL")
    rng, flipped = random.Random(1), 40
    with open(flash.file, "r+b") as file:
        for _ in range(flipped):
            at = HEADER_LEN + rng.randrange(used)
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))
    server = flash.start()
    assert_warm(server)
    after = check(server)
    shown = server.stats()
    lost = int(shown["badcrc_from_extstore"])
    assert 0 < lost <= flipped
    assert before - after == lost
    assert int(shown["miss_from_extstore"]) >= lost
    assert check(server) == after, "they are missed once and for all"
    check_use(server)


@pytest.mark.parametrize("length", [0, HEADER_LEN, SIZE_MIB * MIB // 2])
def test_a_truncated_file(flash, length):
    server = flash.stored()
    end(server, "SIGTERM")
    os.truncate(flash.file, length)
    try:
        server = flash.start()
    except ExitedAtStart as refused:
        assert refused.status == 71 and str(flash.file) in refused.output
        return
    # The file then has its previous length again, but with holes.
    assert check(server) > 0
    check_use(server)


def test_no_file(flash):
    server = flash.stored()
    in_memory = ITEMS - on_flash(server)
    end(server, "SIGKILL")
    flash.file.unlink()
    server = flash.start()
    assert_warm(server)
    assert 0 < check(server) <= in_memory
    check_use(server)


def test_two_servers_with_one_file(flash):
    server = flash.stored()
    there, began = check(server), time.monotonic()
    options = f"ext_path={flash.file}:{SIZE_MIB}m"
    with pytest.raises(ExitedAtStart) as refused:
        flash.region.launch("-m", "16", "-o", options)
    took = time.monotonic() - began
    assert refused.value.status == 71
    assert str(flash.file) in refused.value.output
    assert WAIT_SECS / 2 <= took <= WAIT_SECS + SLACK_SECS
    assert check(server) == there
    end(server, "SIGKILL")
    server = flash.start()
    assert check(server) == there


def test_a_start_without_flash(flash):
    """After a start without flash, the items on flash stay lost, even if a later start uses the flash file again."""
    server = flash.stored()
    in_memory = ITEMS - on_flash(server)
    server = flash.region.restart(server, "SIGKILL", "-m", "64")
    there = check(server)
    assert 0 < there <= in_memory
    end(server, "SIGKILL")
    server = flash.start()
    assert_warm(server)
    assert on_flash(server) < there
    assert check(server) <= there


def test_a_kill_in_the_middle_of_writes(flash):
    """Each kill happens while the server writes to flash."""
    server = flash.start()
    for round_number in range(5):
        done = threading.Event()

        def store(server=server, first=round_number * 7000, done=done):
            try:
                with client(server) as user:
                    for n in range(20_000):
                        user.set(f"item-{(first + n) % ITEMS}", value((first + n) % ITEMS), noreply=True)
            except OSError:
                pass
            done.set()

        threading.Thread(target=store, daemon=True).start()
        written = int(server.stats()["extstore_bytes_written"])
        wait_until(lambda: int(server.stats()["extstore_bytes_written"]) > written + 2 * MIB, "writing")
        before = on_flash(server)
        end(server, "SIGKILL")
        assert done.wait(60)
        server = flash.start()
        assert state(server) == "repaired"
        assert on_flash(server) >= before * 0.9
        assert check(server) > 0
        shown = server.stats()
        assert [shown["badcrc_from_extstore"], shown["miss_from_extstore"]] == ["0", "0"]
