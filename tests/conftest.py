"""Which server the tests run against: larderd unless `--server` names another binary, on the runtime
that `--runtime` names."""

import shutil

import pytest

from server import LARDERD, RUNTIMES, Server, engines, is_upstream


def pytest_addoption(parser):
    parser.addoption("--server", default=str(LARDERD), help="the binary under test")
    parser.addoption("--runtime", choices=RUNTIMES, help="what larderd runs on")


def pytest_configure(config):
    config.addinivalue_line("markers", "larder: a promise that upstream memcached does not make")


def pytest_collection_modifyitems(config, items):
    if is_upstream(config):
        skip = pytest.mark.skip(reason="not a promise of memcached's")
        for item in items:
            if item.get_closest_marker("larder"):
                item.add_marker(skip)


def pytest_generate_tests(metafunc):
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", engines(metafunc.config), scope="module")


@pytest.fixture(scope="session")
def start(request):
    """`start(*options, engine=, unix=, host=)` gives a `Server` to be used in a `with`."""
    binary = request.config.getoption("--server")
    first = engines(request.config)[0]
    runtime = request.config.getoption("--runtime")

    def start(*options, engine=first, **more):
        return Server(binary, engine, options, runtime=runtime, **more)

    return start


@pytest.fixture(scope="module")
def memcached():
    """Debian's memcached, the yardstick."""
    program = shutil.which("memcached")
    assert program, "memcached is not installed"
    with Server(program, "upstream") as server:
        yield server
