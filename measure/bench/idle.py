"""Counts larderd's user-mode instructions for a memcached get, without further interfaces and with all of them idle.
valgrind counts the instructions, so other load on the machine has no effect."""

import re
import signal
import socket
import subprocess
import time

from bench.servers import ROOT, free_port

ROUNDS = 3
DEPTH = 10
FEW, MANY = 500, 8500
START_SECS = 60


def measure():
    kinds = {"off": list, "idle": further_interfaces}
    return {kind: [per_request(options()) for _ in range(ROUNDS)] for kind, options in kinds.items()}


def further_interfaces():
    address = "127.0.0.1:{}".format
    return ["-l", "proto[resp]:" + address(free_port()), "--http-listen", address(free_port()),
            "--grpc-listen", address(free_port()), "--metrics-listen", address(free_port())]


def per_request(options):
    few, many = (count(batches, options) for batches in (FEW, MANY))
    return (many - few) / (DEPTH * (MANY - FEW))


def count(batches, options):
    """Returns the number of instructions that a server executes from its start to its exit if it answers `batches`
    batches of gets."""
    port = free_port()
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", ROOT / "target/dist/larderd",
               "-u", "root", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "1", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        with connected(port) as sock, sock.makefile("rb") as replies:
            sock.sendall(b"set key 0 0 100\r\n%s\r\n" % (b"v" * 100))
            assert replies.readline() == b"STORED\r\n"
            for _ in range(batches):
                sock.sendall(b"get key\r\n" * DEPTH)
                answers = b"".join(replies.readline() for _ in range(3 * DEPTH))
                assert answers.endswith(b"END\r\n"), answers
        process.send_signal(signal.SIGTERM)
        said = process.communicate()[1]
    return int(re.search(r"Collected : (\d+)", said)[1])


def connected(port):
    deadline = time.monotonic() + START_SECS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.1)
