"""Options and markers of the tests.

`--server` and `--runtime` select the server under test. `--long` adds the long tier: tests with the marker `long`, and
all engines in tests for which the default tier uses only the first engine. """

import fnmatch
import shutil

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

from server import LARDERD, RUNTIMES, Server, engines, is_upstream
from tiers import engine_params

# Files whose tests share servers or other fixtures. With several processes (-n), one process runs all tests of such a
# file.
SHARING = [
    "clients/*",
    "cluster/test_discovery.py",
    "cluster/sharding/test_same_answers.py",
    "replication/test_follow_tls.py",
    "restart/test_damage.py",
    "restart/test_image.py",
    "routers/test_limits.py",
    "routers/test_re*.py",
    "suites/test_agents.py",
]
# Module-scoped fixtures that tests need not share, because their setup is instant.
UNSHARED = {"one_runtime", "engine"}


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
    for item in items:
        shared = {one[-1].argname for one in item._fixtureinfo.name2fixturedefs.values() if one[-1].scope == "module"}
        if shared - UNSHARED and not is_sharing(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid} has fixtures of its module: add the file to SHARING")
    if hasattr(config, "workerinput"):
        items[:] = mixed(items)


def is_sharing(nodeid):
    """Returns whether one process must run all tests of the file."""
    return any(fnmatch.fnmatch(nodeid.partition("::")[0], pattern) for pattern in SHARING)


def mixed(items):
    """Returns the tests in the order in which several processes start them: large units first, and directories mixed
    evenly. Tests that wait then run next to tests that use the processors."""
    units = {}
    for item in items:
        units.setdefault(unit(item.nodeid), []).append(item)
    of_directories = {}
    for tests in units.values():
        of_directories.setdefault(tests[0].path.parent, []).append(tests)
    placed = []
    for of_directory in of_directories.values():
        of_directory.sort(key=len, reverse=True)
        placed += [(number / len(of_directory), tests) for number, tests in enumerate(of_directory)]
    placed.sort(key=lambda one: one[0])
    return [item for _, tests in placed for item in tests]


def unit(nodeid):
    """Returns the name of a test's unit: the tests that one process must run together."""
    return nodeid.partition("::")[0] if is_sharing(nodeid) else nodeid


def pytest_xdist_make_scheduler(config, log):
    return UnitScheduling(config, log)


class UnitScheduling(LoadScopeScheduling):
    """Assigns each process one unit of tests at a time."""

    def _split_scope(self, nodeid):
        return unit(nodeid)


def pytest_generate_tests(metafunc):
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", engine_params(metafunc.config), scope="module")


@pytest.fixture(scope="session")
def start(request):
    """Returns `start(*options, **more)`, which creates a `Server` with these command-line options and other arguments.
    The default engine is the first engine of the server under test."""
    binary = request.config.getoption("--server")
    first = engines(request.config)[0]
    runtime = request.config.getoption("--runtime")

    def start(*options, engine=first, **more):
        return Server(binary, engine, options, runtime=runtime, **more)

    return start


@pytest.fixture(scope="module")
def memcached():
    """Provides a running instance of Debian's memcached, as the reference."""
    program = shutil.which("memcached")
    assert program, "memcached is not installed"
    with Server(program, "upstream") as server:
        yield server
