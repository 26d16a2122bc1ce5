"""A plan as a text: what it says, and what is wrong with it, to the column."""

import json
import pickle
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_scene import GIB, HEAD, plan, plan_yaml

from libhamiregion.node import Selector
from libhamiregion.plan import (
    PLAN_SCHEMA,
    LimitField,
    LimitPlan,
    Place,
    PlanError,
    PlanProblem,
    Rule,
    Setting,
    load_plan,
    parse_plan,
    plan_text,
)
from libhamiregion.plan.document import MAX_BYTES, MAX_DEPTH, MAX_VALUES
from libhamiregion.plan.limit_plan import parse_value, plan_document, plan_value

MEMORY, SM, PRIORITY = LimitField.MEMORY_LIMIT, LimitField.SM_LIMIT, LimitField.PRIORITY


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(PlanError) as caught:
        parse_plan(text, "p")
    return str(caught.value).splitlines()


# ---- what a plan says -----------------------------------------------------------------


def test_a_plan_says_what_its_rules_select_and_set(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        "apiVersion: hamiregion.io/v1\n"
        "kind: LimitPlan\n"
        "metadata: {name: night, description: who works late}\n"
        "rules:\n"
        "  - name: trainers\n"
        '    select: {pod_uid: "0b5c*", namespace: research, pod: "bert-*", container: train,\n'
        "             device: 0}\n"
        "    set: {memory_limit: 6GiB, sm_limit: 50}\n"
        "  - select: {}\n"
        "    set: {priority: 0}\n"
    )
    assert load_plan(path) == LimitPlan(
        (
            Rule(
                Selector("0b5c*", "research", "bert-*", "train", "0"),
                (Setting(MEMORY, 6 * GIB), Setting(SM, 50)),
                "trainers",
            ),
            Rule(Selector(), (Setting(PRIORITY, 0),)),
        ),
        "night",
        "who works late",
    )
    assert [rule.line for rule in load_plan(path).rules] == [5, 9]


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        (MEMORY, "6GiB", 6 * GIB),
        (MEMORY, '"3000m"', 3000 << 20),
        (MEMORY, "12345", 12345),
        (MEMORY, '"12345"', 12345),
        (MEMORY, "1.5g", 3 * GIB // 2),
        (MEMORY, "unlimited", None),
        (MEMORY, "Unlimited", None),
        (SM, "1", 1),
        (SM, "50%", 50),
        (SM, '"50"', 50),
        (SM, "100", None),
        (SM, '"100 %"', None),
        (SM, "unlimited", None),
        (PRIORITY, "0", 0),
        (PRIORITY, "7", 7),
    ],
)
def test_a_value_can_be_written_in_several_ways(
    field: LimitField, text: str, value: int | None
) -> None:
    (rule,) = plan(f"{{select: {{}}, set: {{{field}: {text}}}}}").rules
    assert rule.settings == (Setting(field, value),)


def test_json_is_read_as_well_even_indented_by_tabs() -> None:
    document = plan_document(plan('{select: {pod: "a*", device: 1}, set: {memory_limit: 1}}'))
    for indent in (None, 2, "\t"):
        assert plan_document(parse_plan(json.dumps(document, indent=indent))) == document
    assert plan_document(parse_plan("\ufeff" + json.dumps(document))) == document


def test_anchors_save_writing_a_thing_twice() -> None:
    found = parse_plan(
        HEAD + "  - {select: {pod: a}, set: &s {memory_limit: 1GiB}}\n"
        "  - {select: {pod: b}, set: *s}\n"
    )
    assert found.rules[0].settings == found.rules[1].settings


def test_a_plan_without_rules_is_a_plan() -> None:
    assert parse_plan(HEAD + "  []") == LimitPlan()


VALUES = st.one_of(
    st.tuples(st.just(MEMORY), st.none() | st.integers(1, 2**63 - 1)),
    st.tuples(st.just(SM), st.none() | st.integers(1, 99)),
)
NAMES = st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@given(
    st.lists(
        st.builds(
            Rule,
            st.builds(
                Selector,
                NAMES,
                NAMES,
                NAMES,
                NAMES,
                st.none() | st.integers(0, 15).map(str) | st.just("GPU-*"),
            ),
            st.lists(VALUES, min_size=1, unique_by=lambda value: value[0]).map(
                lambda values: tuple(Setting(*value) for value in values)
            ),
            NAMES,
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_a_plan_that_is_written_is_read_back_as_it_was(rules: list[Rule], as_json: bool) -> None:
    written = LimitPlan(tuple(rules), "a plan")
    assert parse_plan(plan_text(written, as_json=as_json)) == written


@given(st.integers(1, 2**63 - 1))
def test_a_memory_limit_is_written_to_the_byte(nbytes: int) -> None:
    assert parse_value(MEMORY, plan_value(MEMORY, nbytes)) == nbytes


def test_the_schema_is_a_schema_and_takes_what_is_written() -> None:
    jsonschema.Draft202012Validator.check_schema(PLAN_SCHEMA)
    written = plan("{select: {device: 3}, set: {memory_limit: unlimited, sm_limit: 5}}")
    jsonschema.validate(plan_document(written), PLAN_SCHEMA)


ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```yaml\n(apiVersion: hamiregion.*?)^```$",
    (ROOT / "docs" / "limits-by-plan.md").read_text(),
    re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "plans").iterdir()), ids=str)
def test_the_examples_are_plans(path: Path) -> None:
    assert load_plan(path).name == path.stem


def test_the_plan_in_the_documentation_is_a_plan() -> None:
    (block,) = BLOCKS
    assert len(parse_plan(block).rules) == 2


# ---- what is wrong with it ------------------------------------------------------------

RULE = HEAD + "  - select: {}\n    set: "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", ["p: the plan is empty"]),
        ("# nothing\n", ["p: the plan is empty"]),
        ("rules", ["p:1:1: `rules` stands here; a mapping is wanted"]),
        (
            "{}",
            [
                "p:1:1: `apiVersion` is missing: `apiVersion: hamiregion.io/v1`",
                "p:1:1: `kind` is missing: `kind: LimitPlan`",
                "p:1:1: `rules` is missing: a list of rules, each with `select` and `set`",
            ],
        ),
        (
            "apiVersion: v1\nkind: Pod\nrules: []",
            [
                "p:1:13: apiVersion: `v1` is not known; this version reads `hamiregion.io/v1`",
                "p:2:7: kind: `Pod` is not known; this version reads `LimitPlan`",
            ],
        ),
        (HEAD + "  a: 1", ["p:4:3: rules: a mapping stands here; a list is wanted"]),
        (HEAD, ["p:3:7: rules: nothing stands here; a list is wanted"]),
        (
            HEAD + "  - {select: {}}",
            ["p:4:5: rules[0]: `set` is missing: memory_limit, sm_limit or priority"],
        ),
        (
            HEAD + "  - {set: {sm_limit: 1}}",
            ["p:4:5: rules[0]: `select` is missing; `select: {}` is every container"],
        ),
        (
            HEAD + "  - select: {}\n    set: {memory_limt: 1}",
            ["p:5:11: rules[0].set.memory_limt: unknown; did you mean `memory_limit`?"],
        ),
        (
            HEAD + "  - select: {zone: x}\n    set: {sm_limit: 1}",
            [
                (
                    "p:4:14: rules[0].select.zone: unknown; possible are pod_uid, namespace, pod, "
                    "container, device"
                )
            ],
        ),
        (
            HEAD + "  - select: {namespace: no, pod: 12}\n    set: {sm_limit: 1}",
            [
                (
                    "p:4:25: rules[0].select.namespace: YAML reads no as a boolean, and text is "
                    'wanted: write "no" in quotes'
                ),
                (
                    "p:4:34: rules[0].select.pod: YAML reads 12 as a number, and text is wanted: "
                    'write "12" in quotes'
                ),
            ],
        ),
        (
            HEAD + '  - select: {pod: ""}\n    set: {sm_limit: 1}',
            [
                (
                    "p:4:19: rules[0].select.pod: an empty pattern matches nothing; leave it "
                    "out, or "
                    'write "*"'
                )
            ],
        ),
        (
            HEAD + "  - select: {device: 16}\n    set: {sm_limit: 1}",
            ["p:4:22: rules[0].select.device: `16` is out of range: 15 at most"],
        ),
        (
            HEAD + '  - select: {device: "16"}\n    set: {sm_limit: 1}',
            [
                (
                    "p:4:22: rules[0].select.device: a device is an index from 0 to 15, or a "
                    "pattern of its uuid"
                )
            ],
        ),
        (
            HEAD + "  - select: {device: 0}\n    set: {sm_limit: 1, priority: 0}",
            [
                (
                    "p:5:24: rules[0].set.priority: a priority is of the whole container; set "
                    "it in a rule without `device`"
                )
            ],
        ),
        (
            RULE + "{}",
            ["p:5:10: rules[0].set: says nothing: give memory_limit, sm_limit or priority"],
        ),
        (
            RULE + "{memory_limit: 6GB}",
            [
                (
                    'p:5:25: rules[0].set.memory_limit: "6GB" may mean powers of 1000 or of '
                    '1024: write "GiB" or "G" for 2**30 bytes'
                )
            ],
        ),
        (
            RULE + "{memory_limit: 0}",
            [
                (
                    "p:5:25: rules[0].set.memory_limit: 0 is how a region spells no limit; write "
                    "`unlimited`"
                )
            ],
        ),
        (
            RULE + "{memory_limit: 0k}",
            [
                (
                    "p:5:25: rules[0].set.memory_limit: 0 is how a region spells no limit; write "
                    "`unlimited`"
                )
            ],
        ),
        (
            RULE + "{memory_limit: -1}",
            [
                (
                    "p:5:25: rules[0].set.memory_limit: `-1` is out of range: 1 at least; write "
                    "bytes, "
                    'a size such as "6GiB" or "3000m", or unlimited'
                )
            ],
        ),
        (
            RULE + "{memory_limit: [1]}",
            [
                (
                    "p:5:25: rules[0].set.memory_limit: a list stands here; a whole number or "
                    "text is wanted"
                )
            ],
        ),
        (
            RULE + "{memory_limit: 9223372036854775808}",
            [
                (
                    "p:5:25: rules[0].set.memory_limit: 9223372036854775808 is too large for a "
                    "size: the most is 2**63 - 1 bytes"
                )
            ],
        ),
        (
            RULE + "{sm_limit: 0.5}",
            ['p:5:21: rules[0].set.sm_limit: 0.5 is no limit; write 1 to 100, "50%", or unlimited'],
        ),
        (
            RULE + "{sm_limit: 50.0}",
            ["p:5:21: rules[0].set.sm_limit: a whole number is wanted"],
        ),
        (
            RULE + "{sm_limit: 101}",
            [
                (
                    "p:5:21: rules[0].set.sm_limit: `101` is out of range: 100 at most; write 1 to "
                    '100, "50%", or unlimited'
                )
            ],
        ),
        (
            RULE + "{sm_limit: half}",
            ["p:5:21: rules[0].set.sm_limit: an SM limit is 1 to 100 (percent), or `unlimited`"],
        ),
        (
            RULE + "{sm_limit: yes}",
            ['p:5:21: rules[0].set.sm_limit: yes is no limit; write 1 to 100, "50%", or unlimited'],
        ),
        (
            RULE + "{priority: high}",
            ["p:5:21: rules[0].set.priority: `high` stands here; a whole number is wanted"],
        ),
        (
            RULE + "{sm_limit: 010}",
            [
                (
                    "p:5:21: rules[0].set.sm_limit: 010 is not how a number is written here: "
                    "write it in plain decimal"
                )
            ],
        ),
        (
            RULE + "{sm_limit: 1:30}",
            [
                (
                    "p:5:21: rules[0].set.sm_limit: 1:30 is not how a number is written here: "
                    "write it in plain decimal"
                )
            ],
        ),
        (
            RULE + "{sm_limit: 1, sm_limit: 2}",
            ["p:5:24: rules[0].set.sm_limit: given a second time; the first is in line 5"],
        ),
        (
            RULE + "{sm_limit: 1}\n---\nmore: 1",
            ["p:6:1: a second document; a file holds one plan"],
        ),
        (
            RULE + "{sm_limit: !!python/object:os.system 1}",
            [
                (
                    "p:5:21: rules[0].set.sm_limit: the tag "
                    "tag:yaml.org,2002:python/object:os.system is not known here"
                )
            ],
        ),
        (RULE + "{? [a] : 1}", ["p:5:13: rules[0].set: a key is a plain word"]),
        (RULE + "{<<: *x}", ["p:5:15: rules[0].set.<<: there is no anchor &x before this alias"]),
        (RULE + "&a {sm_limit: *a}", ["p:5:24: rules[0].set.sm_limit: &a contains itself"]),
        (b"a: \xc3\xa4\xff\n", ["p:1:5: not UTF-8; save the plan as UTF-8"]),
        (b"a: 1\n" + b"#" * MAX_BYTES, ["p: more than 4 MiB; a plan is a small text"]),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_what_to_write(
    text: str | bytes, said: list[str]
) -> None:
    assert problems(text) == said


@pytest.mark.parametrize(
    "text",
    [
        "a: [1\nb: 2",
        "\ta: 1",
        '{"a": [1,\t2}',
        "- a\nb: c",
        "a: 'b",
        "a: \x00",
        "%YAML 9.9\n---\na",
    ],
)
def test_what_is_no_yaml_has_a_place_too(text: str) -> None:
    (said,) = problems(text)
    assert re.match(r"p:([0-9]+:[0-9]+:)? no YAML and no JSON: ", said), said


def test_what_the_schema_finds_hides_no_wrong_value_and_each_is_told_once() -> None:
    rules = ("1", "{set: {sm_limit: half}}", "{select: {device: '99'}, set: {sm_limit: 0, x: 1}}")
    said = problems(plan_yaml(*rules, "{select: [], set: {memory_limit: 6GB, priority: -1}}"))
    assert [each.split(": ")[1] for each in said] == [
        "rules[0]",
        "rules[1]",
        "rules[1].set.sm_limit",
        "rules[2].select.device",
        "rules[2].set.sm_limit",
        "rules[2].set.x",
        "rules[3].select",
        "rules[3].set.memory_limit",
        "rules[3].set.priority",
    ]


def test_all_problems_are_told_at_once_up_to_twenty() -> None:
    said = problems(plan_yaml(*["{select: {}, set: {sm_limit: 0}}"] * 50))
    assert len(said) == 20
    assert said[0].startswith("p:4:34: rules[0].set.sm_limit: ")
    assert said[-1] == "p: and 31 more problems"


def test_a_problem_can_be_asked_for_its_parts_and_an_error_can_be_sent() -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(RULE + "{sm_limit: 0}", "night.yaml")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.source, len(error.problems)) == ("night.yaml", 1)
    (problem,) = error.problems
    assert isinstance(problem, PlanProblem)
    assert problem.place == Place(5, 21)
    assert problem.path == "rules[0].set.sm_limit"
    assert str(problem) in str(error)


# ---- texts that mean harm -------------------------------------------------------------


def test_a_bomb_of_aliases_ends_at_a_bound() -> None:
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for new, old in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]")
    (said,) = problems("\n".join(lines))
    assert f"more than {MAX_VALUES} values, aliases counted" in said


def test_depth_is_bounded() -> None:
    (said,) = problems("[" * 100_000)
    assert f"nested deeper than {MAX_DEPTH} levels" in said


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error_of_printable_lines(raw: bytes) -> None:
    # None of a few bytes has all that a plan needs.
    with pytest.raises(PlanError) as caught:
        parse_plan(raw)
    assert all(line.isprintable() for line in str(caught.value).split("\n"))


@given(st.text(st.sampled_from("&*!{}[]:-\"' \n\t#?|>%@`ab01<="), max_size=60))
def test_any_odd_yaml_is_an_error(text: str) -> None:
    with pytest.raises(PlanError):
        parse_plan(text)


def test_what_a_plan_quotes_cannot_steer_a_terminal() -> None:
    for text in (
        RULE + '{"\\e[2J": 1}',
        RULE + '{sm_limit: "\\e[2J"}',
        RULE + "{memory_limit: !<\x85> 1}",
        HEAD + '  - {select: {device: "\\u0661\\u0662"}, set: {"\\u202e": 1}}',
    ):
        for line in problems(text):
            assert line.isprintable(), line
    with pytest.raises(PlanError) as caught:
        parse_plan("", "plan\x1b[2J")
    assert str(caught.value) == r"plan\x1b[2J: the plan is empty"


def test_a_plan_is_a_file_and_is_read_as_one(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="regular file"):
        load_plan(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_plan(tmp_path / "none.yaml")
    with pytest.raises(PlanError, match="more than 4 MiB"):
        load_plan("/dev/zero")
