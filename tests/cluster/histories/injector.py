"""Injects the faults of a schedule, and records them."""

import math
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from schedule import PLANNED, UNPLANNED, schedule

# A failure of a request because of a planned change is a violation, unless an unplanned fault was active within this
# number of seconds before the failure.
SETTLE_SECS = 10
# If other load on the machine delays a process for at least this many seconds, the delay counts as a fault. A planned
# change consists of about ten steps, each of which can be delayed, and requests wait for the change for only a second.
STALL_SECS = 0.1
# A program that prints the start and the end of each delay.
STALLS = f"""
import time
while True:
    start = time.monotonic()
    time.sleep(0.02)
    end = time.monotonic()
    if end - start > {STALL_SECS}:
        print(start, end, flush=True)
"""
MOVE_SECS, TRANSFER_SECS = 60, 20


@dataclass
class Fault:
    """A fault with its start and end. `end` is infinite while the fault is active."""

    kind: str
    target: str
    is_planned: bool
    start: float
    end: float = math.inf
    result: str = ""

    def line(self, start):
        end = "..." if self.end == math.inf else f"{self.end - start:.3f}"
        planned = "planned " if self.is_planned else ""
        return f"{self.start - start:9.3f} to {end:>8}  {planned}{self.kind} {self.target}  {self.result}".rstrip()


class FaultLog:
    def __init__(self):
        self.faults = []

    def begin(self, kind, target, is_planned=False):
        fault = Fault(kind, target, is_planned, time.monotonic())
        self.faults.append(fault)
        return fault

    def is_calm(self, start, end):
        """Returns whether no unplanned fault was active in an interval or shortly before it."""
        return not any(
            fault.start <= end and fault.end >= start - SETTLE_SECS for fault in self.faults if not fault.is_planned
        )

    def times(self, *kinds):
        """Returns the start and the end of each fault of these kinds."""
        return [(fault.start, fault.end) for fault in self.faults if fault.kind in kinds]

    def slow_times(self):
        """Returns the intervals in which connections may have been slow."""
        return self.times("stall", *(kind for kind in UNPLANNED if "kill" not in kind))


class StallWatch(threading.Thread):
    """Records how long other load on the machine delays a process. The thread observes a separate process, because the
    threads of the checker delay each other."""

    def __init__(self, log):
        super().__init__(daemon=True, name="stalls")
        self.log = log
        self.process = subprocess.Popen([sys.executable, "-c", STALLS], stdout=subprocess.PIPE, text=True)

    def run(self):
        for line in self.process.stdout:
            start, end = map(float, line.split())
            fault = self.log.begin("stall", f"of {end - start:.2f} s by other load")
            fault.start, fault.end = start, end

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.join()


class Injector(threading.Thread):
    """Starts each fault of the schedule at its time, in a thread of its own."""

    def __init__(self, bed, seed, seconds):
        super().__init__(daemon=True, name="injector")
        self.bed, self.log, self.started = bed, FaultLog(), time.monotonic()
        self.schedule = schedule(seed, seconds)
        # Locks that permit only one active planned change of each kind, and only one choice of a target at a time.
        self.planned = {kind: threading.Lock() for kind in PLANNED}
        self.choosing = threading.Lock()
        self.errors, self.threads, self.ended = [], [], threading.Event()

    def run(self):
        for fault in self.schedule:
            if self.ended.wait(max(0, self.started + fault.at - time.monotonic())):
                break
            thread = threading.Thread(target=self._execute, args=(fault,), daemon=True, name=fault.kind)
            thread.start()
            self.threads.append(thread)
        for thread in self.threads:
            thread.join()

    def stop(self):
        """Waits until all faults have ended."""
        self.ended.set()
        self.join()

    def _execute(self, fault):
        draw = random.Random(fault.draw)
        try:
            getattr(self, fault.kind.replace(" ", "_"))(draw, fault.secs)
        except Exception as error:
            self.errors.append((time.monotonic(), f"{fault.kind}: {type(error).__name__}: {error}"))

    def some_node(self, draw):
        """Returns a random node. In half of the cases, it is a leader."""
        leaders = [leader for group in self.bed.groups if (leader := self.bed.records.leader(group))]
        return draw.choice(leaders if leaders and draw.random() < 0.5 else self.bed.nodes)

    def has_survivor(self, node):
        """Returns whether another member is in sync and has no fault. Otherwise, the group would lose all items."""
        names = self.bed.records.in_sync(node.group)
        others = [other for other in self.bed.nodes if other.name in names and other is not node]
        return any(other.is_up and not other.is_paused and not self.bed.links.has_cut(other) for other in others)

    def kill(self, draw, secs):
        node = self.some_node(draw)
        with self.choosing:
            if not node.is_up or not self.has_survivor(node):
                return
            fault = self.log.begin("kill", node.name)
            self.bed.records.note_end(node)
            node.kill()
        time.sleep(secs)
        node.start()
        fault.end = time.monotonic()

    def pause(self, draw, secs):
        node = self.some_node(draw)
        with self.choosing:
            if not node.is_up or node.is_paused:
                return
            fault, process = self.log.begin("pause", node.name), node.process
            node.pause()
        time.sleep(secs)
        node.resume(process)
        fault.end = time.monotonic()

    def cut(self, draw, secs):
        one = self.some_node(draw)
        other = draw.choice([node for node in self.bed.nodes if node is not one])
        self.cut_links("cut", draw, secs, one, [other])

    def cut_from_etcd(self, draw, secs):
        self.cut_links("cut from etcd", draw, secs, self.some_node(draw), [self.bed.etcd])

    def isolate(self, draw, secs):
        one = self.some_node(draw)
        self.cut_links("isolate", draw, secs, one, [other for other in [*self.bed.nodes, self.bed.etcd] if other is not one])

    def cut_links(self, kind, draw, secs, one, others):
        """Cuts one or both directions between a process and other processes."""
        sent, received = [(one, other) for other in others], [(other, one) for other in others]
        direction, links = draw.choice([("to", sent), ("from", received), ("to and from", sent + received)])
        name = "all others" if len(others) > 1 else others[0].name
        with self.choosing:
            fault = self.log.begin(kind, f"{one.name}, {direction} {name}")
            for source, target in links:
                self.bed.links.cut(source, target)
        time.sleep(secs)
        for source, target in links:
            self.bed.links.mend(source, target)
        fault.end = time.monotonic()

    def kill_etcd(self, _draw, secs):
        etcd = self.bed.etcd
        with self.choosing:
            if not etcd.is_running() or etcd.is_paused:
                return
            fault = self.log.begin("kill etcd", "")
            etcd.kill()
        time.sleep(secs)
        etcd.start()
        fault.end = time.monotonic()

    def pause_etcd(self, _draw, secs):
        etcd = self.bed.etcd
        with self.choosing:
            if not etcd.is_running() or etcd.is_paused:
                return
            fault, process = self.log.begin("pause etcd", ""), etcd.process
            etcd.pause()
        time.sleep(secs)
        etcd.resume(process)
        fault.end = time.monotonic()

    def operate(self, kind, target, seconds, *words):
        """Runs a planned change, unless another change of this kind is active."""
        if not self.planned[kind].acquire(blocking=False):
            return
        try:
            fault = self.log.begin(kind, target, is_planned=True)
            done, output = self.bed.larder(*words, seconds=seconds)
            fault.end = time.monotonic()
            fault.result = "" if done else f"refused: {output.splitlines()[-1:]}"
        finally:
            self.planned[kind].release()

    def transfer(self, draw, _secs):
        group = draw.choice(self.bed.groups)
        self.operate("transfer", f"group {group}", TRANSFER_SECS, "transfer-leadership", "--group", group)

    def move(self, draw, _secs):
        """Moves a random number of slots, or an even share, to a random group."""
        group, count = draw.choice(self.bed.groups), draw.choice([None, None, 1, 20, 300, 1500])
        words = ["--count", str(count)] if count else []
        self.operate("move", f"{count or 'an even share of'} slots to group {group}", MOVE_SECS, "move", "--to", group, *words)

    def drain(self, draw, _secs):
        group = draw.choice(self.bed.groups)
        self.operate("drain", f"group {group}", MOVE_SECS, "drain", group)

    def restart(self, draw, _secs):
        """If all members of a node's group are in sync, stops the node with SIGTERM and starts it again."""
        node, records = self.some_node(draw), self.bed.records
        if not self.planned["restart"].acquire(blocking=False):
            return
        try:
            with self.choosing:
                if len(records.in_sync(node.group)) < self.bed.node_count or not node.is_up or not self.has_survivor(node):
                    return
                fault = self.log.begin("restart", node.name, is_planned=True)
                records.stops[node.name] = time.monotonic()
                records.note_end(node)
            node.stop()
            node.start()
            fault.end = time.monotonic()
        finally:
            self.planned["restart"].release()
