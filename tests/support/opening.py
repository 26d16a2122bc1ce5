"""The ways to open a region, each of which refuses what is none."""

from typing import Any

import pytest

from libhamiregion import RegionError, RegionSet, identify, open_region


def open_writable(path: Any) -> object:
    return open_region(path, writable=True)


def open_in_set(path: Any) -> object:
    with RegionSet() as region_set:
        if not region_set.add(path):
            (error,) = region_set.errors.values()
            raise error
        return region_set.paths


ENTRANCES = (identify, open_region, open_writable, open_in_set)


def refused(path: Any, error: type[RegionError], *said: str) -> RegionError:
    """Each way to open refuses with exactly that class and the same words, the path among them."""
    messages = set()
    for enter in ENTRANCES:
        with pytest.raises(error) as raised:
            enter(path)
        assert type(raised.value) is error
        assert raised.value.path == str(getattr(path, "path", path))
        messages.add(str(raised.value))
    (message,) = messages
    assert message.isprintable()
    for words in (repr(raised.value.path), *said):
        assert words in message
    return raised.value
