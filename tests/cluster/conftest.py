"""Provides an etcd that the tests of a process share. Each test has a cluster name of its own."""

import pytest

from group import Etcd


@pytest.fixture(scope="session")
def etcd():
    with Etcd() as etcd:
        yield etcd
