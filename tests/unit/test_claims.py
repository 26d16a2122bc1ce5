"""Resource claims: what they are called, who holds them, and what a directory's name says."""

from pathlib import Path

import pytest
from node_root import Root, only, refresh
from pod_names import HOSTILE, OTHER_UID, STATIC, UID

pytest.importorskip("ijson")

from fake_kubernetes.server import FakeApi
from wait import eventually

from libhamiregion import create_region
from libhamiregion.node import (
    ChainedNames,
    ClaimName,
    KubernetesNames,
    Node,
    PodLogNames,
    PodName,
    Selector,
    claim_reader,
)
from libhamiregion.node.claims import claims_of, reserved_for
from libhamiregion.plan import export_plan, parse_plan, plan_text

CLAIM = "6f1c0d8e-9f2b-4f0a-8a51-0c5f6d1e2a3b"


def names_from(api: FakeApi, directory: Path) -> KubernetesNames:
    """They end with the server, when their connections do."""
    return KubernetesNames("node-1", kubeconfig=api.kubeconfig(directory), wait_s=30.0)


def held_by(*holders: tuple[str, str | None]) -> ClaimName:
    names = tuple(PodName("research", pod, container) for pod, container in holders)
    return ClaimName("research", "a100-half", names)


# ---- What is shown where a container's name would stand ----


@pytest.mark.parametrize(
    ("claim", "shown"),
    [
        (held_by(("bert-0", "train")), ("bert-0", "train")),
        (held_by(("bert-0", None)), ("bert-0", "a100-half")),
        (held_by(("bert-0", "train"), ("bert-0", "eval")), ("bert-0", "a100-half")),
        (held_by(("bert-0", "train"), ("bert-1", "train")), (None, "a100-half")),
        (held_by(), (None, "a100-half")),
    ],
    ids=["one", "unknown container", "two of one pod", "two pods", "nobody"],
)
def test_a_pod_and_a_container_are_named_only_where_they_are_the_only_ones(
    claim: ClaimName, shown: tuple[str | None, str]
) -> None:
    assert claim.pod_name == PodName("research", *shown)


# ---- The API ----


def test_a_claim_is_named_with_the_containers_that_hold_it(api: FakeApi, tmp_path: Path) -> None:
    api.put("bert-0", UID, {}, containers=("train", "eval"), claims=("a100-half",))
    api.put("bert-1", OTHER_UID, {}, claims=("a100-half",))
    api.put_claim("a100-half", CLAIM, UID, OTHER_UID)
    names = names_from(api, tmp_path)
    found = names.resolve_claim(CLAIM)
    assert found is not None
    assert sorted(found.holders, key=str) == sorted(
        held_by(("bert-0", "train"), ("bert-0", "eval"), ("bert-1", "train")).holders, key=str
    )
    assert (found.namespace, found.claim) == ("research", "a100-half")
    assert api.claims_asked == [("research", "a100-half")]
    assert names.resolve_claim(UID) is None
    assert len(api.claims_asked) == 1, "what is known holds for a while"


def test_a_pod_that_refers_to_a_claim_holds_it_only_once_it_is_reserved(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_reader, "_SOON_S", 0.1)
    api.put("bert-0", UID, {}, claims=("a100-half",))
    api.put("bert-1", OTHER_UID, {}, claims=("a100-half",))
    api.put_claim("a100-half", CLAIM, UID)
    names = names_from(api, tmp_path)
    assert names.resolve_claim(CLAIM) == held_by(("bert-0", "train"))
    api.put_claim("a100-half", CLAIM, OTHER_UID)
    eventually(lambda: names.resolve_claim(CLAIM) == held_by(("bert-1", "train")))


def test_a_claim_is_read_again_when_a_pod_that_refers_to_it_changes_and_else_seldom(
    api: FakeApi, tmp_path: Path
) -> None:
    api.put("bert-0", UID, {}, claims=("a100-half",))
    api.put_claim("a100-half", CLAIM, UID)
    names = names_from(api, tmp_path)
    assert names.resolve_claim(CLAIM) == held_by(("bert-0", "train"))
    eventually(lambda: api.open_watches)
    api.put("other", STATIC, {}, labels={"team": "blue"})
    api.put_claim("a100-half", CLAIM, UID, OTHER_UID)
    api.put("bert-1", OTHER_UID, {}, claims=("a100-half",))
    both = held_by(("bert-0", "train"), ("bert-1", "train"))
    eventually(lambda: names.resolve_claim(CLAIM) == both)
    assert len(api.claims_asked) == 2
    assert len(api.lists) == 1
    api.delete(UID)
    api.delete(OTHER_UID)
    eventually(lambda: names.resolve_claim(CLAIM) is None)


def test_a_claim_that_a_group_of_pods_holds_names_no_pod_as_the_only_one(
    api: FakeApi, tmp_path: Path
) -> None:
    """Whose pods are in a PodGroup, the claim does not tell."""
    api.put("bert-0", UID, {}, claims=("a100-half",))
    api.put_claim("a100-half", CLAIM, UID)
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": STATIC}
    api.claims["research", "a100-half"]["status"]["reservedFor"].append(group)
    found = names_from(api, tmp_path).resolve_claim(CLAIM)
    assert found is not None
    assert found.has_others
    assert found.pod_name == PodName("research", None, "a100-half")


def test_claims_beyond_what_is_read_are_told(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_reader, "_CLAIMS_LIMIT", 2)
    api.put("bert-0", UID, {}, claims=("a", "b", "c"))
    names = names_from(api, tmp_path)
    assert names.resolve_claim(CLAIM) is None
    assert "refer to 3 resource claims; 1 of them" in str(names.last_error)
    assert len(api.claims_asked) == 2


def test_a_claim_of_another_name_that_is_gone_hides_none(api: FakeApi, tmp_path: Path) -> None:
    api.put("bert-0", UID, {}, claims=("gone", "a100-half"))
    api.put_claim("a100-half", CLAIM, UID)
    names = names_from(api, tmp_path)
    assert names.resolve_claim(CLAIM) == held_by(("bert-0", "train"))
    assert names.last_error is None


def test_a_server_that_refuses_is_a_miss_and_leaves_what_was_known(
    api: FakeApi, tmp_path: Path
) -> None:
    api.put("bert-0", UID, {}, claims=("a100-half",))
    api.put_claim("a100-half", CLAIM, UID)
    names = names_from(api, tmp_path)
    known = names.resolve_claim(CLAIM)
    assert known is not None
    eventually(lambda: api.open_watches)
    with api.changed:
        api.refusals.append(403)
        api.put("bert-1", OTHER_UID, {}, claims=("a100-half",))
    eventually(lambda: "403" in str(names.last_error))
    assert names.resolve_claim(CLAIM) == known


def test_an_outage_is_no_answer_and_leaves_what_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike a claim that the server does not have."""
    monkeypatch.setattr(claim_reader, "_SOON_S", 0.02)
    monkeypatch.setattr(claim_reader, "_LATE_S", 0.02)
    with FakeApi() as api:
        api.put("bert-0", UID, {}, claims=("a100-half",))
        api.put_claim("a100-half", CLAIM, UID)
        names = names_from(api, tmp_path)
        known = names.resolve_claim(CLAIM)
        assert known is not None
        eventually(lambda: len(api.claims_asked) > 2)
    eventually(lambda: names._claims.error is not None)
    assert names._claims.error is not None
    assert names._claims.error.status is None
    assert names.resolve_claim(CLAIM) == known
    names.close()


def test_a_server_that_wants_to_be_left_alone_is_not_asked_for_claims(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_reader, "_SOON_S", 0.02)
    api.put("bert-0", UID, {}, claims=("a100-half",))
    api.put_claim("a100-half", CLAIM, UID)
    names = names_from(api, tmp_path)
    assert names.resolve_claim(CLAIM) is not None
    eventually(lambda: api.open_watches)
    pauses: list[float] = []
    wait = names._claims._news.wait

    def noted(for_s: float) -> bool:
        pauses.append(for_s)
        return wait(0.01)

    monkeypatch.setattr(names._claims._news, "wait", noted)
    with api.changed:
        api.refusals.append((429, 7))
        api.put("bert-1", OTHER_UID, {}, claims=("a100-half",))
    eventually(lambda: 7.0 in pauses)


def test_files_know_no_claims_and_a_later_resolver_is_asked(api: FakeApi, tmp_path: Path) -> None:
    api.put("bert-0", UID, {}, claims=("a100-half",))
    api.put_claim("a100-half", CLAIM, UID)
    files = PodLogNames(tmp_path)
    assert ChainedNames([files]).resolve_claim(CLAIM) is None
    chain = ChainedNames([files, names_from(api, tmp_path)])
    assert chain.resolve_claim(CLAIM) == held_by(("bert-0", "train"))


def test_a_claim_made_from_a_template_is_named_by_the_pods_status() -> None:
    pod = {
        "metadata": {"namespace": "research", "name": "bert-0"},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "a100"}],
            "containers": [
                {"name": "train", "resources": {"claims": [{"name": "gpu", "request": "a"}]}},
                {"name": "logs"},
            ],
        },
        "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "bert-0-gpu-x"}]},
    }
    assert list(claims_of(pod)) == [("bert-0-gpu-x", PodName("research", "bert-0", "train"))]
    del pod["spec"]["containers"]  # type: ignore[attr-defined]
    assert list(claims_of(pod)) == [("bert-0-gpu-x", PodName("research", "bert-0", None))]


def test_a_claim_made_for_an_extended_resource_is_named_by_the_pods_status() -> None:
    pod = {
        "metadata": {"namespace": "research", "name": "bert-0"},
        "spec": {"containers": [{"name": "train"}, {"name": "logs"}]},
        "status": {
            "extendedResourceClaimStatus": {
                "resourceClaimName": "bert-0-extended-resources-x",
                "requestMappings": [
                    {"containerName": "train", "resourceName": "nvidia.com/gpu", "requestName": "a"}
                ],
            }
        },
    }
    assert list(claims_of(pod)) == [
        ("bert-0-extended-resources-x", PodName("research", "bert-0", "train"))
    ]


@pytest.mark.parametrize("odd", [None, 1, "x", [], {}, [1], [[]], [{}], {"x": 1}], ids=repr)
def test_what_is_no_pod_and_no_claim_holds_nothing(odd: object) -> None:
    named = {"namespace": "research", "name": "bert-0"}
    for pod in (
        odd,
        {"metadata": odd},
        {"metadata": named, "spec": odd, "status": odd},
        {"metadata": named, "spec": {"resourceClaims": odd, "containers": odd}},
        {"metadata": named, "spec": {"containers": [{"name": "c", "resources": {"claims": odd}}]}},
        {"metadata": named, "status": {"extendedResourceClaimStatus": odd}},
    ):
        assert list(claims_of(pod)) == []
    for claim in (odd, {"status": odd}, {"status": {"reservedFor": odd}}):
        assert reserved_for(claim) == frozenset()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_of_claims_and_holders_name_nothing(
    api: FakeApi, tmp_path: Path, text: str
) -> None:
    api.put("bert-0", UID, {}, claims=(text,))
    api.put(text, OTHER_UID, {}, claims=("a100-half",))
    api.put("bert-2", STATIC, {}, containers=(text,), claims=("a100-half",))
    api.put_claim(text, UID, UID)
    api.put_claim("a100-half", CLAIM, OTHER_UID, STATIC)
    names = names_from(api, tmp_path)
    assert names.resolve_claim(UID) is None
    assert names.resolve_claim(CLAIM) == held_by(("bert-2", None))


# ---- Directories and the node ----


@pytest.mark.parametrize(
    "name",
    [f"{CLAIM}_train", CLAIM.upper(), CLAIM[:-1], f"{CLAIM}\n", f" {CLAIM}", "", f"{CLAIM}.limits"],
)
def test_only_a_uid_is_a_claims_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "claims" / name).mkdir(parents=True)
    with Node(tmp_path / "claims") as node:
        assert not refresh(node)


def test_a_container_that_makes_directories_beside_its_own_makes_no_claim(tmp_path: Path) -> None:
    """KAI's containers can write the directory that holds all of theirs."""
    (tmp_path / "containers" / CLAIM).mkdir(parents=True)
    with Node(tmp_path / "containers") as node:
        assert not refresh(node)


def test_a_claim_without_the_api_goes_by_its_uid(tmp_path: Path) -> None:
    root = Root(tmp_path / "claims")
    (root.path / CLAIM).mkdir()
    with Node(root, names=PodLogNames(tmp_path)) as node:
        refresh(node)
        found = only(node)
        assert (found.claim_uid, found.pod_uid, found.claim) == (CLAIM, None, None)
        assert (found.namespace, found.pod, found.name) == (None, None, CLAIM)
        assert node.select(container=CLAIM) == (found,)
        assert node.select(pod="*", allow_unnamed=True) == ()


def test_a_claim_is_chosen_by_what_it_is_shown_as(api: FakeApi, tmp_path: Path) -> None:
    api.put("bert-0", UID, {}, claims=("a100-half",))
    api.put_claim("a100-half", CLAIM, UID)
    root = Root(tmp_path / "claims")
    (root.path / CLAIM).mkdir()
    with Node(root, names=names_from(api, tmp_path)) as node:
        refresh(node)
        found = only(node)
        assert (found.namespace, found.pod, found.name) == ("research", "bert-0", "train")
        assert found.claim == held_by(("bert-0", "train"))
        assert node.pod_name(found) == found.pod_name
        for chosen in (
            {"namespace": "research"},
            {"pod": "bert-*"},
            {"container": "train"},
            {"container": CLAIM},
        ):
            assert Selector(**chosen).matches(found)  # type: ignore[arg-type]
        assert not Selector(pod_uid="*").matches(found)


def test_no_pod_is_meant_by_a_claims_rule_by_calling_its_container_so(tmp_path: Path) -> None:
    claims, pods = Root(tmp_path / "claims"), Root(tmp_path / "containers")
    (claims.path / CLAIM).mkdir()
    create_region(claims.path / CLAIM / "a.cache", memory_limits=["4GiB"])
    with Node([claims, pods], names=PodLogNames(tmp_path)) as node:
        refresh(node)
        plan = parse_plan(plan_text(export_plan(node)))
        pods.region(name=CLAIM)
        refresh(node)
        claim, pod = node.containers
        assert (claim.claim_uid, pod.name) == (CLAIM, CLAIM)
        assert [rule.select.matches(claim) for rule in plan.rules] == [True, True]
        assert [rule.select.matches(pod) for rule in plan.rules] == [False, False]
