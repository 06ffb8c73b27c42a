"""Measures scheduling delays, to adjust time limits on a busy machine."""

import threading
import time

INTERVAL_SECS = 0.005
# The number of threads and processes through which an operation passes. Other load may delay each of them.
STEPS = 20


class Pace(threading.Thread):
    """A thread that wakes every few milliseconds during a `with` block and records its delays."""

    def __init__(self):
        super().__init__(daemon=True)
        self.latest, self.ended = 0.0, threading.Event()

    def run(self):
        while not self.ended.is_set():
            due = time.monotonic() + INTERVAL_SECS
            time.sleep(INTERVAL_SECS)
            self.latest = max(self.latest, time.monotonic() - due)

    def without_delay(self, secs):
        """Returns a duration minus the delay that other load on the machine may have caused, in seconds."""
        return max(0.0, secs - STEPS * self.latest)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()
