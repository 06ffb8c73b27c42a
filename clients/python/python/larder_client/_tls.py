"""TLS settings. Rust code encrypts the connections of the clients for threads. The standard library's `ssl` encrypts
the connections of the clients for asyncio and of administrative commands, with the same checks and the same error
texts."""

import os
import ssl
from collections.abc import Callable
from typing import Any

from ._native import BaseTls

_Path = str | os.PathLike[str]

#: OpenSSL's error codes for certificates without a trusted issuer: X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT,
#: CERT_SIGNATURE_FAILURE, DEPTH_ZERO_SELF_SIGNED_CERT, SELF_SIGNED_CERT_IN_CHAIN, UNABLE_TO_GET_ISSUER_CERT_LOCALLY and
#: UNABLE_TO_VERIFY_LEAF_SIGNATURE.
_UNTRUSTED = frozenset([2, 7, 18, 19, 20, 21])
#: X509_V_ERR_CERT_HAS_EXPIRED.
_EXPIRED = 10
#: OpenSSL's error codes for certificates whose names do not match: X509_V_ERR_HOSTNAME_MISMATCH and
#: IP_ADDRESS_MISMATCH.
_OTHER_NAME = frozenset([62, 64])
#: OpenSSL's error reasons for a server that replies without TLS.
_NO_TLS = frozenset(["WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"])


class Tls(BaseTls):
    """The TLS settings of a client's connections, for the argument `tls` of all clients.

    The clients use TLS 1.2 or 1.3. A CA of the system, or a CA in the PEM file `ca_file` if that is set, must have
    signed the server's certificate. The certificate must contain the host of the server's address, or `server_name` if
    that is set. For servers that request a client certificate, `cert_file` is a PEM file with the certificate, and
    `key_file` is a PEM file with its key. Without `key_file`, the key is in `cert_file`.

    The constructor reads the files. It raises an `OSError`, such as `FileNotFoundError`, if a file is unreadable or the
    system has no CAs. It raises `ValueError` if the content of a file or the server name is invalid.
    """

    def __init__(
        self,
        ca_file: _Path | None = None,
        cert_file: _Path | None = None,
        key_file: _Path | None = None,
        server_name: str | None = None,
    ) -> None:
        # BaseTls.__new__ has read and checked the files.
        self.ca_file = ca_file
        self.cert_file = cert_file
        self.key_file = key_file
        self.server_name = server_name
        #: The settings for the standard library's `ssl`.
        self.context = self._context()

    def _arguments(self) -> tuple[_Path | None, _Path | None, _Path | None, str | None]:
        return self.ca_file, self.cert_file, self.key_file, self.server_name

    def __reduce__(self) -> tuple[type["Tls"], tuple[Any, ...]]:
        return type(self), self._arguments()

    def __eq__(self, other: object) -> bool:
        return self._arguments() == other._arguments() if isinstance(other, Tls) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._arguments())

    def __repr__(self) -> str:
        ca_file, cert_file, key_file, server_name = map(repr, self._arguments())
        return f"Tls({ca_file=!s}, {cert_file=!s}, {key_file=!s}, {server_name=!s})"

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # As in the Rust code, the client ignores names in the subject of a certificate, and trusts a certificate in
        # `ca_file` even if another CA has signed that certificate.
        context.hostname_checks_common_name = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self.ca_file is None:
            context.load_default_certs()
        else:
            _load(context.load_verify_locations, self.ca_file)
        if self.cert_file is not None:
            _load(context.load_cert_chain, self.cert_file, self.key_file)
        return context

    def name_of(self, host: str) -> str:
        """Returns the name that the certificate of a server at this host must contain."""
        return host if self.server_name is None else self.server_name


def _load(load: Callable[..., None], *files: Any) -> None:
    """Loads files that `BaseTls` has already read. OpenSSL may still refuse the files, because it refuses some keys and
    certificates that rustls accepts."""
    try:
        load(*files)
    except ssl.SSLError as error:
        raise ValueError(f"{files[0]}: {error.reason or error}") from error


def settings(tls: "Tls | bool | None") -> Tls | None:
    """Converts a client's argument `tls` to settings, or to `None` for no encryption."""
    if tls is None or isinstance(tls, bool):
        return Tls() if tls else None
    if isinstance(tls, Tls):
        return tls
    raise TypeError(f"tls must be True, False, None or a larder_client.Tls, not {tls!r}")


def describe(error: OSError, name: str) -> str:
    """Returns the error text for a failed connection to a server with this name."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _UNTRUSTED:
            return "the server's certificate is not signed by a trusted CA"
        if error.verify_code == _EXPIRED:
            return "the server's certificate has expired"
        if error.verify_code in _OTHER_NAME:
            return f"the server's certificate is not for {name}"
        return f"invalid server certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        if error.reason in _NO_TLS:
            return "the server does not speak TLS"
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, ssl.SSLEOFError) or not str(error):
        return "connection closed by the server during the TLS handshake"
    return str(error)
