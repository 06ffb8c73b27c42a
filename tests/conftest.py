"""Options and markers of the tests.

`--server` and `--runtime` select the server under test. `--long` adds the tests of the long tier: those with the
marker `long`, and all engines where the default tier uses the first one.
"""

import shutil

import pytest

from server import LARDERD, RUNTIMES, Server, engines, is_upstream
from tiers import engine_params

# Fixtures of modules that start no server.
UNSHARED = {"one_runtime", "engine"}


def pytest_addoption(parser):
    parser.addoption("--server", default=str(LARDERD), help="the binary under test")
    parser.addoption("--runtime", choices=RUNTIMES, help="the runtime of larderd")
    parser.addoption("--long", action="store_true", help="also run the tests of the long tier")


def pytest_configure(config):
    config.addinivalue_line("markers", "larder: a property that upstream memcached does not have")
    config.addinivalue_line("markers", "long: a test of the long tier, which --long adds")


@pytest.hookimpl(tryfirst=True)
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
    units = {}
    for item in items:
        group = shared_group(item)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
        units.setdefault(group or item.nodeid, []).append(item)
    if hasattr(config, "workerinput"):
        items[:] = mixed(units.values())


def mixed(units):
    """The tests in the order in which several processes begin with them: large groups early, and the directories mixed
    evenly, so that some tests wait while others use the processors."""
    by_directory = {}
    for unit in units:
        by_directory.setdefault(unit[0].path.parent, []).append(unit)
    placed = []
    for of_directory in by_directory.values():
        of_directory.sort(key=len, reverse=True)
        placed += [(number / len(of_directory), unit) for number, unit in enumerate(of_directory)]
    placed.sort(key=lambda one: one[0])
    return [item for _, unit in placed for item in unit]


def shared_group(item):
    """The group of tests that one process runs (`--dist loadgroup`): those that share fixtures of a module, with the
    same parameters. None for a test that shares nothing."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    shared = [found[-1] for found in fixtures if found[-1].scope == "module" and found[-1].argname not in UNSHARED]
    if not shared:
        return None
    params = getattr(item, "callspec", None)
    words = [str(params.params[one.argname]) for one in shared if params and one.argname in params.params]
    return " ".join([item.nodeid.partition("::")[0], *words])


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
