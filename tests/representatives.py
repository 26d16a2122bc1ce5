"""Which items of a large matrix `make test` runs. `make thorough` runs the others.

    @pytest.mark.representatives(2)

leaves two of a test's items in `make test`, without a number as many as it takes for each value of
each parameter to be in one of them. The others are marked `thorough`, as are tests or values that
say so themselves.
"""

from collections.abc import Collection, Iterable, Sequence

import pytest


def representatives(items: Sequence[Collection[object]], most: int | None = None) -> set[int]:
    """Which of some items have each value between them; `most` of these, spread evenly.

    Args:
        items: The values of each.
        most: How many at most.

    Returns:
        Where they are among the items.
    """
    chosen: list[int] = []
    missing = {value for values in items for value in values}
    while missing:
        best = max(range(len(items)), key=lambda at: (len(missing & set(items[at])), -at))
        chosen.append(best)
        missing -= set(items[best])
    chosen.sort()
    count = len(chosen) if most is None else min(most, len(chosen))
    return {chosen[number * len(chosen) // count] for number in range(count)}


def values_of(item: pytest.Item) -> set[tuple[str, int]]:
    """Its parameters and which object each is: not all values can be compared."""
    if not hasattr(item, "callspec"):
        return {("", 0)}
    return {(name, id(value)) for name, value in item.callspec.params.items()}


def together(items: Iterable[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """The items of each test whose matrix is large."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("representatives") and not item.get_closest_marker("thorough"):
            found.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return found


# Before those with other markers are left out.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is left to `make thorough`."""
    for matrix in together(items).values():
        marker = matrix[0].get_closest_marker("representatives")
        assert marker is not None
        chosen = representatives([values_of(item) for item in matrix], *marker.args)
        for number, item in enumerate(matrix):
            if number not in chosen:
                item.add_marker("thorough")
