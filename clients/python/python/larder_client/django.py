"""A cache backend for Django:

    CACHES = {"default": {"BACKEND": "larder_client.django.LarderCache", "LOCATION": "cache:11211"}}

`LOCATION` is a server or a list of servers. `OPTIONS` are arguments of `larder_client.HashClient`.
"""

from typing import Any

from django.core.cache.backends.memcached import BaseMemcachedCache

import larder_client
from larder_client.serde import pickle_serde

#: The clients of this process, with their servers and options.
_clients: list[tuple[Any, dict[str, Any], larder_client.HashClient]] = []


def _shared_client(servers: Any, options: dict[str, Any]) -> larder_client.HashClient:
    """Returns the process's client for these servers and options. Django creates a cache object per thread. All of
    these objects share the client's connections."""

    def found() -> larder_client.HashClient | None:
        matches = (client for *settings, client in _clients if settings == [servers, options])
        return next(matches, None)

    client = found()
    if client is None:
        _clients.append((servers, options, larder_client.HashClient(servers, **options)))
        # Another thread may have appended a client with the same settings first. All threads use the first of these
        # clients.
        client = found()
        assert client is not None
    return client


class LarderCache(BaseMemcachedCache):
    """Stores `bytes`, `str` and `int` without pickling them, so that `incr` works and other programs can read the
    values. Pickles all other values. A serde in `OPTIONS` replaces this conversion. The connections stay open between
    requests, and all threads of a process share them."""

    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        super().__init__(server, params, library=larder_client, value_not_found_exception=KeyError)
        self._class = larder_client.HashClient
        self._options: dict[str, Any] = {
            "allow_unicode_keys": True,
            "default_noreply": False,
            "serde": pickle_serde,
            "use_pooling": True,
            **(params.get("OPTIONS") or {}),
        }

    @property
    def _cache(self) -> larder_client.HashClient:
        return _shared_client(self.client_servers, self._options)

    def close(self, **kwargs: Any) -> None:
        """Does nothing. Django calls this method after each request, but the connections stay open for the next
        request."""
