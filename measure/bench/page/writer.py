"""Replaces the marked sections of docs/results, docs/performance.md and README.md, and leaves all other text
unchanged."""

from functools import partial

from bench import parts
from bench.page import headlines
from bench.page.cluster import cluster
from bench.page.flash import flash, flash_targets
from bench.page.hit_ratio import footprints, footprints_targets, hitratio, hitratio_targets
from bench.page.interfaces import idle, interfaces
from bench.page.latencies import agreement, growth, growth_targets, tails, tails_targets
from bench.page.memory import fill, fill_targets, live, live_targets
from bench.page.peers import peers, peers_targets
from bench.page.process import (
    builds, embedded, instructions, instructions_targets, restart, restart_targets, scaling,
    scaling_targets, start, start_targets,
)
from bench.page.suites import caches_targets, pipelined_targets, suite, unpipelined_targets
from bench.page.tables import replaced, table
from bench.page.verdicts import VERDICT
from bench.servers import ROOT

PATH = ROOT / "docs/performance.md"
README = ROOT / "README.md"


def write():
    for name in ("targets", *parts.ALL):
        found = targets() if name == "targets" else section(name)
        if found:
            rewrite(headlines.RESULTS / f"{headlines.PAGES[name]}.md", name, found)
    rewrite(PATH, "decisive", headlines.decisive())
    rewrite(README, "figures", headlines.figures())
    rewrite(README, "comparison", headlines.comparison())


def rewrite(path, name, found):
    path.write_text(replaced(path.read_text(), name, found))


def section(name):
    known = parts.known(name)
    if not known:
        return None
    where = known["where"]
    command = f"`scripts/bench {name}`, {where['date']}, {where['machine']}"
    versions = f"{where['larder']}; {where['memcached']}"
    return f"{command}; {versions}; {known['seconds']} s.\n\n{SECTIONS[name](known['found'])}"


OTHERS = (
    peers, agreement, tails, growth, fill, live, hitratio, footprints, scaling, instructions, start, restart, flash, embedded,
    interfaces, idle, builds, cluster,
)
SECTIONS = {name: partial(suite, name) for name in parts.SUITES}
SECTIONS |= {part.__name__: part for part in OTHERS}


def targets():
    """Returns the table of the project's targets, with the measured figures."""
    rows = []
    for name, rows_of in TARGETS.items():
        known = parts.known(name)
        found = rows_of(known["found"]) if known else ()
        rows += [[what, aim, got, VERDICT[met]] for what, aim, got, met in found]
    return table(["figure", "target", "measured", "met"], rows) if rows else None


TARGETS = {
    "peers": peers_targets,
    "pipelined": pipelined_targets,
    "unpipelined": unpipelined_targets,
    "caches": caches_targets,
    "tails": tails_targets,
    "growth": growth_targets,
    "fill": fill_targets,
    "live": live_targets,
    "hitratio": hitratio_targets,
    "footprints": footprints_targets,
    "scaling": scaling_targets,
    "instructions": instructions_targets,
    "start": start_targets,
    "restart": restart_targets,
    "flash": flash_targets,
}
