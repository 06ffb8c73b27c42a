"""Latencies: agreement with memtier_benchmark, tails, and growth of the index."""

from statistics import median

from bench.agreement import PERCENTILES, TOOLS, ratio, verdict
from bench.page.tables import spread, table
from bench.page.verdicts import at_most, beside
from bench.servers import EMPTY_LOOP


def agreement(found):
    """Returns the latencies of both tools and their ratios, for all connections of each line and for one connection."""
    text = f"{found['memtier']}; medians of {found['rounds']} runs of each tool.\n"
    for name, title in (("all", "all connections"), ("one", "one connection")):
        text += f"\n{agreement_table(found['lines'], name, title)}"
    return text + "\n" + "\n".join(agreement_command(line) for line in found["lines"])


def agreement_table(lines, name, title):
    head = [title, "requests/s", "percentile", *(f"{tool}, µs" for tool in TOOLS), "larder bench ÷ memtier", "agrees"]
    rows = []
    for line in lines:
        loaded = line[name]
        for percentile in PERCENTILES:
            shown = [spread([run[percentile] for run in loaded["runs"][tool]]) for tool in TOOLS]
            met = verdict(loaded["runs"], percentile).replace("no", "**no**")
            ratio_shown = f"{ratio(loaded['runs'], percentile):.2f}"
            rate = f"{loaded['per_second']:,}"
            rows.append([line["suite"], rate, percentile, *shown, ratio_shown, met])
    return table(head, rows)


def agreement_command(line):
    loaded = line["all"]
    changed = f"`{loaded['command']} --rate-limiting {loaded['rate_limiting']}`"
    return f"- **{line['suite']}** ({line['source']}): `{line['published']}`, run as {changed}{busy(loaded)}"


def busy(loaded):
    """Returns the end of a sentence: the rates of both tools in the closed loop, and the cores that the load kept
    busy."""
    if "closed" not in loaded:
        return "."
    each = (f"{tool} {run['per_second']:,.0f} ({run['busy']:.2f})" for tool, run in loaded["closed"].items())
    return f"; requests/s in the closed loop (and cores that the load kept busy): {', '.join(each)}."


def tails(found):
    rows = [
        [name, *(spread([run[key] for run in found[name]]) for key in ("p50", "p90", "p99", "p99_9"))]
        for name in ("memcached", "larder", EMPTY_LOOP)
    ]
    text = table(["µs", "p50", "p90", "p99", "p99.9"], rows)
    runs = len(found["larder"])
    return (
        f"{found['rate']:,} requests a second, 70 % of memcached's {found['peak']:,.0f}; "
        f"medians of {runs} runs of a second each.\n\n{text}"
    )


def tails_targets(found):
    for name, key in (("p99", "p99"), ("p99.9", "p99_9")):
        larder, memcached, floor = (
            median(run[key] for run in found[server]) for server in ("larder", "memcached", EMPTY_LOOP)
        )
        yield at_most(f"{name} at 70 % of memcached's peak ÷ memcached", 0.8, [larder / memcached])
        yield beside("… an empty loop's, as a comparison", [floor / memcached])


GROWTH = {
    "growing": "empty to 10 M items",
    "grown": "10 M items, overwritten",
    "evicting": "new items, evicting in 64 MiB",
    "roomy": "200,000 items in 64 MiB, overwritten",
}


def growth(found):
    rows = [
        [title, *(spread([run[i] / 1e3 for run in found[name]]) for i in range(4))]
        for name, title in GROWTH.items()
    ]
    return table(["16 sets, engine alone, µs", "p50", "p99", "p99.9", "longest"], rows)


def growth_targets(found):
    pairs = (("growing", "grown", "index growth"), ("evicting", "roomy", "sustained eviction"))
    for busy, steady, title in pairs:
        ratio = median(run[2] for run in found[busy]) / median(run[2] for run in found[steady])
        yield at_most(f"p99.9 during {title} ÷ steady", 2, [ratio])
