"""A node's exporter behind a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .server import DEFAULT_LISTEN, MetricsServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from libhamiregion.errors import PathLike
    from libhamiregion.exporter.node_exporter import NodeExporter

    from .connections import ServerLimits


def exporter_server(
    exporter: NodeExporter,
    listen: str | Iterable[str] = DEFAULT_LISTEN,
    *,
    web_config: PathLike | None = None,
    healthy: Callable[[], str | None] | None = None,
    limits: ServerLimits | None = None,
) -> MetricsServer:
    """Make the server that `hamiregion exporter` is; the caller starts both.

        with NodeExporter(node) as exporter, exporter_server(exporter, ":9394"):
            ...

    Args:
        exporter: Gives the metrics, the facts on the page at ``/``, and whether it is ready.
        listen: As for `MetricsServer`.
        web_config: As for `MetricsServer`.
        healthy: As for `MetricsServer`.
        limits: As for `MetricsServer`.

    Raises:
        ListenError: It is not possible to listen there.
        WebConfigError: The web configuration cannot be used.
        ValueError: `listen` is no address.
    """
    return MetricsServer(
        exporter.render_parts,
        listen,
        web_config=web_config,
        landing=exporter.landing,
        ready=exporter.not_ready,
        healthy=healthy,
        limits=limits,
    )
