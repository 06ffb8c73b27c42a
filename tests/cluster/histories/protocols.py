"""Connections over each protocol, which look up, store and delete items, and never send a request twice.

All methods raise `Failure` for a failure that docs/failover.md describes, `OSError` for a lost connection,
`TimeoutError` if no reply arrives, and `UnexpectedReply` for all other replies."""

import http.client
import socket
import struct
import time

import grpc

from grpc_client import OPTIONS, Cache

# Maximum time to wait for a reply: a server reports a failure within ten seconds, and pauses of servers last up to six
# seconds.
PATIENCE_SECS = 30
# Option that makes a close discard all unsent bytes. The system then never sends these bytes.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# Options of a gRPC channel that shares no connection with other channels and never retries a request.
CHANNEL_OPTIONS = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]


class Failure(Exception):
    """A reply that reports a documented failure. The connection remains usable."""


class UnexpectedReply(Exception):
    """A reply that the checker's requests must never get."""


class Connection:
    """A connection to a port. `store` returns whether the item was stored, and its CAS value if the reply contains it.
    With `cas`, it stores the item only if the key has this CAS value. `delete` returns whether the key had an item."""

    has_cas, has_pipelines = True, False

    def __init__(self, host, port):
        self.sock = socket.create_connection((host, port), PATIENCE_SECS)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = self.sock.makefile("rb")

    def send(self, request):
        self.sock.sendall(request)

    def line(self):
        line = self.received.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("closed")
        return line.rstrip(b"\r\n")

    def exactly(self, length):
        data = self.received.read(length)
        if len(data) < length:
            raise ConnectionError("closed")
        return data

    def data(self, length):
        """Returns a block of data, which ends with a line break."""
        data = self.exactly(length + 2)
        if not data.endswith(b"\r\n"):
            raise UnexpectedReply(data)
        return data[:-2]

    def close(self):
        self.received.close()
        self.sock.close()


class Text(Connection):
    """memcached's classic text protocol. Replies to stores have no CAS value."""

    has_pipelines = True

    def get(self, key):
        self.send(self.lookup(key))
        return self.found()

    def store(self, key, value, cas=None):
        self.send(self.storage(key, value, cas))
        return self.stored()

    def delete(self, key):
        self.send(b"delete %s\r\n" % key.encode())
        return self.expect({b"DELETED": True, b"NOT_FOUND": False})

    def lookup(self, key):
        return b"gets %s\r\n" % key.encode()

    def storage(self, key, value, cas=None):
        command, end = (b"set", b"") if cas is None else (b"cas", b" %d" % cas)
        return b"%s %s 0 0 %d%s\r\n%s\r\n" % (command, key.encode(), len(value), end, value)

    def found(self):
        line = self.line()
        if line == b"END":
            return None, None
        words = line.split()
        if words[:1] != [b"VALUE"]:
            raise error(line)
        value = self.data(int(words[3]))
        if self.line() != b"END":
            raise UnexpectedReply(line)
        return value, int(words[4])

    def stored(self):
        return self.expect({b"STORED": True, b"EXISTS": False, b"NOT_FOUND": False}), None

    def expect(self, replies):
        line = self.line()
        if line not in replies:
            raise error(line)
        return replies[line]


def error(line):
    return Failure("no leader") if line == b"SERVER_ERROR no leader" else UnexpectedReply(line)


class Meta(Text):
    """memcached's meta commands."""

    def delete(self, key):
        self.send(b"md %s\r\n" % key.encode())
        return self.expect({b"HD": True, b"NF": False})

    def lookup(self, key):
        return b"mg %s v c\r\n" % key.encode()

    def storage(self, key, value, cas=None):
        condition = b"" if cas is None else b" C%d" % cas
        return b"ms %s %d c%s\r\n%s\r\n" % (key.encode(), len(value), condition, value)

    def found(self):
        line = self.line()
        if line == b"EN":
            return None, None
        words = line.split()
        if words[:1] != [b"VA"]:
            raise error(line)
        return self.data(int(words[1])), int(words[2][1:])

    def stored(self):
        line = self.line()
        words = line.split()
        if words[:1] == [b"HD"]:
            return True, int(words[1][1:])
        if words[:1] in ([b"EX"], [b"NF"]):
            return False, None
        raise error(line)


class Binary(Connection):
    """memcached's binary protocol."""

    HEADER = struct.Struct(">BBHBBHIIQ")
    GET, SET, DELETE = 0, 1, 4
    DONE, NOT_FOUND, EXISTS, NO_LEADER = 0, 1, 2, 0x86

    def ask(self, opcode, key, extras=b"", value=b"", cas=0):
        """Returns the status of the reply, its body without the extras, and its CAS value."""
        body = extras + key.encode() + value
        self.send(self.HEADER.pack(0x80, opcode, len(key), len(extras), 0, 0, len(body), 0, cas) + body)
        magic, replied, _, extras_len, _, status, length, _, cas = self.HEADER.unpack(self.exactly(self.HEADER.size))
        body = self.exactly(length)[extras_len:]
        if magic != 0x81 or replied != opcode:
            raise UnexpectedReply(f"magic {magic}, opcode {replied}")
        if status == self.NO_LEADER:
            raise Failure("no leader")
        if status not in (self.DONE, self.NOT_FOUND, self.EXISTS):
            raise UnexpectedReply(f"status {status:#x}: {body}")
        return status, body, cas

    def get(self, key):
        status, value, cas = self.ask(self.GET, key)
        return (value, cas) if status == self.DONE else (None, None)

    def store(self, key, value, cas=None):
        status, _, stored = self.ask(self.SET, key, bytes(8), value, cas or 0)
        return (True, stored) if status == self.DONE else (False, None)

    def delete(self, key):
        return self.ask(self.DELETE, key)[0] == self.DONE


class Resp(Connection):
    """Redis's protocol, which has no CAS values."""

    has_cas, has_pipelines = False, True

    def get(self, key):
        self.send(self.lookup(key))
        return self.found()

    def store(self, key, value, cas=None):
        self.send(self.storage(key, value))
        return self.stored()

    def delete(self, key):
        self.send(encoded(b"DEL", key.encode()))
        return self.reply() == b":1"

    def lookup(self, key):
        return encoded(b"GET", key.encode())

    def storage(self, key, value, cas=None):
        return encoded(b"SET", key.encode(), value)

    def found(self):
        line = self.reply()
        return (None, None) if line == b"$-1" else (self.data(int(line[1:])), None)

    def stored(self):
        line = self.reply()
        if line != b"+OK":
            raise UnexpectedReply(line)
        return True, None

    def reply(self):
        line = self.line()
        if line.startswith(b"-MASTERDOWN"):
            raise Failure("no leader")
        if line.startswith(b"-"):
            raise UnexpectedReply(line)
        return line


def encoded(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Http:
    """HTTP/1.1. CAS values are entity tags, in hexadecimal digits."""

    has_cas, has_pipelines = True, False

    def __init__(self, host, port):
        self.connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_SECS)
        self.connection.connect()
        self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)

    def ask(self, method, key, expected, value=None, condition=None):
        """Returns the status, the body and the CAS value of the reply."""
        headers = {"If-Match": f'"{condition:x}"'} if condition else {}
        try:
            self.connection.request(method, f"/v1/keys/{key}", body=value, headers=headers)
            reply = self.connection.getresponse()
            body = reply.read()
        except (http.client.HTTPException, ConnectionError) as cause:
            raise ConnectionError(f"closed: {cause}") from cause
        if reply.status in (503, 504):
            raise Failure(f"status {reply.status}: {body.decode(errors='replace')}")
        if reply.status not in expected:
            raise UnexpectedReply(f"status {reply.status}: {body[:300]}")
        tag = reply.headers.get("ETag", "").strip('"')
        return reply.status, body, int(tag, 16) if tag else None

    def get(self, key):
        status, value, cas = self.ask("GET", key, (200, 404))
        return (value, cas) if status == 200 else (None, None)

    def store(self, key, value, cas=None):
        status, _, stored = self.ask("PUT", key, (201, 204, 412) if cas else (201, 204), value, cas)
        return status != 412, stored

    def delete(self, key):
        return self.ask("DELETE", key, (204, 404))[0] == 204

    def close(self):
        self.connection.close()


class Grpc(Cache):
    """gRPC. All connections share the description of the service, which the first connection reads."""

    has_cas, has_pipelines = True, False
    described = None

    def __init__(self, host, port):
        address = f"{host}:{port}"
        try:
            if Grpc.described is None:
                with Cache(address) as Grpc.described:
                    pass
        except grpc.RpcError as cause:
            raise ConnectionError(cause.code().name) from cause
        of_first = {name: vars(Grpc.described)[name] for name in ("pool", "description", "outcomes", "kinds")}
        vars(self).update(of_first, metadata=[], channel=grpc.insecure_channel(address, options=CHANNEL_OPTIONS))
        try:
            grpc.channel_ready_future(self.channel).result(timeout=PATIENCE_SECS / 10)
        except grpc.FutureTimeoutError:
            self.channel.close()
            raise ConnectionError("no connection") from None
        self.calls = {name: getattr(self, name) for name in ("Get", "Set", "Delete")}

    def ask(self, method, **fields):
        """Returns the reply. After a failure, the recorder opens another channel, because this channel may have lost
        its connection."""
        start_time = time.monotonic()
        try:
            return self.calls[method](timeout=PATIENCE_SECS, **fields)
        except grpc.RpcError as cause:
            text = f"{cause.code().name}: {cause.details()}"
            if time.monotonic() - start_time >= PATIENCE_SECS:
                raise TimeoutError(text) from cause
            if cause.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise ConnectionError(text) from cause
            raise UnexpectedReply(text) from cause

    def get(self, key):
        found = self.ask("Get", key=key.encode())
        return (found.value, found.cas) if found.found else (None, None)

    def store(self, key, value, cas=None):
        condition = {} if cas is None else {"cas": cas}
        reply = self.ask("Set", key=key.encode(), value=value, **condition)
        is_stored = self.outcome(reply) == "DONE"
        return is_stored, reply.cas if is_stored else None

    def delete(self, key):
        return self.outcome(self.ask("Delete", key=key.encode())) == "DONE"

    def close(self):
        self.channel.close()


# Each protocol, with the name of its listener.
PROTOCOLS = {
    "text": (Text, "memcached"),
    "meta": (Meta, "memcached"),
    "binary": (Binary, "memcached"),
    "resp": (Resp, "resp"),
    "http": (Http, "http"),
    "grpc": (Grpc, "grpc"),
}
