"""Peers that begin handshakes: each costs the server a thousand times what it costs them."""

import contextlib
import multiprocessing
import socket
import ssl
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from bystander import Bystander, waited_secs

FLOODS = 2
# With as many first messages at once, a round of them all takes a thread a fifth of a second.
BATCH = 400
TURNS, TURNS_MIN = 200, 20
# On a quiet machine the turns take two seconds.
FLOOD_SECS_MAX = 10
MEDIAN_SECS_MAX = 0.01
P95_SECS_MAX = 0.015


class Plain(Bystander):
    """One whose exchanges last as long as the busiest thread of the server worked meanwhile: on what
    stood before them. A machine that is busy with other things makes no difference."""

    def worked(self):
        """How long each thread has run, as the kernel counts it."""
        tasks = Path(f"/proc/{self.server.pid}/task").iterdir()
        return {task: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}

    def exchange(self):
        before, waited = self.worked(), waited_secs(Path("/proc/thread-self"))
        super().exchange()
        # It goes on working while the answer lies there.
        waited = waited_secs(Path("/proc/thread-self")) - waited
        worked = max(secs - before.get(task, 0.0) for task, secs in self.worked().items())
        return max(0.0, worked - waited)


def hello():
    """The first message of a handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def flood(port, message, stays):
    """Without end: connections that hang up at once, or stay until as many more have come."""
    before = []
    while True:
        socks = []
        with contextlib.suppress(OSError):
            for _ in range(BATCH):
                socks.append(socket.create_connection(("127.0.0.1", port), 5))
            for sock in socks:
                sock.sendall(message)
        for sock in before if stays else socks:
            sock.close()
        before = socks


@contextlib.contextmanager
def flooded(port, stays):
    """Floods from processes of their own, which do not share this one's lock."""
    fork = multiprocessing.get_context("fork")
    arguments = (port, hello(), stays)
    floods = [fork.Process(target=flood, args=arguments, daemon=True) for _ in range(FLOODS)]
    for process in floods:
        process.start()
    try:
        yield
    finally:
        for process in floods:
            process.kill()
        for process in floods:
            process.join()


# Without slices for handshakes, those that stay make it fail; where those that hung up are answered
# too, both do. Under tokio-multi-thread, whose threads take over what waits, that depends on the load.
@pytest.mark.larder
@pytest.mark.parametrize("stays", [False, True], ids=["hang up", "stay"])
def test_clients_in_the_clear_do_not_wait_for_handshakes(start, tmp_path, stays):
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    subprocess.run([*command, "-keyout", key, "-out", chain], check=True, capture_output=True)
    files = f"ssl_chain_cert={chain},ssl_key={key}"
    with start("-Z", "-o", files, "-l", "notls:127.0.0.1", "-t", "2", "-c", "4000") as server:
        ports = (Path(server.dir.name) / "ports").read_text().splitlines()
        secure = int(ports[1].split()[-1])
        assert secure != server.port
        bystander = Plain(server)
        with flooded(secure, stays):
            bystander.start()
            deadline = time.monotonic() + FLOOD_SECS_MAX
            while len(bystander.took) < TURNS and bystander.is_alive() and time.monotonic() < deadline:
                time.sleep(0.01)
        bystander.stop()
        assert not bystander.broken, repr(bystander.broken)
        took = sorted(bystander.took)
        assert len(took) >= TURNS_MIN, took
        median, p95 = statistics.median(took), took[len(took) * 95 // 100]
        print(f"{len(took)} turns, median {median * 1000:.1f} ms, p95 {p95 * 1000:.1f} ms")
        assert median <= MEDIAN_SECS_MAX and p95 <= P95_SECS_MAX, took[-20:]
