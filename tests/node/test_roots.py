"""Where a node looks for containers."""

import contextlib
import errno
import os
import pickle
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.node_root import Root, only, refresh

from libhamiregion.node import Node, Observer, RootsUnreadable, roots
from libhamiregion.run.run_directory import run_bases

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")


@pytest.fixture(autouse=True)
def environment(monkeypatch) -> None:
    for variable in ("HOOK_PATH", "HAMI_VGPU_CACHE_ROOT", "CONTAINER_VGPU_MOUNT"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def defaults(tmp_path, monkeypatch) -> tuple[Path, ...]:
    """Default roots of the test's own; the first lies in a directory as /tmp is one."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    paths = (tmp_path / "tmp/vgpu/containers", tmp_path / "usr/vgpu/containers")
    monkeypatch.setattr(roots, "DEFAULT_ROOTS", tuple(map(str, paths)))
    monkeypatch.setattr(roots, "run_bases", lambda _: [])
    return paths


@contextlib.contextmanager
def scanned(*roots: Any, **options: Any) -> Iterator[Node]:
    """A node that has been refreshed."""
    with Node(*roots, **options) as node:
        refresh(node)
        yield node


def names(node: Node) -> list[str | None]:
    return [each.name for each in node.containers]


# ---- which ----


def test_several_roots_are_scanned_in_their_order(tmp_path):
    for name in ("b", "a"):
        Root(tmp_path / name).container(f"in-{name}")
    with scanned([tmp_path / "b", str(tmp_path / "a"), tmp_path / "b"]) as node:
        assert names(node) == ["in-b", "in-a"]
        assert node.roots == node.directories == node.scanned_roots
        assert node.roots == (str(tmp_path / "b"), str(tmp_path / "a"))


def test_a_pattern_stands_for_every_directory_that_matches(tmp_path):
    for name in ("one", "two"):
        Root(tmp_path / name / "containers").container(name)
    (tmp_path / "three").mkdir()
    (tmp_path / "three/containers").write_text("no directory")
    with scanned(tmp_path / "*/containers") as node:
        assert names(node) == ["one", "two"]
        assert node.root_errors == {}
        Root(tmp_path / "four/containers").container("four")
        shutil.rmtree(tmp_path / "one")
        assert refresh(node)
        assert names(node) == ["four", "two"]


def test_a_pattern_that_matches_nothing_says_so(tmp_path):
    with scanned(tmp_path / "*/containers") as node:
        (error,) = node.root_errors.values()
        assert isinstance(error, FileNotFoundError)
        assert "no directory matches" in str(error)
        assert node.scanned_roots == node.directories == ()


def test_a_name_with_the_signs_of_a_pattern_is_taken_literally(tmp_path):
    Root(tmp_path / "[ab]").container("literal")
    Root(tmp_path / "a").container("pattern")
    with scanned(tmp_path / "[ab]") as node:
        assert names(node) == ["literal"]


def test_two_ways_to_one_directory_are_one_root(tmp_path):
    root = Root(tmp_path / "real")
    root.container()
    (tmp_path / "link").symlink_to(root.path)
    with scanned([tmp_path / "link", root, tmp_path / "real/../real"]) as node:
        assert only(node).directory == f"{root.path}/{only(node).pod_uid}_train"
        assert node.directories == (str(root.path),)


@needs_root
def test_a_directory_mounted_at_two_places_is_one_root(tmp_path):
    root = Root(tmp_path / "one")
    root.container()
    (tmp_path / "two").mkdir()
    made = subprocess.run(
        ["mount", "--bind", str(root.path), str(tmp_path / "two")], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"needs the right to mount: {made.stderr.decode()}")
    try:
        with Node([root, tmp_path / "two"]) as node:
            refresh(node)
            only(node)
    finally:
        subprocess.run(["umount", str(tmp_path / "two")], check=True)


def test_a_root_that_is_a_link_is_followed_to_where_it_leads_now(tmp_path):
    for name in ("a", "b"):
        Root(tmp_path / name).container(name)
    (tmp_path / "current").symlink_to("a")
    with scanned(tmp_path / "current") as node:
        assert names(node) == ["a"]
        (tmp_path / "current").unlink()
        (tmp_path / "current").symlink_to("b")
        refresh(node)
        assert names(node) == ["b"]


# ---- what may go wrong ----


def test_a_given_root_that_is_missing_is_an_error_and_found_when_it_comes(tmp_path):
    path = tmp_path / "containers"
    with scanned(path) as node:
        assert isinstance(node.root_errors[str(path)], FileNotFoundError)
        assert (node.scanned_roots, node.directories) == ((), ())
        Root(path).container()
        refresh(node)
        assert node.root_errors == {}
        assert only(node).name == "train"
        path.rename(tmp_path / "moved")
        refresh(node)
        assert node.containers == ()
        assert list(node.root_errors) == [str(path)]


def test_one_bad_root_does_not_stop_the_others(tmp_path):
    Root(tmp_path / "good").container()
    (tmp_path / "file").touch()
    with scanned([tmp_path / "none", tmp_path / "file", tmp_path / "good"]) as node:
        only(node)
        assert {each.errno for each in node.root_errors.values()} == {errno.ENOENT, errno.ENOTDIR}
        assert node.scanned_roots == (str(tmp_path / "good"),)


@pytest.mark.parametrize(
    ("limit", "mode"),
    [("_ROOT_ENTRIES_LIMIT", 0o755), ("ENTRIES_LIMIT", 0o1777)],
    ids=["the node's own", "one that containers can write"],
)
def test_a_root_with_too_many_entries_says_that_it_was_cut(limit, mode, tmp_path, monkeypatch):
    monkeypatch.setattr(roots, limit, 10)
    root = Root(tmp_path / "containers")
    root.path.chmod(mode)
    for number in range(10):
        root.container(f"c{number}")
    with scanned(root) as node:
        assert node.root_errors == {}
        root.container("one-more")
        refresh(node)
        assert len(node.containers) == 10
        assert "the others are left out" in str(node.root_errors[str(root.path)])


def test_given_roots_of_which_none_can_be_listed_are_named_by_an_exception(tmp_path):
    missing, other = str(tmp_path / "none"), str(tmp_path / "other")
    with Node([missing, other]) as node:
        with pytest.raises(RootsUnreadable) as caught:
            node.refresh(processes=False)
        assert list(caught.value.errors) == [missing, other]
        assert missing in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        Root(Path(other)).container()
        node.refresh(processes=False)
        assert node.root_problem is None


def test_an_observer_goes_on_without_any_root(tmp_path):
    with Node(tmp_path / "none") as node:
        gaps = Observer(node).observe(slots=False).gaps
        assert [gap.kind for gap in gaps] == ["root"]
        Root(tmp_path / "none").container()
        assert len(Observer(node).observe(slots=False).missing) == 1


# ---- the default roots ----


def test_a_node_without_any_directory_of_containers_is_logged_once(defaults, caplog):
    caplog.set_level("INFO", "libhamiregion.node.node")
    with scanned() as node:
        refresh(node)
        (record,) = (each for each in caplog.records if each.name == "libhamiregion.node.node")
        assert all(str(each) in record.getMessage() for each in defaults)
        Root(defaults[0]).container()
        refresh(node)
        assert node.root_problem is None
    with Node(outside=True) as node:
        defaults[0].rename(defaults[0].with_name("moved"))
        refresh(node)
        assert node.root_problem is None
    assert len(caplog.records) == 1


def test_without_a_root_those_of_hami_and_volcano_are_scanned(defaults):
    with scanned(outside=False) as node:
        assert node.roots == tuple(map(str, defaults))
        # Not every node has all of them.
        assert node.root_errors == {}
        for number, path in enumerate(defaults):
            Root(path).container(f"c{number}")
        refresh(node)
        assert names(node) == ["c0", "c1"]
        assert node.root_errors == {}


def test_the_default_roots_are_the_documented_ones(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Node(outside=False) as node:
        assert node.roots == (
            "/usr/local/vgpu/containers",
            "/usr/local/vgpu/vgpu/containers",
            "/tmp/vgpu/containers",
            "/usr/local/vgpu/claims",
            f"{tmp_path}/hamiregion",
            *run_bases({}),
        )


@pytest.mark.parametrize("name", ["HOOK_PATH", "HAMI_VGPU_CACHE_ROOT", "CONTAINER_VGPU_MOUNT"])
def test_a_variable_takes_their_place_and_has_to_exist(name, defaults, tmp_path, monkeypatch):
    Root(defaults[0]).container("default")
    monkeypatch.setenv("HOOK_PATH", str(tmp_path / "older"))
    monkeypatch.setenv(name, str(tmp_path / "hook"))
    with scanned(outside=False) as node:
        assert node.roots == (str(tmp_path / "hook/containers"), str(tmp_path / "hook/claims"))
        assert list(node.root_errors) == [str(tmp_path / "hook/containers")]
        Root(tmp_path / "hook/containers").container("hooked")
        refresh(node)
        assert names(node) == ["hooked"]


@needs_root
@pytest.mark.parametrize("given_away", ["tmp/vgpu", "tmp/vgpu/containers", "tmp"])
def test_a_default_root_that_any_user_may_have_made_is_not_taken_unasked(
    given_away, defaults, tmp_path
):
    for number, path in enumerate(defaults):
        Root(path).container(f"c{number}")
    os.chown(tmp_path / given_away, NOBODY, NOBODY)
    with scanned(outside=False) as node:
        assert names(node) == ["c1"]
        (path, error), *others = node.root_errors.items()
        assert not others
        assert path == str(defaults[0])
        assert isinstance(error, PermissionError)
        assert f"belongs to user {NOBODY}" in str(error)
        assert node.scanned_roots == (str(defaults[1]),)
    # Who names it wants it.
    with scanned(defaults[0]) as node:
        assert names(node) == ["c0"]
        assert node.root_errors == {}


@needs_root
def test_a_default_root_reached_by_a_users_link_is_not_taken(defaults, tmp_path):
    Root(tmp_path / "elsewhere/containers").container()
    (tmp_path / "tmp/vgpu").symlink_to(tmp_path / "elsewhere")
    os.chown(tmp_path / "tmp/vgpu", NOBODY, NOBODY, follow_symlinks=False)
    with scanned(outside=False) as node:
        assert node.containers == ()
        assert list(node.root_errors) == [str(defaults[0])]


@needs_root
def test_a_default_root_that_is_given_away_later_is_dropped(defaults):
    Root(defaults[0]).container()
    with scanned(outside=False) as node:
        only(node)
        os.chown(defaults[0], NOBODY, NOBODY)
        refresh(node)
        assert node.containers == ()
        assert list(node.root_errors) == [str(defaults[0])]


def test_what_lies_around_a_sticky_directory_does_not_matter(defaults, monkeypatch):
    """As where the file system's root belongs to a user that this namespace does not know."""
    Root(defaults[0]).container()
    looked_at = []
    lstat = os.lstat

    def watched(path: Path) -> os.stat_result:
        looked_at.append(str(path))
        return lstat(path)

    monkeypatch.setattr(os, "lstat", watched)
    roots._check_makers(str(defaults[0]))
    assert looked_at == [str(each) for each in (defaults[0], *list(defaults[0].parents)[:2])]
