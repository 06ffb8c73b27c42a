"""`--cluster-tls`: connections between nodes are encrypted, and both nodes present certificates."""

import os
import signal
import socket
import ssl
import time

import pytest

from certificates import Authority
from replicas import Leader, Relay, ask, items, wait_for_equality
from server import ExitedAtStart, Server, wait_until

pytestmark = pytest.mark.larder

HERE = "IP:127.0.0.1"
VALUE = b"known-to-both-" * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def authority(folder):
    return Authority(folder)


@pytest.fixture(scope="module")
def other(folder):
    return Authority(folder, "other")


@pytest.fixture(scope="module")
def tls(authority):
    """Provides the options that give a node a valid certificate."""
    return ["--cluster-tls", authority.issue("here", HERE)]


@pytest.fixture(scope="module")
def leader(tls):
    with Leader(options=tls) as leader:
        ask(leader, b"set known 0 0 %d\r\n%s\r\n" % (len(VALUE), VALUE), b"STORED\r\n")
        yield leader


def follower(port, *options):
    return Server(options=["--follow", f"127.0.0.1:{port}", "-v", *options])


def wait_for_error(server, *words):
    """Waits until the statistic `last_error` of a follower contains one of these words."""

    def is_there():
        return any(word in server.stats("replication")["last_error"] for word in words)

    try:
        wait_until(is_there, "a refusal")
    except AssertionError as late:
        raise AssertionError(server.stats("replication")["last_error"]) from late


def refused(leader):
    return int(leader.stats("replication")["followers_refused"])


def context(files=None):
    """Returns a TLS client context that accepts any server, and presents a certificate if it has one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if files:
        context.load_cert_chain(*files.split(",")[:2])
    return context


def test_replication_over_tls_is_encrypted(leader, tls):
    with Relay(leader.replication_port) as relay:
        relay.seen = bytearray()
        with follower(relay.port, *tls) as copy:
            wait_for_equality(leader, copy)
            large = os.urandom(1 << 19) + VALUE
            with leader.connect() as sock:
                for number in range(8):
                    sock.sendall(b"set large%d 0 0 %d\r\n%s\r\n" % (number, len(large), large))
                    assert sock.recv(100) == b"STORED\r\n"
            relay.break_connections()
            wait_for_equality(leader, copy)
            assert [value for _, value in items(copy, [b"large7"]).values()] == [large]
            assert copy.stats("replication")["full_syncs_received"] == "1"
        assert len(relay.seen) > len(large)
        assert VALUE not in relay.seen and b"large7" not in relay.seen


def test_replication_without_tls_is_plain():
    with Leader() as leader, Relay(leader.replication_port) as relay:
        relay.seen = bytearray()
        ask(leader, b"set known 0 0 %d\r\n%s\r\n" % (len(VALUE), VALUE), b"STORED\r\n")
        with follower(relay.port) as copy:
            wait_for_equality(leader, copy)
        assert VALUE in relay.seen


def test_tls_and_a_secret_can_be_combined(authority, tls, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a secret of this cluster\n")
    both = [*tls, "--cluster-secret", str(secret)]
    with Leader(options=both) as leader:
        with follower(leader.replication_port, *both) as copy:
            wait_for_equality(leader, copy)
        with follower(leader.replication_port, *tls) as copy:
            wait_for_error(copy, "--cluster-secret")


def test_nodes_of_another_authority_are_refused(leader, authority, other):
    # The follower trusts the leader, but the leader does not trust the follower.
    strange = ["--cluster-tls", other.issue("strange", HERE, ca=authority.ca)]
    before = refused(leader)
    with follower(leader.replication_port, *strange) as copy:
        wait_for_error(copy, "UnknownCA", "CertificateUnknown", "DecryptError", "BadCertificate")
        assert items(copy, [b"known"]) == {}
        assert refused(leader) > before
    # The follower does not trust the leader.
    with follower(leader.replication_port, "--cluster-tls", other.issue("here", HERE)) as copy:
        wait_for_error(copy, "UnknownIssuer")
        assert items(copy, [b"known"]) == {}


@pytest.mark.parametrize("certificate", ["none", "of another authority"])
def test_peers_without_a_valid_certificate_are_refused(leader, other, certificate):
    files = None if certificate == "none" else other.issue("peer", HERE)
    before = refused(leader)
    with socket.create_connection(("127.0.0.1", leader.replication_port), 10) as plain:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            with context(files).wrap_socket(plain) as sock:
                assert sock.recv(100) == b""
                raise ConnectionError
    wait_until(lambda: refused(leader) > before, "a refusal")


def test_a_leader_whose_certificate_is_for_another_host_is_not_followed(authority, tls):
    with Leader(options=["--cluster-tls", authority.issue("n9", "DNS:n9")]) as leader:
        with follower(leader.replication_port, *tls) as copy:
            wait_for_error(copy, "not valid for name")
    with Leader(options=["--cluster-tls", authority.issue("name", "DNS:localhost")]) as leader:
        address = f"localhost:{leader.replication_port}"
        with Server(options=["--follow", address, *tls]) as copy:
            wait_for_equality(leader, copy)


def test_nodes_with_and_without_tls_do_not_connect(tls):
    with Leader(options=tls) as leader, follower(leader.replication_port) as copy:
        wait_for_error(copy, "the peer speaks TLS: both sides need --cluster-tls")
        wait_until(lambda: "does not speak TLS" in leader.output(), "the reason in the log")
    with Leader() as leader, follower(leader.replication_port, *tls) as copy:
        wait_for_error(copy, "both sides need --cluster-tls")
        wait_until(lambda: "the peer speaks TLS" in leader.output(), "the reason in the log")


def test_silent_peers_do_not_block_followers(tls):
    with Leader(options=tls) as leader:
        ask(leader, b"set k 0 0 1\r\n1\r\n", b"STORED\r\n")
        hello = ssl.MemoryBIO()
        unsent = context().wrap_bio(ssl.MemoryBIO(), hello)
        with pytest.raises(ssl.SSLWantReadError):
            unsent.do_handshake()
        hello = hello.read()
        silent = []
        for number in range(100):
            sock = socket.create_connection(("127.0.0.1", leader.replication_port))
            silent.append(sock)
            try:
                # Each peer sends nothing, half of a hello, or only a complete hello.
                sock.sendall(hello[: number % 3 * len(hello) // 2])
            except OSError:
                pass
        start_time = time.monotonic()
        with follower(leader.replication_port, *tls) as copy:
            wait_for_equality(leader, copy)
            assert time.monotonic() - start_time < 15
            for sock in silent:
                sock.close()
            assert leader.rss() < 64 << 20


def test_sighup_reloads_certificates(folder, authority, other):
    trusted = folder / "trusted.pem"
    trusted.write_text(authority.ca.read_text())
    files = authority.issue("turning", HERE, ca=trusted)
    with Leader(options=["--cluster-tls", files]) as leader:
        ask(leader, b"set k 0 0 1\r\n1\r\n", b"STORED\r\n")
        strange = ["--cluster-tls", other.issue("new", HERE, ca=authority.ca)]
        with follower(leader.replication_port, *strange) as copy:
            wait_until(lambda: refused(leader) > 0, "a refusal")
            trusted.write_text("nothing")
            os.kill(leader.pid, signal.SIGHUP)
            wait_until(lambda: "reloading the certificates failed" in leader.output(), "a warning")
            trusted.write_text(authority.ca.read_text() + other.ca.read_text())
            assert ask(leader, b"refresh_certs\r\n", b"\r\n") == b"OK\r\n"
            wait_for_equality(leader, copy)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cluster-tls", "{good}"], "needs --replicate-on or --follow"),
        (["--replicate-on", "127.0.0.1:0", "--cluster-tls", "a,b"], "CERT,KEY,CA"),
        (["--replicate-on", "127.0.0.1:0", "--cluster-tls", "/none,{key},{ca}"], "certificate chain: /none"),
        (["--replicate-on", "127.0.0.1:0", "--cluster-tls", "{cert},{ca},{ca}"], "Error loading the key"),
        (["--replicate-on", "127.0.0.1:0", "--cluster-tls", "{cert},{other_key},{ca}"], "not the certificate's"),
        (["--replicate-on", "127.0.0.1:0", "--cluster-tls", "{cert},{key},/dev/null"], "CA certificate: /dev/null"),
        (["--follow", "a_b-.c:1", "--cluster-tls", "{good}"], "DNS name or an IP address"),
        (
            ["--cluster", "c", "--node", "10.0.0.1", "--replicate-on", "127.0.0.1:0", "--cluster-tls", "{good}"],
            "--node 10.0.0.1: with --cluster-tls",
        ),
        (
            ["--cluster", "c", "--node", "n1", "--replicate-on", "127.0.0.1:0", "--cluster-tls", "{good}"],
            "the certificate needs the name DNS:n1",
        ),
    ],
)
def test_invalid_options_are_refused_at_start(authority, other, tls, options, words):
    cert, key, ca = tls[1].split(",")
    other_key = other.issue("key", HERE).split(",")[1]
    names = {"good": tls[1], "cert": cert, "key": key, "ca": ca, "other_key": other_key}
    with pytest.raises(ExitedAtStart) as refused:
        Server(options=[option.format(**names) for option in options])
    assert words in refused.value.output
    assert "PRIVATE KEY" not in refused.value.output
