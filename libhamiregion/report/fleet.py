"""The processes of all nodes as they are now, out of a Prometheus that scrapes their exporters."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, Literal

import attrs

from .prometheus_http import PrometheusServer, authorization

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.errors import PathLike

FleetOrder = Literal["name", "memory", "sm", "pid"]

_USED: Final = "hamiregion_process_memory_used_bytes"
_SM: Final = "hamiregion_process_sm_utilization_ratio"
#: The fields of a row, by the metrics that they are from.
_FIGURES: Final = {
    "memory_used_bytes": _USED,
    "memory_driver_bytes": "hamiregion_process_memory_driver_bytes",
    "sm_util_ratio": _SM,
    "driver_sm_ratio": "hamiregion_process_driver_sm_utilization_ratio",
}
_GLOB: Final = re.compile(r"\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


@attrs.frozen(kw_only=True)
class FleetProcess:
    """What one process uses of one device, on some node.

    Attributes:
        node: The node's name; the address of its exporter where the series do not have it.
        namespace: Of its pod; None if unknown.
        pod: Its pod's name, or UID; None outside Kubernetes.
        container: Its container's name.
        container_id: That container's id; None if unknown.
        pid: In the container, as the metrics have it; other words for a sum of several.
        host_pid: On the node; None if unknown.
        index: The device's index in the container.
        uuid: The device's uuid; None where it is not named yet.
        memory_used_bytes: As the region counts it.
        memory_driver_bytes: By the driver; None where it says nothing.
        sm_util_ratio: As the region has it, 1 for all of a GPU; None where its layout has none.
        driver_sm_ratio: By the driver; None as above.
    """

    node: str
    namespace: str | None
    pod: str | None
    container: str | None
    container_id: str | None
    pid: str | None
    host_pid: str | None
    index: int
    uuid: str | None
    memory_used_bytes: int | None = None
    memory_driver_bytes: int | None = None
    sm_util_ratio: float | None = None
    driver_sm_ratio: float | None = None

    @property
    def memory_bytes(self) -> int:
        """What it uses, as counted, or what the driver says where that is more."""
        return max(self.memory_used_bytes or 0, self.memory_driver_bytes or 0)

    @property
    def sm_ratio(self) -> float:
        """The utilisation, by the driver where that is known."""
        return (self.sm_util_ratio or 0.0) if self.driver_sm_ratio is None else self.driver_sm_ratio


class PrometheusFleet:
    """Asks a Prometheus for the processes on all nodes.

    Threads: one at a time.

    Args:
        url: Address of the Prometheus, or of what has its API: what comes before ``/api/v1``.
        token: Bearer token to sign in with.
        user: Name to sign in with, if there is no token.
        password: Password of that user.
        ca_file: Certificates to trust in place of the system's.
        timeout_s: For connecting, and for each answer as a whole.

    Raises:
        ValueError: No http or https address, or one with a password in it.
        OSError: The file of certificates cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        ca_file: PathLike | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self._server = PrometheusServer(
            url,
            authorization=authorization(token, user, password),
            ca_file=ca_file,
            timeout_s=timeout_s,
        )

    def processes(
        self, *, sort: FleetOrder = "memory", most: int = 50, **patterns: str | None
    ) -> tuple[list[FleetProcess], list[str]]:
        """The processes that use most, each with one of its devices.

        Args:
            sort: By memory or SM utilisation as the regions count them, by name, or by host pid.
            most: How many rows.
            **patterns: Shell patterns of ``node``, ``namespace``, ``pod``, ``container``, and of
                ``device``, which is an index or a uuid; None means all.

        Returns:
            The rows in that order, and what the server warns of.

        Raises:
            PrometheusError: It cannot be asked, or refuses.
        """
        match = _matchers(patterns)
        # By the server, so that it need not send a fleet to have most of it left out here.
        chosen = f"{_SM if sort == 'sm' else _USED}{match}"
        if sort in {"memory", "sm"}:
            chosen = f"topk({most}, {chosen})"
        figures: dict[frozenset[tuple[str, str]], dict[str, float]] = {}
        warnings: dict[str, None] = {}
        for field, metric in _FIGURES.items():
            series, said = self._server.query(f"{metric}{match} and {chosen}")
            warnings.update(dict.fromkeys(said))
            for labels, value in series:
                labels.pop("__name__", None)
                figures.setdefault(frozenset(labels.items()), {})[field] = value
        rows = [_process(dict(labels), found) for labels, found in figures.items()]
        # Two scrapes of one exporter are one process.
        one: dict[object, FleetProcess] = {
            (row.node, row.pod, row.container, row.pid, row.host_pid, row.index, row.uuid): row
            for row in rows
        }
        return sorted(one.values(), key=_ORDERS[sort])[:most], list(warnings)


def _by_name(row: FleetProcess) -> tuple[str, ...]:
    return (row.node, row.namespace or "", row.pod or "", row.container or "", row.pid or "")


_ORDERS: Final = {
    "name": lambda row: (*_by_name(row), row.index),
    "memory": lambda row: (-row.memory_bytes, _by_name(row), row.index),
    "sm": lambda row: (-row.sm_ratio, -row.memory_bytes, _by_name(row), row.index),
    "pid": lambda row: (row.node, int(row.host_pid) if _is_number(row.host_pid) else 0, row.index),
}


def _is_number(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdigit() and len(text) < 20


def _process(labels: Mapping[str, str], figures: Mapping[str, float]) -> FleetProcess:
    index = labels.get("vdevice_index")
    return FleetProcess(
        node=labels.get("node") or labels.get("instance") or "",
        namespace=labels.get("namespace") or None,
        pod=labels.get("pod") or None,
        container=labels.get("container") or None,
        container_id=labels.get("container_id") or None,
        pid=labels.get("pid") or None,
        host_pid=labels.get("host_pid") or None,
        index=int(index) if index is not None and _is_number(index) else 0,
        uuid=labels.get("device_uuid") or None,
        memory_used_bytes=_bytes(figures.get("memory_used_bytes")),
        memory_driver_bytes=_bytes(figures.get("memory_driver_bytes")),
        sm_util_ratio=figures.get("sm_util_ratio"),
        driver_sm_ratio=figures.get("driver_sm_ratio"),
    )


def _bytes(value: float | None) -> int | None:
    return None if value is None else round(value)


def _matchers(patterns: Mapping[str, str | None]) -> str:
    """Patterns as PromQL has them.

    >>> _matchers({"namespace": "team-*", "node": None, "device": "0"})
    '{namespace=~"team-.*",vdevice_index="0"}'
    """
    found = []
    for name, pattern in patterns.items():
        if pattern is None:
            continue
        if name == "device" and _is_number(pattern):
            found.append(f'vdevice_index="{int(pattern)}"')
        else:
            label = "device_uuid" if name == "device" else name
            found.append(f"{label}=~{json.dumps(_expression(pattern))}")
    return f"{{{','.join(found)}}}" if found else ""


def _expression(pattern: str) -> str:
    """A shell pattern as a regular expression, which there is of the whole value."""
    parts = []
    for part in _GLOB.findall(pattern):
        if part in {"*", "?"}:
            parts.append(".*" if part == "*" else ".")
        elif len(part) > 1:
            inside = part[1:-1]
            negated = inside.startswith("!")
            inside = inside[negated:].replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]")
            parts.append(f"[{'^' if negated else ''}{inside}]")
        else:
            parts.append(re.sub(r"[.+*?()|\[\]{}^$\\]", r"\\\g<0>", part))
    return "".join(parts)
