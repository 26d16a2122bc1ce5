"""Every answer of --json is described by the schemas that the package ships."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.answers import SCHEMA, check_answer, definitions

ROOT = Path(__file__).parents[2]
CLI = ROOT / "libhamiregion" / "cli"
MAKER = ROOT / "docs" / "json_schema.py"


def schema() -> Any:
    return json.loads(SCHEMA.read_text(encoding="utf-8"))


def names() -> set[str]:
    """Name and version of every answer that the schemas describe."""
    found = schema()
    chosen = [each["$ref"].rpartition("/")[2] for each in found["oneOf"]]
    return {found["$defs"][name]["properties"]["schema"]["const"] for name in chosen}


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.skipif(not MAKER.exists(), reason="without the tree only the file is here")
def test_the_file_says_what_the_classes_say():
    maker = runpy.run_path(str(MAKER))
    assert SCHEMA.read_text() == maker["text"](), "run make texts"


@pytest.mark.skipif(not CLI.exists(), reason="without the tree there is no source to look into")
def test_what_the_verbs_write_and_what_is_described_are_the_same_names():
    written = re.findall(
        r'"(?:hamiregion/)?([a-z-]+/\d+)"',
        "".join(path.read_text() for path in CLI.glob("*.py")),
    )
    assert {f"hamiregion/{name}" for name in written} == names()


@pytest.mark.skipif(not MAKER.exists(), reason="without the tree there are no pages")
def test_the_documentation_names_every_answer():
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    # An observation is checked by its reader.
    others = {"hamiregion/observation/1"}
    assert set(re.findall(r"`(hamiregion/[a-z-]+/\d+)`", page)) == names() | others


def test_every_key_is_described():
    def keys(place: str, found: Any) -> list[str]:
        if not isinstance(found, dict):
            return []
        bare = [
            f"{place}.{key}"
            for key, each in found.get("properties", {}).items()
            if "description" not in each
        ]
        return bare + [name for key, each in found.items() for name in keys(f"{place}.{key}", each)]

    assert keys("", schema()["$defs"]) == []


NODE = {
    "schema": "hamiregion/demo-node/1",
    "root": "x",
    "pod_logs": "x",
    "urls": [],
    "socket": "x",
}


def test_the_whole_file_tells_the_answers_apart():
    whole = jsonschema.Draft202012Validator(schema())
    whole.validate(NODE)
    # Keys may come within a version, so unknown ones are no fault.
    whole.validate({**NODE, "more": 1})
    for wrong in (
        {"root": "x"},
        {**NODE, "schema": "hamiregion/look/1"},
        {**NODE, "root": 1},
    ):
        assert not whole.is_valid(wrong)


def test_the_tests_refuse_what_is_not_described():
    assert definitions()["DeviceUsage"]["additionalProperties"] is False
    with pytest.raises(jsonschema.ValidationError, match="more"):
        check_answer({**NODE, "more": 1})
