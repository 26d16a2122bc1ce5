"""What --json answers, held against the schemas that the package ships."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema

import libhamiregion

_ROWS = 10
SCHEMA = Path(libhamiregion.__file__).parent / "cli" / "answers.schema.json"


def strict(schema: Any) -> Any:
    """A schema that refuses keys which it does not describe."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if isinstance(schema.get("required"), list) else {}
    return {key: strict(each) for key, each in schema.items()} | closed


@functools.cache
def definitions() -> dict[str, Any]:
    return strict(json.loads(SCHEMA.read_text(encoding="utf-8")))["$defs"]  # type: ignore[no-any-return]


@functools.cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = {"$ref": f"#/$defs/{name}", "$defs": definitions()}
    return jsonschema.Draft202012Validator(schema)


def check_answer(answer: dict[str, Any]) -> None:
    """Raise unless an answer has the keys and types of the schema that it names."""
    owner, name, version = answer["schema"].split("/")
    assert (owner, version.isdigit()) == ("hamiregion", True), answer["schema"]
    validator(name).validate(shortened(answer))


def shortened(answer: Any) -> Any:
    """An answer without the middle of long lists, whose rows are alike; validating takes long."""
    if isinstance(answer, dict):
        return {key: shortened(each) for key, each in answer.items()}
    if isinstance(answer, list):
        return [shortened(each) for each in answer[:_ROWS] + answer[_ROWS:][-_ROWS:]]
    return answer
