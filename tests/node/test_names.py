"""Names of pods, containers and claims from the node's own files."""

import contextlib
import json
import os
import shutil
import sys

import pytest
from support.kubelet import KubeletFiles
from support.node_root import Root, only, refresh, settle
from support.pod_names import HOSTILE, ID, OTHER_ID, OTHER_UID, STATIC, UID
from support.process import finished

from libhamiregion.node import ClaimName, Node, NodeNames, PodName, Selector

CLAIM = "6f1c0d8e-9f2b-4f0a-8a51-0c5f6d1e2a3b"
TRAIN = PodName("research", "bert-0", "train")


@pytest.fixture
def files(tmp_path) -> KubeletFiles:
    files = KubeletFiles(tmp_path)
    files.pod(UID, "bert-0", "train")
    return files


# ---- kubelet's log directories ----


def test_a_pods_log_directory_names_it(files):
    names = files.names()
    assert names.resolve(UID, "train") == TRAIN
    files.pod(UID, "bert-0", "sidecar")
    assert names.resolve(UID) == PodName("research", "bert-0", None)


def test_a_static_pods_uid_has_no_dashes(files):
    files.pod(STATIC, "etcd-node.example", "etcd", namespace="kube-system")
    assert files.names().resolve(STATIC) == PodName("kube-system", "etcd-node.example", None)


def test_a_containers_log_names_it_by_its_id(files):
    names = files.names()
    assert names.resolve(None, None, ID) is None
    files.container(ID, "bert-0", "train")
    assert names.resolve(None, None, ID) == TRAIN
    # The id is proved by the kernel, the name of a directory is not.
    assert names.resolve(UID, "fetch", ID) == TRAIN


def test_a_restarted_container_has_two_ids_and_one_name(files):
    names = files.names()
    for each in (ID, OTHER_ID):
        files.container(each, "bert-0", "train")
        assert names.resolve(None, None, each) == TRAIN


def test_a_name_that_was_cut_is_no_answer(files):
    path = files.container(ID, "a" * 200, "train")
    assert len(path.name) == 255
    assert files.names().resolve(None, None, ID) is None
    assert files.names().resolve(UID, "train", ID) == TRAIN


def test_pods_come_and_go(files):
    names = files.names()
    assert (names.resolve(OTHER_UID), names.has_pod(OTHER_UID)) == (None, False)
    other = files.pod(OTHER_UID, "shop", namespace="web")
    assert names.resolve(OTHER_UID, "php") == PodName("web", "shop", "php")
    assert names.has_pod(OTHER_UID) is True
    other.rmdir()
    assert names.has_pod(OTHER_UID) is False


def test_a_pod_is_proved_gone_only_by_a_directory_that_has_others(tmp_path):
    files = KubeletFiles(tmp_path)
    assert files.names().has_pod(UID) is None, "no directory"
    files.pods.mkdir(parents=True)
    assert files.names().has_pod(UID) is None, "an empty one may be a wrong mount"


def test_a_listing_is_kept_while_the_directory_is_unchanged(files, monkeypatch):
    settle(files.pods)
    names = files.names()
    assert names.resolve(UID, "train") is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", None)
        assert names.resolve(UID, "train") is not None
        assert names.resolve(OTHER_UID, "train") is None


def test_hostile_log_directories_name_nothing(files):
    names = files.names()
    directories = [f"pod_{OTHER_UID}", f"research_a_b_{OTHER_UID}"]
    files.containers.mkdir(parents=True)
    for text in HOSTILE:
        directories += [f"{text}_pod_{OTHER_UID}", f"research_{text}_{OTHER_UID}"]
        assert names.resolve(text, "train") is None
        assert text == "" or names.resolve(UID, text) is None
        for name in (f"{text}_research_train", f"bert-0_{text}_train", f"bert-0_research_{text}"):
            with contextlib.suppress(OSError, ValueError):
                (files.containers / f"{name}-{ID}.log").touch()
    assert names.resolve(None, None, ID) is None
    for directory in directories:
        with contextlib.suppress(OSError, ValueError):
            (files.pods / directory).mkdir()
            assert names.resolve(OTHER_UID, "train") is None, directory
            (files.pods / directory).rmdir()
    # A UID stands for one pod: of two directories with the same UID none counts.
    files.pod(UID, "impostor", namespace="evil")
    assert files.names().resolve(UID, "train") is None


# ---- Docker's files ----


def test_dockers_file_names_the_container(files):
    names = files.names()
    assert names.resolve(None, None, ID) is None
    files.docker_container(ID, "/notebook_1")
    assert names.resolve(None, None, ID) == PodName(None, None, "notebook_1")
    # A name that kubelet gave is taken apart.
    files.docker_container(OTHER_ID, f"/k8s_train_bert-0_research_{UID}_3")
    assert names.resolve(None, None, OTHER_ID) == TRAIN


def test_names_of_docker_are_forgotten_if_there_are_too_many(files, monkeypatch):
    monkeypatch.setattr("libhamiregion.node.names._DOCKER_NAMES_LIMIT", 2)
    names, ids = files.names(), [f"{number:064x}" for number in range(3)]
    paths = [files.docker_container(each, "/notebook") for each in ids]
    assert all(names.resolve(None, None, each) for each in ids)
    for path in paths:
        path.unlink()
    assert [names.resolve(None, None, each) is None for each in ids] == [True, True, False]


def test_hostile_and_broken_files_of_docker_name_nothing(files):
    for name in [*(text for text in HOSTILE if text != "A"), 7, None, ["a"]]:
        files.docker_container(ID, name)
        # Docker itself allows a dash at the end.
        assert files.names().resolve(None, None, ID) in {None, PodName(None, None, "a-")}
    path = files.docker_container(ID, "x")
    for text in ["", "{", "[]", "[" * 100_000, '{"Name": ', "null", '{"Name": "\udcff"}']:
        path.write_text(text, errors="surrogateescape")
        assert files.names().resolve(None, None, ID) is None
    path.unlink()
    path.symlink_to(files.docker_container(OTHER_ID, "x"))
    assert files.names().resolve(None, None, ID) is None, "no link is followed"
    inner = NodeNames(files.pods, docker=files.docker / "inner")
    for identifier in ["../" + OTHER_ID, ID[:-1], ID + "\n", ID.upper(), "", "/" + ID]:
        assert inner.resolve(None, None, identifier) is None


# ---- claims ----


@pytest.mark.parametrize("old", [False, True], ids=["Kubernetes 1.32", "before"])
def test_a_claim_is_named_by_kubelets_checkpoint_of_either_format(files, old):
    names = files.names()
    assert names.resolve_claim(CLAIM) is None
    files.claims({CLAIM: ("a100-half", [UID, OTHER_UID])}, old=old)
    uids = (UID, OTHER_UID)
    assert names.resolve_claim(CLAIM) == ClaimName("research", "a100-half", ("bert-0", None), uids)
    assert names.resolve_claim(UID) is None


@pytest.mark.parametrize(
    ("pods", "shown"),
    [(("bert-0",), "bert-0"), (("bert-0", "bert-1"), None), ((None,), None), ((), None)],
    ids=["one", "two", "one that is not known", "none"],
)
def test_a_claim_is_shown_with_its_only_pod(pods, shown):
    claim = ClaimName("research", "a100-half", pods)
    assert claim.pod_name == PodName("research", shown, "a100-half")


def test_a_replaced_checkpoint_is_read_again(files, monkeypatch):
    monkeypatch.setattr("libhamiregion.node.checkpoint._RECHECK_S", 0.0)
    names = files.names()
    for pods in ([UID], [], [UID, OTHER_UID]):
        files.claims({CLAIM: ("a100-half", pods)})
        found = names.resolve_claim(CLAIM)
        assert len(found.pods) == len(pods)


GOOD_CLAIM = {"ClaimUID": CLAIM, "Namespace": "a", "ClaimName": "b"}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "[" * 100_000, '{"Data": 7}', '{"Data": "{"}', '{"Data": "[]"}'),
        *('{"entries": 7}', '{"entries": [7, null, {}, []]}', '{"Data": "\udcff"}'),
        json.dumps({"entries": [{"ClaimUID": CLAIM, "Namespace": 7, "ClaimName": "a"}]}),
        *(
            json.dumps({"entries": [{**GOOD_CLAIM, "PodUIDs": each}]})
            for each in (7, UID, [7], [[]], {"a/../b": {}})
        ),
        *(
            json.dumps({"entries": [{"ClaimUID": CLAIM, "Namespace": "a", "ClaimName": each}]})
            for each in HOSTILE
            if each != "A"
        ),
    ],
    ids=range(17 + len(HOSTILE) - ("A" in HOSTILE)),
)
def test_a_damaged_checkpoint_names_nothing_and_does_not_last(files, text, monkeypatch):
    monkeypatch.setattr("libhamiregion.node.names._RECHECK_S", 0.0)
    names = files.names()
    files.write_checkpoint(text)
    assert names.resolve_claim(CLAIM) is None
    files.claims({CLAIM: ("a100-half", [UID])})
    assert names.resolve_claim(CLAIM) is not None


# ---- claims' directories ----


@pytest.mark.parametrize(
    "name",
    [f"{CLAIM}_train", CLAIM.upper(), CLAIM[:-1], f"{CLAIM}\n", f" {CLAIM}", "", f"{CLAIM}.limits"],
)
def test_only_a_uid_is_a_claims_directory(tmp_path, name):
    (tmp_path / "claims" / name).mkdir(parents=True)
    with Node(tmp_path / "claims") as node:
        assert not refresh(node)


def test_a_container_that_makes_directories_beside_its_own_makes_no_claim(tmp_path):
    """KAI's containers can write the directory that holds all of theirs."""
    (tmp_path / "containers" / CLAIM).mkdir(parents=True)
    with Node(tmp_path / "containers") as node:
        assert not refresh(node)


def test_a_claim_that_no_file_names_goes_by_its_uid(files, tmp_path):
    root = Root(tmp_path / "claims")
    (root.path / CLAIM).mkdir()
    with Node(root, names=files.names()) as node:
        refresh(node)
        found = only(node)
        assert (found.claim_uid, found.pod_uid, found.claim) == (CLAIM, None, None)
        assert (found.namespace, found.pod, found.name) == (None, None, CLAIM)
        assert node.select(container=CLAIM) == (found,)
        assert node.select(pod="*", allow_unnamed=True) == ()


def test_a_pod_is_named_once_kubelet_knows_it_and_keeps_its_name(files, tmp_path):
    root = Root(tmp_path / "containers")
    root.region()
    with Node(root, names=files.names()) as node:
        refresh(node)
        found = only(node)
        assert (found.pod_name, found.name) == (None, found.directory_name)
        files.pod(str(found.pod_uid), "late-0", "train")
        refresh(node)
        assert (only(node).namespace, only(node).pod) == ("research", "late-0")
        shutil.rmtree(files.pods)
        refresh(node)
        assert only(node).pod == "late-0"


def test_a_claim_is_selected_by_the_names_that_it_is_shown_with(files, tmp_path):
    files.claims({CLAIM: ("a100-half", [UID])})
    root = Root(tmp_path / "claims")
    (root.path / CLAIM).mkdir()
    with Node(root, names=files.names()) as node:
        refresh(node)
        found = only(node)
        assert (found.namespace, found.pod, found.name) == ("research", "bert-0", "a100-half")
        for chosen in (
            {"namespace": "research"},
            {"pod": "bert-*"},
            {"container": "a100-half"},
            {"container": CLAIM},
        ):
            assert Selector(**chosen).matches(found)  # type: ignore[arg-type]
        assert not Selector(pod_uid="*").matches(found)


def test_the_node_floor_loads_neither_nvml_nor_http():
    script = (
        "import sys, libhamiregion.node; "
        "print([m for m in ('pynvml', 'urllib3', 'http.client') if m in sys.modules])"
    )
    done = finished([sys.executable, "-c", script], check=True)
    assert done.stdout == "[]\n"
