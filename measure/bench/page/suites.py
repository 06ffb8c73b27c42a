"""The suites of `larder compare`."""

import re
import shutil

from bench.page.tables import PLOTS
from bench.page.verdicts import at_least, at_most
from bench.servers import ROOT

# The plots that are copied to docs/plots: suite, file, caption.
PLOTS_SHOWN = [
    ("caches", "1-1024-b-get-1-thread-throughput-linear.svg", "gets over a unix socket"),
    ("caches", "1-1024-b-set-1-thread-throughput-linear.svg", "sets over a unix socket"),
    ("caches", "1-1024-b-get-1-thread-p99-logarithmic.svg", "p99 of gets over a unix socket"),
    ("pipelined", "text-1-10-1-thread-user-cpu-linear.svg", "user CPU of a request over TCP"),
]


def suite(name, found):
    PLOTS.mkdir(exist_ok=True)
    text = ""
    for _, file, caption in (shown for shown in PLOTS_SHOWN if shown[0] == name):
        plot = ROOT / f"compare/{name}-quick/plots" / file
        if plot.exists():
            shutil.copy(plot, PLOTS / f"{name}-{file}")
            text += f"![{caption}](../plots/{name}-{file})\n"
    tables = re.sub(r"^#", "###", found["markdown"], flags=re.M)
    return f"{tables}\n{text}"


def cells(found, workload, phase, metric):
    """Returns the medians of a metric in a suite by pipeline and server, for servers with one thread."""
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


def pipelined_targets(found):
    text = cells(found, "text", "1:10", "user_cpu")
    yield at_most("user CPU, text, 10 and 50 deep ÷ memcached", 0.35, ratios(text, [10, 50]))
    yield at_most("… ÷ the fastest peer found (Redis)", 0.45, ratios(text, [10, 50], "redis"))
    for protocol in ("meta", "binary"):
        figures = ratios(cells(found, protocol, "1:10", "user_cpu"), [10, 50])
        yield at_most(f"user CPU, {protocol}, 10 and 50 deep ÷ memcached", 0.4, figures)
    sets = cells(found, "text, sets", "1:0", "user_cpu")
    yield at_most("user CPU, sets only, 10 deep ÷ memcached", 0.5, ratios(sets, [10]))


def unpipelined_targets(found):
    single = [cells(found, f"{n} connections", "GET 512 B", "cpu")[1] for n in (16, 256)]
    what = "CPU, not pipelined, 16 and 256 connections"
    for name, server, aim in ((f"{what} ÷ memcached", "memcached", 0.9), ("… ÷ an empty loop", "empty loop", 1.1)):
        yield at_most(name, aim, [one["larder"] / one[server] for one in single])


def caches_targets(found):
    for phase in ("GET", "SET"):
        unix = ratios(cells(found, "1-1024 B", phase, "throughput"), [50])
        yield at_least(f"throughput, unix socket, 50 deep, {phase} ÷ memcached", 1.6, unix)
