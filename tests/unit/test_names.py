"""Names of pods and containers, from files and from real servers."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pod_names import HOSTILE, ID, OTHER_ID, OTHER_UID, STATIC, UID

from libhamiregion.node import (
    ChainedNames,
    DockerNames,
    PodLogNames,
    PodName,
)
from libhamiregion.node.names import NameResolver  # noqa: TC001 (a protocol to be checked)

# ---- Pod log directories ------------------------------------------------------------------------


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    root = tmp_path / "pods"
    root.mkdir()
    (root / f"research_bert-0_{UID}" / "train").mkdir(parents=True)
    return root


def test_a_pods_log_directory_names_it(pods: Path) -> None:
    (pods / f"kube-system_etcd-node.example_{STATIC}" / "etcd").mkdir(parents=True)
    names = PodLogNames(pods)
    assert names.resolve(UID, "train") == PodName("research", "bert-0", "train")
    # Of static pods the UID has no dashes.
    assert names.resolve(STATIC) == PodName("kube-system", "etcd-node.example", "etcd")
    # Without a name the only container is meant.
    assert names.resolve(UID) == PodName("research", "bert-0", "train")
    (pods / f"research_bert-0_{UID}" / "sidecar").mkdir()
    assert names.resolve(UID) == PodName("research", "bert-0", None)


def test_pods_come_and_go_and_so_does_their_directory(tmp_path: Path) -> None:
    names = PodLogNames(tmp_path / "pods")
    assert names.resolve(OTHER_UID) is None
    other = tmp_path / "pods" / f"web_shop_{OTHER_UID}"
    other.mkdir(parents=True)
    assert names.resolve(OTHER_UID, "php") == PodName("web", "shop", "php")
    other.rmdir()
    assert names.resolve(OTHER_UID, "php") is None


def test_a_listing_is_kept_while_the_directory_stands_still(
    pods: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(pods, (1_000_000, 1_000_000))
    names = PodLogNames(pods)
    assert names.resolve(UID, "train") is not None
    monkeypatch.setattr(os, "scandir", None)
    assert names.resolve(UID, "train") is not None
    assert names.resolve(OTHER_UID, "train") is None


def test_hostile_log_directories_name_nothing(pods: Path) -> None:
    names = PodLogNames(pods)
    directories = [f"pod_{OTHER_UID}", f"research_a_b_{OTHER_UID}"]
    for text in HOSTILE:
        directories += [f"{text}_pod_{OTHER_UID}", f"research_{text}_{OTHER_UID}"]
        assert names.resolve(text, "train") is None
        assert text == "" or names.resolve(UID, text) is None
    for directory in directories:
        with contextlib.suppress(OSError, ValueError):
            (pods / directory).mkdir()
            assert names.resolve(OTHER_UID, "train") is None, directory
            (pods / directory).rmdir()
    # Two of one UID are both not believed.
    (pods / f"evil_impostor_{UID}").mkdir()
    assert names.resolve(UID, "train") is None


# ---- Docker's files -----------------------------------------------------------------------------


def docker_config(root: Path, name: object, identifier: str = ID) -> Path:
    (root / identifier).mkdir(parents=True, exist_ok=True)
    path = root / identifier / "config.v2.json"
    path.write_text(json.dumps({"ID": identifier, "Name": name, "Config": {"Env": ["A=b"]}}))
    return path


def test_dockers_file_names_the_container(tmp_path: Path) -> None:
    names = DockerNames(tmp_path)
    assert names.resolve(None, None, ID) is None
    docker_config(tmp_path, "/notebook_1")
    assert names.resolve(None, None, ID) == PodName(None, None, "notebook_1")
    # A name that kubelet gave is taken apart.
    docker_config(tmp_path, f"/k8s_train_bert-0_research_{UID}_3")
    assert names.resolve(None, None, ID) == PodName("research", "bert-0", "train")


def test_hostile_and_broken_files_of_docker_name_nothing(tmp_path: Path) -> None:
    names = DockerNames(tmp_path)
    for name in [*(text for text in HOSTILE if text != "A"), 7, None, ["a"]]:
        docker_config(tmp_path, name)
        # Docker itself allows a dash at the end.
        assert names.resolve(None, None, ID) in {None, PodName(None, None, "a-")}
    path = docker_config(tmp_path, "x")
    for text in ["", "{", "[]", "[" * 100_000, '{"Name": ', "null", '{"Name": "\udcff"}']:
        path.write_text(text, errors="surrogateescape")
        assert names.resolve(None, None, ID) is None
    docker_config(tmp_path, "x")
    for identifier in ["../" + ID, ID[:-1], ID + "\n", ID.upper(), "", "/" + ID]:
        assert DockerNames(tmp_path / "inner").resolve(None, None, identifier) is None


# ---- Chains -------------------------------------------------------------------------------------


class Counting:
    """A resolver that knows some answers, and counts."""

    def __init__(self, **answers: PodName | None) -> None:
        self.answers = answers
        self.asked: list[str | None] = []

    def resolve(
        self,
        pod_uid: str | None,
        container_name: str | None = None,  # noqa: ARG002
        container_id: str | None = None,  # noqa: ARG002
    ) -> PodName | None:
        self.asked.append(pod_uid)
        return self.answers.get(pod_uid or "")


FULL = PodName("research", "bert-0", "train")
PARTIAL = PodName("research", "bert-0", None)


def test_resolvers_are_asked_in_order_until_one_knows() -> None:
    first, second, third = Counting(), Counting(a=FULL), Counting(a=PodName("x", "y", "z"))
    names: NameResolver = ChainedNames([first, second, third])
    assert names.resolve("a") == FULL
    assert (first.asked, second.asked, third.asked) == (["a"], ["a"], [])


def test_an_answer_is_asked_for_once() -> None:
    resolver = Counting(a=FULL)
    names = ChainedNames([resolver], retry_s=0)
    assert [names.resolve("a") for _ in range(3)] == [FULL] * 3
    assert resolver.asked == ["a"]


def test_a_miss_holds_for_a_while_only() -> None:
    resolver = Counting()
    patient = ChainedNames([resolver], retry_s=3600)
    assert patient.resolve("a") is None
    assert patient.resolve("a") is None
    assert resolver.asked == ["a"]
    eager = ChainedNames([resolver], retry_s=0)
    assert eager.resolve("a") is None
    resolver.answers["a"] = FULL
    assert eager.resolve("a") == FULL


def test_a_fuller_answer_of_a_later_resolver_is_preferred() -> None:
    assert ChainedNames([Counting(a=PARTIAL), Counting(a=FULL)]).resolve("a") == FULL
    assert ChainedNames([Counting(a=PARTIAL), Counting()]).resolve("a") == PARTIAL


def test_an_incomplete_answer_is_tried_again() -> None:
    resolver = Counting(a=PARTIAL)
    names = ChainedNames([resolver], retry_s=0)
    assert names.resolve("a") == PARTIAL
    resolver.answers["a"] = FULL
    assert names.resolve("a") == FULL


def test_the_cache_is_bounded_and_forgets_the_unused_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("libhamiregion.node.names._KEPT_LIMIT", 2)
    resolver = Counting(a=FULL, b=FULL, c=FULL)
    names = ChainedNames([resolver])
    for uid in ("a", "b", "a", "c", "a", "b"):
        names.resolve(uid)
    assert resolver.asked == ["a", "b", "c", "b"]


def test_files_are_tried_before_a_daemon(pods: Path, tmp_path: Path) -> None:
    docker_config(tmp_path / "docker", "/notebook_1", OTHER_ID)
    daemon = Counting()
    names = ChainedNames([PodLogNames(pods), DockerNames(tmp_path / "docker"), daemon])
    assert names.resolve(UID, "train", ID) == FULL
    assert names.resolve(None, None, OTHER_ID) == PodName(None, None, "notebook_1")
    assert daemon.asked == []


def test_the_host_package_loads_neither_nvml_nor_kubernetes_nor_http() -> None:
    script = (
        "import sys, libhamiregion.node; "
        "print([m for m in ('pynvml', 'kubernetes', 'urllib3', 'http.client') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    assert done.stdout == "[]\n"
