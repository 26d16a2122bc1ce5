"""A small API server of pods, by the protocol of the newest real one.

It lists (field selector; any version in one answer), watches from a version on (a stream of chunks,
bookmarks, a time after which it ends), has forgotten old versions (410, within the watch), wants a
token, asks to be left alone (429 with Retry-After), and fails as it is told: half answers, a slow
handshake, silence.
"""

import contextlib
import json
import select
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml
from support.wait import PATIENCE_S
from typing_extensions import Self

TOKEN = "a-token-of-a-service-account"
TICK_S = 0.05
_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    410: "Expired",
}


class FakeApi:
    """The server; a context manager. What is asked of it stands in `requests`."""

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        """Make it; `tls` has the paths of a certificate and of its key."""
        self.context: ssl.SSLContext | None = None
        if tls is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*tls)
        self.changed = threading.Condition()
        self.version = 100
        #: Changes before this version are forgotten.
        self.oldest = 100
        self.pods: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.requests: list[dict[str, str]] = []
        #: What to answer next: statuses, each perhaps with the seconds of a Retry-After.
        self.refusals: list[int | tuple[int, int]] = []
        #: How many of the next lists end in the middle.
        self.half_answers = 0
        #: Connections wait for this with the TLS handshake.
        self.may_shake_hands = threading.Event()
        self.may_shake_hands.set()
        #: What to send in place of events, to the next watches.
        self.raw_events: list[bytes] = []
        #: How a version that is too old is told: as a status, or as an event of the watch.
        self.gone_as_event = True
        self.generation = 0
        #: Whether watches neither end nor say anything, as behind a firewall that forgets them.
        self.silent = False
        self.ending = False
        self.open_watches: set[socket.socket] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending = True
        self.drop_watches()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        scheme = "http" if self.context is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.server_port}"

    def kubeconfig(self, directory: Path, token: str = TOKEN, **cluster: str) -> Path:
        path = directory / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url, **cluster}}],
            "users": [{"name": "fake", "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    # ---- what happens in the cluster ----

    def put(
        self,
        name: str,
        uid: str,
        annotations: dict[str, str],
        *,
        namespace: str = "research",
        node: str = "node-1",
    ) -> None:
        """Make a pod, or change it."""
        metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
        if annotations:
            metadata["annotations"] = annotations
        pod = {"metadata": metadata, "spec": {"nodeName": node}}
        self._change("MODIFIED" if uid in self.pods else "ADDED", pod)

    def delete(self, uid: str) -> None:
        """Delete a pod: it is marked first."""
        pod = self.pods[uid]
        marked = {**pod["metadata"], "deletionTimestamp": "2026-10-01T09:12:03Z"}
        self._change("MODIFIED", {**pod, "metadata": marked})
        self._change("DELETED", self.pods[uid])

    def bookmark(self) -> None:
        """Tell each watch that wants to know it which version has been reached."""
        with self.changed:
            self.version += 1
            about = {"resourceVersion": str(self.version), "creationTimestamp": None}
            pod = {"kind": "Pod", "apiVersion": "v1", "metadata": about, "spec": {}, "status": {}}
            self.events.append((self.version, "BOOKMARK", pod))
            self.changed.notify_all()

    def drop_watches(self) -> None:
        """Cut the connection in the middle of each stream."""
        with self.changed:
            for connection in self.open_watches:
                # The client may have gone first.
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self.generation += 1
            self.changed.notify_all()

    def _change(self, kind: str, pod: dict[str, Any]) -> None:
        with self.changed:
            self.version += 1
            stored = {"kind": "Pod", "apiVersion": "v1", **json.loads(json.dumps(pod))}
            stored["metadata"]["resourceVersion"] = str(self.version)
            uid = stored["metadata"].get("uid")
            if kind == "DELETED":
                del self.pods[uid]
            elif uid is not None:
                self.pods[uid] = stored
            self.events.append((self.version, kind, stored))
            self.changed.notify_all()

    def is_news(self, reached: int, generation: int) -> bool:
        """Whether a watch that has come so far has something to do."""
        return self.generation != generation or any(each[0] > reached for each in self.events)

    # ---- what was asked ----

    @property
    def watches(self) -> list[dict[str, str]]:
        return [each for each in self.requests if each.get("watch") == "true"]

    @property
    def lists(self) -> list[dict[str, str]]:
        return [each for each in self.requests if each.get("watch") != "true"]


def _as_metadata(item: dict[str, Any]) -> dict[str, Any]:
    """What PartialObjectMetadata has of a pod."""
    about = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    return {**about, "metadata": item.get("metadata", {})}


def _is_told(kind: str, pod: dict[str, Any], query: dict[str, str]) -> bool:
    if kind == "BOOKMARK":
        return query.get("allowWatchBookmarks") == "true"
    return _on_node(pod, query.get("fieldSelector"))


def _on_node(pod: dict[str, Any], selector: str | None) -> bool:
    if selector is None:
        return True
    key, _, value = selector.partition("=")
    assert key == "spec.nodeName", selector
    return pod["spec"].get("nodeName") == value


def _handler(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            if api.context is not None:
                api.may_shake_hands.wait(PATIENCE_S)
                self.request = api.context.wrap_socket(self.request, server_side=True)
            super().setup()

        def finish(self) -> None:
            super().finish()
            if api.context is not None:
                self.request.close()

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if api.ending:
                # Connections that clients keep end with the server, too.
                self.close_connection = True
                return
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query))
            api.requests.append(query)
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.status(401, "Unauthorized")
            elif "as=PartialObjectMetadata" not in self.headers.get("Accept", ""):
                self.status(406, "this library asks for metadata alone")
            elif api.refusals:
                refusal = api.refusals.pop(0)
                code, after_s = refusal if isinstance(refusal, tuple) else (refusal, None)
                self.status(code, "told to fail", after_s)
            elif url.path != "/api/v1/pods":
                # Before it says whether there is such a thing, it asks for the right to it.
                self.status(403, "forbidden")
            elif query.get("watch") == "true":
                self.watch(query)
            else:
                self.list(query)

        def answer(
            self,
            code: int,
            document: dict[str, Any],
            retry_after_s: int | None = None,
            *,
            is_half: bool = False,
        ) -> None:
            raw = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            if retry_after_s is not None:
                self.send_header("Retry-After", str(retry_after_s))
            self.end_headers()
            if is_half:
                raw = raw[: len(raw) // 2]
                self.close_connection = True
            self.wfile.write(raw)

        def status(self, code: int, message: str, retry_after_s: int | None = None) -> None:
            document = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
            document |= {"message": message, "reason": _REASONS.get(code, ""), "code": code}
            self.answer(code, document, retry_after_s)

        def list(self, query: dict[str, str]) -> None:
            with api.changed:
                version = api.version
                pods = [
                    pod for pod in api.pods.values() if _on_node(pod, query.get("fieldSelector"))
                ]
                is_half = api.half_answers > 0
                api.half_answers -= is_half
            self.answer(
                200,
                {
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": str(version)},
                    "items": [_as_metadata(pod) for pod in pods],
                },
                is_half=is_half,
            )

        def watch(self, query: dict[str, str]) -> None:
            reached = int(query.get("resourceVersion", "0"))
            gone = f"too old resource version: {reached} ({api.oldest})"
            if reached < api.oldest and not api.gone_as_event:
                self.status(410, gone)
                return
            # Before its head: who has read that may break the watch.
            with api.changed:
                generation = api.generation
                api.open_watches.add(self.connection)
            try:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                if reached < api.oldest:
                    expired = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
                    expired |= {"status": "Failure", "message": gone, "reason": "Expired"}
                    self.event("ERROR", {**expired, "code": 410})
                    self.chunk(b"")
                    return
                self.follow(query, reached, generation)
            except OSError:
                self.close_connection = True
            finally:
                with api.changed:
                    api.open_watches.discard(self.connection)

        def follow(self, query: dict[str, str], reached: int, generation: int) -> None:
            if api.raw_events:
                self.chunk(api.raw_events.pop(0))
            deadline = time.monotonic() + float(query.get("timeoutSeconds", "1800"))
            while True:
                with api.changed:
                    api.changed.wait_for(lambda: api.is_news(reached, generation), TICK_S)  # noqa: B023
                    events = [each for each in api.events if each[0] > reached]
                if api.generation != generation or self.has_left():
                    self.close_connection = True
                    return
                for version, kind, pod in events:
                    reached = version
                    if _is_told(kind, pod, query):
                        self.event(kind, _as_metadata(pod) if isinstance(pod, dict) else pod)
                if time.monotonic() >= deadline and not api.silent:
                    self.chunk(b"")
                    return

        def has_left(self) -> bool:
            """Whether the client has closed the connection; it sends nothing while it watches."""
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable)

        def event(self, kind: str, item: dict[str, Any]) -> None:
            line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
            # In two chunks, as it comes over a real network.
            self.chunk(line[:30])
            self.chunk(line[30:])

        def chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

    return Handler
