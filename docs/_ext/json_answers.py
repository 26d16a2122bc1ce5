"""The directive ``json-answers``: the keys of every answer, from the schemas in the package."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " or ".join(map(json.dumps, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    named = schema.get("type", "anything")
    if named == "array":
        return f"list of {_type(schema['items'])}"
    if named == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return named if isinstance(named, str) else " or ".join(named)


def _text(text: str) -> list[nodes.Node]:
    parts = re.split(r"`([^`]*)`", text)
    return [
        nodes.literal(text=each) if at % 2 else nodes.Text(each) for at, each in enumerate(parts)
    ]


def _inner(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The object that a value is, or is a list of, where it is written out on the spot."""
    for each in (schema, schema.get("items", {}), *schema.get("anyOf", ())):
        if "properties" in each:
            return each  # type: ignore[no-any-return]
        if "properties" in each.get("items", {}):
            return each["items"]  # type: ignore[no-any-return]
    return None


def _keys(schema: dict[str, Any]) -> nodes.definition_list:
    listed = nodes.definition_list()
    for name, value in schema["properties"].items():
        term = nodes.term("", "", nodes.literal(text=name), nodes.Text(f" {_type(value)}"))
        said = nodes.paragraph("", "", *_text(value["description"]))
        inner = _inner(value)
        what = nodes.definition("", said, *([] if inner is None else [_keys(inner)]))
        listed += nodes.definition_list_item("", term, what)
    return listed


class JsonAnswers(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        text = (files("libhamiregion.cli") / "answers.schema.json").read_text()
        sections: list[nodes.Node] = []
        for name, schema in json.loads(text)["$defs"].items():
            section = nodes.section(ids=[nodes.make_id(f"json-{name}")])
            self.state.document.note_explicit_target(section)
            section += nodes.title(text=name)
            if "title" in schema:
                section += nodes.paragraph("", "", nodes.literal(text=schema["description"]))
                section += nodes.paragraph(text=schema["title"])
            section += _keys(schema)
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("json-answers", JsonAnswers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
