"""Checks the guarantees of docs/failover.md and docs/sharding.md under faults: two groups of three nodes, clients over six
protocols with versioned values, and kills, pauses, partitions, etcd outages, transfers, slot migrations, drains and
restarts.

tests/cluster/histories/rules.py has the rules. Needs root, for a network namespace. The options after `--` are for
larderd and follow those of the checker: `checker.py --ack writes -- --ack none` must find violations.
"""

import argparse
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

CLUSTER = Path(__file__).resolve().parents[1]
FOLDERS = [CLUSTER.parent, CLUSTER.parent / "replication", CLUSTER, CLUSTER / "faults", CLUSTER / "histories"]
sys.path[:0] = map(str, FOLDERS)

from history import KeyHistory  # noqa: E402
from injector import SETTLE_SECS, Injector, StallWatch  # noqa: E402
from protocols import PROTOCOLS, Grpc  # noqa: E402
from recorder import Journal, Recorder  # noqa: E402
from rules import Conditions, Violation, check  # noqa: E402
from testbed import PORTS, Testbed  # noqa: E402

# With a namespace for process identifiers, all processes are killed when the checker exits.
NAMESPACES = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
CLIENTS_PER_PROTOCOL, KEYS_PER_CLIENT = 3, 3
# Time in seconds for which clients continue after the end of all faults.
QUIET_SECS = 3
# The output shows at most this many violations of each kind in full.
REPORT_MAX = 2
# The report of a violation shows the faults and leader changes within this number of seconds before or after it.
NEAR_SECS = 10


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--ack", choices=["none", "deletes", "writes"], default="deletes")
    parser.add_argument("--values", type=int, default=4096, help="maximum length of values")
    parser.add_argument("--in-namespace", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("larderd", nargs="*", help="options of larderd")
    return parser.parse_args()


class Run:
    """A run of the checker."""

    def __init__(self, bed, options):
        self.bed, self.options = bed, options
        self.violations, self.tolerated = [], Counter()

    def execute(self):
        options = self.options
        # Opens the first gRPC connection before the clients start. This connection reads the description of the
        # service, which would otherwise delay all clients.
        Grpc(self.bed.nodes[0].host, PORTS["grpc"]).close()
        names = [f"{protocol}{number}" for protocol in PROTOCOLS for number in range(CLIENTS_PER_PROTOCOL)]
        own = {name: [KeyHistory(f"{name}-{key}") for key in range(KEYS_PER_CLIENT)] for name in names}
        histories = [history for of_client in own.values() for history in of_client]
        self.journal = Journal(histories, options.values)
        recorders = [
            Recorder(number, protocol, self.bed.nodes, self.journal, own[f"{protocol}{number}"], options.seed)
            for protocol in PROTOCOLS
            for number in range(CLIENTS_PER_PROTOCOL)
        ]
        self.started = started = time.monotonic()
        injector = Injector(self.bed, options.seed, options.seconds)
        self.faults = injector.log
        stalls = StallWatch(self.faults)
        for thread in [*recorders, stalls, injector]:
            thread.start()
        self.watch(injector, started + options.seconds)
        injector.stop()
        self.add_all("the injector failed", injector.errors)
        try:
            self.bed.wait_until_in_sync()
        except AssertionError as late:
            self.add("a group did not recover", time.monotonic(), str(late))
        time.sleep(QUIET_SECS)
        for recorder in recorders:
            recorder.stop()
        stalls.stop()
        self.read_at_the_end(recorders)
        self.check()

    def watch(self, injector, end):
        """Waits until the run ends or a node's process exits unexpectedly."""
        while time.monotonic() < end and not injector.errors:
            time.sleep(0.1)
            for node in self.bed.nodes:
                if node.must_run and not node.is_running() and node.must_run:
                    status = node.process.returncode
                    self.add("a node has ended", time.monotonic(), f"{node.name} with status {status}: {node.log}")
                    return

    def read_at_the_end(self, recorders):
        """Reads all keys through each node, over each protocol."""
        for recorder in recorders[::CLIENTS_PER_PROTOCOL]:
            for node in self.bed.nodes:
                if node.is_up and recorder.connect(node):
                    for history in self.journal.histories:
                        if recorder.connection:
                            recorder.read(history)
                    recorder.disconnect()

    def add(self, kind, at, text, key=None):
        self.violations.append(Violation(kind, at, text, key))

    def add_all(self, kind, found):
        for at, text in found:
            self.add(kind, at, text)

    def check(self):
        records = self.bed.records
        records.stop()
        self.add_all("the next leader was not in sync", records.violations)
        self.add_all("a wrong reply", self.journal.wrong_replies)
        conditions = Conditions(
            self.options.ack, records.leader_changes, self.faults.times("pause"), self.faults.slow_times(), self.started
        )
        for history in self.journal.histories:
            self.violations += check(history, conditions)
        self.tolerated = conditions.tolerated
        for failed in self.journal.failed_requests:
            if self.faults.is_calm(failed.invoked, failed.ended):
                text = f"{failed.client}: {failed.text}, after {failed.ended - failed.invoked:.3f} s"
                self.add("a request failed without an unplanned fault", failed.invoked, text)
        self.violations.sort(key=lambda violation: violation.time)

    def report(self):
        kinds = Counter()
        for violation in self.violations:
            kinds[violation.kind] += 1
            if kinds[violation.kind] <= REPORT_MAX:
                self.show(violation)
        print(f"operations: {sum(self.journal.operations.values())}")
        for protocol in PROTOCOLS:
            counts = {kind: count for (of, kind), count in self.journal.operations.items() if of == protocol}
            errors = {kind: count for (of, kind), count in self.journal.errors.items() if of == protocol}
            print(f"  {protocol:7} {listed(counts)}; failed: {listed(errors) or 'none'}")
        print(f"faults: {listed(Counter(fault.kind for fault in self.faults.faults))}")
        planned = [fault for fault in self.faults.faults if fault.is_planned]
        alone = Counter(fault.kind for fault in planned if self.faults.is_calm(fault.start, fault.start))
        print(f"planned changes without another fault in the {SETTLE_SECS} s before: {listed(alone) or 'none'}")
        print(f"planned changes that were refused: {listed(Counter(f.kind for f in planned if f.result)) or 'none'}")
        changes = self.bed.records.leader_changes
        planned = sum(change.is_planned for change in changes)
        print(f"changes of leaders: {planned} planned, {len(changes) - planned} unplanned")
        print(f"exceptions: {listed(self.tolerated) or 'none'}")
        print(f"violations: {listed(kinds) or 'none'}")

    def show(self, violation):
        start, at = self.started, violation.time
        print(f"VIOLATION at {at - start:.3f} s: {violation.kind}\n  {violation.text}")
        if violation.key:
            print(f"history of {violation.key.name}:")
            print("\n".join(f"  {one.line(start)}" for one in violation.key.excerpt(at)))
        print("faults and changes of leaders:")
        near = [fault for fault in self.faults.faults if fault.start < at + NEAR_SECS / 2 and fault.end > at - NEAR_SECS]
        lines = [(fault.start, fault.line(start)) for fault in near]
        for change in self.bed.records.leader_changes:
            if abs(change.latest - at) < NEAR_SECS:
                times = f"{change.earliest - start:9.3f} to {change.latest - start:8.3f}"
                lines.append((change.earliest, f"{times}  {'' if change.is_planned else 'un'}planned: {change.leader}"))
        print("\n".join(f"  {line}" for _, line in sorted(lines)) + "\n")


def listed(counts):
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def main():
    options = arguments()
    if not options.in_namespace:
        command = [*NAMESPACES, sys.executable, __file__, "--in-namespace", "--seed", str(options.seed), *sys.argv[1:]]
        os.execvp(command[0], command)
    ack = [] if "--ack" in options.larderd else ["--ack", options.ack]
    with Testbed(options=[*ack, *options.larderd]) as bed:
        run = Run(bed, options)
        print(f"checker: seed {options.seed}, --ack {options.ack}, logs in {bed.folder}", flush=True)
        run.execute()
        run.report()
        bed.keeps_logs = bool(run.violations)
    verdict = f"FAILED, logs in {bed.folder}" if run.violations else "ok"
    print(f"checker: {verdict}, {options.seconds:g} s, --ack {options.ack}, seed {options.seed}")
    sys.exit(bool(run.violations))


if __name__ == "__main__":
    main()
