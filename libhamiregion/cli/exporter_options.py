"""Options of the verbs that export metrics, or run for long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from libhamiregion.units import parse_duration

from . import options

if TYPE_CHECKING:
    from collections.abc import Callable


#: Where the metrics are served unless somebody says where.
DEFAULT_ADDRESS = "127.0.0.1:9394"


def _address(typed: str) -> str:
    # The exporter takes 8 MiB, which an agent without metrics does without.
    from libhamiregion.exporter.listening import parse_listen

    parse_listen(typed)
    return typed


def listen_option(default: str | None) -> Callable[[Any], Any]:
    """--listen; None as the default means not to listen."""
    return click.option(
        "--listen",
        "listen",
        multiple=True,
        type=options.Parsed("address", _address),
        default=() if default is None else (default,),
        metavar="ADDRESS",
        help="HOST:PORT, or :PORT on all addresses; repeatable."
        + (f"  [default: {default}]" if default else ""),
    )


web_config_option = click.option(
    "--web-config",
    "--web.config.file",
    "web_config",
    type=options.PATH,
    metavar="FILE",
    help="Certificate, key, client CA and users: the web configuration file of Prometheus'"
    " exporters.",
)
legacy_metrics_option = click.option(
    "--legacy-metrics",
    is_flag=True,
    help="Also export the names that HAMi's monitor had before.",
)
hami_version_option = click.option(
    "--hami-version",
    type=click.Choice(("2.10", "2.11")),
    default="2.11",
    show_default=True,
    help="Labels of GPUs as HAMi's monitor of this version has them.",
)
resync_interval_option = click.option(
    "--resync-interval",
    "gone_after_s",
    envvar="HAMI_RESYNC_INTERVAL",
    type=options.Parsed("duration", options.none_or("never", parse_duration)),
    show_envvar=True,
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="For how long a pod has to be gone before its directory is left out, and with the agent's"
    " --remove-gone removed; or `never`.",
)
