"""A RESP connection that returns the raw bytes of replies and messages."""

import socket

from server import TIMEOUT_SECS


class Peer:
    """A RESP connection. Its methods return received bytes unchanged."""

    opened = []

    def __init__(self, port, resp3=False, inline=False):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECS)
        self.opened.append(self)
        self.received, self.asked, self.is_subscribed, self.inline = b"", 0, False, inline
        self.number = int(self.ask("CLIENT ID").strip(b":\r\n"))
        if resp3:
            self.ask("HELLO 3")

    def ask(self, *lines):
        """Sends requests and a `PING`. Returns the replies and messages that arrive before the reply to the `PING`."""
        self.is_subscribed |= any(line.startswith("SUBSCRIBE _") for line in lines)
        self.is_subscribed &= not any(line.startswith(("UNSUBSCRIBE", "RESET")) for line in lines)
        self.asked += 1
        mark = f"mark-{self.asked:06}"
        self.send(*lines, f"PING {mark}")
        end = (b"*2\r\n$4\r\npong\r\n" if self.is_subscribed else b"") + b"$11\r\n%s\r\n" % mark.encode()
        return self.read_until(end)

    def send(self, *lines):
        """Sends requests, encoded as lines or as arrays."""
        self.socket.sendall(b"".join(self.encoded(line) for line in lines))

    def encoded(self, line):
        if self.inline:
            return line.encode() + b"\r\n"
        words = line.encode().split()
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)

    def read_until(self, end):
        """Returns the bytes that arrive before `end`. Sends no request."""
        while end not in self.received:
            part = self.socket.recv(1 << 16)
            assert part, f"the connection is closed after {self.received}"
            self.received += part
        shown, _, self.received = self.received.partition(end)
        return shown

    def close(self):
        self.socket.close()


def push(*keys):
    """Returns a message about keys in RESP3."""
    shown = b"".join(b"$%d\r\n%s\r\n" % (len(key), key) for key in (key.encode() for key in keys))
    return b">2\r\n$10\r\ninvalidate\r\n*%d\r\n%s" % (len(keys), shown)


ALL = b">2\r\n$10\r\ninvalidate\r\n_\r\n"
