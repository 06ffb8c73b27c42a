"""A crash at a random moment under load loses no acknowledged change. `scripts/restart` runs more rounds."""

import os
import random

import pytest

from rounds import AMPLE, FULL, Campaign, Totals, run

pytestmark = pytest.mark.larder

ROUNDS = int(os.environ.get("RESTART_ROUNDS", "200"))
SEED = int(os.environ.get("LARDER_SEED", random.randrange(2**32)))
CAMPAIGNS_MAX = 20


def report(totals, rounds, capsys):
    """Prints the totals also if the test passes, and checks them."""
    with capsys.disabled():
        print(f"\nrestart: {rounds} rounds, {totals.line()}, seed {totals.seed}")
    assert totals.passed, totals.line()


@pytest.mark.timeout(max(300, 3 * ROUNDS))
def test_a_crash_under_load_loses_nothing(request, capsys):
    asked = request.config.getoption
    report(run(ROUNDS, SEED, asked("--server"), asked("--runtime")), ROUNDS, capsys)


@pytest.mark.parametrize("kind", [AMPLE, FULL], ids=lambda kind: kind.name)
@pytest.mark.parametrize("signal", ["TERM", "INT", "USR1"])
def test_a_shutdown_under_load_loses_nothing(request, capsys, signal, kind):
    asked, totals = request.config.getoption, Totals(SEED)
    Campaign(totals, SEED, kind, asked("--server"), asked("--runtime"), signal).run(0, 15)
    report(totals, 15, capsys)


def delete_some(campaign):
    return "lost", [(key, b"delete %s\r\n" % key.name) for key in present(campaign)]


def change_some(campaign):
    return "wrong", [(key, b"append %s 0 0 1\r\nx\r\n" % key.name) for key in present(campaign)]


def touch_some(campaign):
    return "wrong", [(key, b"touch %s 500\r\n" % key.name) for key in present(campaign)]


def store_again(campaign):
    """The same value, with a new CAS."""
    found = present(campaign)
    return "wrong", [
        (key, b"set %s %d 0 %d\r\n%s\r\n" % (key.name, state.flags, len(state.value), state.value))
        for key, state in found.items()
        if state.cas is not None
    ]


def bring_back(campaign):
    gone = [key for script in campaign.scripts for key in script.keys if key.states == {None}]
    return "back", [(key, b"set %s 0 0 1\r\nx\r\n" % key.name) for key in gone]


def change_bulk(campaign):
    return "wrong", [(None, b"set bulk-1 0 0 1\r\nx\r\n")] if campaign.bulk.next else []


def present(campaign):
    """Keys that have an item for sure, and it."""
    keys = [key for script in campaign.scripts for key in script.keys]
    certain = {key: next(iter(key.states)) for key in keys if len(key.states) == 1}
    return {key: state for key, state in certain.items() if state}


@pytest.mark.parametrize(
    "tamper", [delete_some, change_some, touch_some, store_again, bring_back, change_bulk]
)
def test_the_rounds_notice_changes(request, tamper):
    """Checks the test: each change between the crash and the look at the keys is found."""
    expected = set()

    class Tampered(Campaign):
        def start(self, is_first):
            super().start(is_first)
            verdict, changes = tamper(self)
            for _, wire in changes[:3]:
                expected.add(verdict)
                with self.server.connect() as sock:
                    sock.sendall(wire)
                    assert sock.recv(100)

    asked, totals = request.config.getoption, Totals(SEED)
    # Few rounds of a busy machine may leave nothing to change.
    for campaign in range(CAMPAIGNS_MAX):
        Tampered(totals, f"{SEED}-{campaign}", AMPLE, asked("--server"), asked("--runtime")).run(0, 6)
        if expected:
            break
    assert expected, "nothing was changed"
    assert not totals.passed or expected == {"lost"}
    assert all(totals.verdicts[verdict] for verdict in expected), totals.line()
