"""Clients that discover the servers of a cluster, as in Amazon ElastiCache."""

import struct

import bmemcached
import pymemcache
import pytest

from group import Etcd, Group
from replicas import ask, read_until
from server import Server, wait_until

pytestmark = pytest.mark.larder

# Clients look up this item if the server's version is below 1.4.14.
KEY = "AmazonElastiCache:cluster"
UNKNOWN_COMMAND = 0x81


@pytest.fixture(scope="module")
def group():
    with Etcd() as etcd, Group(etcd, 2, "--cluster", "discovery") as group:
        for node in group:
            wait_until(lambda: servers_of(listed(node)) == addresses(group), "all servers in the list")
        yield group


def addresses(group):
    return {("127.0.0.1", "127.0.0.1", str(node.port)) for node in group}


def listed(node):
    """Returns the server list in the reply to `config get cluster`."""
    head, rest = ask(node, b"config get cluster\r\n", b"\r\nEND\r\n").split(b"\r\n", 1)
    length = int(head.removeprefix(b"CONFIG cluster 0 "))
    assert rest[length:] == b"\r\nEND\r\n", rest
    return rest[:length]


def servers_of(payload):
    version, servers, end = payload.decode().split("\n")
    assert int(version) >= 0 and end == ""
    return {tuple(server.split("|")) for server in servers.split()}


def test_the_list_is_an_item_for_old_clients(group):
    key = KEY.encode()
    for node in group:
        payload = listed(node)
        length, version = len(payload), payload.split(b"\n")[0]
        item = b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, length, payload)
        with_cas = b"VALUE %s 0 %d %s\r\n%s\r\nEND\r\n" % (key, length, version, payload)
        for end in (b"\r\n", b"\n"):
            assert ask(node, b"get %s%s" % (key, end), b"END\r\n") == item
            assert ask(node, b"gets %s%s" % (key, end), b"END\r\n") == with_cas
        # The server also recognizes the key between other requests, and between other keys of a request.
        pipeline = b"get a\r\nget %s\r\nget a %s b\r\nmn\r\n" % (key, key)
        assert ask(node, pipeline, b"MN\r\n") == b"END\r\n" + item + item + b"MN\r\n"


def test_pymemcache(group):
    for node in group:
        client = pymemcache.Client(("127.0.0.1", node.port))
        assert servers_of(client.get(KEY)) == addresses(group)
        payload, version = client.gets(KEY)
        assert payload == listed(node) and payload.startswith(version + b"\n")
        # pymemcache's client for ElastiCache, which is not released yet, sends this request.
        answer = client.raw_command(b"config get cluster", end_tokens=b"\n\r\nEND\r\n")
        *_, last = answer.splitlines()
        assert {tuple(server.split(b"|")) for server in last.split(b" ")} == {
            tuple(part.encode() for part in server) for server in addresses(group)
        }
        servers = [(host.decode(), int(port)) for host, _, port in (s.split(b"|") for s in last.split(b" "))]
        hashed = pymemcache.HashClient(servers)
        hashed.set_many({f"k{number}": str(number) for number in range(50)})
        assert len(hashed.get_many([f"k{number}" for number in range(50)])) == 50
        hashed.close()
        client.close()


def test_python_binary_memcached(group):
    for node in group:
        client = bmemcached.Client([f"127.0.0.1:{node.port}"])
        assert client.get(KEY).encode() == listed(node)
        client.disconnect_all()


def request(opcode, key):
    return struct.pack(">BBHBBHIIQ", 0x80, opcode, len(key), 0, 0, 0, len(key), 0x01020304, 0) + key


def answer(sock):
    """Returns the opcode, key length, status, opaque, extras and value of a binary reply."""
    head = b""
    while len(head) < 24:
        head += sock.recv(24 - len(head))
    magic, opcode, key, extras, _, status, body, opaque, _ = struct.unpack(">BBHBBHIIQ", head)
    assert magic == 0x81
    rest = b""
    while len(rest) < body:
        rest += sock.recv(body - len(rest))
    return opcode, key, status, opaque, rest[:extras], rest[extras:]


def test_the_binary_opcode(group):
    for node in group:
        with node.connect() as sock:
            sock.sendall(request(0x60, b"cluster") + request(0x60, b"other") + request(0x60, b""))
            assert answer(sock) == (0x60, 0, 0, 0x01020304, bytes(4), listed(node))
            for _ in range(2):
                assert answer(sock) == (0x60, 0, UNKNOWN_COMMAND, 0x01020304, b"", b"Unknown command")
            sock.sendall(request(0x00, KEY.encode()))
            assert answer(sock) == (0x00, 0, 0, 0x01020304, bytes(4), listed(node))
            sock.sendall(request(0x0A, b""))
            assert answer(sock)[:3] == (0x0A, 0, 0)


def test_without_a_cluster_there_is_no_list():
    with Server() as server:
        key = KEY.encode()
        assert ask(server, b"get %s\r\n" % key, b"END\r\n") == b"END\r\n"
        assert ask(server, b"gets %s\n" % key, b"END\r\n") == b"END\r\n"
        assert ask(server, b"config get cluster\r\n", b"\r\n") == b"ERROR\r\n"
        with server.connect() as sock:
            sock.sendall(request(0x60, b"cluster"))
            assert answer(sock) == (0x60, 0, UNKNOWN_COMMAND, 0x01020304, b"", b"Unknown command")
        # On a server outside a cluster, the key is an ordinary key.
        with server.connect() as sock:
            sock.sendall(b"set %s 0 0 1\r\nx\r\nget %s\r\n" % (key, key))
            assert read_until(sock, b"END\r\n") == b"STORED\r\nVALUE %s 0 1\r\nx\r\nEND\r\n" % key
