"""Options of the verbs that export metrics."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from libhamiregion.exporter import COLLECTORS
from libhamiregion.exporter.listening import parse_listen
from libhamiregion.units import parse_duration

from . import options

if TYPE_CHECKING:
    from collections.abc import Callable

    AddressType = click.ParamType[str]
    DurationType = click.ParamType[float | None]
else:
    # Generic for type checkers; at run time only since click 8.2.
    AddressType = DurationType = click.ParamType

NEVER = "never"
#: What HAMi's monitor takes where nothing usable is given.
RESYNC_INTERVAL = "5m"


class Address(AddressType):
    """127.0.0.1:9394, :9394 for all addresses, [::1]:9394."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read one value; see click."""
        try:
            parse_listen(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class Duration(DurationType):
    """A length of time in Go's notation, such as 5m, in seconds; `never` is None."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        """Read one value; see click."""
        if not isinstance(value, str) or value == NEVER:
            return None if value == NEVER else value
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ResyncInterval(Duration):
    """The same; what stands in the environment and is none counts as the monitor counts it."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        """Read one value; see click."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            name = None if param is None else param.name
            source = None if ctx is None or name is None else ctx.get_parameter_source(name)
            if source is not click.core.ParameterSource.ENVIRONMENT:
                raise
            click.echo(
                f"Note: HAMI_RESYNC_INTERVAL: {error.message}; it counts as {RESYNC_INTERVAL}",
                err=True,
            )
            return parse_duration(RESYNC_INTERVAL)


def listen_option(default: str | None) -> Callable[[Any], Any]:
    """--listen; None as the default means not to listen."""
    return click.option(
        "--listen",
        "listen",
        multiple=True,
        type=Address(),
        default=() if default is None else (default,),
        metavar="ADDRESS",
        help="Where to answer HTTP: HOST:PORT, or :PORT on all addresses; may be given again."
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
node_name_option = click.option(
    "--node-name",
    envvar="NODE_NAME",
    metavar="NAME",
    help="The node's name in the metrics of its GPUs.  [default: $NODE_NAME, else the host's name]",
)
resync_interval_option = click.option(
    "--resync-interval",
    "gone_after_s",
    envvar="HAMI_RESYNC_INTERVAL",
    type=ResyncInterval(),
    show_envvar=True,
    default=RESYNC_INTERVAL,
    show_default=True,
    metavar="DURATION",
    help="Leave out directories of pods that have been gone for so long, or `never`; nothing is"
    " deleted.",
)
_HELP = {
    "nvml": "GPUs, and what the driver says of processes.",
    "processes": "Which processes stand behind the slots.",
    "unaccounted": "Processes that use a GPU and stand in no region.",
    "locks": "Locks that are held for long.",
    "doctor": "What is wrong with the regions.",
}


def collector_options(command: Any) -> Any:
    """--collector.NAME and --no-collector.NAME; the command gets those that are on."""

    @functools.wraps(command)
    def called(*, disable_defaults: bool, **given: Any) -> Any:
        switches = {name: given.pop(f"collector_{name}") for name in COLLECTORS}
        given["collectors"] = frozenset(
            name
            for name, is_on in switches.items()
            if (not disable_defaults if is_on is None else is_on)
        )
        return command(**given)

    for name in reversed(COLLECTORS):
        called = click.option(
            f"--collector.{name}/--no-collector.{name}",
            f"collector_{name}",
            default=None,
            help=f"{_HELP[name]}  [default: on]",
        )(called)
    return click.option(
        "--collector.disable-defaults",
        "disable_defaults",
        is_flag=True,
        help="Switch off the collectors that are not named.",
    )(called)
