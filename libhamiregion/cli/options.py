"""Options that several verbs share."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import math
import re
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from libhamiregion import Layout
from libhamiregion.units import parse_duration, typed_memory_limit

from .failures import in_command_words
from .help import WATCH, Option
from .output import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.node import Node, NvmlSampler, Observer, Selector

    from .names import Chosen

Command = TypeVar("Command", bound="Callable[..., Any]")

# A file that the system refuses is a failure when it is opened; click's own check would make it
# wrong usage.
PATH = click.Path(path_type=str, readable=False)
NO_DIRECTORY = click.Path(path_type=str, readable=False, dir_okay=False)


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """A value that a function reads from text; its ValueError is wrong usage."""

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

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
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
    """An option that help lists by its name alone, under its group; the docs explain it."""
    return click.option(*names, cls=Option, group=group, **settings)


def all_of(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in that order in the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


# ---- verbs about one region ----------------------------------------------------------------------


class _Pid(click.IntRange):
    name = "pid; `hamiregion show FILE` lists them"


_PID = _Pid(1, 2**31 - 1)
pid_argument = click.argument("pid", metavar="PID", type=_PID)
pids_argument = click.argument("pids", metavar="[PID]...", type=_PID, nargs=-1)


def _layout(_: click.Context, __: click.Parameter, name: str | None) -> Layout | None:
    return None if name is None else Layout(name)


LAYOUT_NAMES = [layout.value for layout in reversed(Layout)]
#: Settings of ``--layout``; the command gets a `Layout`, or None.
LAYOUT: dict[str, Any] = {
    "type": click.Choice(LAYOUT_NAMES),
    "callback": _layout,
    "metavar": "NAME",
}


device_option = click.option(
    "--device",
    metavar="N|UUID",
    type=Parsed("device", lambda typed: int(typed) if re.fullmatch("[0-9]{1,9}", typed) else typed),
    help="Only this device, by CUDA ordinal or uuid.",
)


def typed_memory(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Check memory limits; a verb without --force takes low ones."""
    force = None if ctx.params.get("force", True) else "; --force sets it all the same"
    try:
        for limit in (value,) if isinstance(value, str) else value or ():
            typed_memory_limit(limit, force)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return value


#: Settings of an option whose values are memory limits.
MEMORY: dict[str, Any] = {"metavar": "SIZE", "callback": typed_memory}
#: Before memory limits, which may be lower with it.
force_option = functools.partial(click.option, "--force", is_flag=True, is_eager=True)

# ---- all verbs -----------------------------------------------------------------------------------

_output = functools.partial(option, group="Output")
json_option = _output("as_json", "--json", is_flag=True)
output_option = _output("--output", "-o", type=click.Choice(["json", "table", "wide"]))
watch_option = _output(
    *WATCH,
    "interval_s",
    type=Seconds(min=0.05, max=86_400),
    metavar="[SECONDS]",
    is_flag=False,
    flag_value=2.0,
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Check everything, change nothing.")


# ---- verbs about a node --------------------------------------------------------------------------

_node = functools.partial(option, group="Node")
_directory = functools.partial(_node, type=PATH, metavar="DIR")
root_option = _directory("--root", "roots", multiple=True)
proc_option = _directory("--proc", default="/proc")
library_option = _node("--library", type=PATH, metavar="FILE")
_name_options = all_of(
    _directory("--pod-logs", default="/var/log/pods"),
    _directory("--container-logs", default="/var/log/containers"),
    _node("--claims", type=PATH, metavar="FILE"),
    _node("--node-name", envvar="NODE_NAME", metavar="NAME"),
)


@attrs.frozen
class NodeChoice:
    """The node, and where its pods' names are."""

    roots: tuple[str, ...]
    pod_logs: str
    container_logs: str
    claims: str | None
    node_name: str | None
    outside: bool = False
    proc: str = "/proc"

    def open(self) -> Node:
        """Make the node; the caller closes it."""
        # Verbs about one region need no node, and start sooner without it.
        from libhamiregion.node import Node, NodeNames
        from libhamiregion.node.names import kubelet_claims

        # Every verb that runs for long begins here, before it has threads.
        tune_malloc()
        claims = self.claims or kubelet_claims(self.proc)
        names = NodeNames(self.pod_logs, self.container_logs, claims=claims)
        return Node(self.roots or None, proc=self.proc, names=names, outside=self.outside)


def tune_malloc() -> None:
    """Make glibc give freed memory back to the system, and use one heap for all threads.

    An observation takes megabytes for a moment, each in another thread than the one before. glibc
    would keep them, for each thread apart.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in _MALLOC_SETTINGS:
            mallopt(name, value)


# M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's malloc.h.
_MALLOC_SETTINGS = ((-8, 1), (-3, 128 * 1024), (-1, 256 * 1024))


@attrs.frozen
class DriverChoice:
    """Whether to ask the driver, and by which library."""

    no_driver: bool
    library: str | None

    def sampler(self, *, sensors: bool = False) -> NvmlSampler | None:
        """What asks the driver, with `sensors` for temperatures too; None if it is not asked.

        It is never closed: that would wait for a driver that does not answer.
        """
        from libhamiregion.node import NvmlSampler

        return None if self.no_driver else NvmlSampler(self.library, sensors=sensors)

    @contextlib.contextmanager
    def observe(self, node_choice: NodeChoice, *, sensors: bool = False) -> Iterator[Observer]:
        """A context with an observer of a node and its driver."""
        from libhamiregion.node import Observer

        with node_choice.open() as node:
            yield Observer.for_command(node, sampler=self.sampler(sensors=sensors))


def group_options(
    name: str, make: Callable[..., Any], *fields: str
) -> Callable[[Command], Command]:
    """Have a command get the values of several options as one argument.

    Args:
        name: The argument.
        make: Makes it.
        fields: The options; by default those that its parameters are called after.
    """
    fields = fields or tuple(inspect.signature(make).parameters)

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def called(*args: Any, **given: Any) -> Any:
            made = make(**{field: given.pop(field) for field in fields if field in given})
            return command(*args, **{name: made}, **given)

        return called  # type: ignore[return-value]

    return decorate


def _selector(**patterns: str | None) -> Selector:
    from libhamiregion.node import Selector

    return Selector(**patterns)


_DIRECTORIES = ("roots", "pod_logs", "container_logs", "claims", "node_name")
#: Adds --root, and the sources of names; the command gets `node_choice`, a `NodeChoice`.
directory_options = all_of(
    root_option, _name_options, group_options("node_choice", NodeChoice, *_DIRECTORIES)
)
#: Adds --outside and --proc as well.
node_options = all_of(
    root_option,
    _node("--outside", is_flag=True),
    proc_option,
    _name_options,
    group_options("node_choice", NodeChoice),
)
#: Adds --from.
from_option = _node("--from", "document", type=PATH, metavar="FILE")
#: Adds --no-driver and --library; the command gets `driver`, a `DriverChoice`.
driver_options = all_of(
    _node("--no-driver", is_flag=True),
    library_option,
    group_options("driver", DriverChoice),
)
_select = functools.partial(option, group="Select", metavar="PATTERN")
_patterns = all_of(
    _select("--namespace", "-n"), *map(_select, ("--pod", "--container", "--device"))
)
_PATTERNS = ("namespace", "pod", "container", "device")
#: Adds --namespace, --pod, --container and --device; the command gets `selector`.
selector_options = all_of(_patterns, group_options("selector", _selector, *_PATTERNS))


#: Adds --gpu; the command gets `gpus`.
gpu_option = option(
    "--gpu", "gpus", type=click.IntRange(0), multiple=True, metavar="N", group="Select"
)


def _chosen(*, all_namespaces: bool, namespace: str | None, **patterns: Any) -> Chosen:
    from .names import Chosen

    return Chosen(namespace=None if all_namespaces else namespace, **patterns)


#: Adds names of containers and -A as well.
chosen_options = all_of(
    click.argument("texts", metavar="[TARGET]...", nargs=-1),
    _patterns,
    option("--all-namespaces", "-A", "all_namespaces", is_flag=True, group="Select"),
    group_options("selector", _chosen, "texts", "all_namespaces", *_PATTERNS),
)


def _answer(as_json: bool, output: str | None = None, interval_s: float | None = None) -> Answer:
    return Answer(as_json or output == "json", output == "wide", interval_s)


_answered = group_options("answer", _answer)
#: Adds --json; the command gets `answer`, an `Answer`.
json_answer_options = all_of(json_option, _answered)
#: Adds -o as well.
answer_options = all_of(json_option, output_option, _answered)
#: Adds --watch and these.
watch_options = all_of(watch_option, answer_options)
