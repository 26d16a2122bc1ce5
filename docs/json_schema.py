"""What every ``--json`` answers, as JSON Schema: libhamiregion/cli/answers.schema.json.

    python docs/json_schema.py

Keys, types and descriptions are those of the classes that the answers are made of; written out here
is only what no class of the library has. One file for all answers: ``$defs`` has one schema for
each value of the key ``schema``, and the whole file is the choice among them.
"""

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
    ReapedSlot,
    RegionSnapshot,
    SlotChange,
)
from libhamiregion.cli.format import Names
from libhamiregion.cli.limits import DeviceLimits
from libhamiregion.cli.node_page import GapRow
from libhamiregion.cli.processes import ProcessRow
from libhamiregion.node import Container, Finding, Repair
from libhamiregion.node.containers import MissingReason
from libhamiregion.node.events import Event
from libhamiregion.node.nvml import NvmlState
from libhamiregion.plan.apply import ContainerOutcome
from libhamiregion.plan.diff import PlannedEdit, Unapplied
from libhamiregion.report.history import Allocation, Sample
from libhamiregion.report.models import Report
from libhamiregion.report.writer import Written

FILE = Path(__file__).parents[1] / "libhamiregion" / "cli" / "answers.schema.json"
ID = "https://libhamiregion.readthedocs.io/answers.schema.json"


@attrs.frozen
class Fields:
    """Some fields of a class, as keys of an object."""

    of: type
    only: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    nullable: bool = False


class Rows(tuple[Any, ...]):
    """A list of objects; its members are the parts of one."""

    __slots__ = ()


# A part of an object is a class, some of its fields, or keys, each with a type and what it says; a
# key that ends in ? may be missing.
FILE_KEYS = {"path": (str, "The region's file, absolute."), "layout": (Layout, "Its layout.")}
BURST = {
    "burst": (
        bool,
        "Whether programs of `run` may pass the SM limits by what nobody else on the GPU uses.",
    )
}
BURST_CHANGE = {
    "before": (bool, "Whether it was on."),
    "after": (bool, "Whether it is on."),
}
DRY_RUN = {"dry_run": (bool, "Whether nothing was written.")}
PLACE = {"region_path": (str | None, "The region's file; null if there is none.")}
SEEN = {
    "taken_at_ns": (int, "When, Unix nanoseconds."),
    "complete": (bool, "Whether all processes of the node could be seen."),
    "warnings": (list[str], "What could not be looked at, one sentence each."),
    "gaps": (
        Rows((GapRow,)),
        "What could not be looked at, and of which container; what it hides is unknown.",
    ),
}
FAILURE = {"error": (str, "The class of the error."), "message": (str, "The error as a sentence.")}
DRIVER = {
    "state": (NvmlState, "`ok`, or why there are no figures of the driver."),
    "message": (str | None, "Why they are missing or not used; null if they are not."),
    "version": (str | None, "The driver's, such as `570.124.06`; null where it does not tell."),
}
BY_DRIVER = {"driver": ((DRIVER, None), "Whether the driver answered; null if it was not asked.")}
STATES = {
    "alive": (int, "Slots whose process lives."),
    "dead": (int, "Slots whose process is gone; their memory still counts."),
    "unknown": (int, "Slots of which /proc does not tell."),
    "unlisted": (int, "Processes that map the region and have no slot."),
}
PLANNED = (Names, PLACE)
PLAN_DIFF = {
    "changes": (
        Rows(
            (
                *PLANNED,
                {
                    "refused": (bool, "Whether none of the edits may be made; see `skipped`."),
                    "edits": (Rows((PlannedEdit,)), "What differs from the plan."),
                },
            )
        ),
        "The containers that differ.",
    ),
    "skipped": (
        Rows(
            (
                *PLANNED,
                Fields(Unapplied, without=("container",)),
                {"missing": (MissingReason | None, "Why there is no region, if that is why.")},
            )
        ),
        "What rules choose and what stays as it is, and why.",
    ),
    "unused_rules": (list[int], "Rules that choose no container of this node, by index."),
    "problems": (dict[str, str], "Of annotations: what about, and what is wrong."),
}
PLACES = ("directory", "region_path", "path_in_namespace", "other_files")
CONTAINER = (
    Names,
    Fields(Container, only=PLACES),
    {
        "reason": (MissingReason | None, "Why there is no region, or null."),
        "message": (str | None, "That reason as a sentence."),
    },
    Fields(RegionSnapshot, without=("path", "taken_at_ns", "devices", "processes"), nullable=True),
    {
        "lock": (
            str | None,
            "`free`, `tool` (this library), or by its pid inside `pid:N`, `dead:N`.",
        ),
        "processes": ((STATES, None), "How many there are of each state."),
        "devices": (Rows((DeviceUsage,)), "Empty where there is no region."),
    },
)
FINDING = (Names, PLACE, Fields(Finding, without=("container", "is_transient", "_token")))
LAUNCH_GPU = {
    "uuid": (str, "`GPU-…` or `MIG-…`."),
    "name": (str, "The driver's name of it."),
    "memory_bytes": (int, "Its memory."),
    "memory_limit_bytes": (int | None, "What the program may use; null is unlimited."),
    "sm_limit_percent": (int | None, "The program's share of its time; null is unlimited."),
}
#: Name and version, the commands that give such an answer, what it is, and its parts.
ANSWERS: dict[str, tuple[Any, ...]] = {
    "region/1": ("show, mine, create", "A region.", RegionSnapshot, BURST),
    "region-error/1": (
        "show --watch, mine --watch",
        "A region that cannot be read just now.",
        {"path": (str | None, "The region's file.")},
        FAILURE,
    ),
    "limits/1": (
        "limits get",
        "The limits of a region.",
        FILE_KEYS,
        BURST,
        {"devices": (Rows((DeviceLimits,)), "One for each device.")},
    ),
    "limit-changes/1": (
        "limits set",
        "What was changed in a region; of several files one object each.",
        FILE_KEYS,
        DRY_RUN,
        {
            "burst": (
                (BURST_CHANGE, None),
                "What --burst or --no-burst changed; null without them.",
            ),
            "changes": (
                Rows(
                    (
                        {"limit": (Literal["memory", "sm"], "Which limit.")},
                        Fields(LimitChange, only=("device", "before", "after", "effect")),
                    )
                ),
                "One for each device and limit.",
            ),
        },
    ),
    "plan-diff/1": ("limits diff", "How a node differs from a plan.", PLAN_DIFF),
    "plan-result/1": (
        "limits apply",
        "What a plan has changed on a node.",
        PLAN_DIFF,
        DRY_RUN,
        {
            "undo": (str | None, "The undo plan; null if there is none."),
            "outcomes": (
                Rows((*PLANNED, Fields(ContainerOutcome, only=("status", "message")))),
                "What has become of each container's edits; empty with `--dry-run`.",
            ),
        },
    ),
    "slot-status/1": (
        "suspend, resume",
        "The status of a process: 0 exited, 1 running, 2 suspended.",
        FILE_KEYS,
        DRY_RUN,
        Fields(SlotChange, only=("pid", "before", "after", "effect")),
    ),
    "reaped/1": (
        "reap",
        "Slots of dead processes that were freed.",
        FILE_KEYS,
        DRY_RUN,
        {"reaped": (Rows((ReapedSlot,)), "One for each slot.")},
    ),
    "lock/1": (
        "lock status, lock recover --dry-run",
        "Who holds a region's lock.",
        FILE_KEYS,
        {"dry_run?": (bool, "With `lock recover --dry-run` only.")},
        LockState,
    ),
    "lock-recovery/1": (
        "lock recover",
        "What was done to a lock.",
        FILE_KEYS,
        DRY_RUN,
        LockRecovery,
    ),
    "environment/1": (
        "run --dry-run",
        "The environment of a program.",
        {
            "environment": (dict[str, str], "What is added or changed."),
            "region": (str, "The region's file."),
            "complete": (bool, "Whether it works without `hamiregion run`."),
            **BURST,
            "gpus": (Rows((LAUNCH_GPU,)), "The GPUs that the program sees."),
        },
    ),
    "containers/1": (
        "containers",
        "The containers of a node.",
        SEEN,
        {"containers": (Rows(CONTAINER), "By name.")},
    ),
    "processes/1": (
        "ps, top",
        "The processes of a node that use a region or a GPU.",
        SEEN,
        BY_DRIVER,
        {"processes": (Rows((ProcessRow,)), "In the order of `--sort`.")},
    ),
    "doctor/1": (
        "doctor",
        "What is wrong on a node.",
        SEEN,
        BY_DRIVER,
        DRY_RUN,
        {
            "findings": (Rows(FINDING), "What was found, or is left after repairs."),
            "repairs": (
                (Rows((*FINDING, Fields(Repair, without=("finding",)))), None),
                "What was repaired; null without `--repair`.",
            ),
            "left": (int, "How many findings count for the exit code: all but notes."),
        },
    ),
    "event/1": (
        "agent, limits apply --watch, exporter",
        "One line of a log, of at most 500 characters.",
        Event,
    ),
    "look/1": ("record", "One look that was recorded.", Written),
    "look-failed/1": ("record", "One look that could not be recorded.", FAILURE),
    "readings/1": (
        "record --dry-run",
        "What would be recorded.",
        {"path": (str, "The recording.")},
        DRY_RUN,
        {"readings": (Rows((Allocation, Sample)), "One for each device of a container.")},
    ),
    "report/1": ("report", "A report.", Fields(Report, without=("allocations", "devices"))),
    "demo-node/1": (
        "demo --node",
        "A node of fake containers.",
        {
            "root": (str, "Where the containers' directories are."),
            "pod_logs": (str, "Where the logs are that name the pods."),
            "urls": (list[str], "Where the exporter answers."),
        },
    ),
}


# ---- From classes to schemas ---------------------------------------------------------------------

_SIMPLE = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
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


def _hints(of: type) -> dict[str, Any]:
    """The fields of a class with their types."""
    hints: dict[str, Any] = {}
    for cls in reversed(of.__mro__):
        scope = {**_NAMES, **vars(import_module(cls.__module__))}
        hints |= {name: (hint, scope) for name, hint in inspect.get_annotations(cls).items()}
    return {field.name: eval(*hints[field.name]) for field in attrs.fields(of)}


def _descriptions(of: type) -> dict[str, str]:
    """What the docstring says of the fields; its None is null here."""
    found: dict[str, str] = {}
    for cls in reversed(of.__mro__):
        match = _ATTRIBUTES.search(inspect.cleandoc(cls.__doc__ or ""))
        for name, what in _ATTRIBUTE.findall(match[1]) if match is not None else ():
            plain = re.sub(r"(?<!`)`([\w.]+)`(?!`)", r"\1", " ".join(what.split()))
            found[name] = re.sub(r"\bNone\b", "null", plain.replace("``", "`"))
    return found


class _Schemas:
    """Schemas of types; those of classes are made once, as definitions."""

    def __init__(self) -> None:
        self.defs: dict[str, Any] = {}

    def of(self, hint: Any) -> dict[str, Any]:
        """The schema of a type."""
        if isinstance(hint, str):
            return self.of(eval(hint, _NAMES))
        if isinstance(hint, Rows):
            is_class = len(hint) == 1 and isinstance(hint[0], type)
            return {"type": "array", "items": self.of(hint[0]) if is_class else self.object(hint)}
        if isinstance(hint, dict):
            return self.object((hint,))
        if isinstance(hint, tuple):
            return _choice([self.of(each) for each in hint])
        if hint is None or hint in _SIMPLE:
            return {"type": _SIMPLE[hint or type(None)]}
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return _choice([self.of(each) for each in arguments])
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin is tuple and arguments[-1] is not ...:
            item = _choice([self.of(each) for each in dict.fromkeys(arguments)])
            count = len(arguments)
            return {"type": "array", "items": item, "minItems": count, "maxItems": count}
        if origin in (tuple, list):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin in (dict, collections.abc.Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if issubclass(hint, enum.Enum):
            return {"enum": [each.value for each in hint]}
        if hint.__name__ not in self.defs:
            self.defs[hint.__name__] = {}  # a class may have objects of its own kind
            self.defs[hint.__name__] = self.object((hint,))
        return {"$ref": f"#/$defs/{hint.__name__}"}

    def object(self, parts: tuple[Any, ...]) -> dict[str, Any]:
        """An object that has the keys of all parts."""
        properties: dict[str, Any] = {}
        for part in parts:
            if isinstance(part, dict):
                for name, (hint, what) in part.items():
                    properties[name] = {**self.of(hint), "description": what}
                continue
            fields = part if isinstance(part, Fields) else Fields(part)
            said = _descriptions(fields.of)
            for name, hint in _hints(fields.of).items():
                if name in fields.without or name not in (fields.only or (name,)):
                    continue
                schema = self.of((hint, None) if fields.nullable else hint)
                properties[name] = schema | ({"description": said[name]} if name in said else {})
        required = [name for name in properties if not name.endswith("?")]
        properties = {name.rstrip("?"): schema for name, schema in properties.items()}
        return {"type": "object", "properties": properties, "required": required}


def _choice(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """One of several schemas, as shortly as it can be said."""
    distinct = [each for at, each in enumerate(choices) if each not in choices[:at]]
    if len(distinct) == 1:
        return distinct[0]
    if all(list(each) == ["type"] for each in distinct):
        names = [each["type"] for each in distinct]
        return {"type": [name for at, name in enumerate(_flat(names)) if name not in names[:at]]}
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
    for name, (commands, what, *parts) in ANSWERS.items():
        made = schemas.object(tuple(parts))
        identity = {"const": f"hamiregion/{name}", "description": "What this object is."}
        answers[name.partition("/")[0]] = {
            "title": what,
            "description": f"hamiregion {commands}",
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
