"""Provides three servers with a router in front of them for each module."""

import pytest

from clusters import Cluster, MemcachedProxy, Twemproxy


@pytest.fixture(scope="module")
def cluster(start):
    """Provides three servers. A router sends the requests of all clients to a server over one or a few connections."""
    with Cluster(start, options=["-t", "2"]) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=[Twemproxy, MemcachedProxy], ids=["twemproxy", "memcached"])
def router(request, cluster):
    with request.param(cluster) as router:
        yield router


@pytest.fixture
def client(router):
    client = router.client()
    yield client
    client.close()
