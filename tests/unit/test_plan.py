"""A plan as a text: what it says, and what is wrong with it, to the column."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from plan_scene import GIB, HEAD, plan, plan_yaml

from libhamiregion.node import Selector
from libhamiregion.plan import (
    LimitPlan,
    Limits,
    PlanError,
    Rule,
    load_plan,
    parse_plan,
    plan_text,
)
from libhamiregion.plan.document import MAX_BYTES, MAX_DEPTH
from libhamiregion.plan.plan_file import plan_document

ROOT = Path(__file__).parents[2]
RULE = HEAD + "  - select: {}\n    set: "


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
        "metadata: {name: night, description: limits after six}\n"
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
                Limits(6 * GIB, 50),
                "trainers",
            ),
            Rule(Selector(), Limits(priority=0)),
        ),
        "night",
        "limits after six",
    )
    assert parse_plan(HEAD + "  []") == LimitPlan()


def test_the_values_of_a_plan_are_those_of_the_library() -> None:
    """In YAML, in JSON and in Python: bytes, sizes, percentages, unlimited and null."""
    for field, text, value in (
        ("memory_limit", "6GiB", 6 * GIB),
        ("memory_limit", '"3000m"', 3000 << 20),
        ("memory_limit", "12345", 12345),
        ("memory_limit", '"12345"', 12345),
        ("memory_limit", "1.5g", 3 * GIB // 2),
        ("memory_limit", str(2**64 - 1), 2**64 - 1),
        ("memory_limit", "80%", "80%"),
        ("memory_limit", '"80 %"', "80%"),
        ("memory_limit", "Unlimited", None),
        ("memory_limit", "null", None),
        ("sm_limit", "1", 1),
        ("sm_limit", "50%", 50),
        ("sm_limit", '"50"', 50),
        ("sm_limit", "100", None),
        ("sm_limit", '"100 %"', None),
        ("sm_limit", "unlimited", None),
        ("sm_limit", "~", None),
        ("priority", "0", 0),
        ("priority", "7", 7),
    ):
        (rule,) = plan(f"{{select: {{}}, set: {{{field}: {text}}}}}").rules
        assert dict(rule.set) == {field: value}, text
        given: Any = {field: value}
        assert rule.set == Limits(**given)


def test_what_is_no_value_is_refused_in_python_too() -> None:
    bad: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"memory_limit": "6GB"}, ValueError),
        ({"memory_limit": 0}, ValueError),
        ({"memory_limit": 1.5}, TypeError),
        ({"memory_limit": True}, TypeError),
        ({"sm_limit": 0}, ValueError),
        ({"sm_limit": 50.0}, TypeError),
        ({"priority": -1}, ValueError),
        ({"priority": None}, ValueError),
    ]
    for limits, error in bad:
        with pytest.raises(error):
            Limits(**limits)
    with pytest.raises(ValueError, match="of the whole container"):
        Rule(Selector(device="0"), Limits(priority=0))


def test_a_rule_can_be_for_what_stands_there_only() -> None:
    text = "{select: {}, set: {sm_limit: 50}, only_if: {memory_limit: 6GiB, sm_limit: unlimited}}"
    written = plan_text(plan(text))
    assert "only_if" in written
    (rule,) = parse_plan(written).rules
    assert rule.only_if == Limits(memory_limit=6 * GIB, sm_limit=None)
    assert "only_if" not in plan_text(plan("{select: {}, set: {sm_limit: 50}}"))
    with pytest.raises(PlanError, match="has limits as they stand there, and no percentage"):
        plan("{select: {}, set: {sm_limit: 50}, only_if: {memory_limit: 80%}}")


def test_a_name_is_the_text_that_stands_there() -> None:
    """YAML 1.1 would make booleans and numbers of these."""
    for text in ("no", "12", "1:30", "010", "2026-01-01", "0x10", "1e3"):
        (rule,) = plan(f"{{select: {{namespace: {text}}}, set: {{sm_limit: 1}}}}").rules
        assert rule.select.namespace == text


def test_json_is_read_as_well_even_indented_by_tabs() -> None:
    document = plan_document(plan('{select: {pod: "a*", device: 1}, set: {memory_limit: 1}}'))
    for indent in (None, 2, "\t"):
        assert plan_document(parse_plan(json.dumps(document, indent=indent))) == document
    assert plan_document(parse_plan("\ufeff" + json.dumps(document))) == document


NAMES = st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
LIMITS = st.builds(
    Limits,
    memory_limit=st.none() | st.integers(1, 2**64 - 1) | st.integers(1, 999).map("{}%".format),
    sm_limit=st.none() | st.integers(1, 99),
)
DEVICES = st.none() | st.integers(0, 15).map(str) | st.just("GPU-*")


@pytest.mark.slow
@given(
    st.lists(
        st.builds(
            Rule, st.builds(Selector, NAMES, NAMES, NAMES, NAMES, DEVICES), LIMITS, name=NAMES
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_a_plan_that_is_written_is_read_back_as_it_was(rules: list[Rule], as_json: bool) -> None:
    written = LimitPlan(tuple(rules), "a plan")
    assert parse_plan(plan_text(written, as_json=as_json)) == written


def test_the_examples_and_the_plan_in_the_documentation_are_plans() -> None:
    for path in (ROOT / "examples" / "plans").iterdir():
        assert load_plan(path).name == path.stem
    text = (ROOT / "docs" / "limits-by-plan.md").read_text()
    blocks = re.findall(r"^```yaml\n(apiVersion: .*?)^```$", text, re.DOTALL | re.MULTILINE)
    (block,) = blocks
    assert len(parse_plan(block).rules) == 2


# ---- what is wrong with it ------------------------------------------------------------

UNKNOWN = "unknown; known are"
DEVICE = "a device is an index from 0 to 15, or a pattern of its uuid"
TAG = "the tag tag:yaml.org,2002:python/object:os.system"
UNIT = '"6GB" may mean powers of 1000 or of 1024: write "GiB" or "G" for 2**30 bytes'
WRONG: list[tuple[str | bytes, str]] = [
    ("", "p: the plan is empty"),
    ("# nothing\n", "p: the plan is empty"),
    ("rules", "p:1:1: a mapping belongs here, not `rules`"),
    (HEAD, "p:3:1: rules: nothing stands here; give a value or no key"),
    (
        HEAD + "  a: 1",
        "p:4:3: rules: a list of at most 100000 rules belongs here, each with a `-`",
    ),
    (HEAD + "  - 1", "p:4:5: rules[0]: a mapping belongs here, not `1`"),
    (
        HEAD + "  - {select: {}}",
        "p:4:5: rules[0].set: missing; give memory_limit, sm_limit, priority",
    ),
    (
        HEAD + "  - {set: {sm_limit: 1}}",
        "p:4:5: rules[0].select: missing; write `select: {}` for all containers",
    ),
    (
        HEAD + "  - select: {zone: x}\n    set: {sm_limit: 1}",
        f"p:4:14: rules[0].select.zone: {UNKNOWN} pod_uid, namespace, pod, container, device",
    ),
    (
        HEAD + '  - select: {pod: ""}\n    set: {sm_limit: 1}',
        'p:4:19: rules[0].select.pod: an empty pattern matches nothing; leave it out, or write "*"',
    ),
    (
        HEAD + "  - select: {pod: null}\n    set: {sm_limit: 1}",
        "p:4:19: rules[0].select.pod: one text belongs here, not null",
    ),
    (
        HEAD + "  - select: {device: 16}\n    set: {sm_limit: 1}",
        f"p:4:22: rules[0].select.device: {DEVICE}",
    ),
    (
        HEAD + "  - select: {device: 0}\n    set: {sm_limit: 1, priority: 0}",
        "p:4:5: rules[0]: a priority is of the whole container; set it without `device`",
    ),
    (RULE + "{}", "p:5:10: rules[0].set: nothing is set; give memory_limit, sm_limit, priority"),
    (
        RULE + "{memory_limt: 1}",
        f"p:5:11: rules[0].set.memory_limt: {UNKNOWN} memory_limit, sm_limit, priority",
    ),
    (RULE + "{memory_limit: 6GB}", f"p:5:25: rules[0].set.memory_limit: {UNIT}"),
    (
        RULE + "{memory_limit: }",
        "p:5:11: rules[0].set.memory_limit: nothing stands here; give a value or no key",
    ),
    (RULE + "{sm_limit: 1, sm_limit: 2}", "p:5:24: rules[0].set.sm_limit: given a second time"),
    (RULE + "{sm_limit: 1}\n---\nmore: 1", "p:6:1: a second document; a file holds one plan"),
    (
        RULE + "{sm_limit: !!python/object:os.system 1}",
        f"p:5:21: rules[0].set.sm_limit: {TAG} is unknown; leave it out",
    ),
    (RULE + "{? [a] : 1}", "p:5:13: rules[0].set: a key is a plain word"),
    (b"a: 1\nb: \xc3\xa4\xff\n", "p: not UTF-8 in line 2; save the plan as UTF-8"),
    (b"a: 1\n" + b"#" * MAX_BYTES, "p: more than 32 MiB; a plan is a small text"),
]


def test_what_is_wrong_has_its_place_and_says_what_to_write() -> None:
    for text, said in WRONG:
        assert problems(text) == [said], text[-60:]


def test_a_text_has_1024_characters_at_most() -> None:
    def plan_for(characters: int) -> str:
        return HEAD + f"  - select: {{pod: {'x' * characters}}}\n    set: {{sm_limit: 1}}"

    assert parse_plan(plan_for(1024)).rules[0].select.pod == "x" * 1024
    said = "p:4:19: rules[0].select.pod: text of at most 1024 characters belongs here"
    assert problems(plan_for(1025)) == [said]


def test_a_problem_has_the_same_place_without_the_loader_in_c(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    for text, said in WRONG:
        assert problems(text) == [said], text[-60:]
    values = ("{memory_limit: 0}", "{memory_limit: -1}", "{memory_limit: [1]}", "{sm_limit: 0.5}")
    values += ("{sm_limit: 101}", "{sm_limit: yes}", "{priority: high}", "{priority: -1}")
    for value in values:
        (said,) = problems(RULE + value)
        assert re.match(r"p:5:2[0-9]: rules\[0\]\.set\.[a-z_]+: .{20,}", said), said


# PyYAML's two loaders differ in what they let stand in braces: a tab, a question mark without
# quotes, and a colon right before a bracket. Where they agree that something is wrong, they agree
# where.
ADDED = (*":{}[]'\"\\&*!@\n\u00e4", "", "- ", "# ", " ,")


def test_a_slip_of_the_pen_has_one_place_whichever_loader_finds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not hasattr(yaml, "CSafeLoader"):
        pytest.skip("needs PyYAML's loader in C")
    value = '{memory_limit: "6\\u0047iB", sm_limit: 0}'
    texts = [
        RULE + value[:at] + added + value[at + (not added) :]
        for added in ADDED
        for at in range(len(value))
        if not (added in {"[", "{", "]", "}"} and value[at - 1] == ":")
    ]
    there = [places(text) for text in texts]
    assert sum(map(bool, there)) > 0.9 * len(texts)
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert [text for text, of_c in zip(texts, there, strict=True) if places(text) != of_c] == []


def places(text: str) -> list[str]:
    """Where a plan's problems are."""
    try:
        parse_plan(text, "p")
    except PlanError as error:
        return [f"{each.line}:{each.column}" for each in error.problems]
    return []


def test_what_is_no_yaml_has_a_place_too() -> None:
    texts = ("a: [1\nb: 2", "\ta: 1", '{"a": [1,\t2}', "- a\nb: c", "a: 'b", "a: \x00")
    for text in texts:
        (said,) = problems(text)
        assert re.match(r"p:([0-9]+:[0-9]+:)? neither YAML nor JSON: ", said), said


def test_all_problems_are_told_at_once_up_to_twenty() -> None:
    rules = ("1", "{set: {sm_limit: half}}", "{select: {device: '99'}, set: {sm_limit: 0, x: 1}}")
    said = problems(plan_yaml(*rules, "{select: [], set: {memory_limit: 6GB, priority: -1}}"))
    assert {each.split(": ")[1] for each in said} == {
        "rules[0]",
        "rules[1].select",
        "rules[1].set.sm_limit",
        "rules[2].select.device",
        "rules[2].set.sm_limit",
        "rules[2].set.x",
        "rules[3].select",
        "rules[3].set.memory_limit",
        "rules[3].set.priority",
    }
    assert len(said) == 9
    assert len(problems("{}")) == 3
    many = problems(plan_yaml(*["{select: {}, set: {sm_limit: 0}}"] * 50))
    assert len(many) == 20
    assert "p: and 31 more problems" in many


def test_an_error_can_be_asked_for_its_parts_and_be_sent() -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(RULE + "{sm_limit: 0}", "night.yaml")
    error = pickle.loads(pickle.dumps(caught.value))
    (problem,) = error.problems
    assert (error.source, problem.line, problem.column) == ("night.yaml", 5, 21)
    assert problem.path == "rules[0].set.sm_limit"
    assert str(problem) in str(error)


# ---- texts that mean harm -------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("a: &a [1, 1, 1, 1]\nb: [*a, *a, *a, *a]", (2, 5)),
        (RULE + "&a {sm_limit: *a}", (5, 24)),
        ("a: *x", (1, 4)),
        # Some versions of PyYAML end deep nesting by a bound of their own, further on.
        ("[" * 1_000_000, (1, MAX_DEPTH + 2)),
        ("- " * 1_000_000, (1, 2 * MAX_DEPTH + 3)),
        ("{a: " * 300_000, (1, 4 * MAX_DEPTH + 5)),
    ],
    ids=["aliases", "cycle", "unknown-alias", "brackets", "dashes", "braces"],
)
def test_bombs_end_at_a_bound(text: str, position: tuple[int, int]) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(text)
    (problem,) = caught.value.problems
    assert problem.line == position[0]
    assert problem.column is not None
    assert position[1] <= problem.column <= position[1] + 1000


@given(st.binary(max_size=200) | st.text(st.sampled_from("&*!{}[]:-\"' \n\t#?|>%@`ab01<=")))
def test_any_other_text_is_an_error_of_printable_lines(text: bytes | str) -> None:
    # None of these has all that a plan needs.
    with pytest.raises(PlanError) as caught:
        parse_plan(text)
    assert all(line.isprintable() for line in str(caught.value).split("\n"))


def test_what_a_plan_quotes_cannot_steer_a_terminal() -> None:
    for text in (
        RULE + '{"\\e[2J": 1}',
        RULE + '{sm_limit: "\\e[2J"}',
        RULE + '{priority: "\\e[2J"}',
        RULE + "{memory_limit: !<\x85> 1}",
        HEAD + '  - {select: {device: "\\u0661\\u0662"}, set: {"\\u202e": 1}}',
        '"\\e[2J"',
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
    with pytest.raises(PlanError, match="more than 32 MiB"):
        load_plan("/dev/zero")
