"""Tests TLS of all clients with larderd and memcached. openssl creates the certificates."""

import asyncio
import contextlib
import copy
import os
import pickle
import re
import ssl
import threading
import time

import django
import pytest
import uvloop
from conftest import PATIENT, start
from django.conf import settings
from django.core.cache import caches
from django.test import override_settings
from fake import Fake
from replication.certificates import Authority
from server import wait_until
from test_docs import DOCS

import larder_client
from larder_client import Client, HashClient, PooledClient, Tls, _tls
from larder_client.asyncio import Client as AsyncClient
from larder_client.asyncio import HashClient as AsyncHashClient

if not settings.configured:
    settings.configure()
    django.setup()

LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


class Blocking:
    """A blocking wrapper around a client for asyncio. Each call runs in a loop of its own."""

    def __init__(self, run, client):
        self.run, self.client = run, client

    def __getattr__(self, name):
        async def call(*args, **settings):
            try:
                return await getattr(self.client, name)(*args, **settings)
            finally:
                await self.client.close()

        return lambda *args, **settings: self.run(call(*args, **settings))


def in_loop(run, kind):
    return lambda server, **settings: Blocking(run, kind(server, **settings))


#: Functions that create a client of one server.
CLIENTS = {
    "Client": Client,
    "shared": PooledClient,
    "pool": lambda server, **settings: PooledClient(server, max_pool_size=4, **settings),
    "hash": lambda server, **settings: HashClient([server], **settings),
    "hash-pooling": lambda server, **settings: HashClient([server], use_pooling=True, **settings),
    "asyncio": in_loop(asyncio.run, AsyncClient),
    "uvloop": in_loop(uvloop.run, AsyncClient),
    "asyncio-hash": in_loop(asyncio.run, lambda server, **settings: AsyncHashClient([server], **settings)),
}


@pytest.fixture(params=CLIENTS)
def connect(request):
    return lambda server, **settings: CLIENTS[request.param](
        server.address, **{"default_noreply": False, **PATIENT, **settings}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with PEM files: a CA, a server and a client with certificates from this CA, and another CA."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    authority.issue("server", "IP:127.0.0.1", "DNS:cache.test")
    authority.issue("client", "DNS:client.test")
    Authority(folder, "other")
    (folder / "both.pem").write_text((folder / "ca-client.pem").read_text() + (folder / "ca-client.key").read_text())
    return folder


def start_with_tls(kind, folder, more=""):
    files = f"ssl_chain_cert={folder}/ca-server.pem,ssl_key={folder}/ca-server.key"
    return start(kind, options=["-Z", "-o", files + more])


@pytest.fixture(scope="module", params=["larderd", "memcached"])
def secure(request, folder):
    """A server with TLS."""
    with start_with_tls(request.param, folder) as server:
        yield server


@pytest.fixture(scope="module", params=["larderd", "memcached"])
def mutual(request, folder):
    """A server that requires client certificates."""
    with start_with_tls(request.param, folder, f",ssl_ca_cert={folder}/ca.pem,ssl_verify_mode=2") as server:
        yield server


@pytest.fixture
def tls(folder):
    return Tls(ca_file=folder / "ca.pem")


def test_values_of_each_length(secure, connect, tls):
    client = connect(secure, tls=tls)
    for length in [0, 1, 4096, 20_000, 900_000]:
        value = (bytes(range(256)) * (length // 256 + 1))[:length]
        assert client.set("key", value) is True
        assert client.get("key") == value
    client.set_many({f"key{n}": b"%d" % n for n in range(500)})
    assert client.get_many([f"key{n}" for n in range(600)]) == {f"key{n}": b"%d" % n for n in range(500)}


def test_other_names_than_the_address(secure, connect, folder):
    assert connect(secure, tls=Tls(folder / "ca.pem", server_name="cache.test")).get("none") is None


def test_client_certificates(mutual, connect, folder):
    for files in [("ca-client.pem", "ca-client.key"), ("both.pem", None)]:
        cert, key = (name and str(folder / name) for name in files)
        client = connect(mutual, tls=Tls(ca_file=str(folder / "ca.pem"), cert_file=cert, key_file=key))
        assert client.set("key", b"1") is True and client.get("key") == b"1"


def error(call):
    with pytest.raises((OSError, larder_client.MemcacheError)) as raised:
        call()
    return str(raised.value)


def test_a_server_can_require_a_client_certificate(mutual, connect, tls):
    # The server refuses the client after the handshake, and the client can lose the reason when the server closes the
    # connection.
    def has_reason():
        text = error(lambda: connect(mutual, tls=tls).get("key")).lower().replace(" ", "")
        return "certificaterequired" in text

    wait_until(has_reason, "an error with the reason")


def test_untrusted_certificates(secure, connect, folder):
    text = error(lambda: connect(secure, tls=Tls(folder / "other.pem")).get("key"))
    assert "the server's certificate is not signed by a trusted CA" in text
    # The CAs of the system do not include the CA of the test.
    text = error(lambda: connect(secure, tls=True).get("key"))
    assert "the server's certificate is not signed by a trusted CA" in text


def test_certificates_for_other_names(secure, connect, folder):
    text = error(lambda: connect(secure, tls=Tls(folder / "ca.pem", server_name="other.test")).get("key"))
    assert "the server's certificate is not for other.test" in text


def test_a_server_without_tls(connect, tls):
    with Fake(*[b"ERROR\r\n"] * 10) as fake:
        fake.address = "{}:{}".format(*fake.address)
        assert "the server does not speak TLS" in error(lambda: connect(fake, tls=tls).get("key"))


@pytest.mark.parametrize("kind", ["larderd", "memcached"])
def test_a_client_without_tls(kind, connect, folder):
    with start_with_tls(kind, folder) as server:
        # memcached closes the connection without a reply. larderd sends a reply, but the client can lose the reply when
        # the server closes the connection.
        error(lambda: connect(server).get("key"))
        if kind == "larderd":
            wait_until(lambda: "the server requires TLS" in error(lambda: connect(server).get("key")), "the reason")


def test_a_handshake_without_an_answer_ends_at_the_deadline(connect, tls):
    with Fake() as fake:
        fake.address = "{}:{}".format(*fake.address)
        client = connect(fake, tls=tls, connect_timeout=0.2)
        start_time = time.monotonic()
        with pytest.raises(TimeoutError):
            client.get("key")
        assert time.monotonic() - start_time < PATIENT["timeout"] / 2


@pytest.mark.parametrize("kind", [Client, PooledClient])
def test_administrative_commands(secure, mutual, kind, folder, tls):
    assert kind(secure.address, tls=tls, **PATIENT).stats()[b"pid"] == secure.pid
    known = Tls(folder / "ca.pem", folder / "both.pem")
    assert kind(mutual.address, tls=known, **PATIENT).raw_command("mn") == b"MN"
    for wrong, text in [
        (Tls(folder / "other.pem"), "not signed by a trusted CA"),
        (Tls(folder / "ca.pem", server_name="other.test"), "not for other.test"),
    ]:
        assert text in error(kind(secure.address, tls=wrong, **PATIENT).stats)


@pytest.mark.parametrize("kind, name", [("larderd", "shared"), ("larderd", "pool"), ("memcached", "pool")])
def test_many_threads(folder, tls, kind, name):
    # Shared connections to memcached are not tested, for the same reason as in the next test.
    with start_with_tls(kind, folder) as server:
        client = CLIENTS[name](server.address, tls=tls, **PATIENT)
        wrong = []

        def work(name):
            for n in range(100):
                key, value = f"{name}-{n % 7}", b"%d-%d" % (name, n) * (1 + n % 300)
                client.set(key, value)
                if client.get(key) != value:
                    wrong.append(key)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
def test_many_tasks(folder, tls, run):
    # memcached is not tested: with many pipelined requests, memcached 1.6.18 leaves the last requests in OpenSSL's
    # buffer until more data arrives.
    async def main(server):
        async with AsyncClient(server.address, tls=tls, **PATIENT) as client:
            keys = [f"task{n}" for n in range(500)]
            await asyncio.gather(*(client.set(key, key * 50) for key in keys))
            assert await asyncio.gather(*map(client.get, keys)) == [(key * 50).encode() for key in keys]

    with start_with_tls("larderd", folder) as server:
        run(main(server))


def test_a_forked_child_opens_its_own_connections(secure, tls):
    client = PooledClient(secure.address, tls=tls, default_noreply=False, **PATIENT)
    client.set("fork", b"parent")
    before = client.stats()[b"total_connections"]
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert client.get("fork") == b"parent"
    # The parent keeps its connection, so only the connection of `stats` is new.
    assert client.stats()[b"total_connections"] == before + 1
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os._exit(0 if client.get("fork") == b"parent" and client.stats()[b"pid"] == secure.pid else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert client.get("fork") == b"parent"


def test_django(secure, tls):
    location = {"BACKEND": "larder_client.django.LarderCache", "LOCATION": secure.address}
    with override_settings(CACHES={"default": {**location, "OPTIONS": {"tls": tls, **PATIENT}}}):
        caches["default"].set("key", [1])
        assert caches["default"].get("key") == [1]
        assert caches["default"]._cache is caches["default"]._cache


def test_the_example_of_the_documentation(secure, folder):
    examples = re.findall(r"^```py\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    (example,) = [example for example in examples if "ca.pem" in example]
    for old, new in [("cache.example.com:11211", secure.address), ("/etc/cache/ca.pem", str(folder / "ca.pem"))]:
        assert old in example
        example = example.replace(old, new)
    names = {}
    exec(example, names)
    assert names["cache"].get("none") is None


def test_files_that_cannot_be_used(folder):
    (folder / "empty.pem").write_text("")
    (folder / "cut.pem").write_text((folder / "ca.pem").read_text()[:100])
    (folder / "garbled.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for name, kind, text in [
        ("none.pem", FileNotFoundError, "none.pem: No such file"),
        ("", OSError, "Is a directory"),
        ("empty.pem", ValueError, "empty.pem: no certificate"),
        ("ca.key", ValueError, "ca.key: no certificate"),
        ("cut.pem", ValueError, "cut.pem: PEM section without an end"),
        ("garbled.pem", ValueError, "garbled.pem: "),
    ]:
        with pytest.raises(kind, match=text):
            Tls(ca_file=folder / name)
        with pytest.raises(kind, match=text):
            Tls(cert_file=folder / name, key_file=folder / "ca-client.key")
    with pytest.raises(ValueError, match="ca-client.pem: no private key"):
        Tls(cert_file=folder / "ca-client.pem")
    with pytest.raises(ValueError, match="ca-server.key: .*Mismatch"):
        Tls(cert_file=folder / "ca-client.pem", key_file=folder / "ca-server.key")
    with pytest.raises(ValueError, match="key_file needs a cert_file"):
        Tls(key_file=folder / "ca-client.key")
    with pytest.raises(ValueError, match="is not a valid certificate name"):
        Tls(server_name="no name")


def test_other_settings_are_refused():
    for kind in [Client, PooledClient, AsyncClient]:
        with pytest.raises(ValueError, match="does not support tls_context: use tls=True or tls=larder_client.Tls"):
            kind("cache", tls_context=ssl.create_default_context())
        with pytest.raises(TypeError, match="larder_client.Tls"):
            kind("cache", tls=ssl.create_default_context())
    for kind in [HashClient, AsyncHashClient]:
        with pytest.raises(ValueError, match="tls=True"):
            kind(["cache"], tls_context=ssl.create_default_context())
        with pytest.raises(TypeError, match="larder_client.Tls"):
            kind(["cache"], tls={})


def test_settings_can_be_compared_and_copied(folder):
    tls = Tls(folder / "ca.pem", server_name="cache.test")
    assert tls == Tls(ca_file=folder / "ca.pem", server_name="cache.test") != Tls(folder / "ca.pem")
    for copied in [copy.deepcopy(tls), pickle.loads(pickle.dumps(tls))]:
        assert copied == tls and hash(copied) == hash(tls)
    assert "ca.pem" in repr(tls) and "server_name='cache.test'" in repr(tls)
    assert Client("cache", tls=tls).tls is tls
    assert Client("cache").tls is None and Client("cache", tls=False).tls is None
    assert AsyncClient("cache", tls=True).tls == Tls()
    # A client of several servers reads the files once.
    several = HashClient(["a", "b"], tls=True)
    assert len({id(client.tls) for client in several.clients.values()}) == 1


def test_texts_of_errors():
    """Tests the texts of errors that the other tests do not cause."""
    expired = ssl.SSLCertVerificationError(1, "certificate verify failed")
    expired.verify_code, expired.verify_message = 10, "certificate has expired"
    assert _tls.describe(expired, "cache") == "the server's certificate has expired"
    expired.verify_code, expired.verify_message = 9, "certificate is not yet valid"
    assert _tls.describe(expired, "cache") == "invalid server certificate: certificate is not yet valid"
    for closed in [ssl.SSLEOFError(8, "EOF occurred"), ConnectionResetError()]:
        assert _tls.describe(closed, "cache") == "connection closed by the server during the TLS handshake"
