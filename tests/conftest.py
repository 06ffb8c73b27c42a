"""Which server the tests run against: larderd unless `--server` names another binary."""

from pathlib import Path

import pytest

from server import ENGINES, LARDERD, Server


def pytest_addoption(parser):
    parser.addoption("--server", default=str(LARDERD), help="the binary under test")


def pytest_configure(config):
    config.addinivalue_line("markers", "larder: a promise that upstream memcached does not make")


def is_upstream(config):
    return Path(config.getoption("--server")).name == "memcached"


def pytest_collection_modifyitems(config, items):
    if is_upstream(config):
        skip = pytest.mark.skip(reason="not a promise of memcached's")
        for item in items:
            if item.get_closest_marker("larder"):
                item.add_marker(skip)


def pytest_generate_tests(metafunc):
    if "engine" in metafunc.fixturenames:
        own = [name for name in ENGINES if name != "upstream"]
        engines = ["upstream"] if is_upstream(metafunc.config) else own
        metafunc.parametrize("engine", engines, scope="module")


@pytest.fixture(scope="session")
def start(request):
    """`start(*options, engine=, unix=, host=)` gives a `Server` to be used in a `with`."""
    binary = request.config.getoption("--server")
    default = "upstream" if is_upstream(request.config) else "segment"

    def start(*options, engine=default, **more):
        return Server(binary, engine, options, **more)

    return start
