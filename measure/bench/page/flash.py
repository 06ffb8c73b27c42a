"""The flash tier."""

from statistics import median

from bench import flash as flash_tiers
from bench.page.tables import mib, spread, table
from bench.page.verdicts import VERDICT, at_least, at_most, beside


def flash(found):
    verdicts = [[title, aim, got, VERDICT[met]] for title, aim, got, met in flash_targets(found)]
    met = table(["figure", "target", "measured", "met"], verdicts) if verdicts else "Larder was not measured.\n"
    tables = [met, flash_held(found), flash_reads(found), flash_overwrites(found), flash_written(found)]
    if found["restarts"]:
        tables.append(flash_restarts(found))
    if found["device"]:
        tables.append(flash_device(found))
    if found["idle"]:
        tables.append(flash_idle(found))
    return "\n".join(tables)


def flash_held(found):
    rows = []
    for name, one in found["held"].items():
        share = f"{one['items'] / one['keys']:.1%}"
        cached = "–" if one["page_cache_bytes"] is None else mib(one["page_cache_bytes"])
        rows.append([name, share, f"{one['found_share']:.1%}", f"{one['index_bytes_per_item']:.1f}", mib(one["rss_bytes"]), cached, one["wrong"]])
    head = [f"{flash_tiers.HELD_KEYS:,} × 1 KB, -m {flash_tiers.MEMORY_MB}", "held", "keys found", "index B an item", "RSS, MiB", "page cache, MiB", "wrong values"]
    return table(head, rows)


def flash_reads(found):
    rows = []
    for length, by_server in found["reads"].items():
        for load in flash_tiers.LOADS:
            rows += [flash_row(f"{length}, {load}, {name}", one[load]) for name, one in by_server.items()]
    plain = found["without_flash"]
    rows += [flash_row(f"1024 B, 32 × 1, {name}, from memory", one["32 × 1"]) for name, one in plain.items()]
    return table(["gets", "gets/s", "p50, µs", "p99, µs", "CPU, µs", "found", "from flash", "wrong"], rows)


def flash_row(title, rounds):
    shown = [spread([one[name] for one in rounds]) for name in ("per_second", "get_p50", "get_p99", "cpu_micros")]
    shares = [flash_share(rounds, name) for name in ("hit_share", "share_from_flash")]
    return [title, *shown, *shares, sum(one["wrong"] for one in rounds)]


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
    """Returns the bytes written to the device ÷ the bytes of the items on flash."""
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
    rows = [[title, *(spread([one[name] for one in rounds]) for name in names)] for title, rounds in found["device"].items()]
    return table(["the bare device, io_uring", "reads/s", "p50, µs", "p99, µs", "CPU, µs"], rows)


def flash_idle(found):
    costs = found["idle"]
    return f"CPU time of a get from memory, of {len(costs['with'])} pairs: {spread(costs['without'])} µs without flash, {spread(costs['with'])} µs with flash that is not used; the median of the ratios is {flash_tiers.idle_ratio(costs):.3f}.\n"


def flash_targets(found):
    if "larder" not in found["servers"]:
        return
    held = found["held"]["larder"]
    yield at_least("1.5 M × 1 KB at -m 64: held", 100, [100 * held["items"] / held["keys"]], " %")
    yield at_most("… index", 10, [held["index_bytes_per_item"]], " B an item")
    if held["page_cache_bytes"] is not None:
        yield at_most("… page cache", 0, [held["page_cache_bytes"]], " B")
    yield at_most("… wrong values", 0, [held["wrong"]], "")
    for length, loads in found["reads"].items():
        yield from flash_reads_targets(found, length, loads)
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
            yield from flash_restart_targets(f"{server}, {end} under load", trials)
    yield at_most("CPU time of a get from memory, idle flash ÷ without", 1.02, [flash_tiers.idle_ratio(found["idle"])])


def flash_restart_targets(title, trials):
    known = [one for one in trials if "items_before" in one]
    if not known or any(one["hit_secs"] is None for one in known):
        yield f"{title}: first hit", "≤ 60 ms", "none", False
        return
    # The limit is 50 ms plus 10 ms per million items. The server holds a million items.
    yield at_most(f"{title}: first hit", 60, [1e3 * median(one["hit_secs"] for one in known)], " ms")
    kept = min(map(kept_share, known))
    yield "… items kept", "≥ 99.9 %", f"{100 * kept:.3f} %", kept >= 0.999
    wrong = sum(one["changed_wrong"] + one["deleted_back"] for one in known)
    failed = sum(one["failed"] is not None for one in trials)
    yield at_most("… wrong values, deleted items that are back, failed trials", 0, [wrong, failed], "")


# The targets for gets from flash. `per_second`, `get_p99`, `get_p50` and `cpu_micros` are Larder's figures ÷
# extstore's. `device` is Larder's rate ÷ that of the bare device.
FLASH_AIMS = {
    ("1024 B", "32 × 1"): {"per_second": 1.9, "device": 0.65, "get_p99": 0.6, "cpu_micros": 0.4},
    ("1024 B", "8 × 16"): {"per_second": 2},
    ("1024 B", "1 × 1"): {"get_p50": 0.9},
    ("8192 B", "32 × 1"): {"device": 0.8},
}


def flash_reads_targets(found, length, loads):
    for load in flash_tiers.LOADS:
        title, aims = f"gets from flash, {length}, {load}", FLASH_AIMS.get((length, load), {})
        rates = flash_ratio(loads, load, "per_second")
        rate = f"{title} ÷ extstore, 32 threads"
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
    """Returns a list with Larder's figure ÷ extstore's. Uses extstore with 32 threads if it was measured, and with one
    thread otherwise. Returns an empty list if no extstore was measured."""
    others = [server for server in ("memcached, 32 threads", "memcached, 1 thread") if server in loads]
    ours = flash_tiers.middle(loads["larder"][load], name)
    return [ours / flash_tiers.middle(loads[other][load], name) for other in others[:1]]
