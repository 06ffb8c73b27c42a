"""Clients that record their operations. Each client uses one protocol, changes its own keys, and reads the keys of all
clients."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass

from history import ACKED, DELETE, EMPTY, FAILED, SET, UNKNOWN, UNMET, TornValue
from protocols import PROTOCOLS, Failure, UnexpectedReply

# Pause of a client between requests, because nodes and clients share the machine.
PAUSE_SECS = 0.004
# Shares of a client's requests.
READ_SHARE, PIPELINE_SHARE = 0.6, 0.1
KINDS = [SET] * 5 + [DELETE] * 3 + [EMPTY]
CAS_SHARE = 0.25
# Probability with which a new connection may go to a paused node. Without this limit, all clients would soon wait for
# that node.
PAUSED_NODE_SHARE = 0.2


@dataclass(slots=True)
class FailedRequest:
    """A failed request or connection, through a node that was neither killed nor stopped."""

    client: str
    text: str
    invoked: float
    ended: float


class Journal:
    """The shared records of all clients."""

    def __init__(self, histories, values):
        # The keys with their histories, and the maximum length of values.
        self.histories, self.values = histories, values
        self.operations, self.errors = Counter(), Counter()
        self.failed_requests = []
        # Replies that are wrong regardless of the history, each with its time and a message.
        self.wrong_replies = []


class Recorder(threading.Thread):
    """A client. Its random decisions depend on the seed."""

    def __init__(self, number, protocol, nodes, journal, own, seed):
        super().__init__(daemon=True, name=f"{protocol}{number}")
        self.protocol, self.nodes, self.journal, self.own = protocol, nodes, journal, own
        self.connect_to, self.listener = PROTOCOLS[protocol]
        self.draw = random.Random(f"{seed} {self.name}")
        self.ended = threading.Event()
        self.connection = self.node = self.failure = None
        # The last CAS value that the client has seen for each key name, with the version of the item.
        self.cas = {}

    def run(self):
        try:
            self.repeat()
        except Exception as error:
            self.journal.wrong_replies.append((time.monotonic(), f"{self.name} failed: {type(error).__name__}: {error}"))
            raise

    def repeat(self):
        while not self.ended.is_set():
            nodes = [node for node in self.nodes if node.is_up]
            running = [node for node in nodes if not node.is_paused]
            if running and self.draw.random() > PAUSED_NODE_SHARE:
                nodes = running
            if not nodes or not self.connect(self.draw.choice(nodes)):
                time.sleep(0.02)
                continue
            for _ in range(self.draw.randrange(10, 60)):
                time.sleep(PAUSE_SECS)
                if self.ended.is_set() or self.connection is None:
                    break
                self.request()
            self.disconnect()

    def connect(self, node):
        self.node, self.life = node, node.life
        self.client = f"{self.name} via {node.name}"
        self.connection = None
        self.connection = self.perform("connect", lambda: self.connect_to(node.host, node.ports[self.listener]))
        return self.connection is not None

    def disconnect(self):
        if self.connection:
            self.connection.close()
        self.connection = None

    def request(self):
        choice = self.draw.random()
        if choice < READ_SHARE:
            self.read(self.draw.choice(self.journal.histories))
        elif choice < READ_SHARE + PIPELINE_SHARE and self.connection.has_pipelines:
            self.pipeline(self.draw.choice(self.own))
        else:
            self.change(self.draw.choice(self.own))

    def read(self, history):
        invoked = time.monotonic()
        found = self.perform("read", lambda: self.connection.get(history.name))
        if found:
            self.add_read(history, *found, invoked)

    def add_read(self, history, value, cas, invoked, before=None):
        times = {"invoked": invoked, "ended": time.monotonic()}
        try:
            read = history.add_read(value, client=self.client, cas=cas, before=before, **times)
            if cas and history in self.own and isinstance(read.state, int):
                self.cas[history.name] = (cas, read.state)
        except TornValue as torn:
            self.journal.wrong_replies.append((invoked, f"{self.client}: torn value of {history.name}: {torn}"))

    def change(self, history):
        kind = self.draw.choice(KINDS)
        if kind == DELETE:
            self.delete(history)
            return
        condition, version = None, None
        if self.connection.has_cas and history.name in self.cas and self.draw.random() < CAS_SHARE:
            condition, version = self.cas[history.name]
        change = history.begin(kind, self.client, time.monotonic())
        value = history.value(change, self.length())
        replied = self.perform(kind, lambda: self.connection.store(history.name, value, condition), change)
        if replied:
            self.end_store(history, change, *replied)
            if condition and change.outcome == ACKED:
                # The fulfilled condition shows the state before the change.
                self.add_condition(history, change, version)

    def end_store(self, history, change, is_stored, cas):
        change.outcome, change.cas = (ACKED if is_stored else UNMET), cas
        if cas and change.kind == SET:
            self.cas[history.name] = (cas, change.version)
        elif is_stored:
            self.cas.pop(history.name, None)

    def delete(self, history):
        change = history.begin(DELETE, self.client, time.monotonic())
        existed = self.perform(DELETE, lambda: self.connection.delete(history.name), change)
        if existed is not None:
            change.outcome = ACKED
            if not existed:
                self.add_condition(history, change, None)

    def add_condition(self, history, change, version):
        """Adds the state that a change has replaced, as if it had been read."""
        value = None if version is None else history.value(history.changes[version - 1], 0)
        times = {"invoked": change.invoked, "ended": change.ended}
        history.add_read(value, client=self.client, before=change.version, **times)

    def pipeline(self, history):
        """Sends a lookup, a store and a lookup in one pipeline."""
        connection, invoked = self.connection, time.monotonic()
        change = history.begin(SET, self.client, invoked)
        value, key = history.value(change, self.length()), history.name
        requests = connection.lookup(key) + connection.storage(key, value) + connection.lookup(key)

        def send_and_read():
            connection.send(requests)
            return connection.found()

        if found := self.perform("read", send_and_read):
            self.add_read(history, *found, invoked, before=change.version)
        elif self.connection is None:
            change.outcome, change.ended, change.error = self.failure
            return
        if stored := self.perform(SET, connection.stored, change):
            self.end_store(history, change, *stored)
        if self.connection and (found := self.perform("read", connection.found)):
            self.add_read(history, *found, invoked)

    def length(self):
        """Returns a random length of a value. Most values are short."""
        return int(self.journal.values * self.draw.random() ** 4)

    def perform(self, kind, request, change=None):
        """Executes a request. Returns the reply, or None if it failed. Sets the end of `change` and, after a failure,
        its outcome."""
        invoked, reply = time.monotonic(), None
        self.journal.operations[self.protocol, kind] += 1
        try:
            reply = request()
            ended = time.monotonic()
        except (Failure, OSError) as failure:
            ended = time.monotonic()
            self.add_failure(kind, failure, invoked, ended)
        except UnexpectedReply as wrong:
            ended = time.monotonic()
            self.journal.wrong_replies.append((invoked, f"{self.client}: {kind}: unexpected reply: {wrong}"))
            self.failure = UNKNOWN, ended, str(wrong)
            self.disconnect()
        if change:
            change.ended = ended
            if reply is None:
                change.outcome, change.ended, change.error = self.failure
        return reply

    def add_failure(self, kind, failure, invoked, ended):
        journal, text = self.journal, str(failure) or type(failure).__name__
        is_timeout, is_node_lost = isinstance(failure, TimeoutError), self.node.life != self.life
        # After a timeout, the client does not know the server's reply.
        self.failure = (UNKNOWN if is_timeout or is_node_lost else FAILED), ended, text
        journal.errors[self.protocol, "its node ended" if is_node_lost else text.partition(": ")[0][:60]] += 1
        if is_timeout and not is_node_lost:
            journal.wrong_replies.append((invoked, f"{self.client}: {kind} got no reply: {text}"))
        elif not is_node_lost:
            journal.failed_requests.append(FailedRequest(self.client, f"{kind}: {text}", invoked, ended))
        if isinstance(failure, OSError):
            self.disconnect()

    def stop(self):
        self.ended.set()
        self.join()

