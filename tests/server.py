"""Starts a server for a test, reads its statistics and memory, and stops it."""

import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def binaries():
    """Returns the directory of the binaries under test. This is LARDER_BIN_DIR if it is set. Otherwise it is debug/ in
    the target directory, or release/ if only release/ contains larderd."""
    if chosen := os.environ.get("LARDER_BIN_DIR"):
        return ROOT / chosen
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    return next((target / profile for profile in ("debug", "release") if (target / profile / "larderd").exists()), target / "debug")


# The directory of the programs under test. `cargo test --no-run` builds all of them.
BUILT = binaries()
LARDERD = BUILT / "larderd"
# The load program, which also checks replies.
LOAD = Path(os.environ.get("LARDER_LOAD", BUILT / "examples" / "load"))
ENGINES = {
    "segment": ["--engine", "segment"],
    "moka": ["--engine", "moka"],
    # This engine has no eviction and refuses to start without -M.
    "dashmap": ["--engine", "dashmap", "-M"],
    # This engine delays random lookups, as if items were on slower storage.
    "delayed": ["--engine", "delayed"],
    # Any other server with memcached's command line. A run with memcached itself checks the tests.
    "upstream": [],
}
RUNTIMES = ["per-core", "tokio-current-thread", "tokio-multi-thread"]
MIB = 1 << 20
# The timeout of operations, which allows for other load on the machine.
TIMEOUT_SECS = 60


def is_upstream(config):
    """Returns whether this pytest run uses upstream memcached, which checks the tests themselves."""
    return Path(config.getoption("--server")).name == "memcached"


def engines(config):
    """Returns the engines of the server under test. The default engine is the first."""
    return ["upstream"] if is_upstream(config) else [name for name in ENGINES if name != "upstream"]


def free_ports(count, host="127.0.0.1"):
    """Returns ports of an address that are free at the moment."""
    socks = [socket.create_server((host, 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return ports


def wait_until(condition, event):
    """Waits until `condition()` is true. Fails with the name of the `event` after the timeout."""
    deadline, pause = time.monotonic() + TIMEOUT_SECS, 0.002
    while not condition():
        assert time.monotonic() < deadline, f"{event} did not happen within {TIMEOUT_SECS} s"
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def has_read_all(address):
    """Returns whether the server at an IPv4 address has accepted all connections and has read all received bytes."""
    port = int(address.rsplit(":", 1)[1])
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # The queue of a listener contains the connections that the server has not accepted yet.
    queues = [row[4].split(":")[1] for row in rows if int(row[1].split(":")[1], 16) == port]
    assert queues
    return all(int(length, 16) == 0 for length in queues)


class ExitedAtStart(AssertionError):
    """The server exited before it listened, with an exit `status` and its `output`."""

    def __init__(self, status, output):
        super().__init__(f"the server exited at the start with {status}: {output}")
        self.status, self.output = status, output


class Server:
    """A running server. `host` and `port` are None on a unix socket, `path` is None on TCP. By default, the port is a
    free port. `resp`, `http` and `grpc` add listeners for RESP, HTTP and gRPC."""

    def __init__(
        self,
        binary=LARDERD,
        engine="segment",
        options=(),
        unix=False,
        host="127.0.0.1",
        port=-1,
        runtime=None,
        resp=False,
        http=False,
        grpc=False,
        environment=None,
    ):
        self.dir = tempfile.TemporaryDirectory(prefix="larder-test-")
        folder = Path(self.dir.name)
        self.path = str(folder / "socket") if unix else None
        self.host = None if unix else host
        self.port = None
        self.ports_file = ports = folder / "ports"
        self.log = folder / "log"
        command = [str(binary), *ENGINES[engine], *options]
        if runtime:
            command += ["--runtime", runtime]
        if os.geteuid() == 0:
            command += ["-u", "root"]
        bracketed = f"[{host}]" if ":" in host else host
        command += ["-s", self.path] if unix else ["-l", bracketed, "-p", str(port), "-U", "0"]
        if resp:
            command += ["-l", f"proto[resp]:{bracketed}"]
        if http:
            command += ["--http-listen", "127.0.0.1:0"]
        if grpc:
            command += ["--grpc-listen", "127.0.0.1:0"]
        environment = {**os.environ, "MEMCACHED_PORT_FILENAME": str(ports), **(environment or {})}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        self.pid = self.process.pid
        try:
            self._await_start(ports)
        except BaseException:
            self.stop()
            raise

    def _await_start(self, ports):
        deadline = time.monotonic() + TIMEOUT_SECS
        while time.monotonic() < deadline:
            if (status := self.process.poll()) is not None:
                raise ExitedAtStart(status, self.output())
            if not self.path and self.port is None and ports.exists():
                self.port = int(ports.read_text().split(":")[1].split()[0])
            if self.path or self.port:
                try:
                    self.connect().close()
                    return
                except OSError:
                    pass
            time.sleep(0.02)
        raise AssertionError(f"the server did not listen: {self.output()}")

    def output(self):
        """Returns the output of the server so far."""
        return self.log.read_text(errors="replace")

    @property
    def address(self):
        """Returns `host:port`, `[v6]:port` or the socket's path, the notation of most clients."""
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def resp_port(self):
        """Returns the port of the RESP listener. Requires `resp`. The listener is the last in the file of ports."""
        ports = [line for line in self.ports_file.read_text().splitlines() if line.startswith("TCP")]
        return int(ports[-1].split(":")[1])

    @property
    def http_address(self):
        """Returns `host:port` of HTTP (with `http`)."""
        return self._gateway_address("HTTP")

    @property
    def grpc_address(self):
        """Returns `host:port` of gRPC (with `grpc`)."""
        return self._gateway_address("GRPC")

    def _gateway_address(self, interface):
        lines = self.ports_file.read_text().splitlines()
        return next(f"127.0.0.1:{line.split()[-1]}" for line in lines if line.startswith(interface))

    def connect(self, timeout=TIMEOUT_SECS, port=None):
        """Returns a socket that is connected to the server's unix socket or, on TCP, to `port` (default: the first
        port)."""
        if not self.path:
            return socket.create_connection((self.host, port or self.port), timeout)
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(timeout)
        sock.connect(self.path)
        return sock

    def stats(self, topic=""):
        """Returns the reply to `stats` or `stats <topic>` as a dict of strings."""
        with self.connect() as sock, sock.makefile("rb") as replies:
            sock.sendall(f"stats {topic}".strip().encode() + b"\r\n")
            found = {}
            while (line := replies.readline()).startswith(b"STAT "):
                name, _, value = line[5:].decode().strip().partition(" ")
                found[name] = value
            assert line == b"END\r\n", line
            return found

    def _status_bytes(self, field):
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {field} for pid {self.pid}")

    def rss(self):
        """Returns the current resident memory in bytes."""
        return self._status_bytes("VmRSS")

    def rss_peak(self):
        """Returns the maximum resident memory in bytes since the process started, as recorded by the kernel."""
        return self._status_bytes("VmHWM")

    def alive(self):
        """Returns whether the process is running."""
        return self.process.poll() is None

    def stop(self):
        """Stops the process with SIGTERM, or with SIGKILL after the timeout. Removes its directory and returns its exit
        status."""
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(TIMEOUT_SECS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        status = self.process.wait()
        self.dir.cleanup()
        return status

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        exited, output = not self.alive(), self.output()
        status = self.stop()
        if exc[0] is None:
            assert not exited, f"the server exited with {status} during the test: {output}"
            assert status == 0, f"the server stopped with {status}: {output}"
