"""Regions that are open for writing."""

from collections.abc import Iterator

import pytest

from libhamiregion import Region, open_region


@pytest.fixture
def region(file) -> Iterator[Region]:
    """The file's region."""
    with open_region(file, writable=True) as opened:
        yield opened
