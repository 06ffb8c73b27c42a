"""Logins by clients that we did not write: binary over SASL PLAIN, text as anybody can send it."""

import bmemcached
import pylibmc
import pytest

PASSWORDS = "ann:first\nbob:a longer:one"


@pytest.fixture
def passwords(tmp_path):
    file = tmp_path / "passwords"
    file.write_text(PASSWORDS)
    return str(file)


@pytest.fixture
def sasl(start, passwords):
    with start("-t", "1", "-S", "-Y", passwords) as server:
        yield server


@pytest.mark.larder
@pytest.mark.parametrize("user, password", [("ann", "first"), ("bob", "a longer:one")])
def test_bmemcached_logs_in(sasl, user, password):
    client = bmemcached.Client([sasl.address], user, password)
    assert client.set("key", user)
    assert client.get("key") == user
    ((_, stats),) = client.stats().items()
    assert (stats["auth_cmds"], stats["auth_errors"]) == ("1", "0")
    client.disconnect_all()


@pytest.mark.larder
@pytest.mark.parametrize("user, password", [("ann", "second"), ("eve", "first"), ("ann", "a longer:one")])
def test_bmemcached_is_refused(sasl, user, password):
    client = bmemcached.Client([sasl.address], user, password)
    with pytest.raises(bmemcached.exceptions.InvalidCredentials):
        client.set("key", "value")
    client.disconnect_all()


@pytest.mark.larder
def test_bmemcached_without_a_name_gets_nothing(sasl):
    stranger = bmemcached.Client([sasl.address])
    assert not stranger.set("key", "value")
    known = bmemcached.Client([sasl.address], "ann", "first")
    assert known.get("key") is None
    for client in (stranger, known):
        client.disconnect_all()


@pytest.mark.larder
@pytest.mark.skipif(not pylibmc.support_sasl, reason="this libmemcached knows no SASL")
def test_pylibmc_logs_in(sasl):
    client = pylibmc.Client([sasl.address], binary=True, username="ann", password="first")
    assert client.set("key", "value")
    assert client.get("key") == "value"
    stranger = pylibmc.Client([sasl.address], binary=True, username="ann", password="second")
    with pytest.raises(pylibmc.Error):
        stranger.set("key", "value")


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
