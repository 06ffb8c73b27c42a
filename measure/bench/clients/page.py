"""Writes the results of client libraries between the markers of docs/results/clients.md, and their plots to
docs/plots."""

import json
from statistics import fmean, median, pstdev

from bench.page.tables import PLOTS, replaced, table
from bench.servers import EXAMPLES, ROOT, run

PATH = ROOT / "docs/results/clients.md"
MODES = {"pool": "a pool of 64", "none": "a connection for each operation", "thread": "a connection for each thread"}
# The mode and the value length of each plot.
PLOTTED = [("pool", 19), ("pool", 4096), ("none", 19), ("thread", 19)]
JUDGED_THREADS = (63, 64, 128, 256)
# Targets: a Larder client, the client with which it is compared, and limits of the ratios of their figures. The limits
# are a maximum for mean and deviation, a minimum for operations/s, and a maximum for CPU time per operation.
AIMS = [
    ("larder", "gomemcache", (0.8, 1.2, 0.8)),
    ("larder-pool", "gomemcache", (0.8, 1.2, 0.8)),
    ("larder", "memcache-exp", (0.5, 2, 0.6)),
    ("larder-pool", "memcache-exp", (0.5, 2, 0.6)),
    ("larder-tokio", "async-memcached", (0.5, 2, 0.6)),
    ("larder-python", "pymemcache", (0.2, 3, 0.4)),
    ("larder-python", "pylibmc", (0.5, 1.5, 0.8)),
    ("larder-python", "libmc", (0.5, 1.5, 0.8)),
    ("larder-ruby", "dalli", (0.4, 2, 0.5)),
]
# Targets for the CPU time of a get of 100 keys.
MANY_AIMS = [
    ("larder", "memcache-exp", 0.5),
    ("larder-ruby", "dalli", 0.5),
    ("larder-python", "pymemcache", 0.3),
    ("larder-python", "pylibmc", 0.8),
]
# The rivals of each Larder client in the comparison with few threads.
RIVALS = {
    "larder": ("memcache-exp", "memcache", "gomemcache", "libmemcached"),
    "larder-tokio": ("async-memcached",),
    "larder-python": ("pymemcache", "pylibmc", "libmc", "meta-memcache", "python-memcached"),
    "larder-ruby": ("dalli",),
}


class Found:
    """Results by client. Each method returns a median over the rounds, except `most`, which returns the maximum."""

    def __init__(self, found):
        self.found = found
        self.clients = [name for name, _, _ in found["clients"]]
        self.languages = {name: language for name, language, _ in found["clients"]}

    def mean(self, client, mode, value, threads):
        """Returns the mean and the standard deviation of thread times within a round in µs, each as the median over the
        rounds. Returns None without results."""
        rounds = self.found["times"].get(client, {}).get(f"times {mode} {value} {threads}")
        return (median(map(fmean, rounds)), median(map(pstdev, rounds))) if rounds else None

    def figure(self, client, name):
        values = self.found["figures"].get(client, {}).get(name)
        return median(values) if values else None

    def load(self, client, name, threads, value=19):
        return self.figure(client, f"load {value} {threads} {name}")

    def most(self, client, name):
        return max(self.found["figures"].get(client, {}).get(name, [0]))


def write(results):
    PATH.write_text(replaced(PATH.read_text(), "clients", text(results)))
    draw(results, PLOTS)


def text(results):
    found, where = Found(results), results["where"]
    named = ", ".join(f"{name} {version}" for name, _, version in results["clients"])
    rounds = "one round" if results["rounds"] == 1 else f"medians of {results['rounds']} rounds"
    head = (f"`scripts/bench-clients`, {where['date']}, {where['machine']}; server: {where[where['server']]}; {rounds}; "
            f"{results['seconds']} s. Clients: {named}.")  # fmt: skip
    parts = [head, left_out(results), "### Targets", aims(found), "### With few threads", leads(found)]
    for value in results["values"]:
        parts += [f"### A pool of 64 or shared connections, values of {value} bytes", pooled(found, value)]
    parts += ["### Operations per second by threads", by_threads(found, "operations_per_s")]
    parts += ["### The three modes, 64 threads", modes(found)]
    parts += ["### A get of several keys", many(found)]
    parts += ["### A server 5 ms away, 64 threads", far(found)]
    if any(found.figure(client, "busy 64 busy_share") for client in found.clients):
        parts += ["### Next to a busy thread, 64 threads", busy(found)]
    parts += ["### Recovery", recovery(found), failures(results), plots(found)]
    return "\n\n".join(part.strip() for part in parts if part.strip())


def shown(value, digits=3):
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{digits}g}"


def left_out(results):
    if not results["missing"]:
        return ""
    return "Left out, because they could not be installed: " + "; ".join(f"{n} ({why})" for n, why in results["missing"].items()) + "."


def aims(found):
    rows = []
    for ours, other, limits in AIMS:
        if ours in found.clients and other in found.clients:
            rows += [aim_row(found, ours, other, limits, threads) for threads in JUDGED_THREADS if found.mean(ours, "pool", 19, threads)]
    for ours, other, limit in MANY_AIMS:
        pair = [found.figure(client, "many 1 get_many_100_cpu_us") for client in (ours, other)]
        if all(pair):
            ratio = pair[0] / pair[1]
            rows.append([f"{ours} ÷ {other}, CPU of get_many(100)", f"≤ {limit}", f"{ratio:.2f}", met(ratio <= limit)])
    return table(["pool of 64, 19 bytes", "target", "measured", "met"], rows) if rows else "No targets were measured."


def aim_row(found, ours, other, limits, threads):
    """Returns a row with the ratios of mean, deviation, operations/s and CPU time."""
    pairs = [found.mean(client, "pool", 19, threads) for client in (ours, other)]
    if not all(pairs):
        return [f"{ours} ÷ {other}, {threads} threads", "", "no result", met(False)]
    mean, deviation = (a / b if b else float("inf") for a, b in zip(*pairs))
    rate, cpu = (found.load(ours, name, threads) / (found.load(other, name, threads) or float("inf")) for name in ("operations_per_s", "cpu_us"))
    times, rates, cpus = limits
    good = mean <= times and deviation <= times and rate >= rates and cpu <= cpus
    target = f"mean, σ ≤ {times}; operations/s ≥ {rates}; CPU ≤ {cpus}"
    return [f"{ours} ÷ {other}, {threads} threads", target, f"{mean:.2f}, {deviation:.2f}; {rate:.2f}; {cpu:.2f}", met(good)]


def leads(found):
    """Returns the comparison of Larder's clients with their rivals for up to 32 threads: each figure of a client ÷ the
    best figure of its rivals."""
    counts = [count for count in found.found["threads"] if count <= 32]
    rows = []
    for ours, others in RIVALS.items():
        others = [other for other in others if other in found.clients]
        if ours in found.clients and others:
            rows.append([f"{ours} ÷ the best of {', '.join(others)}", *(lead(found, ours, others, count) for count in counts)])
    return table(["mean; operations/s; CPU of one", *counts], rows)


def lead(found, ours, others, threads):
    def means(clients):
        return [mean[0] for client in clients if (mean := found.mean(client, "pool", 19, threads))]

    def loads(clients, name):
        return [figure for client in clients if (figure := found.load(client, name, threads))]

    figures = [(means, min)] + [(lambda clients, name=name: loads(clients, name), best) for name, best in [("operations_per_s", max), ("cpu_us", min)]]
    pairs = [(of([ours]), best(of(others), default=None)) for of, best in figures]
    return "; ".join(f"{mine[0] / best:.2f}" if mine and best else "–" for mine, best in pairs)


def met(good):
    return "yes" if good else "**no**"


def pooled(found, value):
    rows = []
    for threads in found.found["threads"]:
        if threads not in (1, *JUDGED_THREADS):
            continue
        for client in found.clients:
            mean, deviation = found.mean(client, "pool", value, threads) or (None, None)
            figures = [found.load(client, name, threads, value) for name in ("operations_per_s", "cpu_us", "p50_us", "p99_us")]
            errors = found.most(client, f"load {value} {threads} errors") + found.most(client, f"times pool {value} {threads} times_errors")
            rows.append([f"{threads}, {client}", *map(shown, (mean, deviation, *figures)), f"{errors:.0f}"])
    return table(["threads, client", "mean, µs", "σ, µs", "operations/s", "CPU of one, µs", "p50, µs", "p99, µs", "errors"], rows)


def by_threads(found, name):
    threads = found.found["threads"]
    rows = [[client, *(shown(found.load(client, name, count)) for count in threads)] for client in found.clients]
    return table(["", *threads], rows)


def modes(found):
    places = [(mode, value) for value in found.found["values"] for mode in MODES]
    rows = []
    for client in found.clients:
        means = (found.mean(client, mode, value, 64) for mode, value in places)
        rows.append([client, *("–" if mean is None else f"{shown(mean[0])} ± {shown(mean[1])}" for mean in means)])
    return table(["mean ± σ, µs", *(f"{MODES[mode]}, {value} B" for mode, value in places)], rows)


def many(found):
    rows = [[client, *(shown(found.figure(client, f"many 1 get_many_{keys}_cpu_us")) for keys in (6, 100))] for client in found.clients]
    return table(["CPU of a call, µs", "6 keys", "100 keys"], rows)


def far(found):
    names = ("operations_per_s", "mean_us", "p99_us", "errors")
    rows = [[client, *(shown(found.figure(client, f"far 64 {name}")) for name in names)] for client in found.clients]
    return table(["", "operations/s", "mean, µs", "p99, µs", "errors"], rows)


def busy(found):
    names = ("busy_share", "busy_operations_per_s", "busy_mean_us", "busy_p99_us")
    rows = []
    for client in found.clients:
        figures = [found.figure(client, f"busy 64 {name}") for name in names]
        if figures[0] is not None:
            rows.append([client, *map(shown, figures)])
    return table(["", "progress of the busy thread", "operations/s", "mean, µs", "p99, µs"], rows)


def recovery(found):
    rows = [[client, shown(found.figure(client, "recovery 1 ms"))] for client in found.clients]
    return table(["", "ms until the first success"], rows)


def failures(results):
    """Returns the errors of drivers, without duplicates."""
    lines = dict.fromkeys(f"- {client}: {why}" for client, reasons in results["failures"].items() for why in reasons)
    return "### Failed operations\n\n" + "\n".join(lines) if lines else ""


def groups(found):
    """Returns the clients of each plot. Clients in interpreted languages have a separate plot, which also shows
    Larder's client in Rust."""
    interpreted = [client for client in found.clients if found.languages[client] in ("Python", "Ruby")]
    compiled = [client for client in found.clients if client not in interpreted]
    ours = [client for client in compiled if client == "larder"]
    return {"compiled": compiled, "interpreted": ours + interpreted if interpreted else []}


def plot_names(found):
    for mode, value in PLOTTED:
        for group, clients in groups(found).items():
            if value in found.found["values"] and clients:
                yield mode, value, clients, f"clients-{mode}-{value}-{group}.svg"


def plots(found):
    images = (f"![{MODES[mode]}, {value} bytes: {', '.join(clients)}](../plots/{name})" for mode, value, clients, name in plot_names(found))
    return "### Plots\n\n" + "\n".join(images)


def draw(results, folder):
    found = Found(results)
    folder.mkdir(parents=True, exist_ok=True)
    for mode, value, clients, name in plot_names(found):
        series = [
            {"name": client, "place": index, "points": [found.mean(client, mode, value, count) for count in found.found["threads"]]}
            for index, client in enumerate(clients)
        ]
        plot = {"title": f"Mean ± σ of thread times · {MODES[mode]}, {value} B", "threads": found.found["threads"], "series": series}
        drawn = run([EXAMPLES / "mean_plot"], input=json.dumps(plot), capture_output=True)
        (folder / name).write_text(drawn.stdout)
