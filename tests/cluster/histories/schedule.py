"""The faults of a run, which depend only on the seed and the duration of the run."""

import random
from dataclasses import dataclass

# Unplanned faults with their weights and durations in seconds.
UNPLANNED = {
    "kill": (4, 0.1, 3),
    "pause": (4, 0.3, 6),
    "cut": (3, 0.3, 6),
    "cut from etcd": (2, 0.3, 6),
    "isolate": (2, 0.3, 6),
    "kill etcd": (1, 0.1, 3),
    "pause etcd": (1, 0.3, 4),
}
# Planned changes with their weights.
PLANNED = {"transfer": 5, "move": 3, "drain": 1, "restart": 1}
# Durations of the two phases, which alternate: unplanned faults mixed with planned changes (storm), then only planned
# changes (calm).
STORM_SECS, CALM_SECS = (20, 32), (14, 22)
# The share of planned changes in a storm, and the ranges of the pauses between the starts of faults in each phase.
PLANNED_SHARE = 0.25
STORM_PAUSE_SECS, CALM_PAUSE_SECS = (0.2, 2.2), (0.2, 2.5)
# In a run that is shorter than this, phases are shortened in proportion.
CYCLE_SECS = 40


@dataclass(frozen=True)
class PlannedFault:
    """A fault of the schedule. `draw` seeds the choice of its target, which also depends on the groups' state."""

    at: float
    kind: str
    secs: float
    is_planned: bool
    draw: float


def schedule(seed, seconds):
    """Returns the faults of a run in the order of their starts."""
    draw = random.Random(f"faults {seed}")
    scale = min(1, seconds / CYCLE_SECS)
    faults, now, is_storm = [], 0.0, False
    while now < seconds:
        end = min(seconds, now + scale * draw.uniform(*(STORM_SECS if is_storm else CALM_SECS)))
        while (now := now + draw.uniform(*(STORM_PAUSE_SECS if is_storm else CALM_PAUSE_SECS))) < end:
            faults.append(one_fault(draw, now, is_storm))
        now, is_storm = end, not is_storm
    return faults


def one_fault(draw, at, is_storm):
    is_planned = not is_storm or draw.random() < PLANNED_SHARE
    if is_planned:
        [kind], secs = draw.choices(list(PLANNED), list(PLANNED.values())), 0
    else:
        [kind] = draw.choices(list(UNPLANNED), [weight for weight, _, _ in UNPLANNED.values()])
        secs = draw.uniform(*UNPLANNED[kind][1:])
    return PlannedFault(at, kind, secs, is_planned, draw.random())
