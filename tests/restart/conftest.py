"""Provides a region file on tmpfs for each test."""

import pytest

from region import TMPFS, Region


@pytest.fixture
def region(start):
    if not TMPFS.is_dir():
        pytest.skip(f"this machine has no {TMPFS}")
    with Region(start) as region:
        yield region
