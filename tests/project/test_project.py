"""What the tree says about itself is true of it."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from support.process import finished

from libhamiregion import Layout

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))

needs_tree = pytest.mark.skipif(not WORKFLOWS, reason="needs the whole tree")


def test_a_program_without_logging_sees_none_of_ours():
    said = finished(
        [
            sys.executable,
            "-c",
            (
                "import logging, libhamiregion.exporter\n"
                "logging.getLogger('libhamiregion.exporter.http').error('lost')"
            ),
        ],
        check=True,
    )
    assert (said.stdout, said.stderr) == ("", "")


@needs_tree
def test_actions_are_pinned_by_commit_with_their_version_beside_it():
    used = [line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    assert len(used) > 5
    pinned = re.compile(r"uses: (\./\S+|\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$")
    assert [line for line in used if not pinned.search(line.strip())] == []


@needs_tree
def test_workflows_may_read_and_nothing_else_unless_a_job_says_so():
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path.name
        for name, job in workflow["jobs"].items():
            assert "uses" in job or job["timeout-minutes"] <= 90, (path.name, name)


@needs_tree
def test_the_source_distribution_is_told_of_all_that_the_tree_has():
    """`make wheel` builds one, and compares each file."""
    listed = finished(["git", "ls-files"], cwd=ROOT)
    if listed.returncode:
        pytest.skip("needs a clone")
    manifest = set((ROOT / "MANIFEST.in").read_text().split())
    # setuptools takes these by itself.
    taken = {"MANIFEST.in", "pyproject.toml", "setup.py", "libhamiregion"}
    clone_only = {".github", ".gitignore", ".pre-commit-config.yaml"}
    there = {path.partition("/")[0] for path in listed.stdout.splitlines()}
    assert there - manifest - taken - clone_only == set()


@needs_tree
def test_an_installation_is_built_anew_when_a_file_of_the_core_changes():
    said = finished(["make", "--print-data-base", "--question", "help"], cwd=ROOT).stdout
    inputs = re.search(r"^\S+/\.installed\S*: (.*)", said, re.MULTILINE)
    core = {each.relative_to(ROOT).as_posix() for each in (ROOT / "csrc").rglob("*.[ch]")}
    assert core - set(inputs[1].split()) == set()


@needs_tree
def test_every_data_file_of_the_package_is_in_the_wheel():
    listed = (ROOT / "pyproject.toml").read_text().partition("package-data]")[2].partition("\n\n")
    files = [each for each in (ROOT / "libhamiregion").rglob("*.*") if each.is_file()]
    wanted = {each.name for each in files if each.suffix in {".css", ".html", ".json"}}
    assert wanted
    assert {each for each in wanted if f'"{each}"' not in listed[0]} == set()


@needs_tree
def test_every_layout_has_its_line_in_the_policy_of_support():
    policy = (ROOT / "docs/versions.md").read_text()
    assert [layout for layout in Layout if f"| `{layout.value}` |" not in policy] == []


@needs_tree
def test_constraints_pin_each_dependency():
    text = (ROOT / "pyproject.toml").read_text()
    lists = re.findall(r"^(\w+) = \[([^]]*)\]", text[: text.index("[tool.")], re.MULTILINE)
    wanted = {
        name.lower()
        for key, each in lists
        if key not in {"authors", "classifiers", "dynamic", "keywords"}
        for name in re.findall(r'"([\w-]+)(?:[><=~!][^"]*)?"', each)
        if not name.startswith("libhamiregion")
    }
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {"attrs", "click", "pytest", "setuptools"} <= wanted
    assert wanted - pinned == set()


@needs_tree
def test_all_that_make_installs_is_pinned_and_what_builds_it_too():
    said = finished(
        ["make", "--dry-run", "VENV=none", "none/.installed", "none/.lint", "none/.docs"],
        cwd=ROOT,
        check=True,
    ).stdout
    installs = [line for line in said.splitlines() if " -m pip " in line]
    assert len(installs) >= 4
    for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"):
        assert [line for line in installs if f"{name}=constraints.txt " not in line] == []
