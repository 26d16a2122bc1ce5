"""What a plan may look like: a JSON schema, and its complaints as sentences with a place."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

from libhamiregion.text import printable

if TYPE_CHECKING:
    from .document import Document, Path, Place, Problems

API_VERSION: Final = "hamiregion.io/v1"
KIND: Final = "LimitPlan"
MAX_RULES: Final = 20_000
# Names in Kubernetes have 253 characters at most; a pattern can spell each as [x].
_MAX_PATTERN: Final = 1024
_MAX_TEXT: Final = 1024
_SHOWN: Final = 60


def _pattern(description: str) -> dict[str, Any]:
    return {
        "type": "string",
        "minLength": 1,
        "maxLength": _MAX_PATTERN,
        "description": description,
    }


#: The JSON schema of a plan (draft 2020-12), for editors and for other tools.
PLAN_SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": KIND,
    "description": "Limits of GPU containers, by rule.",
    "type": "object",
    "required": ["apiVersion", "kind", "rules"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": API_VERSION},
        "kind": {"const": KIND},
        "metadata": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "name": {"type": "string", "maxLength": _MAX_TEXT},
                "description": {"type": "string", "maxLength": _MAX_TEXT},
            },
        },
        "rules": {
            "type": "array",
            "maxItems": MAX_RULES,
            "description": "In order; where several set one value, the last of them counts.",
            "items": {
                "type": "object",
                "required": ["select", "set"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string", "maxLength": _MAX_TEXT},
                    "select": {
                        "type": "object",
                        "additionalProperties": False,
                        "description": "Shell patterns, all of which must match; {} is everything.",
                        "properties": {
                            "pod_uid": _pattern("UID of the pod."),
                            "namespace": _pattern("Namespace of the pod."),
                            "pod": _pattern("Name or UID of the pod."),
                            "container": _pattern("Name or id of the container."),
                            "device": {
                                "type": ["integer", "string"],
                                "minimum": 0,
                                "maximum": 15,
                                "minLength": 1,
                                "maxLength": _MAX_PATTERN,
                                "description": "Index from 0 to 15, or a pattern of the uuid.",
                            },
                        },
                    },
                    "set": {
                        "type": "object",
                        "minProperties": 1,
                        "additionalProperties": False,
                        "properties": {
                            "memory_limit": {
                                "type": ["integer", "string"],
                                "minimum": 1,
                                "description": 'Bytes, "6GiB", "3000m", or "unlimited".',
                            },
                            "sm_limit": {
                                "type": ["integer", "string"],
                                "minimum": 1,
                                "maximum": 100,
                                "description": 'Percent, "50%", or "unlimited".',
                            },
                            "priority": {
                                "type": "integer",
                                "minimum": 0,
                                "maximum": 2**31 - 1,
                                "description": "Of the whole container: 0 is high, 1 is low.",
                            },
                        },
                    },
                },
            },
        },
    },
}

_KINDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
}


def check(document: Document, problems: Problems) -> None:
    """Note what the schema finds wrong.

    Raises:
        ModuleNotFoundError: The extra ``plan`` is not installed.
    """
    import jsonschema

    validator = jsonschema.Draft202012Validator(PLAN_SCHEMA)
    found = [(tuple(error.absolute_path), error) for error in validator.iter_errors(document.value)]
    # What is no number at all is not out of range as well.
    mistyped = {path for path, error in found if error.validator == "type"}
    for path, error in found:
        if path in mistyped and error.validator != "type":
            continue
        for place, where, message in _sentences(error, path, document):
            problems.add(place, where, message)


def _sentences(error: Any, path: Path, document: Document) -> list[tuple[Place | None, Path, str]]:
    place = document.places.get(path)
    rule: str = error.validator
    wanted: Any = error.validator_value
    if rule == "additionalProperties":
        known = list(error.schema["properties"])
        return [
            (document.key_places.get((*path, key)), (*path, key), _unknown(key, known))
            for key in error.instance
            if key not in known
        ]
    if rule == "required":
        missing = next(key for key in wanted if f"'{key}' is" in error.message)
        return [(place, path, f"`{missing}` is missing{_hint(missing)}")]
    return [(place, path, _sentence(rule, wanted, error.instance, path, document))]


def _sentence(rule: str, wanted: Any, found: Any, path: Path, document: Document) -> str:
    shown = _show(found, path, document)
    if rule == "const":
        return f"{shown} is not known; this version reads `{wanted}`"
    if rule == "type":
        return _wrong_type(wanted, found, path, document)
    if rule == "minLength":
        return 'an empty pattern matches nothing; leave it out, or write "*"'
    if rule == "maxLength":
        return f"longer than {wanted} characters"
    if rule == "maxItems":
        return f"more than {wanted} rules"
    if rule == "minProperties":
        return "says nothing: give memory_limit, sm_limit or priority"
    if path[-1] == "memory_limit" and found == 0:
        return "0 is how a region spells no limit; write `unlimited`"
    bound = "least" if rule == "minimum" else "most"
    return f"{shown} is out of range: {wanted} at {bound}{_hint(str(path[-1]))}"


def _wrong_type(wanted: Any, found: Any, path: Path, document: Document) -> str:
    kinds = [wanted] if isinstance(wanted, str) else list(wanted)
    named = " or ".join(_KINDS[kind] for kind in kinds)
    if found is None:
        return f"nothing stands here; {named} is wanted"
    if "string" in kinds and isinstance(found, (bool, int, float)):
        raw = printable(document.raw.get(path, str(found)), _SHOWN)
        what = "a boolean" if isinstance(found, bool) else "a number"
        if path[-1] in {"memory_limit", "sm_limit"}:
            return f"{raw} is no limit{_hint(str(path[-1]))}"
        return f'YAML reads {raw} as {what}, and {named} is wanted: write "{raw}" in quotes'
    return f"{_show(found, path, document)} stands here; {named} is wanted"


def _show(found: Any, path: Path, document: Document) -> str:
    if isinstance(found, dict):
        return "a mapping"
    if isinstance(found, list):
        return "a list"
    return f"`{printable(document.raw.get(path, str(found)), _SHOWN)}`"


def _hint(key: str) -> str:
    hints = {
        "apiVersion": f": `apiVersion: {API_VERSION}`",
        "kind": f": `kind: {KIND}`",
        "rules": ": a list of rules, each with `select` and `set`",
        "select": "; `select: {}` is every container",
        "set": ": memory_limit, sm_limit or priority",
        "memory_limit": '; write bytes, a size such as "6GiB" or "3000m", or unlimited',
        "sm_limit": '; write 1 to 100, "50%", or unlimited',
    }
    return hints.get(key, "")


def _unknown(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key[:_SHOWN].lower(), known, n=1, cutoff=0.6)
    if close:
        return f"unknown; did you mean `{close[0]}`?"
    return f"unknown; possible are {', '.join(known)}"
