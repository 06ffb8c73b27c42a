"""Runs servers and loads on separate cores."""

import json
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LARDER = ROOT / "target/dist/larder"
EXAMPLES = ROOT / "target/dist/examples"
SERVER_CORE, LOAD_CORE = 0, 1
COMMANDS = {
    "memcached": ["memcached", "-u", "root", "-U", "0"],
    "larder": [str(ROOT / "target/dist/larderd"), "-u", "root"],
}
# A server that replies without parsing requests. Its CPU time is a lower bound for other servers.
EMPTY_LOOP = "empty loop"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def on_core(core, command):
    return ["taskset", "-c", str(core), *map(str, command)]


def stats_of(port):
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.sendall(b"stats\r\n")
        lines = stream.makefile("rb")
        words = (line.split(maxsplit=2) for line in iter(lines.readline, b"END\r\n"))
        return {name.decode(): value.decode().strip() for _, name, value in words}


class Server:
    """A server that runs on its core during a `with` block. `secs_to_answer` is the time from its start to its first
    reply, in seconds."""

    def __init__(self, name, memory_mb, *options):
        self.port = free_port()
        place = ["-l", "127.0.0.1", "-p", self.port, "-t", 1, "-m", memory_mb]
        if name == EMPTY_LOOP:
            command = [LARDER, "bench", "empty-loop", "-p", self.port, "--value-bytes", 512]
        else:
            command = COMMANDS[name] + place + list(options)
        self.command = on_core(SERVER_CORE, command)

    def __enter__(self):
        start_time = time.monotonic()
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(self.command, **quiet)
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port)) as stream:
                    stream.sendall(b"get a\r\n")
                    assert stream.recv(1024)
                break
            except ConnectionRefusedError:
                assert self.process.poll() is None, self.command
                time.sleep(0.0005)
        self.secs_to_answer = time.monotonic() - start_time
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def stats(self):
        return stats_of(self.port)

    def load(self, *options):
        """Runs `larder bench` on the load's core. Returns the medians from its JSON."""
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder) / "found.json"
            command = [LARDER, "bench", "-p", self.port, "-q", "--hide-histogram", *options]
            command += ["--json-out-file", found]
            run(on_core(LOAD_CORE, command), stdout=subprocess.DEVNULL)
            return json.loads(found.read_text())["median"]


def run(command, check=True, **options):
    return subprocess.run(list(map(str, command)), cwd=ROOT, check=check, text=True, **options)


def output(command):
    return run(command, stdout=subprocess.PIPE).stdout


def versions():
    def first_line(command):
        return output(command).splitlines()[0].strip()

    cpu = next(
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    system = os.uname()
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{cpu}, {os.cpu_count()} cores, {system.sysname} {system.release}",
        "memcached": first_line(["memcached", "--version"]),
        "larder": first_line([COMMANDS["larder"][0], "--version"]),
    }
