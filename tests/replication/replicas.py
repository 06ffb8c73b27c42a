"""Leaders and followers for tests, and comparisons of their items."""

import re
import socket
import threading

from server import TIMEOUT_SECS, Server, wait_until

KEY_LINE = re.compile(rb"^mg (\S+)( b)?$")


class Leader(Server):
    """A server with followers."""

    def __init__(self, *arguments, options=(), listen="127.0.0.1:0", **more):
        options = ["--replicate-on", listen, "-v", *options]
        super().__init__(*arguments, options=options, **more)

    @property
    def replication_port(self):
        return int(self._gateway_address("REPLICATION").split(":")[1])


def ask(server, request, end):
    """Returns the reply to `request`, up to `end`."""
    with server.connect() as sock:
        sock.sendall(request)
        return read_until(sock, end)


def read_until(sock, end):
    answer = bytearray()
    while not answer.endswith(end):
        piece = sock.recv(1 << 16)
        assert piece, f"the server closed the connection after {bytes(answer[-200:])}"
        answer += piece
    return bytes(answer)


def keys(server):
    """Returns the keys of all items, as arguments of `mg`."""
    dump = ask(server, b"lru_crawler mgdump hash\r\n", b"EN\r\n")
    return sorted(line[3:] for line in dump.split(b"\r\n") if line.startswith(b"mg "))


def items(server, of):
    """Returns the items of these keys on a server, omitting remaining lifetimes and access times."""
    with server.connect() as sock:
        found = {}
        for start in range(0, len(of), 500):
            part = of[start : start + 500]
            sock.sendall(b"".join(b"mg %s k v f c s\r\n" % key for key in part) + b"mn\r\n")
            answer = read_until(sock, b"MN\r\n")
            found.update(parse(answer))
        return found


def parse(answer):
    found, at = {}, 0
    while not answer.startswith(b"MN\r\n", at):
        end = answer.index(b"\r\n", at)
        line, at = answer[at:end], end + 2
        if line.startswith(b"EN"):
            continue
        words = line.split(b" ")
        assert words[0] == b"VA", line
        length = int(words[1])
        key = next(word for word in words[2:] if word.startswith(b"k"))
        found[key] = (words[2:], answer[at : at + length])
        at += length + 2
    return found


def are_equal(leader, follower):
    """Returns whether both servers have the same items."""
    of = keys(leader)
    return of == keys(follower) and items(leader, of) == items(follower, of)


def wait_for_equality(leader, follower):
    """Waits until the follower has all items of the leader. Clients must not write during the wait."""
    wait_until(lambda: is_following(follower), "the copy")
    marker = f"marker/{follower.pid}".encode()
    ask(leader, b"set %s 0 0 1\r\n1\r\n" % marker, b"STORED\r\n")
    wait_until(lambda: items(follower, [marker]) != {}, "the last change")
    wait_until(lambda: follower.stats("replication")["link"] == "following", "the copy")
    # Items may expire up to a second later on the follower.
    wait_until(lambda: are_equal(leader, follower), "the same items")


def is_following(follower):
    found = follower.stats("replication")
    return found["link"] == "following" and found["synced"] == "1"


class Relay:
    """Relays bytes between its own port and `target`. It can record the bytes, and break, slow down or pause the
    connection."""

    def __init__(self, target):
        self.target = target
        self.bytes_per_second = None
        # A `bytearray` that receives all relayed bytes; None to record nothing.
        self.seen = None
        self.is_open = threading.Event()
        self.is_open.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets = []
        self.lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target), TIMEOUT_SECS)
            except OSError:
                near.close()
                continue
            with self.lock:
                self.sockets += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source, target):
        stop = threading.Event()
        try:
            while piece := source.recv(1 << 14):
                self.is_open.wait()
                if self.seen is not None:
                    self.seen += piece
                target.sendall(piece)
                if self.bytes_per_second:
                    stop.wait(len(piece) / self.bytes_per_second)
        except OSError:
            pass
        for sock in (source, target):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def break_connections(self):
        with self.lock:
            broken, self.sockets = self.sockets, []
        for sock in broken:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.is_open.set()
        self.break_connections()
