"""What a view of a node's processes proves about the users of a file."""

import attrs
import pytest
from support.seen_node import HOST, ID, OTHER, POD, entry

from libhamiregion.observation.names import ContainerId
from libhamiregion.observation.processes import Entry, FileUser, Mapping, ProcessGap, ProcessView

FILE = (1, 5)


def user(container: ContainerId | None, *, writable: bool = True, **facts: object) -> Entry:
    """A process that maps the file."""
    made = entry(1, container, **facts)
    assert made.process is not None
    mapping = Mapping(*FILE, 0, 4096, 4096, writable, "/c/usage.cache", False)
    return attrs.evolve(made, uses=(FileUser(made.process, None, mapping),))


def view(*entries: Entry, **more: object) -> ProcessView:
    facts = {"entries": {each.identity[0]: each for each in entries}, "visibility": HOST, **more}
    return ProcessView(**facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mapping", "is_unused"),
    [
        ((), True),
        ((user(ID),), False),
        ((user(None),), False),
        ((user(OTHER, has_libvgpu=True),), False),
        ((user(OTHER, has_libvgpu=None),), False),
        # As monitors do.
        ((user(OTHER),), True),
        ((user(ID, writable=False),), True),
    ],
)
def test_a_region_is_used_by_its_pod_by_the_host_and_by_any_libvgpu(mapping, is_unused):
    assert view(*mapping).is_unused(POD, [FILE]) is is_unused


def test_processes_that_could_not_be_read_may_use_a_region():
    unread = ProcessGap(ID, ID.id, 1, "blocked")
    assert not view(gaps=(unread,)).is_unused(POD, [FILE])
    assert view(gaps=(attrs.evolve(unread, container=OTHER),)).is_unused(POD, [FILE])
    refused = attrs.evolve(HOST, unreadable=(7,))
    assert not view(visibility=refused).is_unused(POD, [FILE])
