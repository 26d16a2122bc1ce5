"""Names of containers: written and read by one grammar, ``[NAMESPACE/]POD[/CONTAINER]``.

POD is a name or a UID; ``POD@UID`` is one of several pods of a name. ``claim:UID`` and ``id:HEX``
name what has no pod. Each part may be a pattern of the shell, and is also read as it is printed:
escaped.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion.observation.selector import Selector
from libhamiregion.text import printable

from .tables import BLANK, NOTHING, Column

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from libhamiregion.node import Container

_SHORT_ID = 12
_LISTED = 10
# How much of a name has to fit, 0 to 1, and how many are listed.
_NEAR = 0.5
_NEAREST = 3


def some(words: Iterable[str], separator: str = ", ", limit: int = _LISTED) -> str:
    """Write the first few, and how many more there are.

    >>> some(["a", "b", "c"], limit=2), some([])
    ('a, b and 1 more', 'none')
    """
    known = list(words)
    more = f" and {len(known) - limit} more" if len(known) > limit else ""
    return (separator.join(known[:limit]) or "none") + more


# ---- writing -------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Names:
    """What a container is called, raw text; None is not known.

    Attributes:
        namespace: Namespace of its pod.
        pod: Name of its pod.
        pod_uid: UID of its pod.
        container: The container's name.
        container_id: Its id, as its runtime has it.
    """

    namespace: str | None = None
    pod: str | None = None
    pod_uid: str | None = None
    container: str | None = None
    container_id: str | None = None

    @property
    def order(self) -> tuple[object, ...]:
        """A key that sorts by name, what has none last."""
        key = (self.namespace, self.pod or self.pod_uid, self.container or self.container_id)
        return tuple((part is None, part or "") for part in key)

    @property
    def pod_words(self) -> str | None:
        """``namespace/pod``, else the UID."""
        if self.pod is None or self.namespace is None:
            return self.pod or self.pod_uid
        return f"{self.namespace}/{self.pod}"

    @property
    def container_words(self) -> str | None:
        """The container's name, else the beginning of its id."""
        if self.container is None and self.container_id is not None:
            return f"id:{self.container_id[:_SHORT_ID]}"
        return self.container

    @property
    def path_words(self) -> str | None:
        """``namespace/pod/container`` in one."""
        return "/".join(part for part in (self.pod_words, self.container_words) if part) or None


def name_columns(
    among: Iterable[Container], names: Callable[[Any], Names] = lambda row: row
) -> tuple[Column, ...]:
    """Columns with a container's names.

    Args:
        among: The node's containers: pods of one name are told apart by their UIDs.
        names: Gets the names from a record.
    """
    found = [Names(**names_of(each)) for each in among]
    known = {(each.pod_words, each.pod_uid) for each in found}
    times = Counter(words for words, _ in known)

    def pod_words(row: Any) -> str | None:
        found = names(row)
        is_anew = found.pod is not None and times[found.pod_words] > 1
        return f"{found.pod_words}@{found.pod_uid}" if is_anew else found.pod_words

    def path_words(row: Any) -> str | None:
        parts = pod_words(row), names(row).container_words
        return "/".join(part for part in parts if part) or None

    return (
        Column("CONTAINER", path_words, "path", on="terminal"),
        Column("POD", pod_words, "name", on="pipe"),
        Column("CONTAINER", lambda row: names(row).container_words, "name", on="pipe"),
    )


def names_of(container: Container | None) -> dict[str, Any]:
    """The fields of `Names` for a container."""
    if container is None:
        return {}
    return {
        "namespace": container.namespace,
        "pod": container.pod,
        "pod_uid": container.pod_uid,
        "container": container.name,
        "container_id": None if container.container_id is None else container.container_id.id,
    }


def name_texts(containers: Iterable[Container]) -> dict[Container, str]:
    """Write the name of each container, so that it means no other one of them."""
    candidates = {each: list(_candidates(each)) for each in containers}
    times = Counter(text for texts in candidates.values() for text in set(texts))
    return {
        each: next((text for text in texts if times[text] == 1), texts[-1])
        for each, texts in candidates.items()
    }


def _candidates(container: Container) -> Iterator[str]:
    names = Names(**names_of(container))
    if names.pod_words is not None and names.container_words is not None:
        yield printable(f"{names.pod_words}/{names.container_words}")
        if names.pod is not None and names.pod_uid is not None:
            yield printable(f"{names.pod_words}@{names.pod_uid}/{names.container_words}")
            yield printable(f"{names.pod_uid}/{names.container_words}")
    if container.claim_uid is not None:
        yield f"claim:{container.claim_uid}"
    if names.container_id is not None:
        yield f"id:{names.container_id}"
    yield container.region_path or container.directory or NOTHING


# ---- reading -------------------------------------------------------------------------------------


def is_file(text: str) -> bool:
    """Whether a text names a file."""
    return text.startswith(("/", ".")) or text.endswith(".cache")


def means(text: str, namespace: str | None, container: Container) -> bool:
    """Whether a container is meant by a text in one of its readings."""
    if is_file(text):
        return text in (container.region_path, container.directory)
    return any(each.matches(container) for each in _readings(text, namespace))


def containers_of(
    text: str | None, namespace: str | None, containers: Iterable[Container]
) -> list[list[Container]]:
    """Read a name, or None for any: the containers of each reading that fits some."""
    readings = _readings(text, namespace)
    there = list(containers)
    found = []
    for reading in readings:
        # A directory's name may look like a pattern: itself comes first.
        exact = attrs.evolve(reading, takes_patterns=False)
        found.append(
            [each for each in there if exact.matches(each)]
            or [each for each in there if reading.matches(each)]
        )
    return [each for each in found if each]


@attrs.frozen
class _Reading:
    """One reading of a name; what is None may be anything."""

    namespace: str | None = None
    pod: str | None = None
    container: str | None = None
    takes_patterns: bool = attrs.field(default=True, kw_only=True)

    def matches(self, container: Container) -> bool:
        pod, _, uid = (self.pod or "*").partition("@")
        names = Names(**names_of(container))
        # A claim that several pods hold has no pod: its name is all that tables show.
        alone = () if names.pod_words or self.container else (names.container,)
        return (
            self._fits(self.namespace, names.namespace)
            and (self.pod is None or self._fits(pod, names.pod, names.pod_uid, *alone))
            and (not uid or self._fits(uid, names.pod_uid))
            and self._matches_container(container, names)
        )

    def _matches_container(self, container: Container, names: Names) -> bool:
        kind, colon, text = (self.container or "").partition(":")
        if colon and kind == "id":
            return (names.container_id or "").startswith(text)
        if colon and kind == "claim":
            return container.claim_uid == text
        more = names.container_id, container.claim_uid, container.directory_name
        return self._fits(self.container, names.container, *more)

    def _fits(self, pattern: str | None, *names: str | None) -> bool:
        return pattern is None or any(
            pattern in (shown := printable(name), shown.replace(" ", BLANK))
            or (self.takes_patterns and fnmatchcase(name, pattern))
            for name in names
            if name is not None
        )


def _readings(text: str | None, namespace: str | None) -> list[_Reading]:
    if text is None:
        return [_Reading(namespace)]
    parts = text.split("/")
    if len(parts) == 1 and text.startswith(("id:", "claim:")):
        return [_Reading(namespace, None, text)]
    if len(parts) == 2 and namespace is None:
        return [_Reading(*parts), _Reading(None, *parts)]
    if len(parts) <= 2:
        return [_Reading(namespace, *parts)]
    is_elsewhere = namespace is not None and not fnmatchcase(parts[0], namespace)
    return [] if len(parts) > 3 or is_elsewhere else [_Reading(*parts)]


@attrs.frozen
class Chosen(Selector):
    """What was chosen of a node, by patterns and by names.

    Attributes:
        texts: Names; none means all containers.
    """

    texts: tuple[str, ...] = ()

    def matches(self, container: Container) -> bool:
        """Whether a container is meant."""
        named = not self.texts or any(means(text, self.namespace, container) for text in self.texts)
        return named and Selector.matches(self, container)


def unknown_name(text: str | None, namespace: str | None, containers: Collection[Container]) -> str:
    """Say that no container has a name, and which are near it."""
    where = "" if namespace is None else f" in namespace {namespace}"
    if text is None:
        return f"there is no container{where}"
    everywhere = [] if namespace is None else containers_of(text, None, containers)
    if everywhere:
        found = sorted({str(each.namespace) for reading in everywhere for each in reading})
        return f"there is no {text}{where}; it is in {some(found)}"
    pod, _, container = text.rpartition("/")
    siblings = containers_of(pod, namespace, containers) if pod else []
    if siblings:
        found = sorted({str(each.name) for reading in siblings for each in reading})
        return f"{pod} has no container {container}; its containers are {some(found)}"
    known: defaultdict[str, list[str]] = defaultdict(list)
    names, here = name_texts(containers), _Reading(namespace)
    for full in sorted(names[each] for each in containers if here.matches(each)):
        parts = full.split("/")
        for at in range(2):
            known["/".join(parts[at:])].append(full)
            known["/".join(parts[at:-1])].append(full)
    near = difflib.get_close_matches(text, list(filter(None, known)), _NEAREST, _NEAR)
    nearest = list(dict.fromkeys(full for each in near for full in known[each]))[:_NEAREST]
    if nearest:
        return f"there is no {text}{where}; near it: {', '.join(nearest)}"
    return f"there is no {text}{where}; `hamiregion containers` lists what there is"
