"""Writes results between the markers of docs/performance.md; the rest of the page is not changed."""

import re
import shutil
from functools import partial
from pathlib import Path
from statistics import median

from bench import cluster as groups
from bench import embedded as libraries
from bench import interfaces as further_interfaces
from bench import flash as flash_tiers
from bench import parts, restarts
from bench.agreement import PERCENTILES, TOOLS, ratio, verdict
from bench.servers import EMPTY_LOOP, ROOT
from bench.workloads import BYTES_AIM, WORKLOADS

PATH = ROOT / "docs/performance.md"
README = ROOT / "README.md"
PLOTS = ROOT / "docs/plots"
# The plots that are copied to docs/plots: suite, file, caption.
SHOWN = [
    ("caches", "1-1024-b-get-1-thread-throughput-linear.svg", "gets over a unix socket"),
    ("caches", "1-1024-b-set-1-thread-throughput-linear.svg", "sets over a unix socket"),
    ("caches", "1-1024-b-get-1-thread-p99-logarithmic.svg", "p99 of gets over a unix socket"),
    ("pipelined", "text-1-10-1-thread-user-cpu-linear.svg", "user CPU of a request over TCP"),
]


def write():
    text = PATH.read_text()
    sections = {name: section(name) for name in parts.ALL}
    sections["targets"] = targets()
    for name, found in sections.items():
        if found:
            text = replaced(text, name, found)
    PATH.write_text(text)
    readme = README.read_text()
    for name, of_known in {"peers": readme_peers, "fill": readme_fill}.items():
        if sections[name]:
            readme = replaced(readme, name, of_known(parts.known(name)))
    README.write_text(readme)


def replaced(text, name, found):
    """The text with what is between the markers of a section replaced."""
    marked = f"<!-- {name} -->\n\n{found.strip()}\n\n<!-- end of {name} -->"
    pattern = f"<!-- {name} -->.*<!-- end of {name} -->"
    assert re.search(pattern, text, re.S), f"there is no place for {name}"
    return re.sub(pattern, lambda _: marked, text, flags=re.S)


def section(name):
    known = parts.known(name)
    if not known:
        return None
    where = known["where"]
    command = f"`scripts/bench {name}`, {where['date']}, {where['machine']}"
    versions = f"{where['larder']}; {where['memcached']}"
    return f"{command}; {versions}; {known['seconds']} s.\n\n{SECTIONS[name](known['found'])}"


def table(head, rows):
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def spread(values, unit=""):
    """The median, with minimum and maximum in brackets."""
    low, mid, high = (short(value) for value in (min(values), median(values), max(values)))
    return f"{mid}{unit} ({low}–{high})"


def short(value):
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def suite(name, found):
    PLOTS.mkdir(exist_ok=True)
    text = ""
    for _, file, caption in (shown for shown in SHOWN if shown[0] == name):
        plot = ROOT / f"compare/{name}-quick/plots" / file
        if plot.exists():
            shutil.copy(plot, PLOTS / f"{name}-{file}")
            text += f"![{caption}](plots/{name}-{file})\n"
    tables = re.sub(r"^#", "###", found["markdown"], flags=re.M)
    return f"{tables}\n{text}"


def peers(found):
    """User CPU time of a request, and its ratios to that of each other server."""
    servers = [name for name in found["versions"] if name != "memtier"]
    others = [name for name in servers if name != "larder"]
    head = ["user CPU of a request, µs", *servers, *(f"larder ÷ {name}" for name in others)]
    rows = []
    for load, by_server in found["loads"].items():
        shown = [spread([user for user, _ in by_server[name]]) if name in by_server else "–" for name in servers]
        ratios = [f"{user_ratio(by_server, name):.2f}" if name in by_server else "–" for name in others]
        rows.append([load, *shown, *ratios])
    named = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if name != "memtier")
    tools = f"memtier_benchmark: {found['versions'].get('memtier', 'not installed')}"
    rounds = "one round" if found["rounds"] == 1 else f"{found['rounds']} rounds"
    return f"{named}; {tools}; {rounds}.\n\n{table(head, rows)}"


# The loads that README shows.
README_LOADS = ("text, 1:10", "text, sets", "binary, 1:10", "meta, 1:10")


def readme_peers(known):
    """The table of README: the loads of memtier_benchmark where it speaks the protocol."""
    found, where = known["found"], known["where"]
    versions = found["versions"]
    rounds = "one round" if found["rounds"] == 1 else f"medians of {found['rounds']} rounds"
    servers = [name for name in versions if name != "memtier"]
    rows = []
    for what in README_LOADS:
        for depth in (10, 50):
            tools = [f"{tool}, {what}, {depth} deep" for tool in ("memtier", "larder bench")]
            load = next(name for name in tools if name in found["loads"])
            by_server = found["loads"][load]
            shown = [f"{median(user for user, _ in by_server[name]):.3f}" if name in by_server else "–" for name in servers]
            rows.append([load, *shown, f"{user_ratio(by_server, 'memcached'):.2f}"])
    head = ["load", *(f"{name} {versions[name]}" for name in servers), "Larder ÷ memcached"]
    measured = f"`scripts/bench peers`, {where['date']}, {where['machine']}; {rounds}."
    return f"{measured}\n\n{table(head, rows)}"


def user_ratio(by_server, other):
    return median(user for user, _ in by_server["larder"]) / median(user for user, _ in by_server[other])


def agreement(found):
    """The latencies of both tools and their ratios, of all connections of each line and of one."""
    text = f"{found['memtier']}; medians of {found['rounds']} runs of each tool.\n"
    for name, what in (("all", "all connections"), ("one", "one connection")):
        text += f"\n{agreement_table(found['lines'], name, what)}"
    return text + "\n" + "\n".join(agreement_command(line) for line in found["lines"])


def agreement_table(lines, name, what):
    head = [what, "requests/s", "percentile", *(f"{tool}, µs" for tool in TOOLS), "larder bench ÷ memtier", "agrees"]
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
    """The cores that both tools keep busy in the closed loop, and their rates."""
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


GROWTH = {
    "growing": "empty to 10 M items",
    "grown": "10 M items, overwritten",
    "evicting": "new items, evicting in 64 MiB",
    "roomy": "200,000 items in 64 MiB, overwritten",
}


def growth(found):
    rows = [
        [what, *(spread([run[i] / 1e3 for run in found[name]]) for i in range(4))]
        for name, what in GROWTH.items()
    ]
    return table(["16 sets, by the engine itself, µs", "p50", "p99", "p99.9", "longest"], rows)


def fill(found):
    sizes = sorted({row["value_bytes"] for row in found})
    rows = []
    for name in parts.COMMANDS_MEASURED:
        rows.append([name, *(f"{per_gib(found, name, size) / 1e6:.3f} M" for size in sizes)])
    ratios = [f"{held_ratio(found, size):.2f}" for size in sizes]
    rows.append(["ratio", *ratios])
    return table(["items per GiB of RSS, by value size", *(f"{size} B" for size in sizes)], rows)


def readme_fill(known):
    found, where = known["found"], known["where"]
    most = {
        name: max(row["rss_bytes"] for row in found if row["server"] == name) / 2**20
        for name in parts.COMMANDS_MEASURED
    }
    measured = f"`scripts/bench fill`, {where['date']}, {where['machine']}; {where['memcached']}."
    memory = f"Resident memory was at most {most['larder']:.1f} MiB for Larder, {most['memcached']:.1f} MiB for memcached."
    return f"{measured} {memory}\n\n{fill(found)}"


def per_gib(found, name, size):
    row = next(r for r in found if r["server"] == name and r["value_bytes"] == size)
    return row["items"] * 2**30 / row["rss_bytes"]


def held_ratio(found, size):
    return per_gib(found, "larder", size) / per_gib(found, "memcached", size)


def live(found):
    rows = [[name, f"{part['share']:.1%}"] for name, part in found.items()]
    return table(["30 % overwrites, sizes", "live share"], rows)


def hitratio(found):
    """The table of miss ratios. Figures that miss their target are bold."""
    threads = found["threads"]
    servers = [f"{name}-t{count}" for name in ("memcached", "larder") for count in threads]
    rows = []
    for name, by_server in workload_counts(found).items():
        workload = WORKLOADS[name]
        shown = []
        for server in servers:
            figure = workload.figure(by_server[server])
            met = workload.is_met(figure) or server.startswith("memcached")
            shown.append(workload.shown(figure) if met else f"**{workload.shown(figure)}**")
        lru = workload.shown(workload.figure(by_server["LRU"]))
        bytes_over = []
        for over in over_memcached(by_server, threads):
            bytes_over.append(f"{over:.2f}" if over <= BYTES_AIM else f"**{over:.2f}**")
        title = f"{workload.title} (`{name}`)"
        rows.append([title, by_server["memory_mb"], *shown, workload.shown_aim(), lru, "; ".join(bytes_over)])
    named = [server.replace("-t", " -t ") for server in servers]
    counts = " and ".join(f"-t {count}" for count in threads)
    head = ["workload", "-m", *named, "larder's target", "LRU", f"bytes missed ÷ memcached's, {counts}"]
    return table(head, rows)


def workload_counts(found):
    """For each workload, the counts of the servers and of the simulated LRU, and the memory limit."""
    counts_by_name = {}
    for row in found["rows"]:
        place = counts_by_name.setdefault(row["stream"], {"LRU": row["simulated"]["lru"]})
        place["memory_mb"] = row["capacity_bytes"] >> 20
        place[row["server"]] = row["replayed"]["tally"]
    return counts_by_name


def over_memcached(by_server, threads):
    """Larder's missed bytes ÷ memcached's, for each number of threads; 1 if both miss none."""
    for count in threads:
        larder, memcached = (by_server[f"{name}-t{count}"]["missed_bytes"] for name in ("larder", "memcached"))
        yield larder / memcached if memcached else 1.0 if not larder else float("inf")


def footprints(found):
    rows = []
    for stream in found:
        for share, figures in misses(found, stream).items():
            shown = [f"{figures[name]:.4f}" for name in MISS_COLUMNS]
            ratio = f"{figures['larder'] / figures['memcached']:.3f}"
            rows.append([f"{stream}, {share:.0%}", *shown, ratio])
    return table(["object miss ratio", *MISS_COLUMNS, "larder ÷ memcached"], rows)


SIMULATED = {"LRU": "lru", "S3-FIFO": "s3fifo", "Bélády": "optimum"}
MISS_COLUMNS = ["memcached", "larder", *SIMULATED]


def misses(found, stream):
    """For each share of the footprint, the miss ratios of servers and of simulated caches."""
    figures = {}
    for row in found[stream]["rows"]:
        share = round(row["capacity_bytes"] / row["footprint"]["bytes"], 2)
        place = figures.setdefault(share, {})
        stats = row["replayed"]["tally"]
        place[row["server"]] = stats["misses"] / stats["requests"]
        for name, simulated in SIMULATED.items():
            stats = row["simulated"][simulated]
            place[name] = stats["misses"] / stats["requests"]
    return figures


def scaling(found):
    header = ["", "one thread, M/s", "two that share ÷ one", "two with a cache each ÷ one", "16 that share ÷ two"]
    rows = []
    for name, rounds in found.items():
        ratios = scaled(rounds)
        rows.append([name, spread([one for one, *_ in rounds]), *(spread(r) for r in ratios)])
    return table(header, rows)


def scaled(rounds):
    """Each round's ratios: two threads ÷ one, two with a cache each ÷ one, 16 threads ÷ two."""
    return zip(*((two / one, apart / one, many / two) for one, two, apart, many in rounds))


def instructions(found):
    return table(["request", "instructions"], [[name, f"{n:,}"] for name, n in found.items()])


def start(found):
    return table(["", "ms"], [[n, spread([s * 1e3 for s in secs])] for n, secs in found.items()])


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


def flash(found):
    verdicts = [[what, aim, got, VERDICT[met]] for what, aim, got, met in of_flash(found)]
    met = table(["what", "target", "measured", "met"], verdicts) if verdicts else "Larder was not measured.\n"
    tables = [met, flash_held(found), flash_reads(found), flash_overwrites(found), flash_written(found)]
    if found["restarts"]:
        tables.append(flash_restarts(found))
    if found["device"]:
        tables.append(flash_device(found))
    if found["idle"]:
        tables.append(flash_idle(found))
    return "\n".join(tables)


def embedded(found):
    named = ", ".join(f"{library} {version}" for library, version in found["versions"].items())
    met = table(["what", "target", "measured", "met"], [[*row, VERDICT[is_met]] for *row, is_met in libraries.verdicts(found)])
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


def flash_held(found):
    rows = []
    for name, one in found["held"].items():
        share = f"{one['items'] / one['keys']:.1%}"
        cached = "–" if one["page_cache_bytes"] is None else mib(one["page_cache_bytes"])
        rows.append([name, share, f"{one['found_share']:.1%}", f"{one['index_bytes_per_item']:.1f}", mib(one["rss_bytes"]), cached, one["wrong"]])
    head = [f"{flash_tiers.HELD_KEYS:,} × 1 KB, -m {flash_tiers.MEMORY_MB}", "held", "keys found", "index B an item", "RSS, MiB", "page cache, MiB", "wrong values"]
    return table(head, rows)


def mib(count):
    return f"{count / 2**20:,.0f}"


def flash_reads(found):
    rows = []
    for length, by_server in found["reads"].items():
        for load in flash_tiers.LOADS:
            rows += [flash_row(f"{length}, {load}, {name}", one[load]) for name, one in by_server.items()]
    plain = found["without_flash"]
    rows += [flash_row(f"1024 B, 32 × 1, {name}, from memory", one["32 × 1"]) for name, one in plain.items()]
    return table(["gets", "gets/s", "p50, µs", "p99, µs", "CPU, µs", "found", "from flash", "wrong"], rows)


def flash_row(what, rounds):
    shown = [spread([one[name] for one in rounds]) for name in ("per_second", "get_p50", "get_p99", "cpu_micros")]
    shares = [flash_share(rounds, name) for name in ("hit_share", "share_from_flash")]
    return [what, *shown, *shares, sum(one["wrong"] for one in rounds)]


def flash_share(rounds, name):
    shares = [one[name] for one in rounds if one[name] is not None]
    return f"{median(shares):.1%}" if shares else "–"


def flash_overwrites(found):
    rows = []
    for length, by_server in found["reads"].items():
        for name, one in by_server.items():
            rows.append([f"{length}, {name}", *flash_mix(one["overwrites"])])
    for name, one in found["without_flash"].items():
        rows.append([f"1024 B, {name}, in memory", *flash_mix(one["overwrites"])])
    return table(["10 % overwrites, 32 × 1", "requests/s", "get p99, µs", "set p99, µs", "CPU, µs", "from flash"], rows)


def flash_mix(rounds):
    names = ("per_second", "get_p99", "set_p99", "cpu_micros")
    return [*(spread([one[name] for one in rounds]) for name in names), flash_share(rounds, "share_from_flash")]


def flash_written(found):
    rows = []
    for name in found["held"]:
        rows.append([name, f"{filling_ratio(found, name):.2f}", f"{steady_ratio(found, name):.2f}"])
    return table(["bytes written to the device ÷ bytes of keys and values", "filling", "overwriting a full file"], rows)


def filling_ratio(found, name):
    """Bytes written for each item that is on flash."""
    one = found["held"][name]
    return one["device_bytes"] / max(one["items_on_flash"] * one["payload_bytes"], 1)


def steady_ratio(found, name):
    one = found["steady"][name]
    return one["device_bytes"] / (one["sets"] * one["payload_bytes"])


def flash_restarts(found):
    rows = []
    for server, end, trials in restart_trials(found):
        known = [one for one in trials if "items_before" in one]
        hits = [1e3 * one["hit_secs"] for one in known if one["hit_secs"] is not None]
        ends = [1e3 * one["ended_secs"] for one in known]
        shares = [kept_share(one) for one in known]
        wrong = [sum(one[name] for one in known) for name in ("changed_wrong", "deleted_back")]
        failed = sum(one["failed"] is not None for one in trials)
        shown = [spread(ends) if ends else "–", spread(hits) if hits else "none", f"{100 * min(shares):.3f} %" if shares else "–"]
        rows.append([f"{server}, {end}", *shown, *wrong, failed])
    head = ["1 M × 1000 B, under load", "ms from the signal to the end", "ms to the first hit", "items kept", "old values", "deleted and back", "failed"]
    return table(head, rows)


def restart_trials(found):
    places = dict.fromkeys((one["server"], one["end"]) for one in found["restarts"])
    for server, end in places:
        yield server, end, [one for one in found["restarts"] if (one["server"], one["end"]) == (server, end)]


def kept_share(one):
    return one["items_after"] / one["items_before"]


def flash_device(found):
    names = ("per_second", "p50", "p99", "cpu_micros")
    rows = [[what, *(spread([one[name] for one in rounds]) for name in names)] for what, rounds in found["device"].items()]
    return table(["the bare device, io_uring", "reads/s", "p50, µs", "p99, µs", "CPU, µs"], rows)


def flash_idle(found):
    costs = found["idle"]
    return f"CPU time of a get from memory, of {len(costs['with'])} pairs: {spread(costs['without'])} µs without flash, {spread(costs['with'])} µs with flash that is not used; the median of the ratios is {flash_tiers.idle_ratio(costs):.3f}.\n"


def interfaces(found):
    named = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    met = table(["what", "target", "measured", "met"], [[*row, VERDICT[is_met]] for *row, is_met in further_interfaces.verdicts(found)])
    measured = {"memcached gets, 10 deep": found["idle"]}
    measured |= {f"RESP, {what}": costs for what, costs in found["resp"].items()}
    measured |= {f"HTTP, {size}": costs for size, costs in (found["http"] or {}).items()}
    rows = []
    for what, costs in measured.items():
        for name, rounds in costs.items():
            rows.append([what, name, *(spread([one[kind] for one in rounds]) for kind in (0, 1))])
    return f"{named}; one thread each.\n\n" + met + "\n" + table(["requests", "server", "user CPU, µs", "all CPU, µs"], rows)


def idle(found):
    off, with_all = (median(found[kind]) for kind in ("off", "idle"))
    return table(["instructions of a memcached get, 10 deep", ""], [
        ["no further interface", spread(found["off"])],
        ["all interfaces, idle", spread(found["idle"])],
        ["ratio", f"{with_all / off:.4f}"],
    ])


def builds(found):
    rows = [[name, f"{one['secs']:.0f}", f"{one['bytes'] / 1e6:.1f}", one["crates"]] for name, one in found.items()]
    return table(["with", "build, s", "larderd, MB", "crates of others"], rows)


def cluster(found):
    def waits(times):
        return [f"{1000 * times[name]:.3g}" for name in ("p50", "p99", "max")]

    rows = []
    kinds = {"the leader is killed": "kill", "the same under load": "kill_loaded", "the leader stands still": "pause",
             "the leader hands over": "hand_over"}
    for what, key in kinds.items():
        times = groups.percentiles(found[key]["secs"])
        errors = sum(found[key]["errors"])
        rows.append([what, len(found[key]["secs"]), *waits(times), errors])
    lost = table(["clients of the other nodes, when", "clients", "longest wait p50, ms", "p99, ms", "max, ms", "requests that failed"], rows)
    rows = [[name, *waits(times)] for name, times in found["acks"].items()]
    acks = table(["deletes, one after the other, `--ack`", "p50, ms", "p99, ms", "max, ms"], rows)
    rows = [[server, followers, spread([mine[0] for mine in rounds]), f"{groups.ratio(found[key], followers, 0):.2f}",
             spread([mine[1] for mine in rounds]), f"{groups.ratio(found[key], followers, 1):.2f}"]
            for server, key in (("larderd", "cost"), ("Redis", "redis_cost")) for followers, rounds in found[key].items()]
    cost = table(["leader", "followers", "CPU time of its worker or main thread for a set, µs", "÷ without", "of all its threads, µs",
                  "÷ without"], rows)
    lag = found["lag"]
    other = (f"Lag of two followers under {lag['rate']:,} sets a second, half of what one core takes: "
             f"{1000 * lag['secs']['p50']:.3g} ms (p50), {1000 * lag['secs']['p99']:.3g} ms (p99), "
             f"{1000 * lag['secs']['max']:.3g} ms at most. "
             f"A new follower got {spread(found['copy'])} MB a second of values of 1 KiB, a new replica of "
             f"Redis {spread(found['redis_copy'])}. etcd {found['etcd']}.\n")
    rows = [[what, aim, got, VERDICT[met]] for what, aim, got, met in of_cluster(found)]
    return "\n".join([lost, acks, cost, of_fourth(found), other, table(["what", "target", "measured", "met"], rows)])


def of_fourth(found):
    rows = []
    for when in ("before", "meanwhile"):
        rounds = [one[when] for one in found["fourth"]]
        micros = [spread([of["micros"][name] for of in rounds]) for name in ("p50", "p99", "max")]
        rows.append([when, spread([100 * of["hits"] for of in rounds]), *micros, sum(of["errors"] for of in rounds)])
    return table(["look-ups while a fourth group gets its share", "found, %", "p50, µs", "p99, µs", "max, µs", "failed"], rows)


OTHERS = (
    peers, agreement, tails, growth, fill, live, hitratio, footprints, scaling, instructions, start, restart, flash, embedded,
    interfaces, idle, builds, cluster,
)
SECTIONS = {name: partial(suite, name) for name in parts.SUITES}
SECTIONS |= {part.__name__: part for part in OTHERS}


def targets():
    """The table of the project's targets and the measured figures."""
    rows = []
    for name, rows_of in TARGETS.items():
        known = parts.known(name)
        found = rows_of(known["found"]) if known else ()
        rows += [[what, aim, got, VERDICT[met]] for what, aim, got, met in found]
    return table(["what", "target", "measured", "met"], rows) if rows else None


# Rows for comparison have no target.
VERDICT = {True: "yes", False: "**no**", None: ""}


def beside(what, values, unit=" ×"):
    return what, "", "; ".join(f"{v:.2f}" for v in values) + unit, None


def at_most(what, limit, values, unit=" ×"):
    shown = (f"{v:,}" if isinstance(v, int) else f"{v:.2f}" for v in values)
    return what, f"≤ {limit}{unit}", "; ".join(shown) + unit, max(values) <= limit


def at_least(what, limit, values, unit=" ×"):
    return what, f"≥ {limit}{unit}", "; ".join(f"{v:.2f}" for v in values) + unit, min(values) >= limit


def cells(found, workload, phase, metric):
    """The medians of a metric in a suite, by pipeline and server."""
    figures = {}
    for one in found["summary"]["tables"]:
        place = one["place"]
        if (place["workload"], place["phase"], place["threads"]) == (workload, phase, 1):
            by_server = {}
            for row in one["rows"]:
                spreads = row["standing"].get("figures", {}) if isinstance(row["standing"], dict) else {}
                if spreads:
                    by_server[row["server"]] = spreads["spreads"][metric]["median"]
            figures[place["pipeline"]] = by_server
    return figures


def ratios(figures, pipelines, over="memcached"):
    return [figures[p]["larder"] / figures[p][over] for p in pipelines]


def of_pipelined(found):
    text = cells(found, "text", "1:10", "user_cpu")
    yield at_most("user CPU, text, 10 and 50 deep ÷ memcached", 0.35, ratios(text, [10, 50]))
    yield at_most("… ÷ the fastest peer found (Redis)", 0.45, ratios(text, [10, 50], "redis"))
    for protocol in ("meta", "binary"):
        figures = ratios(cells(found, protocol, "1:10", "user_cpu"), [10, 50])
        yield at_most(f"user CPU, {protocol}, 10 and 50 deep ÷ memcached", 0.4, figures)
    sets = cells(found, "text, sets", "1:0", "user_cpu")
    yield at_most("user CPU, sets only, 10 deep ÷ memcached", 0.5, ratios(sets, [10]))


def of_unpipelined(found):
    single = [cells(found, f"{n} connections", "GET 512 B", "cpu")[1] for n in (16, 256)]
    what = "CPU, not pipelined, 16 and 256 connections"
    for name, server, aim in ((f"{what} ÷ memcached", "memcached", 0.9), ("… ÷ an empty loop", "empty loop", 1.1)):
        yield at_most(name, aim, [one["larder"] / one[server] for one in single])


def of_caches(found):
    for phase in ("GET", "SET"):
        unix = ratios(cells(found, "1-1024 B", phase, "throughput"), [50])
        yield at_least(f"throughput, unix socket, 50 deep, {phase} ÷ memcached", 1.6, unix)


def of_tails(found):
    for name, key in (("p99", "p99"), ("p99.9", "p99_9")):
        larder, memcached, floor = (
            median(run[key] for run in found[server]) for server in ("larder", "memcached", EMPTY_LOOP)
        )
        yield at_most(f"{name} at 70 % of memcached's peak ÷ memcached", 0.8, [larder / memcached])
        yield beside("… an empty loop's, as a comparison", [floor / memcached])


def of_growth(found):
    pairs = (("growing", "grown", "index growth"), ("evicting", "roomy", "sustained eviction"))
    for busy, steady, what in pairs:
        ratio = median(run[2] for run in found[busy]) / median(run[2] for run in found[steady])
        yield at_most(f"p99.9 during {what} ÷ steady", 2, [ratio])


def of_fill(found):
    aims = {10: 1.8, 50: 1.7, 100: 1.4, 230: 1.13, 1000: 1.14, 4000: 1.1}
    for size, aim in aims.items():
        yield at_least(f"items per GiB of RSS, {size} B ÷ memcached", aim, [held_ratio(found, size)])


def of_live(found):
    for name, aim in (("equal", 85), ("changing", 80)):
        yield at_least(f"live share, 30 % overwrites, {name} sizes", aim, [100 * found[name]["share"]], " %")


def of_hitratio(found):
    threads = found["threads"]
    counts = " and ".join(f"-t {count}" for count in threads)
    for name, by_server in workload_counts(found).items():
        workload = WORKLOADS[name]
        figures = [workload.figure(by_server[f"larder-t{count}"]) for count in threads]
        got = "; ".join(map(workload.shown, figures))
        met = all(map(workload.is_met, figures))
        yield f"{workload.unit}, {workload.title}, {counts}", workload.shown_aim(), got, met
        over = list(over_memcached(by_server, threads))
        yield at_most("… bytes missed ÷ memcached", BYTES_AIM, over)


def of_footprints(found):
    for stream in found:
        figures = misses(found, stream).values()
        aim = 0.93 if stream == "scans" else 0.9
        yield at_most(f"misses, {stream}, 1 % and 10 % ÷ memcached", aim, [f["larder"] / f["memcached"] for f in figures])
        yield at_most("… ÷ simulated S3-FIFO", 1.02, [f["larder"] / f["S3-FIFO"] for f in figures])
        yield at_most("… ÷ LRU", 1.02, [f["larder"] / f["LRU"] for f in figures])


def of_peers(found):
    for load, by_server in found["loads"].items():
        yield at_most(f"user CPU, {load} ÷ memcached {found['versions']['memcached']}", 0.35, [user_ratio(by_server, "memcached")])
        if "pogocache" in by_server:
            yield at_most(f"… ÷ Pogocache {found['versions']['pogocache']}", 0.5, [user_ratio(by_server, "pogocache")])


def of_scaling(found):
    for sets, aim in ((10, 1.8), (100, 1.8)):
        two, apart, many = (median(ratios) for ratios in scaled(found[f"Zipf 1, {sets}% sets"]))
        yield at_least(f"engine alone, {sets} % sets, 2 threads ÷ 1", aim, [two])
        yield at_least(f"engine alone, {sets} % sets, 16 threads ÷ 2", 0.95, [many])
        yield beside("… two threads with a cache each ÷ 1, as a comparison", [apart])
        two, _, many = (median(ratios) for ratios in scaled(found[f"Zipf 0, {sets}% sets"]))
        yield beside("… both with keys all alike, as a comparison", (two, many))


def of_instructions(found):
    for name, count in found.items():
        if name in ("get", "set"):
            yield at_most(f"instructions, {name}", 450, [count], "")


def of_start(found):
    for memory_mb, aim in ((64, 50), (16384, 300)):
        yield at_most(f"start to first answer, -m {memory_mb}", aim, [1e3 * median(found[f"larder -m {memory_mb}"])], " ms")


def of_restart(found):
    for restart in found["restarts"]:
        if restart["server"] == "larder":
            aim = 50 + restart["items"] / 100_000
            what = f"{restart['items'] // 1_000_000} M items of {restart['value_bytes']} B, {restart['end']}: first hit"
            yield at_most(what, aim, [1e3 * median(restart["secs"])], " ms")
            kept = min(restart["kept"])
            yield "… items kept", "≥ 99.9 %", f"{100 * kept:.3f} %", kept >= 0.999
    yield at_most("CPU time of a get with -e ÷ without", 1.03, [restarts.ratio(found["get_cost"])], " ×")


def of_flash(found):
    if "larder" not in found["servers"]:
        return
    held = found["held"]["larder"]
    yield at_least("1.5 M × 1 KB at -m 64: held", 100, [100 * held["items"] / held["keys"]], " %")
    yield at_most("… index", 10, [held["index_bytes_per_item"]], " B an item")
    if held["page_cache_bytes"] is not None:
        yield at_most("… page cache", 0, [held["page_cache_bytes"]], " B")
    yield at_most("… wrong values", 0, [held["wrong"]], "")
    for length, loads in found["reads"].items():
        yield from of_flash_reads(found, length, loads)
        rates = flash_ratio(loads, "overwrites", "per_second")
        yield at_least(f"10 % overwrites, {length}, 32 × 1 ÷ extstore, 32 threads", 1.8, rates)
        if length == "1024 B":
            both = (loads["larder"], found["without_flash"]["larder"])
            with_flash, without = (flash_tiers.middle(one["overwrites"], "set_p99") for one in both)
            yield at_most("… set p99 ÷ without flash", 1.2, [with_flash / without])
    yield at_most("bytes written ÷ bytes set, filling", 1.05, [filling_ratio(found, "larder")])
    yield at_most("… overwriting a full file", 1.2, [steady_ratio(found, "larder")])
    for server, end, trials in restart_trials(found):
        if server.startswith("larder"):
            yield from of_flash_restart(f"{server}, {end} under load", trials)
    yield at_most("CPU time of a get from memory, idle flash ÷ without", 1.02, [flash_tiers.idle_ratio(found["idle"])])


def of_flash_restart(what, trials):
    known = [one for one in trials if "items_before" in one]
    if not known or any(one["hit_secs"] is None for one in known):
        yield f"{what}: first hit", "≤ 60 ms", "none", False
        return
    # 50 ms, and 10 ms per million items.
    yield at_most(f"{what}: first hit", 60, [1e3 * median(one["hit_secs"] for one in known)], " ms")
    kept = min(map(kept_share, known))
    yield "… items kept", "≥ 99.9 %", f"{100 * kept:.3f} %", kept >= 0.999
    wrong = sum(one["changed_wrong"] + one["deleted_back"] for one in known)
    failed = sum(one["failed"] is not None for one in trials)
    yield at_most("… wrong values, deleted items that are back, failed trials", 0, [wrong, failed], "")


# The targets of gets from flash: Larder ÷ extstore in rate, p99, p50 and CPU time, and ÷ the bare device.
FLASH_AIMS = {
    ("1024 B", "32 × 1"): {"per_second": 1.9, "device": 0.65, "get_p99": 0.6, "cpu_micros": 0.4},
    ("1024 B", "8 × 16"): {"per_second": 2},
    ("1024 B", "1 × 1"): {"get_p50": 0.9},
    ("8192 B", "32 × 1"): {"device": 0.8},
}


def of_flash_reads(found, length, loads):
    for load in flash_tiers.LOADS:
        what, aims = f"gets from flash, {length}, {load}", FLASH_AIMS.get((length, load), {})
        rates = flash_ratio(loads, load, "per_second")
        rate = f"{what} ÷ extstore, 32 threads"
        yield at_least(rate, aims["per_second"], rates) if "per_second" in aims else beside(rate, rates)
        if found["device"]:
            bare = flash_tiers.middle(found["device"][f"{length}, {load}"], "per_second")
            shares = [flash_tiers.middle(loads["larder"][load], "per_second") / bare]
            yield at_least("… ÷ the bare device", aims["device"], shares) if "device" in aims else beside("… ÷ the bare device", shares)
        for name, shown in (("get_p50", "p50"), ("get_p99", "p99"), ("cpu_micros", "CPU of a get")):
            if name in aims:
                yield at_most(f"… {shown} ÷ extstore", aims[name], flash_ratio(loads, load, name))
        if (length, load) == ("1024 B", "32 × 1") and found["device"]:
            ours = flash_tiers.middle(loads["larder"][load], "cpu_micros")
            memory = flash_tiers.middle(found["without_flash"]["larder"][load], "cpu_micros")
            bare = flash_tiers.middle(found["device"][f"{length}, {load}"], "cpu_micros")
            yield at_most("… CPU of a get, minus one from memory ÷ bare io_uring", 1.5, [(ours - memory) / bare])


def flash_ratio(loads, load, name):
    """Larder ÷ extstore with 32 threads, if that was measured."""
    others = [server for server in ("memcached, 32 threads", "memcached, 1 thread") if server in loads]
    ours = flash_tiers.middle(loads["larder"][load], name)
    return [ours / flash_tiers.middle(loads[other][load], name) for other in others[:1]]


def of_cluster(found):
    def secs(key):
        return groups.percentiles(found[key]["secs"])

    copies = [sorted(found["copy"])[len(found["copy"]) // 2]]
    yield at_most("wait of clients when a leader is killed, p99", 0.6, [secs("kill")["p99"]], " s")
    loaded = median(found["kill_loaded"]["answered"])
    yield at_most(f"the same under {loaded:,.0f} requests a second, p99", 0.6, [secs("kill_loaded")["p99"]], " s")
    yield at_most("the same when it stands still, at most", 3, [secs("pause")["max"]], " s")
    yield at_most("the same when it hands over, p99", 50, [1000 * secs("hand_over")["p99"]], " ms")
    yield at_most("requests that fail when it hands over", 0, [sum(found["hand_over"]["errors"])], "")
    yield at_most("CPU of the leader's worker for a set, two followers ÷ none", 1.15, [groups.ratio(found["cost"], "2", 0)])
    deletes = [1000 * found["acks"][f"writes, asked at the {who}"]["p99"] for who in ("leader", "follower")]
    yield at_most("deletes that two followers acknowledge, p99", 2, deletes, " ms")
    yield at_most("lag of two followers at half load, p99", 50, [1000 * found["lag"]["secs"]["p99"]], " ms")
    yield at_least("MB/s of values of 1 KiB in a copy", 300, copies, "")
    moved = [100 * one["moved"] for one in found["fourth"]]
    shown = "; ".join(f"{share:.1f}" for share in moved)
    yield "items that move to a fourth group", "25 % ± 2.5", f"{shown} %", all(abs(share - 25) <= 2.5 for share in moved)
    found_again = groups.beside_moves(found, lambda of: of["hits"])
    yield at_least("share of look-ups that find something meanwhile ÷ before", 0.99, [found_again])
    yield at_most("p99 of look-ups meanwhile ÷ before", 2, [groups.beside_moves(found, lambda of: of["micros"]["p99"])])


TARGETS = {
    "peers": of_peers,
    "pipelined": of_pipelined,
    "unpipelined": of_unpipelined,
    "caches": of_caches,
    "tails": of_tails,
    "growth": of_growth,
    "fill": of_fill,
    "live": of_live,
    "hitratio": of_hitratio,
    "footprints": of_footprints,
    "scaling": of_scaling,
    "instructions": of_instructions,
    "start": of_start,
    "restart": of_restart,
    "flash": of_flash,
}
