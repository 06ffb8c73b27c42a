"""Clients with TLS: pymemcache (text) and python-binary-memcached, httpx and gRPC."""

import os
import socket
import ssl
import subprocess
from contextlib import closing
from concurrent.futures import ThreadPoolExecutor

import bmemcached
import grpc
import httpx
import pytest
from pymemcache.client.base import Client, PooledClient

from grpc_client import Cache
from server import LARDERD, TIMEOUT_SECS, ExitedAtStart

SUBJECT = "/CN=cache.test"


def openssl(folder, *words):
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def issue(folder, name):
    """Creates a key and a certificate, signed by the CA in `folder`."""
    openssl(
        folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", SUBJECT,
    )  # fmt: skip
    (folder / "extensions").write_text("basicConstraints=CA:FALSE\nsubjectAltName=IP:127.0.0.1\n")
    openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
        "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", "extensions",
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Creates a CA that signs a certificate for a server and one for a client."""
    folder = tmp_path_factory.mktemp("tls")
    openssl(
        folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2",
    )  # fmt: skip
    issue(folder, "server")
    issue(folder, "client")
    return folder


@pytest.fixture(scope="module")
def context(folder):
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "client.pem", folder / "client.key")
    return context


@pytest.fixture(scope="module")
def server(start, folder):
    """Provides a server with TLS that requires client certificates."""
    files = f"ssl_chain_cert={folder}/server.pem,ssl_key={folder}/server.key"
    trust = f"ssl_ca_cert={folder}/ca.pem,ssl_verify_mode=2"
    with start("-t", "2", "-Z", "-o", f"{files},{trust}") as server:
        yield server


def client(server, context):
    address = (server.host, server.port)
    return closing(Client(address, timeout=60, default_noreply=False, tls_context=context))


def test_values_of_every_size(server, context):
    with client(server, context) as cache:
        for length in (0, 1, 1000, 20_000, 1_000_000):
            value = bytes(n % 251 for n in range(length))
            assert cache.set("key", value)
            assert cache.get("key") == value
        assert cache.get_many(["key", "none"]) == {"key": value}


def test_binary(server, context):
    cache = bmemcached.Client(f"{server.host}:{server.port}", tls_context=context)
    try:
        assert cache.set("binary", "v" * 50_000)
        assert cache.get("binary") == "v" * 50_000
        assert cache.delete("binary")
    finally:
        cache.disconnect_all()


def test_many_connections_at_once(server, context):
    pool = PooledClient(
        (server.host, server.port), timeout=60, max_pool_size=16, default_noreply=False,
        tls_context=context,
    )  # fmt: skip

    def work(n):
        return all(pool.set(f"k{n}-{m}", b"%d" % m) and pool.get(f"k{n}-{m}") for m in range(50))

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(work, range(16)))
    pool.close()


def test_clients_without_a_certificate_are_refused(server, folder):
    stranger = ssl.create_default_context(cafile=folder / "ca.pem")
    with pytest.raises((ssl.SSLError, OSError)), client(server, stranger) as cache:
        cache.get("key")


def test_certificates_are_reloaded(server, folder, context):
    with client(server, context) as old:
        assert old.version()
        before = old.sock.getpeercert(True)
        issue(folder, "server")
        assert old.raw_command("refresh_certs") == b"OK"
        assert old.version()
        with client(server, context) as new:
            assert new.version()
            assert new.sock.getpeercert(True) != before


@pytest.fixture(scope="module")
def web(start, folder):
    """Provides a server with TLS for memcached's protocol, HTTP and gRPC, without client certificates."""
    files = f"ssl_chain_cert={folder}/server.pem,ssl_key={folder}/server.key,ssl_ca_cert={folder}/ca.pem"
    with start("-t", "1", "-Z", "-o", files, http=True, grpc=True) as server:
        yield server


@pytest.mark.larder
@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
def test_http(web, context, version):
    both = {"http1": version == "HTTP/1.1", "http2": version == "HTTP/2"}
    with httpx.Client(base_url=f"https://{web.http_address}", verify=context, trust_env=False, **both) as http:
        for length in (0, 1, 20_000, 900_000):
            value = bytes(n % 251 for n in range(length))
            stored = http.put("/v1/keys/tls", content=value)
            assert stored.status_code in (201, 204) and stored.http_version == version
            assert http.get("/v1/keys/tls").content == value
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{web.http_address}/healthz", trust_env=False)


@pytest.mark.larder
def test_grpc(web, folder):
    credentials = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes())
    with Cache(web.grpc_address, credentials=credentials) as cache:
        for length in (0, 1, 20_000, 900_000):
            value = bytes(n % 251 for n in range(length))
            assert cache.outcome(cache.Set(key=b"tls", value=value)) == "DONE"
            assert cache.Get(key=b"tls").value == value == cache.read(b"tls")[1]
    with grpc.insecure_channel(web.grpc_address) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/larder.v1.Cache/Get")(b"", timeout=5)


@pytest.mark.larder
def test_prefixes_of_addresses(start, folder, context):
    """With these prefixes, HTTP requires client certificates, and gRPC runs without TLS."""
    files = f"ssl_chain_cert={folder}/server.pem,ssl_key={folder}/server.key,ssl_ca_cert={folder}/ca.pem"
    listen = ["--http-listen", "mtls:127.0.0.1:0", "--grpc-listen", "notls:127.0.0.1:0"]
    with start("-t", "1", "-Z", "-o", files, *listen) as server:
        stranger = ssl.create_default_context(cafile=folder / "ca.pem")
        url = f"https://{server.http_address}/healthz"
        assert httpx.get(url, verify=context, trust_env=False).text == "ok\n"
        with pytest.raises(httpx.TransportError):
            httpx.get(url, verify=stranger, trust_env=False)
        with Cache(server.grpc_address) as cache:
            assert not cache.Get(key=b"none").found
    with pytest.raises(ExitedAtStart, match="need -Z"), start("--http-listen", "mtls:127.0.0.1:0"):
        pass


@pytest.mark.larder
def test_many_connections_without_a_handshake(web, context):
    """The server serves other clients while many connections send nothing, or send bytes that are not TLS."""
    host, port = web.http_address.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(300)]
    for sock in silent[::2]:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
    for _ in range(10):
        assert httpx.get(f"https://{web.http_address}/healthz", verify=context, trust_env=False).text == "ok\n"
    for sock in silent:
        sock.close()


@pytest.mark.larder
@pytest.mark.parametrize(
    "options, name",
    [
        (["EC", "-pkeyopt", "ec_paramgen_curve:P-521"], "an ECDSA key on P-521"),
        (["RSA", "-pkeyopt", "rsa_keygen_bits:1024"], "an RSA key"),
        (["RSA", "-pkeyopt", "rsa_keygen_bits:4160"], "an RSA key"),
        (["RSA-PSS", "-pkeyopt", "rsa_keygen_bits:2048"], "an RSA-PSS key"),
        (["ED448"], "an Ed448 key"),
    ],
    ids=lambda part: part[0] if isinstance(part, list) else "",
)
def test_a_key_that_cannot_be_used_is_named(tmp_path, options, name):
    openssl(tmp_path, "genpkey", "-algorithm", *options, "-out", "key.pem")
    openssl(tmp_path, "req", "-x509", "-new", "-key", "key.pem", "-subj", SUBJECT, "-out", "chain.pem")
    files = f"ssl_chain_cert={tmp_path}/chain.pem,ssl_key={tmp_path}/key.pem"
    user = ["-u", "root"] if os.geteuid() == 0 else []
    command = [LARDERD, *user, "-l", "127.0.0.1", "-p", "-1", "-Z", "-o", files]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECS)
    assert refused.returncode == 64
    assert f"this is {name}; RSA keys of 2048 to 4096 bits, ECDSA keys on P-256" in refused.stderr
