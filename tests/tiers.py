"""The default and the long tier of the tests."""

import pytest

from server import engines


def long(value, **more):
    """Returns a test parameter of the long tier."""
    return pytest.param(value, marks=pytest.mark.long, **more)


def by_tier(config, default, of_long):
    """Returns `default` in the default tier and `of_long` in the long tier."""
    return of_long if config.getoption("--long") else default


def engine_params(config):
    """Returns test parameters for the engines: the default tier uses the first engine, the long tier all engines."""
    first, *others = engines(config)
    return [first, *map(long, others)]
