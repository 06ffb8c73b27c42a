"""The engine and the process: scaling, instructions, start, restart, use as a library, and builds."""

from statistics import median

from bench import embedded as libraries
from bench import restarts
from bench.page.tables import short, spread, table
from bench.page.verdicts import VERDICT, at_least, at_most, beside


def scaling(found):
    header = ["", "one thread, M/s", "two that share ÷ one", "two with a cache each ÷ one", "16 that share ÷ two"]
    rows = []
    for name, rounds in found.items():
        ratios = scaled(rounds)
        rows.append([name, spread([one for one, *_ in rounds]), *(spread(r) for r in ratios)])
    return table(header, rows)


def scaled(rounds):
    """Returns three sequences with a ratio of rates for each round: two threads ÷ one thread, two threads with separate
    caches ÷ one thread, and 16 threads ÷ two threads."""
    return zip(*((two / one, apart / one, many / two) for one, two, apart, many in rounds))


def scaling_targets(found):
    for sets, aim in ((10, 1.8), (100, 1.8)):
        two, apart, many = (median(ratios) for ratios in scaled(found[f"Zipf 1, {sets}% sets"]))
        yield at_least(f"engine alone, {sets} % sets, 2 threads ÷ 1", aim, [two])
        yield at_least(f"engine alone, {sets} % sets, 16 threads ÷ 2", 0.95, [many])
        yield beside("… two threads with a cache each ÷ 1, as a comparison", [apart])
        two, _, many = (median(ratios) for ratios in scaled(found[f"Zipf 0, {sets}% sets"]))
        yield beside("… both with keys all alike, as a comparison", (two, many))


def instructions(found):
    return table(["request", "instructions"], [[name, f"{n:,}"] for name, n in found.items()])


def instructions_targets(found):
    for name, count in found.items():
        if name in ("get", "set"):
            yield at_most(f"instructions, {name}", 450, [count], "")


def start(found):
    return table(["", "ms"], [[n, spread([s * 1e3 for s in secs])] for n, secs in found.items()])


def start_targets(found):
    for memory_mb, aim in ((64, 50), (16384, 300)):
        yield at_most(f"start to first answer, -m {memory_mb}", aim, [1e3 * median(found[f"larder -m {memory_mb}"])], " ms")


def restart(found):
    rows = []
    for one in found["restarts"]:
        hits = [secs for secs in one["secs"] if secs is not None]
        items = f"{one['items'] // 1_000_000} M × {one['value_bytes']} B"
        kept = f"{100 * min(one['kept']):.3f} %"
        ended = spread([1e3 * secs for secs in one["ended_secs"]])
        rows.append([f"{one['server']}, {items}, {one['end']}", ended, spread([1e3 * s for s in hits]) if hits else "none", kept])
    costs = found["get_cost"]
    pairs = f"CPU time of a get, of {len(costs['with'])} pairs: {spread(costs['without'])} µs without `-e`, {spread(costs['with'])} µs with it; the median of the ratios is {restarts.ratio(costs):.3f}."
    return table(["", "ms to the end", "ms from the start to the first hit", "items kept"], rows) + "\n\n" + pairs


def restart_targets(found):
    for restart in found["restarts"]:
        if restart["server"] == "larder":
            aim = 50 + restart["items"] / 100_000
            what = f"{restart['items'] // 1_000_000} M items of {restart['value_bytes']} B, {restart['end']}: first hit"
            if any(secs is None for secs in restart["secs"]):
                # A trial without a hit misses the target.
                yield what, f"≤ {aim} ms", "none", False
            else:
                yield at_most(what, aim, [1e3 * median(restart["secs"])], " ms")
            kept = min(restart["kept"])
            yield "… items kept", "≥ 99.9 %", f"{100 * kept:.3f} %", kept >= 0.999
    yield at_most("CPU time of a get with -e ÷ without", 1.03, [restarts.ratio(found["get_cost"])], " ×")


def embedded(found):
    named = ", ".join(f"{library} {version}" for library, version in found["versions"].items())
    met = table(["figure", "target", "measured", "met"], [[*row, VERDICT[is_met]] for *row, is_met in libraries.verdicts(found)])
    names = list(found["versions"])
    times, rates = [], []
    for load, runs in found["runs"].items():
        times.append([load, *(spread([run["user_ns"] for run in runs[name]]) for name in names)])
        rates.append([load, *(spread([run["operations_per_second"] / 1e6 for run in runs[name]]) for name in names)])
    runs = next(iter(found["runs"].values()))
    held = [["bytes of RSS for an item", *(short(libraries.value(runs[name], "bytes_per_item")) for name in names)]]
    head = ["user CPU of an operation, ns", *names]
    tables = [met, table(head, times), table(["million operations a second", *names], rates), table(["memory", *names], held)]
    return f"{named}; medians of {libraries.ROUNDS} runs.\n\n" + "\n".join(tables)


def builds(found):
    rows = [[name, f"{one['secs']:.0f}", f"{one['bytes'] / 1e6:.1f}", one["crates"]] for name, one in found.items()]
    return table(["with", "build, s", "larderd, MB", "crates of others"], rows)
