"""A crash at a random moment under load loses no acknowledged change. The long tier runs RESTART_ROUNDS rounds, and
`scripts/restart` any number."""

import os
import random

import pytest

from rounds import AMPLE, FULL, KINDS, Campaign, Totals, run
from tiers import by_tier, long

pytestmark = pytest.mark.larder

ROUNDS = int(os.environ.get("RESTART_ROUNDS", "200"))
SEED = int(os.environ.get("LARDER_SEED", random.randrange(2**32)))
# The number of rounds of each kind in `test_a_crash_in_a_few_rounds_loses_nothing`.
ROUNDS_OF_KIND = 10
ROUNDS_OF_SHUTDOWNS, ROUNDS_OF_SHUTDOWNS_OF_LONG = 6, 15
CAMPAIGNS_MAX = 20


def report(totals, rounds, capsys):
    """Prints the totals even if the test passes, and checks them."""
    with capsys.disabled():
        print(f"\nrestart: {rounds} rounds, {totals.line()}, seed {totals.seed}")
    assert totals.passed, totals.line()


@pytest.mark.parametrize("kind", KINDS[:4], ids=range(4))
def test_a_crash_in_a_few_rounds_loses_nothing(request, capsys, kind):
    asked, totals = request.config.getoption, Totals(SEED)
    Campaign(totals, f"{SEED}-{kind.name}", kind, asked("--server"), asked("--runtime")).run(0, ROUNDS_OF_KIND)
    report(totals, ROUNDS_OF_KIND, capsys)


@pytest.mark.long
@pytest.mark.timeout(max(300, 3 * ROUNDS))
def test_a_crash_under_load_loses_nothing(request, capsys):
    asked = request.config.getoption
    report(run(ROUNDS, SEED, asked("--server"), asked("--runtime")), ROUNDS, capsys)


@pytest.mark.parametrize("kind", [AMPLE, FULL], ids=lambda kind: kind.name)
@pytest.mark.parametrize("signal", ["TERM", long("INT"), "USR1"])
def test_a_shutdown_under_load_loses_nothing(request, capsys, signal, kind):
    asked, totals = request.config.getoption, Totals(SEED)
    rounds = by_tier(request.config, ROUNDS_OF_SHUTDOWNS, ROUNDS_OF_SHUTDOWNS_OF_LONG)
    Campaign(totals, SEED, kind, asked("--server"), asked("--runtime"), signal).run(0, rounds)
    report(totals, rounds, capsys)


def delete_some(campaign):
    return "lost", [(key, b"delete %s\r\n" % key.name) for key in present(campaign)]


def change_some(campaign):
    return "wrong", [(key, b"append %s 0 0 1\r\nx\r\n" % key.name) for key in present(campaign)]


def touch_some(campaign):
    return "wrong", [(key, b"touch %s 500\r\n" % key.name) for key in present(campaign)]


def store_again(campaign):
    """Stores items again with the same values, which gives them new CAS values."""
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
    """Returns the keys that certainly have an item, each with its item."""
    keys = [key for script in campaign.scripts for key in script.keys]
    certain = {key: next(iter(key.states)) for key in keys if len(key.states) == 1}
    return {key: state for key, state in certain.items() if state}


@pytest.mark.parametrize(
    "tamper", [delete_some, change_some, touch_some, store_again, bring_back, change_bulk]
)
def test_the_rounds_notice_changes(request, tamper):
    """Checks that the test detects each change that is made between the crash and the check of the keys."""
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
    # On a busy machine, a few rounds may leave no items to change.
    for campaign in range(CAMPAIGNS_MAX):
        Tampered(totals, f"{SEED}-{campaign}", AMPLE, asked("--server"), asked("--runtime")).run(0, 6)
        if expected:
            break
    assert expected, "nothing was changed"
    assert not totals.passed or expected == {"lost"}
    assert all(totals.verdicts[verdict] for verdict in expected), totals.line()
