"""The annotations of a node's pods as the source of a plan."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from libhamiregion.node import NodePods

from .annotations import plan_of_pods
from .reconcile import SourceReading

if TYPE_CHECKING:
    from collections.abc import Callable

    from libhamiregion.errors import PathLike
    from libhamiregion.node.node_pods import NodePod


class PodAnnotations:
    """The ``hamiregion.io/…`` annotations of a node's pods as a source of a plan.

    What was known stays in force while the API cannot be reached.

    Threads: `read` is for one at a time; the others may be called from any.

    Args:
        node: Only pods of this node, as the API selects them.
        kubeconfig: A kubeconfig file; without one the service account in a pod, else the default
            kubeconfig.
        pods: A watch that exists, in place of `node` and `kubeconfig`.

    Raises:
        ModuleNotFoundError: The extra ``kubernetes`` is not installed.
        TypeError: Neither a node nor a watch is given.

    Shell: ``kubectl get pods -A --watch --field-selector spec.nodeName=NODE``.
    """

    def __init__(
        self,
        node: str | None = None,
        *,
        kubeconfig: PathLike | None = None,
        pods: NodePods | None = None,
    ) -> None:
        if pods is None:
            if node is None:
                raise TypeError("PodAnnotations needs a node, or the watch of its pods")
            pods = NodePods(node, kubeconfig=kubeconfig)
        self._pods = pods
        self._lock = threading.Lock()
        # What the reading was made of, for a reading of the same is the same object.
        self._annotated: list[NodePod] | None = None
        self._seen = 0
        self._reading = SourceReading(None)
        self._reported_error: str | None = None
        self._wake: Callable[[], None] = _nothing
        pods.when_changed(self._wake_on_news)

    @property
    def error(self) -> str | None:
        """Why the API could not be used the last time; None if it could."""
        error = self._pods.error
        return None if error is None else str(error)

    def when_changed(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from the thread that watches, when `read` would say something new."""
        self._wake = wake

    def read(self) -> SourceReading:
        """The rules of all pods whose annotations are right; no plan before the first list."""
        error = self.error
        problems = {} if error is None else {"kubernetes": error}
        with self._lock:
            self._update()
            found = self._reading
        return SourceReading(found.plan, {**problems, **found.problems}, found.held)

    def load(self) -> None:
        """List the pods here and now, once.

        Raises:
            PodApiError: The API has not answered as it should; the message says how.
        """
        self._pods.load()

    def start(self) -> None:
        """Begin to list and to watch, in a thread."""
        self._pods.start()

    def close(self) -> None:
        """End the watch; may be called again."""
        self._pods.close()

    def _update(self) -> bool:
        """Take in what the watch knows; returns whether a plan of it differs from the last."""
        generation, pods = self._pods.known()
        if pods is None or (generation == self._seen and self._annotated is not None):
            return False
        self._seen = generation
        # Most changes of a pod are none of its annotations, its containers or its UIDs.
        found = [pod for pod in pods.values() if pod.annotations]
        if found == self._annotated:
            return False
        self._annotated = found
        self._reading = plan_of_pods(found)
        return True

    def _wake_on_news(self) -> None:
        error = self.error
        with self._lock:
            is_news = self._update() or error != self._reported_error
            self._reported_error = error
        if is_news:
            self._wake()


def _nothing() -> None:
    """Do nothing: the default where nobody waits for news."""
