"""Provides a server with gRPC for each module and engine, and a client that discovers the service by reflection."""

import pytest

from grpc_client import Cache
from tiers import long


@pytest.fixture(autouse=True, scope="module")
def one_runtime(request):
    if request.config.getoption("--runtime"):
        pytest.skip("gRPC has its own thread, which does not depend on the runtime of the workers")


@pytest.fixture(scope="module", params=["segment", long("delayed")])
def server(request, start):
    with start("-t", "2", engine=request.param, grpc=True) as server:
        yield server


@pytest.fixture
def cache(server):
    with Cache(server.grpc_address) as cache:
        cache.Flush()
        yield cache
