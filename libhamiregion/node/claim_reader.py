"""The resource claims that a node's pods refer to, read one by one by a thread."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import attrs

from .claims import ClaimName, is_reserved_for_others, reserved_for
from .kubernetes_error import KubernetesError
from .names import pod_name
from .pod_stream import TEXT, read_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .names import PodName
    from .node_pods import NodePods

_CLAIMS_LIMIT: Final = 1_024
_ANSWER_LIMIT: Final = 16 << 20
_ANSWER_S: Final = 30.0
# Until a claim is reserved for the pods that refer to it, and after a failure.
_SOON_S: Final = 30.0
# A claim is read again when a pod that refers to it changes; this is for what no pod shows.
_LATE_S: Final = 600.0
_NOT_FOUND: Final = 404
_SHAPE: Final = {
    "metadata": {"uid": TEXT},
    "status": {"reservedFor": [{"apiGroup": TEXT, "resource": TEXT, "uid": TEXT}]},
}

_Key = tuple[str, str]
_Users = frozenset[tuple[str, "PodName"]]


@attrs.frozen
class _Read:
    """A claim as it was read: for which users, when to read it again, and what it says."""

    users: _Users
    until_s: float
    uid: str | None
    name: ClaimName | None


class ClaimReader:
    """Names the claims that the pods of a watch refer to, and the containers that hold them.

    Each claim is asked for by its name, when a pod that refers to it is new or changes; servers
    answer from their cache. 1,024 of them; more are told in `error`.

    Threads: may be shared; only `wait` and `close` wait.

    Attributes:
        error: Why the claims could not be read the last time, or not all of them.
    """

    def __init__(self, pods: NodePods) -> None:
        # Here, so that whoever asks no API loads no HTTP.
        from .kubernetes import KubernetesApi

        self._pods = pods
        self._api = KubernetesApi(pods.kubeconfig)
        self._read: dict[_Key, _Read] = {}
        self._by_uid: Mapping[str, ClaimName] = {}
        self._news = threading.Event()
        self._is_first_done = threading.Event()
        self._stopping = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.error: KubernetesError | None = None

    def start(self) -> None:
        """Begin to read, in a thread; may be called again."""
        with self._lock:
            if self._thread is None and not self._stopping:
                self._pods.when_changed(self._news.set)
                self._thread = threading.Thread(target=self._run, name="hami-claims", daemon=True)
                self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the claims have been read once, or that has failed; whether they have."""
        return self._is_first_done.wait(timeout_s)

    def resolve(self, claim_uid: str) -> ClaimName | None:
        """What is known of a claim at this moment."""
        return self._by_uid.get(claim_uid)

    def close(self) -> None:
        """End; may be called again."""
        self._stopping = True
        self._news.set()
        self._api.abort()
        if self._thread is not None:
            self._thread.join(_ANSWER_S)

    def _run(self) -> None:
        while not self._stopping:
            self._news.clear()
            _, pods = self._pods.known()
            due_s = _SOON_S
            if pods is not None:
                due_s = self._read_due(_users_of(pods.values()))
                self._is_first_done.set()
            elif self._pods.error is not None:
                self._is_first_done.set()
            self._news.wait(due_s)
        self._api.close()

    def _read_due(self, users: Mapping[_Key, _Users]) -> float:
        """Read the claims that are new, or have changed; returns when the next is due."""
        wanted = dict(list(users.items())[:_CLAIMS_LIMIT])
        self._read = {key: each for key, each in self._read.items() if key in wanted}
        error = None
        left_out = len(users) - len(wanted)
        if left_out:
            error = KubernetesError(
                f"pods of this node refer to {len(users)} resource claims; {left_out} of them,"
                f" beyond {_CLAIMS_LIMIT}, have no names"
            )
        try:
            for key, by in wanted.items():
                known = self._read.get(key)
                now_s = time.monotonic()
                if known is None or known.users != by or now_s >= known.until_s:
                    self._read[key] = self._ask(key, by)
        except KubernetesError as failure:
            error = failure
        self._by_uid = {
            each.uid: each.name
            for each in self._read.values()
            if each.uid is not None and each.name is not None
        }
        self.error = error
        if error is not None:
            return max(_SOON_S, error.retry_after_s or 0.0)
        now_s = time.monotonic()
        due_s = min((each.until_s for each in self._read.values()), default=now_s + _LATE_S)
        return max(0.0, due_s - now_s)

    def _ask(self, key: _Key, users: _Users) -> _Read:
        namespace, name = key
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
        now_s = time.monotonic()
        try:
            # Any version will do, which the server has in its cache.
            with self._api.get(path, {"resourceVersion": "0"}) as answer:
                pieces = answer.pieces(_ANSWER_LIMIT, now_s + _ANSWER_S)
                claim: Any = read_object(pieces, _SHAPE)
        except KubernetesError as error:
            # Deleted since the pods were listed; or a server without claims.
            if error.status == _NOT_FOUND:
                return _Read(users, now_s + _SOON_S, None, None)
            raise
        pods = reserved_for(claim)
        by_others = is_reserved_for_others(claim)
        holders = sorted({holder for pod, holder in users if pod in pods}, key=str)
        is_settled = by_others or {pod for pod, _ in users} <= pods
        metadata = claim.get("metadata") if isinstance(claim, dict) else None
        uid = metadata.get("uid") if isinstance(metadata, dict) else None
        return _Read(
            users,
            now_s + (_LATE_S if is_settled else _SOON_S),
            uid if isinstance(uid, str) else None,
            ClaimName(namespace, name, tuple(holders), by_others),
        )


def _users_of(pods: Iterable[Any]) -> Mapping[_Key, _Users]:
    """Namespace and name of each claim that pods refer to: their UIDs, and the containers."""
    found: defaultdict[_Key, set[tuple[str, PodName]]] = defaultdict(set)
    for pod in pods:
        for claim, holder in pod.claims:
            if pod_name(pod.namespace, claim, None) is not None:
                found[pod.namespace, claim].add((pod.uid, holder))
    return {key: frozenset(users) for key, users in found.items()}
