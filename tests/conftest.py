"""Options and markers of the tests.

`--server` and `--runtime` select the server under test. `--long` adds the tests of the long tier: those with the
marker `long`, and all engines where the default tier uses the first one.
"""

import shutil

import pytest

from server import LARDERD, RUNTIMES, Server, engines, is_upstream
from tiers import engine_params


def pytest_addoption(parser):
    parser.addoption("--server", default=str(LARDERD), help="the binary under test")
    parser.addoption("--runtime", choices=RUNTIMES, help="the runtime of larderd")
    parser.addoption("--long", action="store_true", help="also run the tests of the long tier")


def pytest_configure(config):
    config.addinivalue_line("markers", "larder: a property that upstream memcached does not have")
    config.addinivalue_line("markers", "long: a test of the long tier, which --long adds")


def pytest_collection_modifyitems(config, items):
    if is_upstream(config):
        skip = pytest.mark.skip(reason="not a property of memcached")
        for item in items:
            if item.get_closest_marker("larder"):
                item.add_marker(skip)
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_generate_tests(metafunc):
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", engine_params(metafunc.config), scope="module")


@pytest.fixture(scope="session")
def start(request):
    """Returns `start(*options, engine=, unix=, host=)`, which creates a `Server` for a `with` block."""
    binary = request.config.getoption("--server")
    first = engines(request.config)[0]
    runtime = request.config.getoption("--runtime")

    def start(*options, engine=first, **more):
        return Server(binary, engine, options, runtime=runtime, **more)

    return start


@pytest.fixture(scope="module")
def memcached():
    """A server of Debian's memcached, as the reference."""
    program = shutil.which("memcached")
    assert program, "memcached is not installed"
    with Server(program, "upstream") as server:
        yield server
