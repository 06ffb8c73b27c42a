"""Builds the table of main figures for docs/performance.md and the comparison for README.md from the result tables in
docs/results."""

import re
from typing import NamedTuple

from bench.servers import ROOT

RESULTS = ROOT / "docs/results"


class Cell(NamedTuple):
    """A cell of a result page, identified by the part that wrote the table, the first cell of the row, and the heading
    of the column."""

    part: str
    row: str
    column: str


class Headline(NamedTuple):
    """A figure of Larder and its counterpart. `unit` is the unit of both figures. `ratio` is a cell with the exact
    ratio, for figures whose rounding would change it."""

    what: str
    other: str
    theirs: Cell | None
    ours: Cell
    unit: str = ""
    more_is_better: bool = False
    in_readme: bool = False
    ratio: Cell | None = None


def pair(part, row, theirs, ours="larder"):
    return Cell(part, row, theirs), Cell(part, row, ours)


def column(part, name, theirs="memcached", ours="larder"):
    """Returns the cells of both servers in a column of a table whose rows are servers."""
    return Cell(part, theirs, name), Cell(part, ours, name)


MEMCACHED = "memcached 1.6.45"
EXTSTORE = "extstore, 32 threads"
GETS = "memtier, text, 1:10, 10 deep"
SETS = "memtier, text, sets, 10 deep"
ZIPF = "Zipf 1.0 (`zipf`)"
HALF_TWICE = "half keys requested twice, half Zipf 1.0 (`half-twice`)"
FIRST_HIT = "ms from the start to the first hit"
HEADLINES = (
    Headline(
        "user CPU of a request, 10 gets to 1 set, 10 deep",
        MEMCACHED,
        *pair("peers", GETS, "memcached"),
        " µs",
        in_readme=True,
    ),
    Headline(
        "the same, compared with Redis",
        "Redis 7.0.15",
        *pair("peers", GETS, "redis"),
        " µs",
        ratio=Cell("peers", GETS, "larder ÷ redis"),
    ),
    Headline("user CPU of a set, 10 deep", "Pogocache 1.3.1", *pair("peers", SETS, "pogocache"), " µs"),
    Headline("p99 at 70 % of memcached's peak", MEMCACHED, *column("tails", "p99"), " µs", in_readme=True),
    Headline(
        "items of 10 B in a GiB of resident memory",
        MEMCACHED,
        *column("fill", "10 B"),
        more_is_better=True,
        in_readme=True,
    ),
    Headline(
        "items of 1000 B in a GiB of resident memory",
        MEMCACHED,
        *column("fill", "1000 B"),
        more_is_better=True,
        in_readme=True,
    ),
    Headline(
        "miss ratio, popularity by Zipf 1.0",
        MEMCACHED,
        *pair("hitratio", ZIPF, "memcached -t 1", "larder -t 1"),
        in_readme=True,
    ),
    Headline(
        "miss ratio, half of the keys requested twice, far apart",
        MEMCACHED,
        *pair("hitratio", HALF_TWICE, "memcached -t 1", "larder -t 1"),
        in_readme=True,
    ),
    Headline(
        "miss ratio, mixed sizes, cache of 1 % of the data",
        MEMCACHED,
        *pair("footprints", "log-normal sizes, 1%", "memcached"),
        in_readme=True,
    ),
    Headline(
        "first hit after a planned restart with a million items",
        MEMCACHED,
        Cell("restart", "memcached, 1 M × 1000 B, SIGUSR1", FIRST_HIT),
        Cell("restart", "larder, 1 M × 1000 B, SIGUSR1", FIRST_HIT),
        " ms",
        in_readme=True,
    ),
    Headline(
        "the same after `kill -9`",
        "memcached starts empty",
        None,
        Cell("restart", "larder, 1 M × 1000 B, kill -9", FIRST_HIT),
        " ms",
    ),
    Headline(
        "gets a second from flash, 32 connections",
        EXTSTORE,
        Cell("flash", "1024 B, 32 × 1, memcached, 32 threads", "gets/s"),
        Cell("flash", "1024 B, 32 × 1, larder", "gets/s"),
        more_is_better=True,
    ),
    Headline(
        "median of a get from flash, one connection",
        EXTSTORE,
        Cell("flash", "1024 B, 1 × 1, memcached, 32 threads", "p50, µs"),
        Cell("flash", "1024 B, 1 × 1, larder", "p50, µs"),
        " µs",
        ratio=Cell("flash", "… p50 ÷ extstore", "measured"),
    ),
    Headline(
        "longest wait when a leader is killed, p99",
        "no counterpart",
        None,
        Cell("cluster", "the leader is killed", "p99, ms"),
        " ms",
    ),
    Headline(
        "CPU of a read in a program",
        "quick_cache 0.7.0",
        *pair("embedded", "reads, 1 thr.", "quick_cache"),
        " ns",
    ),
)


def decisive():
    """Returns the table of docs/performance.md."""
    return _table(["figure", "compared with", "theirs", "Larder", "Larder ÷ theirs", "better"], HEADLINES, _full_row)


def comparison():
    """Returns the table of README.md: the figures with `in_readme`."""
    shown = [headline for headline in HEADLINES if headline.in_readme]
    return _table(["", MEMCACHED, "Larder", "ratio"], shown, lambda *row: _full_row(*row)[:1] + _full_row(*row)[2:5])


def figures():
    """Returns the three figures of README.md."""
    tables = {}
    theirs, ours = (_number(_shown(cell, tables)) for cell in pair("peers", GETS, "memcached"))
    held = [_number(ratio) for ratio in _rows("fill")["ratio"].values()]
    first_hit = _number(_shown(Cell("restart", "larder, 1 M × 1000 B, kill -9", FIRST_HIT), tables))
    return (
        f"- **{ours / theirs:.2f} ×** memcached's own CPU time for a request, with pipelines of ten requests.\n"
        f"- **{min(held):.1f} to {max(held):.1f} ×** as many items in the same memory; the smaller the items, the more.\n"
        f"- **{first_hit:.0f} ms** from the start to the first hit, after `kill -9` of a server with a million items.\n"
    )


def _table(head, headlines, row):
    tables = {}
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    lines += [row(headline, tables) for headline in headlines]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _full_row(headline, tables):
    ours = _shown(headline.ours, tables)
    if headline.theirs is None:
        return [headline.what, headline.other, "–", ours + headline.unit, "–", "–"]
    theirs = _shown(headline.theirs, tables)
    ratio = _number(_shown(headline.ratio, tables)) if headline.ratio else _number(ours) / _number(theirs)
    is_better = ratio > 1 if headline.more_is_better else ratio < 1
    better = "Larder" if is_better else f"**{headline.other.split(' ')[0].rstrip(',')}**"
    return [headline.what, headline.other, theirs + headline.unit, ours + headline.unit, f"{ratio:.2f}", better]


def _shown(cell, tables):
    """Returns the median of a cell, without the spread in brackets."""
    rows = tables.setdefault(cell.part, _rows(cell.part))
    return rows[cell.row][cell.column].strip("*").split(" (")[0]


def _number(text):
    return float(text.removesuffix(" M").removesuffix(" ×").replace(",", ""))


def _rows(part):
    """Returns the cells of a part's tables, by row and heading. If two tables have the same row and heading, the first
    table applies."""
    text = (RESULTS / f"{PAGES[part]}.md").read_text()
    block = re.search(rf"<!-- {part} -->(.*)<!-- end of {part} -->", text, re.S)[1]
    rows, head = {}, None
    for line in block.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
        if cells is None:
            head = None
        elif head is None:
            head = cells
        else:
            row = rows.setdefault(cells[0], {})
            for name, shown in zip(head[1:], cells[1:]):
                row.setdefault(name, shown)
    return rows


# The page of docs/results that contains the section of each part.
PAGES = {
    "targets": "targets",
    "peers": "peers",
    "agreement": "peers",
    "tails": "latency",
    "growth": "latency",
    "fill": "memory",
    "live": "memory",
    "hitratio": "hitratio",
    "footprints": "hitratio",
    "scaling": "engine",
    "instructions": "engine",
    "start": "engine",
    "restart": "restarts",
    "flash": "flash",
    "embedded": "embedded",
    "interfaces": "interfaces",
    "idle": "interfaces",
    "builds": "interfaces",
    "cluster": "cluster",
}
PAGES |= dict.fromkeys(("pipelined", "unpipelined", "caches", "memcrs", "memc-kv", "ram", "scale"), "suites")
