"""Items per GiB, and the share of memory that holds live items."""

from bench import parts
from bench.page.tables import table
from bench.page.verdicts import at_least


def fill(found):
    sizes = sorted({row["value_bytes"] for row in found})
    rows = []
    for name in parts.COMMANDS_MEASURED:
        rows.append([name, *(f"{per_gib(found, name, size) / 1e6:.3f} M" for size in sizes)])
    ratios = [f"{held_ratio(found, size):.2f}" for size in sizes]
    rows.append(["ratio", *ratios])
    return table(["items per GiB of RSS, by value size", *(f"{size} B" for size in sizes)], rows)


def per_gib(found, name, size):
    row = next(r for r in found if r["server"] == name and r["value_bytes"] == size)
    return row["items"] * 2**30 / row["rss_bytes"]


def held_ratio(found, size):
    return per_gib(found, "larder", size) / per_gib(found, "memcached", size)


def fill_targets(found):
    aims = {10: 1.8, 50: 1.7, 100: 1.4, 230: 1.13, 1000: 1.14, 4000: 1.1}
    for size, aim in aims.items():
        yield at_least(f"items per GiB of RSS, {size} B ÷ memcached", aim, [held_ratio(found, size)])


def live(found):
    rows = [[name, f"{part['share']:.1%}"] for name, part in found.items()]
    return table(["30 % overwrites, sizes", "live share"], rows)


def live_targets(found):
    for name, aim in (("equal", 85), ("changing", 80)):
        yield at_least(f"live share, 30 % overwrites, {name} sizes", aim, [100 * found[name]["share"]], " %")
