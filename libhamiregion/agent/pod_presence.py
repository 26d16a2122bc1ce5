"""Which pods there are on a node, from sources that have to prove that they know."""

from __future__ import annotations

import os
import re
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from libhamiregion.node.cgroups import is_pod_uid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.errors import PathLike
    from libhamiregion.node.daemon_names import KubernetesNames
    from libhamiregion.node.processes import ProcessTable

_ENTRIES_LIMIT = 100_000
# An object at its address, as urllib3 puts it into its messages.
_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-f]+>:? ?")


class PodsUnknown(Exception):
    """Which pods there are cannot be told now; the message says why."""


class PodSource(Protocol):
    """Anything that knows which pods there are."""

    def present(self, asked: Iterable[str], running: frozenset[str]) -> frozenset[str]:
        """Tell which of these pods there are.

        Args:
            asked: UIDs.
            running: UIDs of pods of which processes run on this node. A source that knows none of
                them is another node's, an old one, or not mounted.

        Raises:
            PodsUnknown: The source does not tell, or does not know this node.
        """


class KubeletPods:
    """The pods that kubelet has directories for: one of logs, one of volumes.

    A pod has gone when it has neither. One that waits for its volumes has no logs yet, and one
    whose volumes are gone has logs until kubelet tidies up: so both are asked, and both have to be
    readable and know a pod that runs.

    Threads: may be shared.

    Args:
        pod_logs: Where the directories ``<namespace>_<pod>_<uid>`` are.
        pods: Where the directories ``<uid>`` are; in a pod that shares the host's processes,
            ``/proc/1/root/var/lib/kubelet/pods`` needs no mount.
    """

    def __init__(
        self, pod_logs: PathLike = "/var/log/pods", pods: PathLike = "/var/lib/kubelet/pods"
    ) -> None:
        self._pod_logs = os.fspath(pod_logs)
        self._pods = os.fspath(pods)

    def present(self, asked: Iterable[str], running: frozenset[str]) -> frozenset[str]:
        """Tell which of these pods kubelet has a directory for; see `PodSource`."""
        known: set[str] = set()
        for path in (self._pod_logs, self._pods):
            listed = _uids(path)
            if not listed:
                raise PodsUnknown(f"{path!r} has no pod at all; is it mounted?")
            _check_knows(running, listed, repr(path))
            known |= listed
        return frozenset(known.intersection(asked))


class ApiPods:
    """The pods that the Kubernetes API has.

    Threads: may be shared.

    Args:
        names: Lists them; its `max_age_s` is how old an answer may be.
    """

    def __init__(self, names: KubernetesNames) -> None:
        self._names = names

    def present(self, asked: Iterable[str], running: frozenset[str]) -> frozenset[str]:
        """Tell which of these pods the API has; see `PodSource`."""
        # What is missing makes it list anew: only after that is the rest known to be of today.
        known = self._known(asked)
        witnesses = self._known(running)
        error = self._names.last_error
        if error is not None:
            raise PodsUnknown(f"the Kubernetes API does not tell: {_said(error)}")
        _check_knows(running, witnesses, "the Kubernetes API, asked for this node,")
        return known

    def _known(self, uids: Iterable[str]) -> frozenset[str]:
        return frozenset(uid for uid in uids if self._names.resolve(uid) is not None)


def running_pods(processes: ProcessTable) -> frozenset[str]:
    """UIDs of the pods of which a process runs, by the cgroups of the last refresh."""
    containers = (process.container for process in processes)
    return frozenset(each.pod_uid for each in containers if each is not None and each.pod_uid)


def _uids(path: str) -> set[str]:
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in islice(entries, _ENTRIES_LIMIT + 1)]
    except OSError as error:
        raise PodsUnknown(f"{path!r} cannot be listed: {error.strerror or error}") from error
    if len(names) > _ENTRIES_LIMIT:
        raise PodsUnknown(f"{path!r} has more than {_ENTRIES_LIMIT:,} entries")
    return {uid for uid in (name.rpartition("_")[2] for name in names) if is_pod_uid(uid)}


def _said(error: Exception) -> str:
    """What an error of the API comes to: the same words each time."""
    status = getattr(error, "status", None)
    if status is not None:
        return f"HTTP {status} {getattr(error, 'reason', None) or ''}".strip()
    first_line = str(error).partition("\n")[0]
    return _ADDRESS.sub("", first_line) or type(error).__name__


def _check_knows(running: frozenset[str], listed: Iterable[str], source: str) -> None:
    if not running:
        raise PodsUnknown(f"no process of any pod runs here that would show that {source} is right")
    if running.isdisjoint(listed):
        raise PodsUnknown(f"{source} knows none of the pods whose processes run on this node")
