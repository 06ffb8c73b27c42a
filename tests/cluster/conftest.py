"""Provides an etcd that all tests of a process share. Each test uses its own cluster name."""

import pytest

from group import Etcd


@pytest.fixture(scope="session")
def etcd():
    with Etcd() as etcd:
        yield etcd
