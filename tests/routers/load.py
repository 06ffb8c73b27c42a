"""Clients that store and read keys through a router while servers fail."""

import random
import threading
import time
from dataclasses import dataclass

import pymemcache


@dataclass
class Outcome:
    """The outcome of a request for a key of `owner`. The request started at the time `begun` and took `seconds`.
    `fault` is None if the request was answered."""

    owner: str
    begun: float
    seconds: float
    fault: Exception | None


class Load:
    """Threads that store and read keys of each server until the end of a block. A value contains its key. The threads
    record wrong values, and `check` reports them."""

    def __init__(self, router, keys, threads=4):
        self.router, self.keys = router, keys
        self.outcomes = []
        self.wrong = []
        self.end = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def _run(self, number):
        draw, client = random.Random(number), self.router.client()
        while not self.end.is_set():
            owner = draw.choice(list(self.keys))
            key = draw.choice(self.keys[owner])
            begun, fault = time.monotonic(), None
            try:
                if draw.random() < 0.3:
                    client.set(key, f"value of {key}".encode())
                elif (value := client.get(key)) not in (None, f"value of {key}".encode()):
                    self.wrong.append((key, value))
            except Exception as raised:
                fault = raised
            self.outcomes.append(Outcome(owner, begun, time.monotonic() - begun, fault))
        client.close()

    def faults(self):
        return [outcome for outcome in list(self.outcomes) if outcome.fault]

    def answered_since(self, when, owner):
        """Returns the number of answered requests for keys of `owner` that started after `when`."""
        return sum(
            outcome.owner == owner and outcome.begun > when and not outcome.fault
            for outcome in list(self.outcomes)
        )

    def check(self, lost):
        """Checks that no value was wrong, and that only requests for keys of the `lost` server failed, with an error
        line."""
        assert not self.wrong
        for outcome in self.faults():
            assert outcome.owner == lost, outcome
            assert isinstance(outcome.fault, pymemcache.exceptions.MemcacheServerError), outcome

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        for thread in self.threads:
            thread.join()
