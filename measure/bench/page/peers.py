"""User CPU time of requests, compared with other servers."""

from statistics import median

from bench.page.tables import spread, table
from bench.page.verdicts import at_most


def peers(found):
    """Returns the table of user CPU time per request, with Larder's time ÷ each other server's time."""
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


def user_ratio(by_server, other):
    return median(user for user, _ in by_server["larder"]) / median(user for user, _ in by_server[other])


def peers_targets(found):
    for load, by_server in found["loads"].items():
        yield at_most(f"user CPU, {load} ÷ memcached {found['versions']['memcached']}", 0.35, [user_ratio(by_server, "memcached")])
        if "pogocache" in by_server:
            yield at_most(f"… ÷ Pogocache {found['versions']['pogocache']}", 0.5, [user_ratio(by_server, "pogocache")])
