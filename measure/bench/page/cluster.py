"""Replication and clusters."""

from statistics import median

from bench import cluster as groups
from bench.page.tables import spread, table
from bench.page.verdicts import VERDICT, at_least, at_most


def cluster(found):
    def waits(times):
        return [f"{1000 * times[name]:.3g}" for name in ("p50", "p99", "max")]

    rows = []
    kinds = {"the leader is killed": "kill", "the same under load": "kill_loaded", "the leader is paused": "pause",
             "planned leadership transfer": "hand_over"}
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
    rows = [[what, aim, got, VERDICT[met]] for what, aim, got, met in cluster_targets(found)]
    return "\n".join([lost, acks, cost, fourth_group_table(found), other, table(["figure", "target", "measured", "met"], rows)])


def fourth_group_table(found):
    rows = []
    for when in ("before", "meanwhile"):
        rounds = [one[when] for one in found["fourth"]]
        micros = [spread([of["micros"][name] for of in rounds]) for name in ("p50", "p99", "max")]
        rows.append([{"meanwhile": "during the move"}.get(when, when), spread([100 * of["hits"] for of in rounds]), *micros, sum(of["errors"] for of in rounds)])
    return table(["lookups while a fourth group receives its share", "found, %", "p50, µs", "p99, µs", "max, µs", "failed"], rows)


def cluster_targets(found):
    def secs(key):
        return groups.percentiles(found[key]["secs"])

    copies = [sorted(found["copy"])[len(found["copy"]) // 2]]
    yield at_most("wait of clients when a leader is killed, p99", 0.6, [secs("kill")["p99"]], " s")
    loaded = median(found["kill_loaded"]["answered"])
    yield at_most(f"the same under {loaded:,.0f} requests a second, p99", 0.6, [secs("kill_loaded")["p99"]], " s")
    yield at_most("the same when it is paused, at most", 3, [secs("pause")["max"]], " s")
    yield at_most("the same at a planned transfer, p99", 50, [1000 * secs("hand_over")["p99"]], " ms")
    yield at_most("requests that fail at a planned transfer", 0, [sum(found["hand_over"]["errors"])], "")
    yield at_most("CPU of the leader's worker for a set, two followers ÷ none", 1.15, [groups.ratio(found["cost"], "2", 0)])
    deletes = [1000 * found["acks"][f"writes, sent to the {node}"]["p99"] for node in ("leader", "follower")]
    yield at_most("deletes that two followers acknowledge, p99", 2, deletes, " ms")
    yield at_most("lag of two followers at half load, p99", 50, [1000 * found["lag"]["secs"]["p99"]], " ms")
    yield at_least("MB/s of values of 1 KiB in a copy", 300, copies, "")
    moved = [100 * one["moved"] for one in found["fourth"]]
    shown = "; ".join(f"{share:.1f}" for share in moved)
    yield "items that move to a fourth group", "25 % ± 2.5", f"{shown} %", all(abs(share - 25) <= 2.5 for share in moved)
    found_again = groups.beside_moves(found, lambda of: of["hits"])
    yield at_least("share of lookups that hit during the move ÷ before", 0.99, [found_again])
    yield at_most("p99 of lookups during the move ÷ before", 2, [groups.beside_moves(found, lambda of: of["micros"]["p99"])])
