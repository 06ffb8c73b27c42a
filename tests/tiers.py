"""The default and the long tier of the tests."""

import pytest

from server import engines


def long(value, **more):
    """Returns a test parameter of the long tier."""
    return pytest.param(value, marks=pytest.mark.long, **more)


def by_tier(config, default, of_long):
    """Returns one of two numbers: for the default or the long tier."""
    return of_long if config.getoption("--long") else default


def engine_params(config):
    """Returns test parameters for the engines: the default tier has the first one, the long tier all."""
    first, *others = engines(config)
    return [first, *map(long, others)]
