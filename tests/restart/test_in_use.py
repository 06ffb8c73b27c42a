"""Only one server at a time can use a file."""

import threading
import time

import pytest

from contents import Contents, client
from region import assert_warm, end
from server import ExitedAtStart

pytestmark = pytest.mark.larder

# How long a server waits for a file while another server that uses it shuts down, in seconds.
WAIT_SECS, SLACK_SECS = 10, 10


def test_a_second_server_with_the_same_file_exits(region):
    first = region.start()
    contents = Contents(first, [10, 100_000], small=1000)
    done, errors = threading.Event(), []

    def use():
        with client(first) as user:
            while not done.wait(0.01):
                if user.get("plain-10") != contents.items["plain-10"][0] or not user.set("used", b"1"):
                    errors.append("wrong answer")

    user = threading.Thread(target=use)
    user.start()
    try:
        began = time.monotonic()
        with pytest.raises(ExitedAtStart) as refused:
            region.start()
        took = time.monotonic() - began
    finally:
        done.set()
        user.join()
    assert refused.value.status == 71
    assert str(region.file) in refused.value.output
    assert took <= WAIT_SECS + SLACK_SECS
    assert not errors
    contents.check(first)
    # The second server must not have changed the file.
    contents.check(region.restart(first, "SIGKILL"))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_server_waits_for_one_that_is_ending(region, name):
    first = region.start()
    contents = Contents(first, [10, 100_000], small=1000)
    ending = threading.Timer(2, end, (first, name))
    ending.start()
    second = region.start()
    ending.join()
    assert_warm(second)
    contents.check(second)


def test_two_servers_with_files_of_their_own(region, start):
    first = region.start()
    with start("-e", str(region.folder / "other")) as second:
        one, other = Contents(first, [10], small=100), Contents(second, [20], small=50)
        one.check(first)
        other.check(second)
