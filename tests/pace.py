"""How late threads get a processor, for limits of wall time that hold on a machine with other load."""

import threading
import time

INTERVAL_SECS = 0.005
# An operation of a server passes through so many threads and processes one after the other, each of which may be late.
STEPS = 20


class Pace(threading.Thread):
    """A thread that asks for a processor every few milliseconds during a `with` block."""

    def __init__(self):
        super().__init__(daemon=True)
        self.latest, self.ended = 0.0, threading.Event()

    def run(self):
        while not self.ended.is_set():
            due = time.monotonic() + INTERVAL_SECS
            time.sleep(INTERVAL_SECS)
            self.latest = max(self.latest, time.monotonic() - due)

    def without_delay(self, secs):
        """A duration without the time for which other load of the machine may have delayed the operation."""
        return max(0.0, secs - STEPS * self.latest)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()
