"""Miss ratios of traces and of generated workloads."""

from bench.page.tables import table
from bench.page.verdicts import at_most
from bench.workloads import BYTES_AIM, WORKLOADS


def hitratio(found):
    """Returns the table of miss ratios. Figures of Larder that miss their target are bold."""
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
    """For each workload, returns the counts of the servers and of the simulated LRU, and the memory limit."""
    counts_by_name = {}
    for row in found["rows"]:
        place = counts_by_name.setdefault(row["stream"], {"LRU": row["simulated"]["lru"]})
        place["memory_mb"] = row["capacity_bytes"] >> 20
        place[row["server"]] = row["replayed"]["tally"]
    return counts_by_name


def over_memcached(by_server, threads):
    """Yields Larder's missed bytes ÷ memcached's for each number of threads, or 1 if neither misses any."""
    for count in threads:
        larder, memcached = (by_server[f"{name}-t{count}"]["missed_bytes"] for name in ("larder", "memcached"))
        yield larder / memcached if memcached else 1.0 if not larder else float("inf")


def hitratio_targets(found):
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
    """For each share of the footprint, returns the miss ratios of servers and of simulated caches."""
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


def footprints_targets(found):
    for stream in found:
        figures = misses(found, stream).values()
        aim = 0.93 if stream == "scans" else 0.9
        yield at_most(f"misses, {stream}, 1 % and 10 % ÷ memcached", aim, [f["larder"] / f["memcached"] for f in figures])
        yield at_most("… ÷ simulated S3-FIFO", 1.02, [f["larder"] / f["S3-FIFO"] for f in figures])
        yield at_most("… ÷ LRU", 1.02, [f["larder"] / f["LRU"] for f in figures])
