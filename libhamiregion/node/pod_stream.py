"""Pods out of the API's answers, reduced to what is needed while they are read.

A list may have 17 MiB for 24 pods, and an API server that answers from its cache makes one answer
of it, whatever number was asked for. So no answer and no pod is ever in memory as a whole: of
each the few fields below are kept, the next one takes the place of the last.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion.errors import needs_extra

from .kubernetes_error import KubernetesError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Names of Kubernetes have 253 characters, and a value of an annotation of ours some twenty.
_TEXT_LIMIT: Final = 512
# Containers of a pod, its claims, its annotations of ours: a node runs no pod that has more.
_ENTRIES_LIMIT: Final = 1_000


@attrs.frozen
class Keys:
    """The shape of an object of which the texts under some keys are kept."""

    wanted: Callable[[str], bool]


TEXT: Final = "text"
_CONTAINERS: Final = [{"name": TEXT}]


def pod_shape(is_annotation: Callable[[str], bool]) -> Any:
    """What is kept of a pod: objects by their keys, lists by the shape of their elements."""
    return {
        "metadata": {
            "namespace": TEXT,
            "name": TEXT,
            "uid": TEXT,
            "resourceVersion": TEXT,
            "creationTimestamp": TEXT,
            "annotations": Keys(is_annotation),
            "ownerReferences": [{"kind": TEXT, "name": TEXT}],
        },
        "spec": {
            "nodeName": TEXT,
            "initContainers": _CONTAINERS,
            "containers": _CONTAINERS,
            "ephemeralContainers": _CONTAINERS,
        },
    }


def read_list(
    pieces: Iterable[bytes], shape: Any, take: Callable[[Any], None]
) -> tuple[str, str | None]:
    """Read a list; each element is handed over as soon as it has been read.

    Args:
        pieces: The answer.
        shape: Of an element.
        take: Gets each element, reduced.

    Returns:
        The version of the list, and the token for its next page, if it has one.

    Raises:
        KubernetesError: This is no list.
    """
    metadata = {"resourceVersion": TEXT, "continue": TEXT}
    reducer = _Reducer({"metadata": metadata, "items": [shape]}, take)
    found = list(_documents(pieces, reducer, several=False))
    document = found[0] if found else None
    if not isinstance(document, dict) or not isinstance(document.get("items"), list):
        raise KubernetesError("the API's answer is no list")
    about = document.get("metadata")
    about = about if isinstance(about, dict) else {}
    return about.get("resourceVersion") or "", about.get("continue") or None


def read_events(pieces: Iterable[bytes], shape: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a watch, each with its kind and its object, reduced, as they come.

    Raises:
        KubernetesError: The server has sent an event of the kind ERROR, which has a status, or
            something that is no event.
    """
    # A status has these beside what a pod has.
    about = {"code": TEXT, "message": TEXT, "reason": TEXT}
    reducer = _Reducer({"type": TEXT, "object": {**shape, **about}})
    for event in _documents(pieces, reducer, several=True):
        kind = event.get("type") if isinstance(event, dict) else None
        item = event.get("object") if isinstance(event, dict) else None
        if not isinstance(item, dict):
            raise KubernetesError("an event of the watch has no object")
        if kind == "ERROR":
            code = item.get("code")
            said = item.get("message") or item.get("reason") or "an error"
            raise KubernetesError(str(said), code if isinstance(code, int) else None)
        if isinstance(kind, str):
            yield kind, item


def read_object(pieces: Iterable[bytes], shape: Any) -> Any:
    """One object, reduced.

    Raises:
        KubernetesError: This is no JSON.
    """
    return next(iter(list(_documents(pieces, _Reducer(shape), several=False))), None)


def load_parser() -> None:
    """Load what parses JSON while it comes.

    Raises:
        ModuleNotFoundError: The extra ``kubernetes`` is not installed.
    """
    with needs_extra("The Kubernetes API", "kubernetes"):
        import ijson  # noqa: F401


def _documents(pieces: Iterable[bytes], reducer: _Reducer, *, several: bool) -> Iterator[Any]:
    import ijson

    events = ijson.sendable_list()
    parser = ijson.basic_parse_coro(events, multiple_values=several)

    def send(piece: bytes) -> None:
        try:
            if piece:
                parser.send(piece)
            else:
                parser.close()
        except (ijson.JSONError, ValueError) as error:
            words = " ".join(str(error).split())
            raise KubernetesError(f"the API's answer is no JSON: {words[:200]}") from error

    # A watch ends between two events, perhaps before the first; what ends within one has broken,
    # which HTTP tells.
    for piece in pieces if several else chain(pieces, (b"",)):
        send(piece)
        yield from reducer.feed(events)
        events.clear()


class _Reducer:
    """Builds documents of a shape out of a parser's events, and passes over the rest.

    Args:
        shape: Of each document.
        take: Gets each element of the list at the document's key ``items``, which is then not kept.
    """

    def __init__(self, shape: Any, take: Callable[[Any], None] | None = None) -> None:
        self._shape = shape
        self._take = take
        # The open objects and lists that are kept, each with its shape; what is open within
        # something that is not kept is only counted.
        self._open: list[tuple[Any, Any]] = []
        self._passed_over = 0
        self._key = ""

    def feed(self, events: Iterable[tuple[str, Any]]) -> Iterator[Any]:
        """The documents that these events complete."""
        for event, value in events:
            if event in {"start_map", "start_array"}:
                if self._passed_over or not self._opens(event == "start_map"):
                    self._passed_over += 1
            elif event in {"end_map", "end_array"}:
                if self._passed_over:
                    self._passed_over -= 1
                    if not self._passed_over and not self._open:
                        yield None
                else:
                    yield from self._closes()
            elif self._passed_over:
                continue
            elif event == "map_key":
                self._key = value
            elif self._open:
                self._keep_text(value)
            else:
                yield None

    def _child_shape(self) -> Any:
        if not self._open:
            return self._shape
        parent, shape = self._open[-1]
        if isinstance(shape, list):
            return shape[0] if len(parent) < _ENTRIES_LIMIT else None
        return shape.get(self._key) if isinstance(shape, dict) else None

    def _opens(self, is_object: bool) -> bool:
        shape = self._child_shape()
        made: Any
        if is_object and isinstance(shape, dict | Keys):
            made = {}
        elif not is_object and isinstance(shape, list):
            made = []
        else:
            return False
        self._attach(made)
        self._open.append((made, shape))
        return True

    def _closes(self) -> Iterator[Any]:
        done, _ = self._open.pop()
        if not self._open:
            yield done
        elif self._take is not None and len(self._open) == 2 and isinstance(self._open[1][0], list):
            self._open[1][0].clear()
            self._take(done)

    def _keep_text(self, value: Any) -> None:
        parent, shape = self._open[-1]
        if isinstance(shape, Keys):
            wanted = shape.wanted(self._key) and len(parent) < _ENTRIES_LIMIT
        else:
            wanted = self._child_shape() == TEXT
        if wanted:
            if isinstance(value, str) and len(value) > _TEXT_LIMIT:
                # No name and no value that means anything begins so.
                value = f"{value[: _TEXT_LIMIT // 4]}\N{HORIZONTAL ELLIPSIS}"
            self._attach(value)

    def _attach(self, value: Any) -> None:
        if self._open:
            parent, _ = self._open[-1]
            if isinstance(parent, list):
                parent.append(value)
            else:
                parent[self._key] = value
