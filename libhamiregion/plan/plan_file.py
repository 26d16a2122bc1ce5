"""The text of a plan, YAML or JSON.

apiVersion: hamiregion.io/v1
kind: LimitPlan
rules:
- select: {namespace: research, pod: "bert-*"}
set: {memory_limit: 6GiB, sm_limit: 50}
"""

from __future__ import annotations

import functools
import json
import os
import re
from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion.bounded_file import read_bounded
from libhamiregion.errors import needs_extra
from libhamiregion.layouts import DEVICE_CAPACITY
from libhamiregion.node.selector import Selector
from libhamiregion.units import MAX_SIZE_BYTES, UNLIMITED, format_size

from .document import MAX_BYTES, PlanError, read_document
from .limit_plan import (
    LIMIT_FIELDS,
    LimitPlan,
    Limits,
    Rule,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.errors import PathLike

    from .document import Document, Path, PlanProblem
    from .limit_plan import LimitField, LimitValue

API_VERSION: Final = "hamiregion.io/v1"
KIND: Final = "LimitPlan"
MAX_RULES: Final = 100_000
# A name in Kubernetes has 253 characters at most; a pattern can spell each as [x].
_MAX_TEXT: Final = 1024
# For a pipe: whoever writes a plan into it may ask others first.
_SILENCE_S: Final = 300.0
_UNSAFE: Final = re.compile("[^\n -~\U00010000-\U0010ffff]")

# ---- reading ------------------------------------------------------------------------------------


def load_plan(path: PathLike) -> LimitPlan:
    """Read a plan from a file.

    Args:
        path: A YAML or JSON file; links are followed, as a ConfigMap's files are links.

    Raises:
        PlanError: The plan cannot be used; the message has a line for each problem.
        OSError: The file cannot be read.
        ModuleNotFoundError: The extra ``plan`` is not installed.

    Shell: ``hamiregion limits diff FILE``.
    """
    return parse_plan(read_plan_file(path), os.fspath(path))


def read_plan_file(path: PathLike, *, wait: bool = True) -> bytes:
    """Read a plan's bytes, at most one more than a plan may have.

    Args:
        path: The file.
        wait: Whether it may be a pipe, such as the shell's <(...), and be waited for.

    Raises:
        OSError: The file cannot be read, or is of another kind.
    """
    return read_bounded(path, MAX_BYTES + 1, silence_s=_SILENCE_S if wait else None, cut=True)


def parse_plan(text: str | bytes, source: str = "plan") -> LimitPlan:
    """Read a plan from a text.

    Args:
        text: YAML or JSON.
        source: Where it is from, for the errors.

    Raises:
        PlanError: The plan cannot be used; the message has a line for each problem.
        ModuleNotFoundError: The extra ``plan`` is not installed.

    >>> plan = parse_plan('''
    ... apiVersion: hamiregion.io/v1
    ... kind: LimitPlan
    ... rules:
    ...   - select: {namespace: research, pod: "bert-*"}
    ...     set: {memory_limit: 6GiB, sm_limit: 50}
    ... ''')
    >>> dict(plan.rules[0].set)
    {'memory_limit': 6442450944, 'sm_limit': 50}
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    document = read_document(raw, source)
    with needs_extra("a plan", "plan"):
        import cattrs

    try:
        found: _PlanText = _converter().structure(document.value, _PlanText)
    except (cattrs.BaseValidationError, ValueError) as error:
        raise PlanError(source, _problems(error, (), document)) from None
    return LimitPlan(found.rules, found.metadata.name, found.metadata.description)


@attrs.frozen
class _Metadata:
    name: str | None = None
    description: str | None = None


@attrs.frozen
class _PlanText:
    """A plan as its text has it."""

    apiVersion: str  # noqa: N815 (the key of the format)
    kind: str
    rules: tuple[Rule, ...]
    metadata: _Metadata = attrs.field(factory=_Metadata)


@functools.cache
def _converter() -> Any:
    import cattrs
    from cattrs.gen import make_dict_structure_fn, override

    converter: Any = cattrs.Converter(forbid_extra_keys=True)

    def mapping(cls: type, **readers: Callable[[Any], Any]) -> None:
        """Have a class structured from a mapping, and some of its fields by these functions."""
        hooks: Any = {name: override(struct_hook=_hook(reader)) for name, reader in readers.items()}
        build: Any = make_dict_structure_fn(cls, converter, **hooks)

        def structure(value: Any, wanted: Any) -> Any:
            if not isinstance(value, dict):
                raise ValueError(f"a mapping belongs here, not {_kind(value)}")
            return build(value, wanted)

        converter.register_structure_hook(cls, structure)

    def rules(value: Any) -> Any:
        if not isinstance(value, list) or len(value) > MAX_RULES:
            raise ValueError(f"a list of at most {MAX_RULES} rules belongs here, each with a `-`")
        return converter.structure(value, tuple[Rule, ...])

    def limits(value: Any) -> Any:
        if value == {}:
            raise ValueError(f"nothing is set; give {', '.join(LIMIT_FIELDS)}")
        return converter.structure(value, Limits)

    patterns = {field.name: _pattern for field in attrs.fields(Selector)}
    # Empty: of no pod.
    mapping(Selector, **{**patterns, "pod_uid": _text, "device": _device})
    converters: Any = {field.name: field.converter for field in attrs.fields(Limits)}
    mapping(Limits, **converters)
    mapping(_Metadata, name=_text, description=_text)
    mapping(Rule, set=limits, name=_text)
    mapping(_PlanText, apiVersion=_exactly(API_VERSION), kind=_exactly(KIND), rules=rules)
    return converter


def _hook(reader: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, _: reader(value)


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else "null" if value is None else f"`{value}`"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"one text belongs here, not {_kind(value)}")
    if len(value) > _MAX_TEXT:
        raise ValueError(f"text of at most {_MAX_TEXT} characters belongs here")
    return value


def _pattern(value: Any) -> str:
    if value == "":
        raise ValueError('an empty pattern matches nothing; leave it out, or write "*"')
    return _text(value)


def _device(value: Any) -> str:
    device = _pattern(value)
    if device.isdigit() and not (device.isascii() and int(device) < DEVICE_CAPACITY):
        raise ValueError("a device is an index from 0 to 15, or a pattern of its uuid")
    return device


def _exactly(wanted: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value != wanted:
            raise ValueError(f"this version reads `{wanted}`, not {_kind(value)}")
        return wanted

    return check


# What to write where a key is missing.
_MISSING: Final[dict[int | str, str]] = {
    "apiVersion": f"; write `apiVersion: {API_VERSION}`",
    "kind": f"; write `kind: {KIND}`",
    "select": "; write `select: {}` for all containers",
    "set": f"; give {', '.join(LIMIT_FIELDS)}",
}


def _problems(error: BaseException, path: Path, document: Document) -> Iterator[PlanProblem]:
    """What cattrs has found, each with its place."""
    import cattrs

    if isinstance(error, (cattrs.ClassValidationError, cattrs.IterableValidationError)):
        groups: Any = error.group_exceptions()
        within, alone = groups
        for each, note in within:
            in_list = isinstance(note, cattrs.IterableValidationNote)
            inner = note.index if in_list else note.name
            yield from _problems(each, (*path, inner), document)
        for each in alone:
            yield from _problems(each, path, document)
    elif isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = ", ".join(field.name for field in attrs.fields(error.cl))
        for key in sorted(error.extra_fields):
            yield document.problem((*path, key), f"unknown; known are {known}", of_key=True)
    elif isinstance(error, KeyError):
        yield document.problem(path, f"missing{_MISSING.get(path[-1], '')}")
    else:
        yield document.problem(path, str(error))


# ---- writing ------------------------------------------------------------------------------------


def plan_document(plan: LimitPlan) -> dict[str, Any]:
    """A plan as the dictionaries and lists that its text stands for."""
    metadata = _without_none({"name": plan.name, "description": plan.description})
    rules = [
        {
            **_without_none({"name": rule.name}),
            "select": _without_none(attrs.asdict(rule.select)),
            "set": _limits(rule.set),
            **({"only_if": expected} if (expected := _limits(rule.only_if)) else {}),
        }
        for rule in plan.rules
    ]
    about = {"metadata": metadata} if metadata else {}
    return {"apiVersion": API_VERSION, "kind": KIND, **about, "rules": rules}


def _limits(limits: Limits) -> dict[str, int | str]:
    return {field: _written(field, value) for field, value in limits}


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _written(field: LimitField, value: LimitValue) -> int | str:
    if value is None:
        return UNLIMITED
    # A larger one, as only a damaged region holds, is no size with a unit, but a number.
    if field == "memory_limit" and isinstance(value, int) and value <= MAX_SIZE_BYTES:
        text = format_size(value)
        # With a fraction it is near the number only; without a unit it is no shorter.
        if "." not in text and not text.endswith(" B"):
            return text.replace(" ", "")
    return value


def plan_text(plan: LimitPlan, *, as_json: bool = False) -> str:
    """A plan as a text that `parse_plan` reads back.

    Args:
        plan: The plan.
        as_json: JSON instead of YAML, which needs the extra ``plan``.

    Raises:
        ModuleNotFoundError: The extra ``plan`` is not installed.
    """
    document = plan_document(plan)
    if as_json:
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        # YAML takes no control characters as they are, and no pair of escapes for one character.
        return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    with needs_extra("a plan", "plan"):
        import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump(document, Dumper=dumper, sort_keys=False, width=100)
    return str(text)
