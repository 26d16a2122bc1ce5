"""What every ``--json`` answers, as JSON Schema: libhamiregion/cli/answers.schema.json.

    python docs/json_schema.py

Keys, types and descriptions are those of the classes that the answers are made of; the classes here
say only what no class of the library does. One file for all answers: ``$defs`` has one schema for
each value of the key ``schema``, and the whole file is the choice among them.
"""

# ruff: noqa: TC001 - the annotations are evaluated
from __future__ import annotations

import collections.abc
import enum
import inspect
import json
import pkgutil
import re
import types
import typing
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import attrs

import libhamiregion
from libhamiregion import (
    DeviceUsage,
    Layout,
    LimitChange,
    LockRecovery,
    LockState,
    ProcessDeviceUsage,
    ReapedSlot,
    RegionSnapshot,
    SlotChange,
)
from libhamiregion.cli.names import Names
from libhamiregion.cli.processes import ProcessRow
from libhamiregion.cli.views import GapRow, GpuState
from libhamiregion.doctor import Finding, Repair
from libhamiregion.node import Container
from libhamiregion.node.nvml import NvmlState
from libhamiregion.observation.cards import Card
from libhamiregion.observation.containers import MissingReason
from libhamiregion.observation.figures import LARGEST
from libhamiregion.observation.rows import ProcessDeviceRow
from libhamiregion.plan.apply import ContainerOutcome
from libhamiregion.plan.diff import PlannedEdit, Unapplied
from libhamiregion.report.history import Allocation, Sample
from libhamiregion.report.models import Report
from libhamiregion.report.writer import Written
from libhamiregion.services.events import Event

FILE = Path(__file__).parents[1] / "libhamiregion" / "cli" / "answers.schema.json"
ID = "https://libhamiregion.readthedocs.io/answers.schema.json"


# ---- The answers ---------------------------------------------------------------------------------
# An object has the keys of its `parts`, then those that its own class annotates.


@attrs.frozen
class Fields:
    """Some fields of a class."""

    of: type
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    nullable: bool = False


class Place:
    """The container that was named; no such keys if a file was."""

    parts = (Fields(Names, only=("namespace", "pod", "container")),)
    optional = ("namespace", "pod", "container")


class RegionFile:
    """The file that a verb works on.

    Attributes:
        path: The region's file, absolute.
        layout: Its layout.
    """

    path: str
    layout: Layout
    parts = (Place,)


class DryRun:
    """What each verb that writes has.

    Attributes:
        dry_run: Whether nothing was written.
    """

    dry_run: bool


class Burst:
    """What a region says of `run`.

    Attributes:
        burst: Whether programs of ``run`` may pass the SM limits by what no one else on the GPU
            uses.
    """

    burst: bool


class Failure:
    """What went wrong.

    Attributes:
        error: The class of the error.
        message: The error as a sentence.
    """

    error: str
    message: str


class Program:
    """A process of /proc.

    Attributes:
        pid: Its pid.
        user: Its user.
        command: Its command line, raw.
    """

    pid: int
    user: str
    command: str


class RegionAnswer:
    """A region.

    hamiregion show, mine, create

    Attributes:
        programs: With ``mine`` only: the processes of the slots that this /proc shows.
    """

    programs: list[Program]
    parts = (Place, RegionSnapshot, Burst)
    optional = ("programs",)


class RegionError:
    """A region that cannot be read just now.

    hamiregion show --watch, mine --watch

    Attributes:
        path: The region's file.
    """

    path: str | None
    parts = (Failure,)


class DeviceLimits:
    """The limits of a device, and its use."""

    parts = (
        Fields(
            DeviceUsage,
            only=("index", "memory_limit_bytes", "memory_used_bytes", "sm_limit_percent"),
        ),
    )


class KeptLimit:
    """A limit that a plan keeps.

    Attributes:
        limit: ``memory`` or ``sm``.
        device: Index of the device.
        rule: The rule, and where it comes from.
    """

    limit: Literal["memory", "sm"]
    device: int
    rule: str


class Limits:
    """The limits of a region.

    hamiregion limits get

    Attributes:
        devices: One for each device.
        kept: Limits that the plan of a running process sets back.
    """

    devices: list[DeviceLimits]
    kept: list[KeptLimit]
    parts = (RegionFile, Burst)


class BurstChange:
    """A change of the switch.

    Attributes:
        before: Whether it was on.
        after: Whether it is on.
    """

    before: bool
    after: bool


class ChangedLimit:
    """A change of one limit.

    Attributes:
        limit: Which limit.
        kept_by: The rule of a running process's plan that sets it back; null without one.
    """

    limit: Literal["memory", "sm"]
    kept_by: str | None
    parts = (Fields(LimitChange, only=("device", "before", "after", "effect")),)


class LimitChanges:
    """What was changed in a region; of several files one object each.

    hamiregion limits set

    Attributes:
        burst: What --burst or --no-burst changed; null without them.
        changes: One for each device and limit.
        notes: Limits that another index has for some processes, a sentence each.
    """

    burst: BurstChange | None
    changes: list[ChangedLimit]
    notes: list[str]
    parts = (RegionFile, DryRun)


class Planned:
    """A container of a plan, or one with a finding.

    Attributes:
        region_path: The region's file; null if there is none.
    """

    region_path: str | None
    parts = (Names,)


class PlannedChange:
    """A container that differs.

    Attributes:
        refused: Whether none of the edits may be made; see ``skipped``.
        edits: What differs from the plan.
    """

    refused: bool
    edits: list[PlannedEdit]
    parts = (Planned,)


class Skipped:
    """A container that a rule chooses in vain.

    Attributes:
        missing: Why there is no region, if that is why.
    """

    missing: MissingReason | None
    parts = (Planned, Fields(Unapplied, without=("container",)))


class PlanDiff:
    """How a node differs from a plan.

    hamiregion limits diff

    Attributes:
        changes: The containers that differ.
        skipped: What rules choose and what stays as it is, and why.
        unused_rules: Rules that choose no container of this node, by index.
        problems: Of annotations: what about, and what is wrong.
    """

    changes: list[PlannedChange]
    skipped: list[Skipped]
    unused_rules: list[int]
    problems: dict[str, str]


class Outcome:
    """What has become of one container's edits."""

    parts = (Planned, Fields(ContainerOutcome, only=("status", "message")))


class PlanResult:
    """What a plan has changed on a node.

    hamiregion limits apply

    Attributes:
        undo: The undo plan; null if there is none.
        outcomes: What has become of each container's edits; empty with ``--dry-run``.
    """

    undo: str | None
    outcomes: list[Outcome]
    parts = (PlanDiff, DryRun)


class SlotStatus:
    """The status of a process: 0 exited, 1 running, 2 suspended.

    hamiregion suspend, resume
    """

    parts = (RegionFile, DryRun, Fields(SlotChange, only=("pid", "before", "after", "effect")))


class Reaped:
    """Slots of dead processes that were freed.

    hamiregion reap

    Attributes:
        reaped: One for each slot.
    """

    reaped: list[ReapedSlot]
    parts = (RegionFile, DryRun)


class Lock:
    """Who holds a region's lock.

    hamiregion lock status, lock recover --dry-run

    Attributes:
        dry_run: With ``lock recover --dry-run`` only.
        tools: Processes of which one has signed the lock with a number; empty for any other owner.
    """

    dry_run: bool
    tools: list[Program]
    parts = (RegionFile, LockState)
    optional = ("dry_run",)


class Recovered:
    """What was done to a lock.

    hamiregion lock recover
    """

    parts = (RegionFile, DryRun, LockRecovery)


class ProgramGpu:
    """A GPU that a program sees.

    Attributes:
        uuid: ``GPU-…`` or ``MIG-…``.
        name: The driver's name of it.
        memory_bytes: Its memory; null if it shares the host's.
        memory_limit_bytes: What the program may use; null is unlimited.
        sm_limit_percent: The program's share of its time; null is unlimited.
    """

    uuid: str
    name: str
    memory_bytes: int | None
    memory_limit_bytes: int | None
    sm_limit_percent: int | None


class Environment:
    """The environment of a program.

    hamiregion run --dry-run

    Attributes:
        environment: What is added or changed.
        region: The region's file.
        complete: Whether it works without ``hamiregion run``.
        gpus: The GPUs that the program sees.
    """

    environment: dict[str, str]
    region: str
    complete: bool
    gpus: list[ProgramGpu]
    parts = (Burst,)


class Seen:
    """What an observation of a node has.

    Attributes:
        taken_at_ns: When, Unix nanoseconds.
        complete: Whether all processes of the node could be seen.
        warnings: What could not be looked at, one sentence each.
        gaps: What could not be looked at, and of which container; what it hides is unknown.
        gpus: The driver's GPUs; empty if it was not asked.
    """

    taken_at_ns: int
    complete: bool
    warnings: list[str]
    gaps: list[GapRow]
    gpus: list[GpuState]


class Driver:
    """The driver's answer.

    Attributes:
        state: ``ok``, or why there are no figures of the driver.
        message: Why they are missing or not used; null if they are not.
        version: The driver's, such as ``570.124.06``; null where it does not tell.
    """

    state: NvmlState
    message: str | None
    version: str | None


class SeenByDriver:
    """An observation that may include the driver.

    Attributes:
        driver: Whether the driver answered; null if it was not asked.
    """

    driver: Driver | None
    parts = (Seen,)


class NoRegion:
    """Why a container has no region.

    Attributes:
        reason: Why there is no region, or null.
        message: That reason as a sentence.
    """

    reason: MissingReason | None
    message: str | None


class SlotStates:
    """How many slots are in which state.

    Attributes:
        alive: Slots whose process lives.
        dead: Slots whose process is gone; their memory still counts.
        unknown: Slots of which /proc does not tell.
        unlisted: Processes that map the region and have no slot.
    """

    alive: int
    dead: int
    unknown: int
    unlisted: int


class ContainerRow:
    """A container.

    Attributes:
        lock: ``free``, ``tool`` (this library), or by its pid inside ``pid:N``, ``dead:N``.
        processes: How many there are of each state.
        devices: Empty where there is no region.
        driver_devices: Without a region its GPUs, with the driver's figures; empty if these are
            not known.
    """

    lock: str | None
    processes: SlotStates | None
    devices: list[DeviceUsage]
    driver_devices: list[ProcessDeviceRow]
    parts = (
        Names,
        Fields(Container, only=("directory", "region_path", "path_in_namespace", "other_files")),
        NoRegion,
        Fields(
            RegionSnapshot, without=("path", "taken_at_ns", "devices", "processes"), nullable=True
        ),
    )


class Containers:
    """The containers of a node.

    hamiregion containers

    Attributes:
        containers: By name.
        by_gpu: What the containers may use of each GPU or MIG device together.
    """

    containers: list[ContainerRow]
    by_gpu: list[Card]
    parts = (Seen,)


class Processes:
    """The processes of a node that use a region or a GPU.

    hamiregion ps, top

    Attributes:
        processes: In the order of ``--sort``.
    """

    processes: list[ProcessRow]
    parts = (SeenByDriver,)


class Found:
    """A finding."""

    parts = (Planned, Fields(Finding, without=("container", "is_transient", "_token")))


class Repaired:
    """A finding, and what was done about it."""

    parts = (Found, Fields(Repair, without=("finding",)))


class Doctor:
    """What is wrong on a node.

    hamiregion doctor

    Attributes:
        findings: What was found, or is left after repairs.
        repairs: What was repaired; null without ``--repair``.
        left: How many findings count for the exit code: all but notes.
    """

    findings: list[Found]
    repairs: list[Repaired] | None
    left: int
    parts = (SeenByDriver, DryRun)


class EventLine:
    """One line of a log, of at most 500 characters.

    hamiregion agent, exporter
    """

    parts = (Event,)


class Recorded:
    """One look that was recorded.

    hamiregion record
    """

    parts = (Written,)


class NotRecorded:
    """One look that could not be recorded.

    hamiregion record
    """

    parts = (Failure,)


class Reading:
    """What a recording has of a container's device."""

    parts = (Allocation, Sample)


class Readings:
    """What would be recorded.

    hamiregion record --dry-run

    Attributes:
        path: The recording.
        readings: One for each device of a container.
    """

    path: str
    readings: list[Reading]
    parts = (DryRun,)


class ReportAnswer:
    """A report.

    hamiregion report
    """

    parts = (Fields(Report, without=("allocations", "devices")),)


class DemoNode:
    """A node of fake containers.

    hamiregion demo --node

    Attributes:
        root: Where the containers' directories are.
        pod_logs: Where the logs are that name the pods.
        urls: Where the exporter answers.
        socket: Where ``HAMIREGION_SOCKET`` lets other verbs ask for observations.
    """

    root: str
    pod_logs: str
    urls: list[str]
    socket: str


#: By name and version.
ANSWERS = {
    "region/1": RegionAnswer,
    "region-error/1": RegionError,
    "limits/1": Limits,
    "limit-changes/1": LimitChanges,
    "plan-diff/1": PlanDiff,
    "plan-result/1": PlanResult,
    "slot-status/1": SlotStatus,
    "reaped/1": Reaped,
    "lock/1": Lock,
    "lock-recovery/1": Recovered,
    "environment/1": Environment,
    "containers/1": Containers,
    "processes/1": Processes,
    "doctor/1": Doctor,
    "event/1": EventLine,
    "look/1": Recorded,
    "look-failed/1": NotRecorded,
    "readings/1": Readings,
    "report/2": ReportAnswer,
    "demo-node/1": DemoNode,
}


# ---- From classes to schemas ---------------------------------------------------------------------

_SIMPLE = {int: "integer", float: "number", str: "string", bool: "boolean", types.NoneType: "null"}
_ATTRIBUTES = re.compile(r"^Attributes:\n(.*?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)
_ATTRIBUTE = re.compile(r"^ +(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def _all_names() -> dict[str, Any]:
    """What annotations may name, also what their own modules import for type checkers only."""
    found: dict[str, Any] = {**vars(typing), **vars(collections.abc)}
    for module in pkgutil.walk_packages(libhamiregion.__path__, "libhamiregion."):
        if not module.name.endswith(("__main__", "_native", "_build")):
            for name, value in vars(import_module(module.name)).items():
                found.setdefault(name, value)
    return found


_NAMES = _all_names()


def _is_here(of: type) -> bool:
    return of.__module__ == __name__


def _hints(of: type) -> dict[str, Any]:
    """The fields of a class with their types."""
    module = globals() if _is_here(of) else vars(import_module(of.__module__))
    hints: dict[str, str] = {}
    for cls in reversed(of.__mro__):
        hints |= inspect.get_annotations(cls)
    names = hints if _is_here(of) else [field.name for field in attrs.fields(of)]
    types = {name: eval(hints[name], {**_NAMES, **module}) for name in names}
    if of in (DeviceUsage, ProcessDeviceUsage):
        # The library has what is in the file; the command line shows no figure that cannot be.
        types |= {name: types[name] | None for name in LARGEST}
    return types


def _descriptions(of: type) -> dict[str, str]:
    """What the docstring says of the fields; its None is null here."""
    found: dict[str, str] = {}
    for cls in reversed(of.__mro__):
        match = _ATTRIBUTES.search(inspect.cleandoc(cls.__doc__ or ""))
        for name, what in _ATTRIBUTE.findall(match[1]) if match is not None else ():
            plain = re.sub(r"(?<!`)`([\w.]+)`(?!`)", r"\1", " ".join(what.split()))
            found[name] = re.sub(r"\bNone\b", "null", plain.replace("``", "`"))
    return found


def _optional(of: Any) -> set[str]:
    """The keys of a class, and of its parts, that may be missing."""
    parts = getattr(of, "parts", ()) if isinstance(of, type) and _is_here(of) else ()
    return {*getattr(of, "optional", ()), *(name for part in parts for name in _optional(part))}


class _Schemas:
    """Schemas of types; those of the library's classes are made once, as definitions."""

    def __init__(self) -> None:
        self.defs: dict[str, Any] = {}

    def of(self, hint: Any) -> dict[str, Any]:
        """The schema of a type."""
        if isinstance(hint, str):
            return self.of(eval(hint, _NAMES))
        if hint in _SIMPLE:
            return {"type": _SIMPLE[hint]}
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return _choice([self.of(each) for each in arguments])
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin is tuple and arguments[-1] is not ...:
            item = _choice([self.of(each) for each in arguments])
            count = len(arguments)
            return {"type": "array", "items": item, "minItems": count, "maxItems": count}
        if origin in (tuple, list):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin in (dict, collections.abc.Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if issubclass(hint, enum.Enum):
            return {"enum": [each.value for each in hint]}
        if _is_here(hint):
            return self.object(hint)
        if hint.__name__ not in self.defs:
            self.defs[hint.__name__] = {}  # a class may have objects of its own kind
            self.defs[hint.__name__] = self.object(hint)
        return {"$ref": f"#/$defs/{hint.__name__}"}

    def object(self, of: type) -> dict[str, Any]:
        """An object with all keys of a class."""
        properties = self.properties(of)
        optional = _optional(of)
        required = [name for name in properties if name not in optional]
        return {"type": "object", "properties": properties, "required": required}

    def properties(self, of: type | Fields) -> dict[str, Any]:
        fields = of if isinstance(of, Fields) else Fields(of)
        found: dict[str, Any] = {}
        if _is_here(fields.of):
            for part in getattr(fields.of, "parts", ()):
                found |= self.properties(part)
        said = _descriptions(fields.of)
        for name, hint in _hints(fields.of).items():
            if name not in fields.without and name in (fields.only or (name,)):
                schema = self.of(hint | None if fields.nullable else hint)
                found[name] = schema | ({"description": said[name]} if name in said else {})
        return found


def _choice(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """One of several schemas, as shortly as it can be said."""
    distinct = [each for at, each in enumerate(choices) if each not in choices[:at]]
    if len(distinct) == 1:
        return distinct[0]
    if all(list(each) == ["type"] for each in distinct):
        names = _flat([each["type"] for each in distinct])
        return {"type": list(dict.fromkeys(names))}
    values = [each.get("enum", [None] if each == {"type": "null"} else ()) for each in distinct]
    if all(values):
        return {"enum": _flat(values)}
    return {"anyOf": _flat([each.get("anyOf", each) for each in distinct])}


def _flat(nested: list[Any]) -> list[Any]:
    return [leaf for each in nested for leaf in (each if isinstance(each, list) else [each])]


def make() -> dict[str, Any]:
    """The whole file."""
    schemas = _Schemas()
    answers = {}
    for name, of in ANSWERS.items():
        title, commands = inspect.cleandoc(of.__doc__ or "").split("\n\n")[:2]
        identity = {"const": f"hamiregion/{name}", "description": "What this object is."}
        made = schemas.object(of)
        answers[name.partition("/")[0]] = {
            "title": title,
            "description": commands,
            "type": "object",
            "properties": {"schema": identity, **made["properties"]},
            "required": ["schema", *made["required"]],
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ID,
        "title": "What the verbs of hamiregion answer with --json",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in answers],
        "$defs": {**answers, **dict(sorted(schemas.defs.items()))},
    }


def text() -> str:
    """The file's content: what fits a line stands on one."""
    return _lines(make(), "") + "\n"


def _lines(value: Any, indent: str) -> str:
    short = json.dumps(value)
    if not isinstance(value, dict) or len(indent) + len(short) < 100:
        return short
    inner = indent + " "
    lines = [f"{inner}{json.dumps(key)}: {_lines(each, inner)}" for key, each in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


if __name__ == "__main__":
    FILE.write_text(text())
