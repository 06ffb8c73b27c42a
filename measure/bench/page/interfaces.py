"""RESP, HTTP, and the cost of idle interfaces."""

from statistics import median

from bench import interfaces as further_interfaces
from bench.page.tables import spread, table
from bench.page.verdicts import VERDICT


def interfaces(found):
    named = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    met = table(["figure", "target", "measured", "met"], [[*row, VERDICT[is_met]] for *row, is_met in further_interfaces.verdicts(found)])
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
