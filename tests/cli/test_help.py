"""Help fits a terminal of 80 columns and 25 lines, for every verb."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from support.cli_verbs import commands

from libhamiregion.cli.verbs import hamiregion

VERBS = dict(commands())


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_help_is_a_sentence_usage_options_and_two_examples(path):
    answer = CliRunner().invoke(hamiregion, [*path, "--help"], prog_name="hamiregion")
    assert answer.exit_code == 0
    lines = answer.output.splitlines()
    assert len(lines) <= 25, answer.output
    assert max(map(len, lines)) <= 80, answer.output
    assert lines[0].endswith(".") or lines[1].endswith("."), answer.output
    assert any(line.startswith(f"Usage: hamiregion {' '.join(path)}") for line in lines)
    examples = lines[lines.index("Examples:") + 1 :]
    assert len(examples) == 2
    assert all("hamiregion " in each for each in examples)
    shown = " ".join(answer.output.split())
    for parameter in VERBS[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0].removeprefix("--") in shown, parameter.name


@pytest.mark.parametrize("group", sorted({path[:-1] for path in VERBS}))
def test_a_list_of_verbs_cuts_no_sentence(group):
    answer = CliRunner().invoke(hamiregion, [*group, "--help"], prog_name="hamiregion")
    listed = answer.output.splitlines()[1:]
    assert len(listed) > 5
    assert [line for line in listed if line.endswith("...")] == []
