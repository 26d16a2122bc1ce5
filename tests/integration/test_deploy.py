"""What deploy/ ships is valid for Kubernetes, Prometheus and our own command line."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

from libhamiregion import __version__  # noqa: E402
from libhamiregion.cli.verbs import hamiregion  # noqa: E402
from libhamiregion.exporter import FAMILIES  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable

DEPLOY = Path(__file__).parents[2] / "deploy"
KUSTOMIZE = DEPLOY / "kustomize"
PAGE = DEPLOY.parent / "docs" / "in-a-cluster.md"
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
STEERED = {"hami-repaired", "hami-steered", "volcano-repaired"}
REPAIRING = [
    *("agent", "--metrics", "--repair", "--plan=/etc/hamiregion/plan.yaml"),
    *("--state=/var/lib/hamiregion", "--listen=:9394"),
]
IMAGE = f"registry.example/hamiregion:{__version__}"
# The operator's own kinds have no schema in Kubernetes.
OPERATOR_KINDS = {"PrometheusRule", "ServiceMonitor"}
# In C where PyYAML was built with it: these are many documents.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")


def kustomize(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["kubectl", "kustomize", str(directory)], capture_output=True, text=True, check=False
    )


def documents_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.load_all(done.stdout, Loader=LOADER) if document]


@functools.cache
def rendered(overlay: str) -> subprocess.CompletedProcess[str]:
    return kustomize(KUSTOMIZE / "overlays" / overlay)


def built(overlay: str) -> list[dict[str, Any]]:
    return documents_of(rendered(overlay))


def own_overlay(directory: Path, kustomization: str, name: str = "own") -> Path:
    """A kustomization of somebody's own, beside our overlays."""
    tree = directory / "kustomize"
    shutil.copytree(KUSTOMIZE, tree, dirs_exist_ok=True)
    own = tree / "overlays" / name
    own.mkdir(exist_ok=True)
    own.joinpath("kustomization.yaml").write_text(kustomization)
    return own


@functools.cache
def combined(kustomization: str) -> subprocess.CompletedProcess[str]:
    """What a kustomization of somebody's own makes, beside our overlays."""
    with tempfile.TemporaryDirectory() as name:
        return kustomize(own_overlay(Path(name), kustomization))


def components_on(overlay: str, components: Iterable[str]) -> str:
    """The kustomization of an overlay with components."""
    paths = [f"../../components/{component}" for component in components]
    return json.dumps({"resources": [f"../{overlay}"], "components": paths})


def with_components(overlay: str, components: Iterable[str]) -> subprocess.CompletedProcess[str]:
    return combined(components_on(overlay, components))


def daemon_set(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The one DaemonSet that there is."""
    (found,) = (document for document in documents if document["kind"] == "DaemonSet")
    return dict(found)


def pod_of(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The specification of the pods that run on every node."""
    return dict(daemon_set(documents)["spec"]["template"]["spec"])


def containers_of(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {container["name"]: container for container in spec["containers"]}


def mounts_of(container: dict[str, Any]) -> dict[str, str]:
    """Path to volume."""
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


def environment_of(container: dict[str, Any]) -> dict[str, str | None]:
    return {each["name"]: each.get("value") for each in container.get("env", ())}


def host_paths_of(spec: dict[str, Any]) -> dict[str, str]:
    return {
        each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each
    }


def job_files() -> list[dict[str, Any]]:
    files = sorted(set((DEPLOY / "jobs").glob("*.yaml")) - {DEPLOY / "jobs/kustomization.yaml"})
    assert files
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def pod_specs(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        document["spec"]["template"]["spec"]
        for document in documents
        if document["kind"] in {"DaemonSet", "Job"}
    ]


def check_schemas(documents: list[dict[str, Any]]) -> None:
    for document in documents:
        if document["kind"] not in OPERATOR_KINDS:
            kubernetes_validate.validate(document, "1.30", strict=True)


def check_pod(spec: dict[str, Any], *more: str) -> None:
    """No container has capabilities but SYS_PTRACE and these more."""
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in spec["containers"]:
        assert container["image"] == IMAGE
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"]["drop"] == ["ALL"]
        assert set(security["capabilities"].get("add", [])) <= {"SYS_PTRACE", *more}
        check_command_line(container["args"])


def check_command_line(words: list[str]) -> None:
    """Every verb and option is one that this version has."""
    command: click.Command = hamiregion
    context = click.Context(command, info_name="hamiregion")
    rest = list(words)
    while isinstance(command, click.Group):
        inner = command.get_command(context, rest[0])
        assert inner is not None, words
        command = inner
        context = click.Context(command, info_name=rest.pop(0), parent=context)
    command.make_parser(context).parse_args(rest)


@pytest.mark.slow(keep=2)
@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_what_kubernetes_and_the_command_line_accept(overlay: str) -> None:
    documents = built(overlay)
    check_schemas(documents)
    specs = pod_specs(documents)
    assert specs
    for spec in specs:
        check_pod(spec)
        for container in spec["containers"]:
            assert "/usr/local/vgpu" in {mount["mountPath"] for mount in container["volumeMounts"]}


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_one_process_on_a_node_listens_is_probed_and_gives_way_to_no_other(overlay: str) -> None:
    (spec,) = pod_specs(built(overlay))
    assert spec["priorityClassName"] == "system-node-critical"
    (container,) = spec["containers"]
    steers = overlay in STEERED
    assert container["name"] == ("agent" if steers else "exporter")
    assert container["args"].count("--listen=:9394") == 1
    assert ("--metrics" in container["args"]) == steers
    assert container["ports"] == [{"name": "metrics", "containerPort": 9394}]
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
    assert container["livenessProbe"].get("failureThreshold") == (6 if steers else None)
    assert container["resources"]["limits"] == {"memory": "192Mi"}


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_who_only_reads_mounts_nothing_writable_and_an_agent_no_more_than_it_needs(
    overlay: str,
) -> None:
    (container,) = pod_of(built(overlay))["containers"]
    writable = {
        mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
    }
    expected = set()
    if overlay in STEERED:
        expected = {"/usr/local/vgpu", "/run/hamiregion-locks", "/var/lib/hamiregion"}
    if overlay == "volcano-repaired":
        expected.add("/tmp/vgpu")
    assert writable == expected


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_service_and_its_monitor_find_the_pods_of_every_overlay(overlay: str) -> None:
    documents = built(overlay)
    by_kind = {document["kind"]: document for document in documents}
    pods = daemon_set(documents)["spec"]["template"]["metadata"]["labels"]
    service = by_kind["Service"]
    assert service["spec"]["selector"].items() <= pods.items()
    wanted = by_kind["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    (container,) = pod_of(documents)["containers"]
    assert port["targetPort"] in {each["name"] for each in container["ports"]}
    (endpoint,) = by_kind["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["port"] == port["name"]


@needs_kubectl
@pytest.mark.parametrize("steered", ["hami-repaired", "hami-steered", "volcano-repaired"])
def test_an_overlay_takes_the_place_of_another_one_of_its_kind(steered: str) -> None:
    """One object of that name, whose selector the server lets nobody change."""
    plain = daemon_set(built(steered.partition("-")[0]))
    other = daemon_set(built(steered))
    for kept in ("namespace", "name"):
        assert plain["metadata"][kept] == other["metadata"][kept]
    assert plain["spec"]["selector"] == other["spec"]["selector"]
    for each, component in ((plain, "exporter"), (other, "agent")):
        for labels in (each["metadata"]["labels"], each["spec"]["template"]["metadata"]["labels"]):
            assert labels["app.kubernetes.io/component"] == component


@needs_kubectl
@pytest.mark.parametrize(("directory", "count"), [("jobs", 2), ("jobs/repair", 1)])
def test_the_jobs_are_what_kubernetes_and_the_command_line_accept(
    directory: str, count: int
) -> None:
    documents = documents_of(kustomize(DEPLOY / directory))
    check_schemas(documents)
    assert len(documents) == count
    (spec,) = pod_specs(documents)
    check_pod(spec)


def test_the_plans_in_config_maps_are_plans() -> None:
    from libhamiregion.plan import load_plan, parse_plan

    load_plan(KUSTOMIZE / "components" / "agent" / "plan.yaml")
    plans = [each["data"]["plan.yaml"] for each in job_files() if each["kind"] == "ConfigMap"]
    assert [len(parse_plan(text).rules) for text in plans] == [1]


def test_the_operators_rules_are_the_same_as_prometheuss() -> None:
    plain = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
    wrapped = KUSTOMIZE / "components" / "prometheus-rules" / "prometheusrule.yaml"
    assert yaml.safe_load(wrapped.read_text())["spec"] == plain


@needs_promtool
def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    directory = DEPLOY / "prometheus"
    for words in (("check", "rules", "rules.yaml"), ("test", "rules", "rules_test.yaml")):
        done = subprocess.run(
            ["promtool", *words], cwd=directory, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
    tests = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    tested = {
        case["alertname"]
        for scene in tests["tests"]
        for case in scene["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert tested == alerts


def test_rules_and_dashboard_ask_for_metrics_that_there_are() -> None:
    known = {family.name for family in FAMILIES}
    text = (DEPLOY / "prometheus" / "rules.yaml").read_text()
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    expressions = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    assert len(expressions) > 20
    queries = [
        each["definition"] for each in dashboard["templating"]["list"] if "definition" in each
    ]
    for source in (text, *expressions, *queries):
        asked = {
            re.sub("_(sum|count)$", "", name)
            for name in re.findall(r"\b(?:hami|hamiregion)_[a-z_]+", source)
        }
        assert asked <= known, source


def test_the_image_has_what_the_manifests_run() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    extras = set(re.findall(r"\[([a-z,]+)\]", dockerfile))
    assert extras == {"cli,exporter,kubernetes,plan"}
    (user,) = re.findall(r"^USER (\d+):\d+$", dockerfile, re.MULTILINE)
    assert user != "0"


@needs_kubectl
def test_one_file_names_the_image_of_every_container(tmp_path: Path) -> None:
    tree = tmp_path / "deploy"
    shutil.copytree(DEPLOY, tree)
    named = tree / "kustomize" / "components" / "image" / "kustomization.yaml"
    text = named.read_text()
    name, tag = IMAGE.rsplit(":", 1)
    assert text.count(name) == text.count(tag) == 1
    named.write_text(text.replace(name, "ghcr.io/we/ours").replace(tag, "1.2.3"))
    own = tree / "kustomize" / "overlays" / "own"
    own.mkdir()
    own.joinpath("kustomization.yaml").write_text(
        "resources: [../hami-steered]\ncomponents: [../../components/recorder]\n"
    )
    for directory, containers in ((own, 2), (tree / "jobs", 1)):
        specs = pod_specs(documents_of(kustomize(directory)))
        images = [each["image"] for spec in specs for each in spec["containers"]]
        assert images == ["ghcr.io/we/ours:1.2.3"] * containers


# What two tests ask of one rendering.
IN_A_MODEST_CLUSTER = ("recorder", "before-1.30", "network-policy")
IN_NO_OVERLAY = ("mig", "nvidia-runtime", "recorder")


# Each alone where nothing else stands; where other things do, together.
@pytest.mark.slow(keep=1)
@needs_kubectl
@pytest.mark.parametrize(
    ("overlay", "components"),
    [
        *(("hami", (component,)) for component in IN_NO_OVERLAY),
        *((overlay, IN_NO_OVERLAY) for overlay in ("hami-steered", "volcano", "volcano-repaired")),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_a_component_of_no_overlay_fits_them_too(overlay: str, components: tuple[str, ...]) -> None:
    documents = documents_of(with_components(overlay, [*components]))
    check_schemas(documents)
    spec = pod_of(documents)
    check_pod(spec, *(["SYS_ADMIN"] if "mig" in components else []))
    containers = containers_of(spec)
    container = containers["agent" if overlay in STEERED else "exporter"]
    recorders = {"recorder"} & {*components}
    assert containers.keys() - {container["name"]} == recorders
    for name in recorders:
        assert mounts_of(containers[name])["/usr/local/vgpu"] == "regions"
    capabilities = container["securityContext"]["capabilities"].get("add", [])
    assert ("SYS_ADMIN" in capabilities) == ("mig" in components)
    if "mig" in components:
        assert "SYS_PTRACE" in capabilities
        assert environment_of(container)["NVIDIA_MIG_MONITOR_DEVICES"] == "all"
        assert "NODE_NAME" in environment_of(container)
    assert (spec.get("runtimeClassName") == "nvidia") == ("nvidia-runtime" in components)


@needs_kubectl
@pytest.mark.parametrize("overlay", ["hami", "hami-repaired", "hami-steered"])
def test_an_overlay_looks_where_hami_puts_its_regions(overlay: str) -> None:
    spec = pod_of(built(overlay))
    assert spec["nodeSelector"] == {"gpu": "on"}
    assert host_paths_of(spec)["regions"] == "/usr/local/vgpu"
    (container,) = spec["containers"]
    assert environment_of(container)["HOOK_PATH"] == "/usr/local/vgpu"
    assert mounts_of(container)["/usr/local/vgpu"] == "regions"


@needs_kubectl
@pytest.mark.parametrize("overlay", ["volcano", "volcano-repaired"])
def test_an_overlay_looks_where_volcano_puts_its_regions(overlay: str) -> None:
    """No root is named: of those of 1.12 and of before, a node has one."""
    spec = pod_of(built(overlay))
    paths = host_paths_of(spec)
    assert (paths["regions"], paths["earlier-regions"]) == ("/usr/local/vgpu", "/tmp/vgpu")
    (container,) = spec["containers"]
    assert "HOOK_PATH" not in environment_of(container)
    assert not any(word.startswith("--root") for word in container["args"])
    mounts = mounts_of(container)
    assert mounts["/usr/local/vgpu"] == "regions"
    assert mounts["/tmp/vgpu"] == "earlier-regions"


@needs_kubectl
def test_the_exporter_looks_where_kais_isolator_puts_its_regions() -> None:
    spec = pod_of(built("kai"))
    container = containers_of(spec)["exporter"]
    assert environment_of(container)["CONTAINER_VGPU_MOUNT"] == "/usr/local/vgpu"
    assert mounts_of(container)["/usr/local/vgpu"] == "regions"
    assert not spec["automountServiceAccountToken"]


@needs_kubectl
def test_claims_are_named_without_the_api() -> None:
    documents = built("dra")
    spec = pod_of(documents)
    container = containers_of(spec)["exporter"]
    assert container["args"] == ["exporter", "--listen=:9394"]
    assert not spec["automountServiceAccountToken"]
    # kubelet's checkpoint is read through /proc/1/root.
    assert spec["hostPID"]
    assert container["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE"]
    # No root is named: a node may have HAMi's device plugin as well, or not.
    assert "HOOK_PATH" not in environment_of(container)
    assert not [each for each in documents if each["kind"] == "ClusterRole"]


@needs_kubectl
@pytest.mark.parametrize("overlay", ["hami-repaired", "volcano-repaired"])
def test_an_agent_beside_the_monitor_writes_nothing_that_the_monitor_writes(overlay: str) -> None:
    spec = pod_of(built(overlay))
    (container,) = spec["containers"]
    assert container["args"] == REPAIRING
    assert not spec["automountServiceAccountToken"]
    assert spec["serviceAccountName"] == "hamiregion-agent"
    assert mounts_of(container)["/run/hamiregion-locks"] == "locks"
    assert host_paths_of(spec)["locks"] == "/run/hamiregion-locks"


@pytest.mark.slow(keep=1)
@needs_kubectl
@pytest.mark.parametrize("overlay", ["hami-repaired", "volcano-repaired"])
@pytest.mark.parametrize("turned", [False, True], ids=["listed", "reversed"])
def test_components_do_the_same_in_any_order(overlay: str, turned: bool) -> None:
    components = [
        *("nvidia-runtime", "feedback", "mig", "remove-gone", "recorder", "annotations"),
        *("before-1.30", "network-policy", "priority-quota"),
    ]
    if turned:
        components.reverse()
    documents = documents_of(with_components(overlay, components))
    check_schemas(documents)
    spec = pod_of(documents)
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["automountServiceAccountToken"]
    containers = containers_of(spec)
    assert set(containers) == {"agent", "recorder"}
    agent = containers["agent"]
    assert agent["args"][: len(REPAIRING)] == REPAIRING
    assert sorted(agent["args"][len(REPAIRING) :]) == [
        "--feedback",
        "--from-annotations",
        "--kubelet-pods=/proc/1/root/var/lib/kubelet/pods",
        "--remove-gone",
    ]
    capabilities = agent["securityContext"]["capabilities"]
    assert capabilities["drop"] == ["ALL"]
    assert sorted(capabilities["add"]) == ["DAC_OVERRIDE", "FOWNER", "SYS_ADMIN", "SYS_PTRACE"]
    assert containers["recorder"]["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE"]
    assert {"NODE_NAME", "NVIDIA_MIG_MONITOR_DEVICES"} <= environment_of(agent).keys()
    for container in containers.values():
        check_command_line(container["args"])
        assert container["image"] == IMAGE
        assert mounts_of(container)["/usr/local/vgpu"] == "regions"


@pytest.mark.slow(keep=1)
@needs_kubectl
@pytest.mark.parametrize("component", ["feedback", "annotations", "remove-gone"])
@pytest.mark.parametrize("overlay", ["hami", "volcano"])
def test_a_component_for_the_agent_is_refused_without_one(overlay: str, component: str) -> None:
    done = with_components(overlay, [component])
    assert done.returncode != 0
    assert "testing value /spec/template/spec/containers/0/name failed" in done.stderr


@pytest.mark.slow(keep=1)
@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_before_1_30_a_pod_tells_app_armor_by_annotations(overlay: str) -> None:
    prefix = "container.apparmor.security.beta.kubernetes.io/"
    documents = documents_of(with_components(overlay, IN_A_MODEST_CLUSTER))
    template = daemon_set(documents)["spec"]["template"]
    assert "appArmorProfile" not in template["spec"]["securityContext"]
    in_proc = {
        each["name"]
        for each in template["spec"]["containers"]
        if "SYS_PTRACE" in each["securityContext"]["capabilities"].get("add", ())
    }
    assert len(in_proc) == 2
    assert template["metadata"]["annotations"] == {
        f"{prefix}{name}": "unconfined" for name in in_proc
    }


@pytest.mark.slow(keep=1)
@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_network_policy_lets_the_ports_through_that_are_listened_on(overlay: str) -> None:
    documents = documents_of(with_components(overlay, IN_A_MODEST_CLUSTER))
    check_schemas(documents)
    (policy,) = (each for each in documents if each["kind"] == "NetworkPolicy")
    template = daemon_set(documents)["spec"]["template"]
    labels = policy["spec"]["podSelector"]["matchLabels"]
    assert labels.items() <= template["metadata"]["labels"].items()
    listening = {
        port["containerPort"]
        for container in template["spec"]["containers"]
        for port in container.get("ports", ())
    }
    (rule,) = policy["spec"]["ingress"]
    assert {each["port"] for each in rule["ports"]} == listening


@needs_kubectl
def test_openshift_admits_what_the_pods_ask_for_and_nothing_else() -> None:
    components = ["openshift", "mig", "remove-gone", "recorder"]
    accounts, capabilities, volumes = set(), set(), set()
    for overlay, added in (("hami", ["openshift"]), ("hami-steered", components)):
        documents = documents_of(with_components(overlay, added))
        (allowed,) = (each for each in documents if each["kind"] == "SecurityContextConstraints")
        spec = pod_of(documents)
        assert spec["hostPID"] <= allowed["allowHostPID"]
        assert spec["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
        assert "appArmorProfile" not in spec["securityContext"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        accounts.add(f"system:serviceaccount:hamiregion:{spec['serviceAccountName']}")
        volumes |= {key for volume in spec["volumes"] for key in volume.keys() - {"name"}}
        for container in containers_of(spec).values():
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            capabilities |= set(context["capabilities"].get("add", ()))
    assert set(allowed["users"]) == accounts
    assert set(allowed["allowedCapabilities"]) == capabilities
    # An account's token is a projected volume.
    assert set(allowed["volumes"]) - {"projected"} == volumes
    assert allowed["seccompProfiles"] == ["runtime/default"]
    for name in ("PrivilegedContainer", "PrivilegeEscalation", "HostNetwork", "HostPorts"):
        assert allowed[f"allow{name}"] is False


@pytest.mark.slow
@needs_kubectl
def test_every_kustomization_on_the_page_renders() -> None:
    blocks = re.findall(
        r"^```yaml\n(resources:.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    results = [documents_of(combined(block)) for block in blocks]
    for documents in results:
        check_schemas(documents)
    steered_volcano, elsewhere, outside, removing, kai, claims = results
    pod = pod_of(steered_volcano)
    assert "--feedback" in containers_of(pod)["agent"]["args"]
    assert pod["runtimeClassName"] == "nvidia"
    assert not OPERATOR_KINDS & {document["kind"] for document in elsewhere}
    pod = pod_of(elsewhere)
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert host_paths_of(pod)["regions"] == "/opt/vgpu"
    exporter = containers_of(pod_of(outside))["exporter"]
    check_command_line(exporter["args"])
    assert "--outside" in exporter["args"]
    capabilities = exporter["securityContext"]["capabilities"]
    assert capabilities == {"drop": ["ALL"], "add": ["SYS_PTRACE", "CHECKPOINT_RESTORE"]}
    arguments = containers_of(pod_of(removing))["agent"]["args"]
    assert {"--feedback", "--remove-gone"} <= set(arguments)
    for documents in (kai, claims):
        pod = pod_of(documents)
        check_pod(pod)
        assert not pod["automountServiceAccountToken"]
    assert environment_of(containers_of(pod_of(kai))["agent"])["CONTAINER_VGPU_MOUNT"]


def test_the_page_has_a_row_for_every_overlay_and_component() -> None:
    page = PAGE.read_text()
    components = {path.name for path in (KUSTOMIZE / "components").iterdir()}
    rows = set(re.findall(r"^\| `([a-z0-9.-]+)` \|", page, re.MULTILINE))
    in_every_overlay = {"servicemonitor", "prometheus-rules"}
    assert rows == set(OVERLAYS) | components - in_every_overlay - {"image"}
    for path in re.findall(r"\bdeploy/[a-zA-Z/_.-]*[a-zA-Z]", page):
        assert DEPLOY.parent.joinpath(path).exists() or path.split("/")[-2] == "own", path
