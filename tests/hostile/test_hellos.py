"""Peers that begin handshakes and hang up: each costs the server a thousand times what it costs them."""

import ssl
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from bystander import Bystander

P99_SECS_MAX = 0.02
FLOODS = 2
TURNS = 300


def hello():
    """The first message of a handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def flood(port, message, done):
    while not done.is_set():
        socks = []
        try:
            for _ in range(50):
                socks.append(socket.create_connection(("127.0.0.1", port), 5))
                socks[-1].sendall(message)
        except OSError:
            pass
        for sock in socks:
            sock.close()


@pytest.mark.larder
def test_clients_in_the_clear_do_not_wait_for_handshakes(start, tmp_path):
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    subprocess.run([*command, "-keyout", key, "-out", chain], check=True, capture_output=True)
    files = f"ssl_chain_cert={chain},ssl_key={key}"
    with start("-Z", "-o", files, "-l", "notls:127.0.0.1", "-t", "2", "-c", "4000") as server:
        ports = (Path(server.dir.name) / "ports").read_text().splitlines()
        secure = int(ports[1].split()[-1])
        assert secure != server.port
        bystander, done = Bystander(server), threading.Event()
        message = hello()
        floods = [threading.Thread(target=flood, args=(secure, message, done)) for _ in range(FLOODS)]
        for thread in [*floods, bystander]:
            thread.start()
        while len(bystander.took) < TURNS and bystander.is_alive():
            bystander.await_turns()
        done.set()
        bystander.stop()
        for thread in floods:
            thread.join()
        assert not bystander.broken, repr(bystander.broken)
        took = sorted(bystander.took)
        assert len(took) >= TURNS
        p99 = took[len(took) * 99 // 100]
        print(f"p99 {p99 * 1000:.1f} ms, slowest {took[-1] * 1000:.1f} ms")
        assert p99 <= P99_SECS_MAX, took[-10:]
