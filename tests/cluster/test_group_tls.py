"""`--cluster-tls` in a group: members must present certificates for their names."""

import os
import socket
import ssl
import struct
import zlib

import pytest

from certificates import Authority
from group import Client, Group, Node, client, wait_for_same_keys
from server import wait_until

pytestmark = pytest.mark.larder


class SecureGroup(Group):
    """A group of members with certificates."""

    def __init__(self, etcd, authority, *options):
        self.authority = authority
        super().__init__(etcd, 3, *options)

    def start(self, name):
        files = self.authority.issue(name, f"DNS:{name}")
        self.nodes[name] = Node(self.etcd, name, *self.options, "--cluster-tls", files)
        return self.nodes[name]


def text(value):
    return bytes([len(value)]) + value


def hello(node, group):
    """Returns the first frame that a member sends on a connection for forwarded requests
    (`larder-replica/src/frame`)."""
    member = b"\x01" + text(group) + bytes(8 + 16)
    body = b"\x01" + struct.pack("<H", 6) + bytes(32) + text(node) + member + b"\x02" + bytes(8)
    return struct.pack("<II", len(body), zlib.crc32(body)) + body


def handshake_answer(files, port, node, group):
    """Connects with this certificate, and sends a hello in the name of this node. Returns the leader's reply."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(*files.split(",")[:2])
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        with context.wrap_socket(plain) as sock:
            sock.sendall(hello(node, group))
            return sock.recv(1000)


def members_port(node):
    lines = node.ports_file.read_text().splitlines()
    return next(int(line.split(":")[1]) for line in lines if line.startswith("REPLICATION"))


def test_a_group_works_over_tls_and_survives_its_leader(etcd, tmp_path):
    authority = Authority(tmp_path)
    large = os.urandom(600_000)
    with SecureGroup(etcd, authority, "--cluster", "secure") as group:
        leader, followers = group.leader(), group.followers()
        assert client(followers[0]).set("large", large)
        assert client(followers[1]).get("large") == large
        assert int(followers[0].seen()["forwarded"]) > 0
        wait_for_same_keys(group)

        # A certificate is valid only for its own name.
        port = members_port(leader)
        files = authority.issue("stolen", "DNS:n2")
        assert b"certificate" in handshake_answer(files, port, b"n3", b"secure/0")
        assert b"certificate" not in handshake_answer(files, port, b"n2", b"secure/0")
        wait_until(lambda: "certificate is not for the node n3" in leader.output(), "a warning")

        with Client(followers[0], "a") as a, Client(followers[1], "b") as b:
            group.kill(leader)
            counts = len(a.answers), len(b.answers)
            wait_until(lambda: len(a.answers) > counts[0] + 50, "answers after the end")
            wait_until(lambda: len(b.answers) > counts[1] + 50, "answers after the end")
        assert client(followers[0]).get("large") == large
        group.start(leader.name)
        group.wait_until_in_sync()
        wait_for_same_keys(group)
