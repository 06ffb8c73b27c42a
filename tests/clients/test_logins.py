"""Logins by third-party clients: SASL PLAIN in the binary protocol, and text logins over a plain socket."""

import subprocess

import bmemcached
import pytest
from bmemcached.exceptions import MemcachedException

PASSWORDS = "ann:first\nbob:a longer:one"


@pytest.fixture
def passwords(tmp_path):
    file = tmp_path / "passwords"
    file.write_text(PASSWORDS)
    return str(file)


@pytest.fixture
def sasl(start, passwords):
    with start("-t", "1", "-S", "--sasl-pwdb", passwords) as server:
        yield server


@pytest.mark.larder
@pytest.mark.parametrize("user, password", [("ann", "first"), ("bob", "a longer:one")])
def test_bmemcached_logs_in(sasl, user, password):
    client = bmemcached.Client([sasl.address], user, password)
    assert client.set("key", user)
    assert client.get("key") == user
    ((_, stats),) = client.stats().items()
    assert (stats["auth_cmds"], stats["auth_errors"]) == (b"1", b"0")
    client.disconnect_all()


@pytest.mark.larder
@pytest.mark.parametrize(
    "user, password", [("ann", "second"), ("eve", "first"), ("ann", "a longer:one")]
)
def test_bmemcached_is_refused(sasl, user, password):
    client = bmemcached.Client([sasl.address], user, password)
    with pytest.raises(MemcachedException, match="Auth failure"):
        client.set("key", "value")
    client.disconnect_all()


@pytest.mark.larder
def test_bmemcached_without_a_name_gets_nothing(sasl):
    stranger = bmemcached.Client([sasl.address])
    with pytest.raises(MemcachedException, match="Auth failure"):
        stranger.set("key", "value")
    known = bmemcached.Client([sasl.address], "ann", "first")
    assert known.get("key") is None
    for client in (stranger, known):
        client.disconnect_all()


def tool(server, name, password, *options):
    where = f"--servers={server.host}:{server.port}"
    command = [name, where, "--binary", "--username=ann", f"--password={password}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.larder
def test_libmemcached_logs_in(sasl, tmp_path):
    """This client uses the Cyrus SASL library. memcached's server side uses the same library."""
    file = tmp_path / "key"
    file.write_text("value")
    assert tool(sasl, "memccp", "first", str(file)).returncode == 0
    found = tool(sasl, "memccat", "first", "key")
    assert (found.returncode, found.stdout.strip()) == (0, "value")
    refused = tool(sasl, "memccat", "second", "key")
    assert refused.returncode != 0
    assert "value" not in refused.stdout


def test_text_login(start, passwords):
    with start("-t", "1", "-Y", passwords) as server:
        with server.connect() as sock, sock.makefile("rb") as replies:
            for request, reply in [
                (b"get key\r\n", b"CLIENT_ERROR unauthenticated\r\n"),
                (b"set a 0 0 8\r\nann fist\r\n", b"CLIENT_ERROR authentication failure\r\n"),
                (b"set a 0 0 9\r\nann first\r\n", b"STORED\r\n"),
                (b"get a\r\n", b"END\r\n"),
            ]:
                sock.sendall(request)
                assert replies.readline() == reply
