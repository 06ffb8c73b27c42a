"""The load of a crash test: workers with their own keys. They send pipelines over raw sockets, because the test must
know exactly which replies arrived.

All requests of a round are generated before the round starts. At the crash, the server is therefore busy, and not the
load."""

import random
import threading
import time
import zlib
from typing import NamedTuple

from model import State

POOL = bytes(random.Random(2).choices(b"abcdefghijklmnopqrstuvwxyz0123456789", k=1 << 20))
# The last request of every chunk of a pipeline. Its reply marks the end of the chunk's replies, and no value contains
# that reply.
LAST, LAST_ANSWER = b"mn\r\n", b"MN\r\n"
RECEIVE_LEN = 1 << 18
TIMEOUT_SECS = 30
# Lifetimes in seconds: two values for most items that expire, and a range for a few items that expire between rounds.
LONG_SECS, SHORT_SECS = (1000, 70_000), (1, 3)
# The lengths of values. Each entry has a range of lengths, and the share of values in this range and all earlier
# ranges.
LENGTHS = [(0.85, (1, 400)), (0.97, (400, 8000)), (0.999, (8000, 200_000)), (1, (200_000, 900_000))]
LARGE_LENGTHS = [(0.2, (1, 20_000)), (0.7, (20_000, 200_000)), (1, (200_000, 900_000))]


class Request:
    """A request for one key. `apply(state, at)` returns the resulting state and the bytes of the reply if the request
    is sent at the time `at`. The `form` of the reply is `line`, `value` or `none`."""

    __slots__ = ("wire", "form", "apply")

    def __init__(self, wire, apply, form="line"):
        self.wire, self.apply, self.form = wire, apply, form


def deadline(life, at):
    return at + life if life else None


def store(key, value, flags, life, quiet):
    def apply(state, at):
        return State(value, flags, deadline(life, at), None), b"STORED\r\n"

    return data(b"set", key, value, flags, life, apply, quiet)


def add(key, value, flags, life):
    def apply(state, at):
        if state is not None:
            return state, b"NOT_STORED\r\n"
        return State(value, flags, deadline(life, at), None), b"STORED\r\n"

    return data(b"add", key, value, flags, life, apply)


def replace(key, value, flags, life):
    def apply(state, at):
        if state is None:
            return state, b"NOT_STORED\r\n"
        return State(value, flags, deadline(life, at), None), b"STORED\r\n"

    return data(b"replace", key, value, flags, life, apply)


def append(key, more):
    def apply(state, at):
        if state is None:
            return state, b"NOT_STORED\r\n"
        return state._replace(value=state.value + more, cas=None), b"STORED\r\n"

    return data(b"append", key, more, 0, 0, apply)


def prepend(key, more):
    def apply(state, at):
        if state is None:
            return state, b"NOT_STORED\r\n"
        return state._replace(value=more + state.value, cas=None), b"STORED\r\n"

    return data(b"prepend", key, more, 0, 0, apply)


def compare_and_store(key, value, flags, life, unique):
    def apply(state, at):
        if state is None:
            return state, b"NOT_FOUND\r\n"
        if state.cas != unique:
            return state, b"EXISTS\r\n"
        return State(value, flags, deadline(life, at), None), b"STORED\r\n"

    head = b"cas %s %d %d %d %d\r\n" % (key, flags, life, len(value), unique)
    return Request(b"%s%s\r\n" % (head, value), apply)


def data(verb, key, value, flags, life, apply, quiet=False):
    noreply = b" noreply" if quiet else b""
    wire = b"%s %s %d %d %d%s\r\n%s\r\n" % (verb, key, flags, life, len(value), noreply, value)
    return Request(wire, apply, "none" if quiet else "line")


def meta_store(key, value, flags, life):
    def apply(state, at):
        return State(value, flags, deadline(life, at), None), b"HD\r\n"

    wire = b"ms %s %d F%d T%d\r\n%s\r\n" % (key, len(value), flags, life, value)
    return Request(wire, apply)


def delete(key, quiet):
    def apply(state, at):
        return None, b"NOT_FOUND\r\n" if state is None else b"DELETED\r\n"

    wire = b"delete %s%s\r\n" % (key, b" noreply" if quiet else b"")
    return Request(wire, apply, "none" if quiet else "line")


def touch(key, life):
    def apply(state, at):
        if state is None:
            return state, b"NOT_FOUND\r\n"
        return state._replace(expires=deadline(life, at)), b"TOUCHED\r\n"

    return Request(b"touch %s %d\r\n" % (key, life), apply)


def get_and_touch(key, life):
    def apply(state, at):
        if state is None:
            return state, b"END\r\n"
        answer = b"VALUE %s %d %d\r\n%s\r\nEND\r\n" % (key, state.flags, len(state.value), state.value)
        return state._replace(expires=deadline(life, at)), answer

    return Request(b"gat %d %s\r\n" % (life, key), apply, "value")


def count(key, delta, down):
    def apply(state, at):
        if state is None:
            return state, b"NOT_FOUND\r\n"
        if not state.value.rstrip(b" ").isdigit():
            return state, b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
        number = int(state.value)
        number = max(number - delta, 0) if down else (number + delta) % 2**64
        # If the new number is shorter than the old number, spaces follow it, because the value keeps its length.
        value = b"%d" % number
        return state._replace(value=value.ljust(len(state.value)), cas=None), b"%d\r\n" % number

    return Request(b"%s %s %d\r\n" % (b"decr" if down else b"incr", key, delta), apply)


class Script:
    """Generates the requests for one worker's keys."""

    def __init__(self, rng, keys, numbers, lengths):
        self.rng, self.keys, self.numbers, self.lengths = rng, keys, numbers, lengths
        self.counter = 0

    def length(self):
        drawn = self.rng.random()
        return next(self.rng.randrange(*range_) for share, range_ in self.lengths if drawn < share)

    def value(self, key):
        """Returns a value that consists of the key, a counter, a checksum and a text, truncated to a random length."""
        self.counter += 1
        length, first = self.length(), self.rng.randrange(1 << 16)
        body = POOL[first : first + length]
        return (b"%s:%d:%08x:" % (key, self.counter, zlib.crc32(body)) + body)[:length]

    def life(self):
        drawn = self.rng.random()
        if drawn < 0.7:
            return 0
        return self.rng.choice(LONG_SECS) if drawn < 0.98 else self.rng.randint(*SHORT_SECS)

    def number_request(self, key):
        drawn = self.rng.random()
        if drawn < 0.55:
            return count(key.name, self.rng.choice([1, 1, 9, 1000, 10**12]), self.rng.random() < 0.3)
        if drawn < 0.9:
            return store(key.name, b"%d" % self.rng.choice([0, 9, 99, 10**9]), 3, self.life(), False)
        if drawn < 0.95:
            return touch(key.name, self.life())
        return delete(key.name, False)

    def request(self, key):
        drawn, name, rng = self.rng.random(), key.name, self.rng
        if drawn < 0.45:
            return store(name, self.value(name), rng.randrange(2**32), self.life(), rng.random() < 0.2)
        if drawn < 0.60:
            return delete(name, rng.random() < 0.2)
        if drawn < 0.68:
            return append(name, POOL[: rng.choice([1, 10, 100, 1000])])
        if drawn < 0.71:
            return prepend(name, POOL[: rng.choice([1, 10, 100])])
        if drawn < 0.77:
            return touch(name, self.life())
        if drawn < 0.83:
            return add(name, self.value(name), rng.randrange(100), self.life())
        if drawn < 0.87:
            return replace(name, self.value(name), 0, self.life())
        if drawn < 0.93:
            state = next(iter(key.states))
            if state is not None and state.cas is not None:
                return compare_and_store(name, self.value(name), 5, self.life(), state.cas)
        return meta_store(name, self.value(name), rng.randrange(2**16), self.life())

    def chunk(self):
        """Returns a pipeline of a few requests. Only the last request may have a long reply: while the server waits for
        the client to read replies, it reads no requests."""
        made = []
        for _ in range(self.rng.choice([1, 1, 2, 3, 5, 8, 12])):
            if self.rng.random() < 0.2:
                key = self.rng.choice(self.numbers)
                made.append((key, self.number_request(key)))
            else:
                key = self.rng.choice(self.keys)
                made.append((key, self.request(key)))
        if self.rng.random() < 0.15:
            key = self.rng.choice(self.keys)
            made.append((key, get_and_touch(key.name, self.life())))
        return made


def split(received, forms):
    """Splits the received bytes into replies, one for each form. Returns the complete replies, and whether the server
    has executed the complete chunk. The reply to a request of the form `none` is None. The last reply in the list is
    that of the last request that the server has certainly executed."""
    answers, at = [], 0
    sure = 0
    for form in [*forms, "line"]:
        if form == "none":
            answers.append(None)
            continue
        end = received.find(b"\r\n", at)
        if end < 0:
            return answers[:sure], False
        end += 2
        if form == "value" and received.startswith(b"VALUE ", at):
            end += int(received[at:end].split()[3]) + len(b"\r\nEND\r\n")
            if end > len(received):
                return answers[:sure], False
        answers.append(bytes(received[at:end]))
        at, sure = end, len(answers)
    assert answers.pop() == LAST_ANSWER and at == len(received), bytes(received[-200:])
    return answers, True


class Played(NamedTuple):
    """A sent chunk: the time of sending, the time of its last reply or of the connection's end, the replies, and
    whether they are complete."""

    begin: float
    end: float
    received: bytes
    complete: bool


class Player(threading.Thread):
    """Sends chunks over one connection, from `delay` seconds after the event `go` until the server is killed. `played`
    has a `Played` for each sent chunk."""

    def __init__(self, server, chunks, go, delay=0):
        super().__init__(daemon=True)
        self.sock, self.chunks, self.go, self.delay = server.connect(TIMEOUT_SECS), chunks, go, delay
        self.played, self.broken = [], None

    def run(self):
        try:
            self.go.wait()
            if self.delay:
                time.sleep(self.delay)
            for chunk in self.chunks:
                self.played.append(self.play(chunk))
                if not self.played[-1].complete:
                    break
        except Exception as error:
            self.broken = error
        finally:
            self.sock.close()

    def play(self, wire):
        begin, received = time.monotonic(), bytearray()
        try:
            self.sock.sendall(wire)
        except (BrokenPipeError, ConnectionResetError):
            # Still reads replies, because the server may have answered before it was killed.
            pass
        while not received.endswith(LAST_ANSWER):
            try:
                more = self.sock.recv(RECEIVE_LEN)
            except ConnectionResetError:
                more = b""
            if not more:
                return Played(begin, time.monotonic(), received, False)
            received += more
        return Played(begin, time.monotonic(), received, True)
