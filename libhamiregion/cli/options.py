"""Options that several verbs share, and what they choose together."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from libhamiregion import Layout
from libhamiregion.units import parse_duration

from .failures import in_command_words
from .help import Option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.node import Node, NvmlSampler, Observer, Selector
    from libhamiregion.node.node_pods import NodePods

if TYPE_CHECKING:
    ParsedType = click.ParamType[Any]
else:
    # Generic for type checkers; at run time only since click 8.2.
    ParsedType = click.ParamType

Command = TypeVar("Command", bound="Callable[..., Any]")

# That the system refuses a file is a failure, and told when it is opened; a check by click itself
# would be wrong usage.
PATH = click.Path(path_type=str, readable=False)
NO_DIRECTORY = click.Path(path_type=str, readable=False, dir_okay=False)


class Parsed(ParsedType):
    """What a function of the library reads from text; what it refuses is wrong usage."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read one value; see click."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(in_command_words(str(error)), param, ctx)


class Seconds(click.FloatRange):
    """A length of time; click's range lets `nan` through."""

    name = "number of seconds, such as 5 or 0.5"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read one value; see click."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is no length of time", param, ctx)
        return seconds


def none_or(word: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Read a word as None, and everything else by a function."""
    return lambda typed: None if typed.strip().lower() == word else parse(typed)


DURATION = Parsed("duration", parse_duration)


def option(*names: str, group: str, **settings: Any) -> Callable[[Command], Command]:
    """An option that help lists by its name alone, under the heading of its group."""
    return click.option(*names, cls=Option, group=group, **settings)


def all_of(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in that order in the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


# ---- verbs about one region ----------------------------------------------------------------------

file_argument = click.argument("path", metavar="FILE", type=PATH)


class _Pid(click.IntRange):
    name = "pid; `hamiregion show FILE` lists them"


_PID = _Pid(1, 2**31 - 1)
pid_argument = click.argument("pid", metavar="PID", type=_PID)
pids_argument = click.argument("pids", metavar="[PID]...", type=_PID, nargs=-1)
LAYOUT_NAMES = ", ".join(layout.value for layout in reversed(Layout))


def _layout(_: click.Context, __: click.Parameter, name: str | None) -> Layout | None:
    return None if name is None else Layout(name)


def layout_option_of(what: str, **settings: Any) -> Callable[[Command], Command]:
    """The option ``--layout``; the command gets a `Layout`, or None."""
    return click.option(
        "--layout",
        type=click.Choice([layout.value for layout in Layout]),
        callback=_layout,
        metavar="NAME",
        help=f"{what} {LAYOUT_NAMES}.",
        **settings,
    )


layout_option = layout_option_of(
    "The file's layout, where it fits several.", cls=Option, group="Target"
)


def _device(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
    # No number of more digits is an index, and Python takes the longest for none at all.
    is_index = value is not None and re.fullmatch("[0-9]{1,9}", value) is not None
    return int(value) if value is not None and is_index else value


device_option = click.option(
    "--device",
    metavar="N|UUID",
    callback=_device,
    help="Only this device, by CUDA ordinal or uuid.",
)
# ---- all verbs -----------------------------------------------------------------------------------

json_option = option(
    "as_json", "--json", is_flag=True, help="One JSON object per answer.", group="Output"
)
output_option = option(
    "--output",
    "-o",
    type=click.Choice(["json", "table", "wide"]),
    group="Output",
    help="Form of the answer; wide adds uuids, users and files.",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Check everything, change nothing.")
watch_option = option(
    "--watch",
    "-i",
    "interval_s",
    type=Seconds(min=0.05, max=86_400),
    metavar="SECONDS",
    help="Refresh every SECONDS until Ctrl-C.",
    group="Output",
)
proc_option = option(
    "--proc",
    type=PATH,
    default="/proc",
    show_default=True,
    metavar="DIR",
    help="Where the /proc of the processes is mounted.",
    group="Node",
)


# ---- verbs about a node --------------------------------------------------------------------------

root_option = option(
    "--root",
    "roots",
    multiple=True,
    type=PATH,
    metavar="DIR",
    help="Only the <podUID>_<container> directories below DIR, or those of resource claims if it is"
    " called `claims`.  May be a pattern, and given again.  [default: those below $HOOK_PATH, else"
    " HAMi's, its DRA driver's, KAI's, volcano's and those of your runs]",
    group="Node",
)
outside_option = option(
    "--outside",
    is_flag=True,
    help="Also regions outside these directories, found through the processes that map them, such"
    " as /tmp/cudevshr.cache in a container without the device plugin.",
    group="Node",
)
pod_logs_option = option(
    "--pod-logs",
    type=PATH,
    default="/var/log/pods",
    show_default=True,
    metavar="DIR",
    help="kubelet's directory of pods' logs, which names pods.",
    group="Node",
)
container_logs_option = option(
    "--container-logs",
    type=PATH,
    default="/var/log/containers",
    show_default=True,
    metavar="DIR",
    help="kubelet's directory of containers' logs, which names containers by their ids.",
    group="Node",
)
claims_option = option(
    "--claims",
    type=PATH,
    metavar="FILE",
    help="kubelet's checkpoint, which names resource claims."
    "  [default: /var/lib/kubelet/dra_manager_state of the host, through /proc/1/root]",
    group="Node",
)
node_name_option = option(
    "--node-name",
    "--node",
    "node_name",
    envvar="NODE_NAME",
    metavar="NAME",
    help="This node's name, for the API, metrics and reports.  [default: $NODE_NAME]",
    group="Node",
)
kubeconfig_option = option(
    "--kubeconfig",
    type=PATH,
    metavar="FILE",
    help="For the Kubernetes API.  [default: the pod's service account, else kubectl's]",
    group="Node",
)
library_option = option(
    "--library",
    type=PATH,
    metavar="FILE",
    help="The driver's libnvidia-ml.so.1, where the loader does not find it.",
    group="Node",
)
no_driver_option = option(
    "--no-driver", is_flag=True, help="Do not ask the driver (NVML).", group="Node"
)
wide_option = option(
    "--wide", "-w", is_flag=True, help="With uuids, users and files.", group="Output"
)


_CLOSE_S = 1.0


@attrs.frozen
class NodeChoice:
    """The node that the options choose which say where it is, and what its pods are called."""

    roots: tuple[str, ...]
    pod_logs: str
    container_logs: str
    claims: str | None
    node_name: str | None
    kubeconfig: str | None
    outside: bool = False
    proc: str = "/proc"
    _watches: list[NodePods] = attrs.field(factory=list, init=False, eq=False, repr=False)

    def pods(self) -> NodePods:
        """The watch of this node's pods: one for the whole process."""
        from libhamiregion.node import NodePods

        if not self._watches:
            self._watches.append(NodePods(self.node_name, kubeconfig=self.kubeconfig))
        return self._watches[0]

    def open(self) -> Node:
        """Make the node; the caller closes it."""
        # Verbs about one region need nothing of a node, and start sooner without it.
        from libhamiregion.node import Node, NodeNames
        from libhamiregion.node.names import kubelet_claims

        from .small_memory import stay_small

        # Every verb that runs for long begins here, before it has threads.
        stay_small()
        claims = self.claims or kubelet_claims(self.proc)
        names = NodeNames(self.pod_logs, self.container_logs, claims=claims)
        return Node(self.roots or None, proc=self.proc, names=names, outside=self.outside)


@attrs.frozen
class DriverChoice:
    """What --no-driver and --library choose."""

    no_driver: bool
    library: str | None

    @contextlib.contextmanager
    def open(self) -> Iterator[NvmlSampler | None]:
        """A context with what asks the driver, or with None."""
        from libhamiregion.node import NvmlSampler

        if self.no_driver:
            yield None
            return
        sampler = NvmlSampler(self.library)
        try:
            yield sampler
        finally:
            # One that waits for a driver that does not answer would not be closed for ever.
            closing = threading.Thread(target=sampler.close, daemon=True)
            closing.start()
            closing.join(_CLOSE_S)

    @contextlib.contextmanager
    def observe(self, node_choice: NodeChoice) -> Iterator[Observer]:
        """A context with what observes a node and its driver.

        Args:
            node_choice: Where the node is.
        """
        from libhamiregion.node import Observer

        with self.open() as sampler, node_choice.open() as node:
            yield Observer(node, sampler=sampler, anew=True)


def group_options(
    name: str, fields: tuple[str, ...], make: Callable[..., Any]
) -> Callable[[Command], Command]:
    """Have a command get the values of several options as one argument."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def called(*args: Any, **given: Any) -> Any:
            given[name] = make(**{field: given.pop(field) for field in fields})
            return command(*args, **given)

        return called  # type: ignore[return-value]

    return decorate


def _selector(**patterns: str | None) -> Selector:
    from libhamiregion.node import Selector

    return Selector(**patterns)


_name_options = all_of(
    pod_logs_option, container_logs_option, claims_option, node_name_option, kubeconfig_option
)
_NODE_CHOICE = ("roots", "pod_logs", "container_logs", "claims", "node_name", "kubeconfig")
#: Adds --root, and what says pods' names; the command gets `node_choice`, a `NodeChoice`.
directory_options = all_of(
    root_option, _name_options, group_options("node_choice", _NODE_CHOICE, NodeChoice)
)
#: Adds --outside and --proc as well.
node_options = all_of(
    root_option,
    outside_option,
    proc_option,
    _name_options,
    group_options("node_choice", (*_NODE_CHOICE, "outside", "proc"), NodeChoice),
)
#: Adds --no-driver and --library; the command gets `driver`, a `DriverChoice`.
driver_options = all_of(
    no_driver_option,
    library_option,
    group_options("driver", ("no_driver", "library"), DriverChoice),
)
#: Adds --namespace, --pod, --container and --device; the command gets `selector`.
selector_options = all_of(
    option("--namespace", metavar="PATTERN", group="Select", help="Only pods of such namespaces."),
    option("--pod", metavar="PATTERN", group="Select", help="Only pods of this name or UID."),
    option(
        "--container", metavar="PATTERN", group="Select", help="Only containers of this name or id."
    ),
    option(
        "--device", metavar="N|PATTERN", group="Select", help="Only devices of this index or uuid."
    ),
    group_options("selector", ("namespace", "pod", "container", "device"), _selector),
)


def _form(as_json: bool, output: str | None) -> bool:
    if as_json and output not in {None, "json"}:
        raise click.UsageError(f"--json and -o {output} contradict each other.")
    return as_json or output == "json"


#: Adds --json and -o; the command gets `as_json`.
output_options = all_of(
    json_option, output_option, group_options("as_json", ("as_json", "output"), _form)
)


def _wide(command: Command) -> Command:
    @functools.wraps(command)
    def called(*args: Any, **given: Any) -> Any:
        given["wide"] = given["wide"] or given["output"] == "wide"
        return command(*args, **given)

    return called  # type: ignore[return-value]


#: Adds --json, -o and --wide; the command gets `as_json` and `wide`.
wide_output_options = all_of(_wide, wide_option, output_options)
