"""The same requests to any API server, and what of its answers a client of pods depends on.

`play` asks what this library asks, and what goes wrong for it, and returns for each step what was
answered, without what differs from one run to the next: versions, times and identifiers. Played to
a real server it is a recording; the small server of these tests has to answer the same.
"""

from __future__ import annotations

import http.client
import json
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

RECORDED = Path(__file__).with_name("recorded.json")
PODS = "/api/v1/pods"
NODE = "node-1"
ANNOTATION = "hamiregion.io/sm-limit"
ON_NODE = {"fieldSelector": f"spec.nodeName={NODE}"}
# What a client reads of a pod's metadata; servers add more.
_METADATA = ("annotations", "labels", "name", "namespace", "resourceVersion", "uid")


class Side(ABC):
    """A server that is asked, and what happens in its cluster.

    Attributes:
        bookmark_s: How long a watch lasts in which it tells how far it has come: the real one does
            so two seconds before the end.
    """

    bookmark_s = 6

    @abstractmethod
    def connect(self) -> http.client.HTTPConnection:
        """Make a connection of its own."""

    @abstractmethod
    def token(self, account: str) -> str:
        """A token: of ``reader``, who may list and watch pods; of ``powerless``; of ``nobody``."""

    @abstractmethod
    def put(self, name: str, node: str, annotations: dict[str, str] | None = None) -> None:
        """Make a pod in the namespace ``research``, or set its annotations."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a pod at once."""

    @abstractmethod
    def reach(self) -> None:
        """Have watches told which version has been reached, where the server does not by itself."""

    @abstractmethod
    def break_watches(self) -> None:
        """End the server without a word."""

    @abstractmethod
    def return_without_history(self) -> None:
        """Have the server back, which knows nothing of what was before."""

    def prepare(self, account: str) -> None:  # noqa: B027 (optional)
        """Called before a question of an account."""

    # ---- questions ----

    def ask(
        self, path: str, query: Mapping[str, str], account: str = "reader"
    ) -> tuple[dict[str, Any], Any]:
        """Ask once; the answer as it is recorded, and its document."""
        self.prepare(account)
        connection = self.connect()
        try:
            response = _request(connection, path, query, self.token(account))
            raw = response.read()
        finally:
            connection.close()
        try:
            document = json.loads(raw)
        except ValueError:
            document = None
        body = {"text": raw.decode()} if document is None else _shape(document)
        return {**_head(response), **body}, document

    def listed(self, **query: str) -> tuple[dict[str, Any], Any]:
        return self.ask(PODS, {**query, **ON_NODE})


class Watch:
    """An open watch; a context manager."""

    def __init__(self, side: Side, version: str, **query: str) -> None:
        self._connection = side.connect()
        asked = {"watch": "true", "resourceVersion": version, **query, **ON_NODE}
        self._response = _request(self._connection, PODS, asked, side.token("reader"))
        self.head = _head(self._response)
        self.events: list[dict[str, Any]] = []
        self._begun = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._connection.close()

    def read(self, number: int) -> None:
        """Read so many events."""
        while len(self.events) < number:
            assert self._read(), self.events

    def end(self) -> str:
        """Read to the end; how it comes."""
        try:
            while self._read():
                pass
        except (OSError, http.client.HTTPException):
            return "broken"
        return "broken" if self._begun else "whole"

    def _read(self) -> bool:
        """Take what comes next; returns whether anything has."""
        # By read1: readline takes a stream that ends without its last chunk for a whole one.
        piece = self._response.read1(1 << 16)
        *lines, self._begun = (self._begun + piece).split(b"\n")
        self.events += map(json.loads, lines)
        return bool(piece)

    def recorded(self, version: str, **more: Any) -> dict[str, Any]:
        """What was told, and whether no version is older than the one before it."""
        versions = [int(version), *map(_version_of, self.events)]
        events: list[dict[str, Any]] = []
        for each in self.events:
            told = {"type": each["type"], "keys": sorted(each), "object": _object(each["object"])}
            # How often it is told how far it has come is a matter of time.
            if told["type"] != "BOOKMARK" or told not in events:
                events.append(told)
        return {
            **self.head,
            "events": events,
            "versions_grow": versions == sorted(versions),
            **more,
        }


def play(side: Side) -> dict[str, Any]:
    """Ask a server that knows no pod of `NODE` yet; what it answers, by step."""
    heard: dict[str, Any] = {}
    for number in range(3):
        side.put(f"bert-{number}", NODE, {ANNOTATION: "5"} if number == 0 else None)
    side.put("elsewhere", "node-2")

    heard["a list of any version, whatever its limit"], found = side.listed(
        resourceVersion="0", limit="2"
    )
    # What comes from a cache comes in any order.
    heard["a list of any version, whatever its limit"]["items"].sort(key=lambda each: each["name"])
    heard["the first page of a list of the newest version"], page = side.listed(limit="2")
    old = {"limit": "2", "continue": page["metadata"]["continue"]}
    heard["the second page"], _ = side.listed(**old)
    heard["a page by a token that is none"], _ = side.listed(**{**old, "continue": "x"})
    heard["a list for a token of nobody's"], _ = side.ask(PODS, ON_NODE, "nobody")
    heard["a list for an account without rights"], _ = side.ask(PODS, ON_NODE, "powerless")
    heard["a path that is none"], _ = side.ask("/apis/none.example/v1/things", {})

    version = found["metadata"]["resourceVersion"]
    with Watch(side, version, allowWatchBookmarks="true", timeoutSeconds="600") as watch:
        side.put("bert-3", NODE)
        side.put("elsewhere-too", "node-2")
        side.put("bert-0", NODE, {ANNOTATION: "10"})
        side.delete("bert-3")
        watch.read(4)
        heard["a watch from the list's version"] = watch.recorded(version)
        reached = watch.events[-1]["object"]["metadata"]["resourceVersion"]
    with Watch(side, version, timeoutSeconds="600") as watch:
        watch.read(4)
        heard["a watch from a version of some changes ago"] = watch.recorded(version)

    with Watch(
        side, reached, allowWatchBookmarks="true", timeoutSeconds=str(side.bookmark_s)
    ) as watch:
        side.put("elsewhere", "node-2", {ANNOTATION: "20"})
        side.reach()
        end = watch.end()
        heard["a watch with bookmarks, to its end"] = watch.recorded(reached, end=end)
    with Watch(side, reached, timeoutSeconds="600") as watch:
        side.break_watches()
        heard["a watch whose server is killed"] = watch.recorded(reached, end=watch.end())

    side.return_without_history()
    with Watch(side, version, allowWatchBookmarks="true", timeoutSeconds="600") as watch:
        watch.read(1)
        heard["a watch from a version that is forgotten"] = {
            **watch.head,
            "events": [
                {"type": each["type"], "keys": sorted(each), "object": _shape(each["object"])}
                for each in watch.events
            ],
            "end": watch.end(),
        }
    heard["a page of a list that is forgotten"], _ = side.listed(**old)
    return heard


def _request(
    connection: http.client.HTTPConnection, path: str, query: Mapping[str, str], token: str
) -> http.client.HTTPResponse:
    connection.timeout = PATIENCE_S
    headers = {"Accept": "application/json", "Authorization": f"Bearer {token}"}
    connection.request("GET", f"{path}?{urlencode(query)}" if query else path, headers=headers)
    return connection.getresponse()


def _head(response: http.client.HTTPResponse) -> dict[str, Any]:
    # Whether an answer of known length comes in chunks is the server's affair.
    kind = response.headers["Content-Type"].replace(" ", "").lower()
    return {"status": response.status, "content_type": kind}


def _shape(document: Any) -> dict[str, Any]:
    """Of a list its pods, of an error what it says."""
    if document.get("kind") == "Status":
        metadata = sorted(document["metadata"])
        words = re.sub(r"\d+", "N", document["message"])
        if document["code"] in {401, 403}:
            # Whose account that is, and what it may not, differs.
            words = ""
        return {
            "keys": sorted(document.keys() - {"details"}),
            "metadata": metadata,
            "kind": document["kind"],
            "apiVersion": document["apiVersion"],
            "state": document["status"],
            "reason": document["reason"],
            "code": document["code"],
            "message": words,
        }
    metadata = document["metadata"]
    return {
        "keys": sorted(document),
        "kind": document["kind"],
        "apiVersion": document["apiVersion"],
        "metadata": {
            key: value if value == "" else type(value).__name__
            for key, value in sorted(metadata.items())
            # How many are left; told without a selector only.
            if key in {"continue", "resourceVersion"} and value != ""
        },
        "items": [_object(each) for each in document["items"]],
        "no_item_is_newer": all(
            int(each["metadata"]["resourceVersion"]) <= int(metadata["resourceVersion"])
            for each in document["items"]
        ),
    }


def _object(item: Any) -> dict[str, Any]:
    """A pod, or what a bookmark has in a pod's place."""
    metadata = item["metadata"]
    return {
        "keys": sorted(item),
        "metadata": sorted(key for key in _METADATA if key in metadata),
        "name": metadata.get("name"),
        "annotations": metadata.get("annotations"),
    }


def _version_of(event: Any) -> int:
    return int(event["object"]["metadata"]["resourceVersion"])
