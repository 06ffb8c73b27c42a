"""Measures a Python client of memcached: driver.py CLIENT --server HOST:PORT --mode pool ...

docs/client-benchmarks.md defines the arguments and the output lines of all drivers. To add a client, add a
class to CLIENTS.
"""

import argparse
import resource
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.metadata import version

POOL = 64
TIMEOUT_SECS = 1
MANY = (6, 100)
RECOVERY_SECS_MAX = 60
# An operation that takes at least this many seconds is part of the outage. Some clients wait for the server instead of
# failing.
OUTAGE_SECS_MIN = 0.25


class WrongValue(Exception):
    pass


class Pymemcache:
    package = "pymemcache"

    def __init__(self, host, port, pool):
        import pymemcache

        options = {"connect_timeout": TIMEOUT_SECS, "timeout": TIMEOUT_SECS, "no_delay": True, "default_noreply": False}
        if pool > 1:
            self.client = pymemcache.PooledClient((host, port), max_pool_size=pool, **options)
        else:
            self.client = pymemcache.Client((host, port), **options)
        self.set, self.get, self.get_many, self.close = self.client.set, self.client.get, self.client.get_many, self.client.close


class Larder:
    """Larder's client, which has pymemcache's interface. In the mode `pool`, all calls share one connection."""

    package = "larder-client"

    def __init__(self, host, port, pool):
        import larder_client

        options = {"connect_timeout": TIMEOUT_SECS, "timeout": TIMEOUT_SECS, "default_noreply": False}
        client = larder_client.PooledClient((host, port), **options)
        self.set, self.get, self.get_many, self.close = client.set, client.get, client.get_many, client.close


class Pylibmc:
    """In the mode `pool`, each call reserves a client of a `ClientPool`. `ThreadMappedPool` would give each thread its
    own client."""

    package = "pylibmc"

    def __init__(self, host, port, pool):
        import pylibmc

        millis = TIMEOUT_SECS * 1000
        behaviors = {"tcp_nodelay": True, "connect_timeout": millis, "receive_timeout": millis * 1000, "send_timeout": millis * 1000}
        client = pylibmc.Client([f"{host}:{port}"], behaviors=behaviors)
        self.close = client.disconnect_all
        if pool == 1:
            self.set, self.get, self.get_many = client.set, client.get, client.get_multi
            return
        clients = pylibmc.ClientPool(client, pool)

        def reserved(name):
            def call(*arguments):
                with clients.reserve(block=True) as one:
                    return getattr(one, name)(*arguments)

            return call

        self.set, self.get, self.get_many = reserved("set"), reserved("get"), reserved("get_multi")


class Libmc:
    """libmc returns `None` and `False` instead of raising exceptions. Its `Client` works only in the thread that
    created it. `ClientUnsafe` and the clients of its pool work in any thread."""

    package = "libmc"

    def __init__(self, host, port, pool):
        import libmc

        servers, millis = [f"{host}:{port}"], TIMEOUT_SECS * 1000
        if pool == 1:
            client = libmc.ClientUnsafe(servers)
            self.client, self.close = lambda: nullcontext(client), client.quit
        else:
            client = libmc.ClientPool(servers)
            client.config(libmc.MC_INITIAL_CLIENTS, 1)
            client.config(libmc.MC_MAX_CLIENTS, pool)
            self.client = client.client
        client.config(libmc.MC_POLL_TIMEOUT, millis)
        client.config(libmc.MC_CONNECT_TIMEOUT, millis)

    def set(self, key, value):
        with self.client() as client:
            if not client.set(key, value):
                raise OSError(client.get_last_strerror())

    def get(self, key):
        with self.client() as client:
            value = client.get(key)
            if value is None and client.get_last_error():
                raise OSError(client.get_last_strerror())
            return value

    def get_many(self, keys):
        with self.client() as client:
            return client.get_multi(keys)


class PythonMemcached:
    """A client without a pool: it is a `threading.local`, so each thread has its own connection."""

    package = "python-memcached"

    def __init__(self, host, port, pool):
        import memcache

        client = memcache.Client([f"{host}:{port}"], socket_timeout=TIMEOUT_SECS)
        self.get, self.get_many, self.close = client.get, client.get_multi, client.disconnect_all
        self.client = client

    def set(self, key, value):
        # `set` returns 0 instead of raising an exception.
        if not self.client.set(key, value):
            raise OSError("the value was not stored")


class MetaMemcache:
    package = "meta-memcache"

    def __init__(self, host, port, pool):
        from meta_memcache import CacheClient, MixedSerializer, ServerAddress, connection_pool_factory_builder

        class Uncompressed(MixedSerializer):
            COMPRESSION_THRESHOLD = 1 << 30

        connections = connection_pool_factory_builder(
            initial_pool_size=0, max_pool_size=pool, connection_timeout=TIMEOUT_SECS, recv_timeout=TIMEOUT_SECS
        )
        servers = [ServerAddress(host, port)]
        client = CacheClient.cache_client_from_servers(servers, connections, serializer=Uncompressed())
        self.set, self.get = partial(client.set, ttl=None), client.get
        self.client = client

    def get_many(self, keys):
        return {key.key: value for key, value in self.client.multi_get(keys).items()}

    def close(self):
        """Does nothing, because the client has no method that closes its sockets. Garbage collection closes them."""


CLIENTS = {client.package: client for client in (Larder, Pymemcache, Pylibmc, Libmc, PythonMemcached, MetaMemcache)}


class Caller:
    """A thread's key, values and connection."""

    def __init__(self, driver, shared, thread):
        self.driver = driver
        self.key = f"bench-{driver.arguments.seed}-{thread}"
        # Sets alternate between these values, so the check detects a get that returns the previous value.
        self.values = [f"{self.key}-{letter}".encode().ljust(driver.arguments.value_bytes, b".") for letter in "ab"]
        if driver.arguments.mode == "none":
            self.set, self.get = self.set_over_new, self.get_over_new
        else:
            self.client = shared or driver.client(1)

    def set(self, number):
        self.client.set(self.key, self.values[number % 2])

    def get(self, number):
        self.judge(number, self.client.get(self.key))

    def set_over_new(self, number):
        with self.driver.new() as client:
            client.set(self.key, self.values[number % 2])

    def get_over_new(self, number):
        with self.driver.new() as client:
            found = client.get(self.key)
        self.judge(number, found)

    def judge(self, number, found):
        expected = self.values[number % 2]
        if found != expected:
            raise WrongValue(f"the value of {self.key} is {found!r:.50}, but {expected!r:.50} was stored there last")


class Driver:
    def __init__(self, arguments):
        self.arguments = arguments
        host, _, port = arguments.server.rpartition(":")
        make = CLIENTS[arguments.client]
        self.client = lambda pool: make(host, int(port), pool)
        self.errors = []
        # The error for the last wrong value that a thread received.
        self.failure = None

    @contextmanager
    def new(self):
        client = self.client(1)
        try:
            yield client
        finally:
            client.close()

    def callers(self, threads):
        shared = self.client(POOL) if self.arguments.mode == "pool" else None
        return [Caller(self, shared, thread) for thread in range(threads)]

    def line(self, threads, name, value):
        print(f"{self.arguments.client},{self.arguments.mode},{threads},{name},{value:.3f}", flush=True)

    def attempt(self, operation, number):
        """Runs an operation, and returns whether it succeeded. Counts an error of the client. Records a wrong value,
        which later ends the run."""
        try:
            operation(number)
            return True
        except WrongValue as wrong:
            self.failure = wrong
            return False
        except Exception as error:
            self.errors.append(error)
            return False

    def take_errors(self):
        if self.failure:
            raise self.failure
        count = len(self.errors)
        if count:
            print(f"{self.arguments.client}: {count} operations failed, first: {self.errors[0]!r}", file=sys.stderr)
        self.errors.clear()
        return count

    def in_threads(self, callers, run):
        threads = [threading.Thread(target=run, args=place) for place in enumerate(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def times(self, threads):
        callers = self.callers(threads)
        for round in range(self.arguments.rounds + 1):
            barrier, times = threading.Barrier(threads), {}

            def run(thread, caller):
                barrier.wait()
                start_time = time.perf_counter_ns()
                for number in range(2):
                    # After a failed set, the stored value is unknown.
                    if not (self.attempt(caller.set, number) and self.attempt(caller.get, number)):
                        return
                times[thread] = time.perf_counter_ns() - start_time

            self.in_threads(callers, run)
            if round:
                for thread, nanos in times.items():
                    print(f"{self.arguments.client},{self.arguments.mode},{threads},{round},{thread},{nanos / 1e3:.1f}")
        self.line(threads, "times_errors", self.take_errors())

    def load(self, threads, prefix=""):
        callers, latencies = self.callers(threads), []
        barrier = threading.Barrier(threads + 1)

        def run(_, caller):
            mine = []
            operations = (caller.set, caller.get)
            self.attempt(caller.set, 0)
            # Between these two waits, the main thread reads the CPU time of this process.
            barrier.wait()
            barrier.wait()
            before = time.perf_counter_ns()
            end, number = before + int(self.arguments.secs * 1e9), 0
            while before < end and not self.failure:
                for operation in operations:
                    succeeded = self.attempt(operation, number)
                    now = time.perf_counter_ns()
                    if succeeded:
                        mine.append(now - before)
                    before = now
                    if not succeeded:
                        break
                number += 1
            latencies.append(mine)

        started = [threading.Thread(target=run, args=place) for place in enumerate(callers)]
        for thread in started:
            thread.start()
        barrier.wait()
        start_time, cpu_before = time.perf_counter(), cpu_secs()
        barrier.wait()
        for thread in started:
            thread.join()
        took, cpu = time.perf_counter() - start_time, cpu_secs() - cpu_before
        errors = self.take_errors()
        micros = sorted(nanos / 1e3 for mine in latencies for nanos in mine)
        count = max(len(micros), 1)
        self.line(threads, prefix + "operations_per_s", len(micros) / took)
        if not prefix:
            self.line(threads, "cpu_us", cpu * 1e6 / count)
        self.line(threads, prefix + "mean_us", sum(micros) / count)
        for percent in (50, 99):
            self.line(threads, f"{prefix}p{percent}_us", micros[-(-count * percent // 100) - 1] if micros else 0)
        self.line(threads, prefix + "errors", errors)

    def many(self):
        client = self.client(POOL if self.arguments.mode == "pool" else 1)
        for keys in MANY:
            callers = [Caller(self, client, thread) for thread in range(keys)]
            for caller in callers:
                client.set(caller.key, caller.values[0])
            names = [caller.key for caller in callers]
            cpu_before = cpu_secs()
            for _ in range(self.arguments.calls):
                found = client.get_many(names)
                for caller in callers:
                    caller.judge(0, found.get(caller.key))
            self.line(1, f"get_many_{keys}_cpu_us", (cpu_secs() - cpu_before) * 1e6 / self.arguments.calls)

    def busy(self, threads):
        """Runs the load next to a computing thread. `busy_share` is the speed of the computing thread ÷ its speed
        without the load."""
        done, counted = threading.Event(), [0]

        def compute():
            count = 0
            while not done.is_set():
                for _ in range(1000):
                    count += 1
            counted[0] = count

        def rate(beside):
            done.clear()
            thread, start_time = threading.Thread(target=compute), time.perf_counter()
            thread.start()
            beside()
            done.set()
            took = time.perf_counter() - start_time
            thread.join()
            return counted[0] / took

        alone = rate(lambda: time.sleep(self.arguments.secs))
        self.line(threads, "busy_share", rate(lambda: self.load(threads, "busy_")) / alone)

    def recovery(self):
        caller = self.callers(1)[0]
        self.line(1, "ready", 1)
        start_time, failing = time.perf_counter(), None
        while time.perf_counter() - start_time < RECOVERY_SECS_MAX:
            before = time.perf_counter()
            succeeded = self.attempt(caller.set, 0)
            if not succeeded or time.perf_counter() - before >= OUTAGE_SECS_MIN:
                failing = failing or before
            if succeeded and failing:
                self.line(1, "outage_us", (time.perf_counter() - failing) * 1e6)
                return
            time.sleep(0.001)
        sys.exit(f"within {RECOVERY_SECS_MAX} s, no operation succeeded after one that had failed")

    def measure(self):
        with self.new() as client:
            try:
                client.set("bench", b"1")
            except Exception as error:
                sys.exit(f"{self.arguments.client}: {self.arguments.server}: {error!r}")
        for name in self.arguments.measure:
            if name in ("times", "load", "busy"):
                for threads in self.arguments.threads:
                    getattr(self, name)(threads)
            else:
                getattr(self, name)()


def cpu_secs():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--version", action="store_true", help="print the version of the client's package")
    parser.add_argument("--server", default="127.0.0.1:11211")
    parser.add_argument("--mode", default="pool", choices=("pool", "none", "thread"))
    parser.add_argument("--threads", default=[1], type=lambda text: [int(number) for number in text.split(",")])
    parser.add_argument("--value-bytes", default=19, type=int)
    parser.add_argument("--measure", default=["times"], type=lambda text: text.split(","))
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--secs", default=1, type=float)
    parser.add_argument("--calls", default=1000, type=int)
    arguments = parser.parse_args()
    if arguments.version:
        print(version(arguments.client))
        return
    try:
        Driver(arguments).measure()
    except WrongValue as wrong:
        sys.exit(f"{arguments.client}: {wrong}")


if __name__ == "__main__":
    main()
