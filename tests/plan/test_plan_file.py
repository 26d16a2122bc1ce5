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
from support.node_scene import GIB
from support.plan_scene import HEAD, plan, plan_yaml

from libhamiregion.node import Selector
from libhamiregion.plan import LimitPlan, Limits, PlanError, Rule, load_plan, parse_plan, plan_text
from libhamiregion.plan.plan_file import MAX_BYTES

ROOT = Path(__file__).parents[2]
RULE = HEAD + "  - select: {}\n    set: "


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(PlanError) as caught:
        parse_plan(text, "p")
    return str(caught.value).splitlines()


# ---- what a plan says -----------------------------------------------------------------


def test_a_plan_says_what_its_rules_select_and_set(tmp_path):
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


def test_the_values_of_a_plan_are_those_of_the_library():
    """In YAML, in JSON and in Python: bytes, sizes, percentages, unlimited and null."""
    for field, text, value in (
        ("memory_limit", "6GiB", 6 * GIB),
        ("memory_limit", '"3000m"', 3000 << 20),
        ("memory_limit", "1234567890B", 1234567890),
        ("memory_limit", "4.2GiB", 4509715660),
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


def test_what_is_no_value_is_refused_in_python_too():
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


def test_a_rule_can_be_for_what_stands_there_only():
    text = "{select: {}, set: {sm_limit: 50}, only_if: {memory_limit: 6GiB, sm_limit: unlimited}}"
    written = plan_text(plan(text))
    assert "only_if" in written
    (rule,) = parse_plan(written).rules
    assert rule.only_if == Limits(memory_limit=6 * GIB, sm_limit=None)
    assert "only_if" not in plan_text(plan("{select: {}, set: {sm_limit: 50}}"))
    with pytest.raises(PlanError, match="has limits as they stand there, and no percentage"):
        plan("{select: {}, set: {sm_limit: 50}, only_if: {memory_limit: 80%}}")


def test_a_rule_can_be_for_one_file_only():
    (rule,) = plan("{select: {}, set: {sm_limit: 50}, file: '64769:1234'}").rules
    assert rule.file_id == (64769, 1234)
    for text in ("1234", "64769:", "-1:2", "64769:1234:5"):
        with pytest.raises(PlanError, match=r"rules\[0\]\.file: .* device and its inode"):
            plan(f"{{select: {{}}, set: {{sm_limit: 50}}, file: '{text}'}}")


def test_a_name_is_the_text_that_stands_there():
    """YAML 1.1 would make booleans and numbers of these."""
    for text in ("no", "12", "1:30", "010", "2026-01-01", "0x10", "1e3"):
        (rule,) = plan(f"{{select: {{namespace: {text}}}, set: {{sm_limit: 1}}}}").rules
        assert rule.select.namespace == text


def test_a_plain_number_is_no_memory_limit_but_in_undo_plans_of_before():
    rule = "{select: {}, set: {memory_limit: 8000}, only_if: {memory_limit: 4509715661}}"
    for each in (rule, "{select: {}, set: {sm_limit: 5}, only_if: {memory_limit: 8000}}"):
        with pytest.raises(PlanError, match=r"memory_limit: .* give a unit: 6GiB, 6000MiB"):
            plan(each)
    (undo,) = parse_plan(plan_yaml(rule).replace("rules:", "metadata: {name: undo}\nrules:")).rules
    assert (undo.set.memory_limit, undo.only_if.memory_limit) == (8000, 4509715661)
    written = plan_text(LimitPlan((undo,), name="undo"))
    assert "memory_limit: 8000B" in written
    assert "memory_limit: 4509715661B" in written


def test_a_memory_limit_below_16_mib_needs_force():
    tiny = "{select: {}, set: {memory_limit: 6KiB}%s}"
    with pytest.raises(PlanError, match=r"below 16 MiB.*`force: true` in the rule"):
        plan(tiny % "")
    with pytest.raises(PlanError, match="`force` is true"):
        plan(tiny % ", force: yes")
    forced = plan(tiny % ", force: true")
    assert forced.rules[0].set.memory_limit == 6144
    assert parse_plan(plan_text(forced)) == forced


def test_json_is_read_as_well_even_indented_by_tabs():
    written = plan('{select: {pod: "a*", device: 1}, set: {memory_limit: 1B}, force: true}')
    document = yaml.safe_load(plan_text(written))
    for indent in (None, 2, "\t"):
        assert parse_plan(json.dumps(document, indent=indent)) == written
    assert parse_plan("\ufeff" + json.dumps(document)) == written


NAMES = st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
LIMITS = st.builds(
    Limits,
    memory_limit=st.none() | st.integers(1, 2**64 - 1) | st.integers(1, 999).map("{}%".format),
    sm_limit=st.none() | st.integers(1, 99),
)
FILES = st.none() | st.tuples(*[st.integers(0, 2**64 - 1)] * 2)
DEVICES = st.none() | st.integers(0, 15).map(str) | st.just("GPU-*")


@pytest.mark.slow
@given(
    st.lists(
        st.builds(
            Rule,
            st.builds(Selector, NAMES, NAMES, NAMES, NAMES, DEVICES),
            LIMITS,
            name=NAMES,
            file_id=FILES,
        ),
        max_size=4,
    )
)
def test_a_plan_that_is_written_is_read_back_as_it_was(rules):
    written = LimitPlan(tuple(rules), "a plan")
    assert parse_plan(plan_text(written)) == written


def test_the_examples_and_the_plan_in_the_documentation_are_plans():
    for path in (ROOT / "examples" / "plans").iterdir():
        assert load_plan(path).name == path.stem
    text = (ROOT / "docs" / "limits-by-plan.md").read_text()
    blocks = re.findall(r"^```yaml\n(apiVersion: .*?)^```$", text, re.DOTALL | re.MULTILINE)
    (block,) = blocks
    assert len(parse_plan(block).rules) == 2


# ---- what is wrong with it ------------------------------------------------------------

WRONG: list[tuple[str | bytes, str]] = [
    ("", "p: empty"),
    ("# nothing\n", "p: empty"),
    ("rules", "p:1:1: mapping"),
    (HEAD, "p:3:1: rules: empty"),
    (HEAD + "  a: 1", "p:4:3: rules: list"),
    (HEAD + "  - 1", "p:4:5: rules[0]: mapping"),
    (HEAD + "  - {select: {}}", "p:4:5: rules[0].set: missing"),
    (HEAD + "  - {set: {sm_limit: 1}}", "p:4:5: rules[0].select: missing"),
    (
        HEAD + "  - select: {zone: x}\n    set: {sm_limit: 1}",
        "p:4:14: rules[0].select.zone: namespace",
    ),
    (HEAD + '  - select: {pod: ""}\n    set: {sm_limit: 1}', "p:4:19: rules[0].select.pod: empty"),
    (HEAD + "  - select: {pod: null}\n    set: {sm_limit: 1}", "p:4:19: rules[0].select.pod: null"),
    (
        HEAD + "  - select: {device: 16}\n    set: {sm_limit: 1}",
        "p:4:22: rules[0].select.device: 15",
    ),
    (
        HEAD + "  - select: {device: 0}\n    set: {sm_limit: 1, priority: 0}",
        "p:4:5: rules[0]: priority",
    ),
    (RULE + "{}", "p:5:10: rules[0].set: nothing"),
    (RULE + "{memory_limt: 1}", "p:5:11: rules[0].set.memory_limt: unknown"),
    (RULE + "{memory_limit: 6GB}", "p:5:25: rules[0].set.memory_limit: GiB"),
    (RULE + "{memory_limit: }", "p:5:11: rules[0].set.memory_limit: empty"),
    (RULE + "{sm_limit: 1, sm_limit: 2}", "p:5:24: rules[0].set.sm_limit: second"),
    (RULE + "{sm_limit: 1}\n---\nmore: 1", "p:6:1: document"),
    (
        RULE + "{sm_limit: !!python/object:os.system 1}",
        "p:5:21: rules[0].set.sm_limit: tag",
    ),
    (RULE + "{? [a] : 1}", "p:5:13: rules[0].set: key"),
    (b"a: 1\nb: \xc3\xa4\xff\n", "p: UTF-8 in line 2"),
    (b"a: 1\n" + b"#" * MAX_BYTES, "p: 32 MiB"),
]


def place_and_word(said: str, expected: str) -> tuple[str, bool]:
    """The place of a problem, and whether its message has the expected word."""
    place, _, word = expected.rpartition(": ")
    return said[: len(place)], word in said.removeprefix(place)


def test_a_mistake_is_reported_at_its_place():
    for text, expected in WRONG:
        said = problems(text)
        place = expected.rpartition(": ")[0]
        assert (place, True) in [place_and_word(each, expected) for each in said], (
            text[-60:],
            said,
        )


def test_a_text_has_1024_characters_at_most():
    def plan_for(characters: int) -> str:
        return HEAD + f"  - select: {{pod: {'x' * characters}}}\n    set: {{sm_limit: 1}}"

    assert parse_plan(plan_for(1024)).rules[0].select.pod == "x" * 1024
    (said,) = problems(plan_for(1025))
    assert "1024" in said


def test_a_mistake_has_the_same_place_without_the_loader_in_c(monkeypatch):
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    test_a_mistake_is_reported_at_its_place()


def test_what_is_no_yaml_has_a_place_too():
    texts = ("a: [1\nb: 2", "\ta: 1", '{"a": [1,\t2}', "- a\nb: c", "a: 'b", "a: \x00")
    for text in texts:
        (said,) = problems(text)
        assert re.match(r"p:([0-9]+:[0-9]+:)? neither YAML nor JSON: ", said), said


def test_an_error_can_be_asked_for_its_parts_and_be_sent():
    with pytest.raises(PlanError) as caught:
        parse_plan(RULE + "{sm_limit: 0}", "night.yaml")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.source, error.line, error.column) == ("night.yaml", 5, 21)
    assert error.path == "rules[0].set.sm_limit"
    assert str(error) == f"night.yaml:5:21: rules[0].set.sm_limit: {error.message}"


# ---- texts that mean harm -------------------------------------------------------------


def test_aliases_and_deep_nesting_are_refused():
    for text in (
        RULE + "&a {sm_limit: *a}",
        HEAD + "  - &a {select: {}, set: {sm_limit: 1}}\n  - *a",
    ):
        assert "aliases" in " ".join(problems(text))
    for text in ("a: *x", "[" * 1_000_000, "- " * 1_000_000, "{a: " * 300_000):
        (said,) = problems(text)
        assert re.match(r"p:1:[0-9]+: ", said), said


@given(st.binary(max_size=200) | st.text(st.sampled_from("&*!{}[]:-\"' \n\t#?|>%@`ab01<=")))
def test_any_other_text_is_an_error_of_printable_lines(text):
    # None of these has all that a plan needs.
    with pytest.raises(PlanError) as caught:
        parse_plan(text)
    assert all(line.isprintable() for line in str(caught.value).split("\n"))


def test_what_a_plan_quotes_cannot_steer_a_terminal():
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
    assert str(caught.value).isprintable()
