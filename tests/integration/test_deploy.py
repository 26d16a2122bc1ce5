"""What deploy/ ships is valid for Kubernetes, Prometheus and our own command line."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

from libhamiregion import __version__  # noqa: E402
from libhamiregion.cli.verbs import hamiregion  # noqa: E402
from libhamiregion.exporter import FAMILIES  # noqa: E402

DEPLOY = Path(__file__).parents[2] / "deploy"
KUSTOMIZE = DEPLOY / "kustomize"
PAGE = DEPLOY.parent / "docs" / "in-a-cluster.md"
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
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


def combined(tmp_path: Path, kustomization: str) -> subprocess.CompletedProcess[str]:
    """What a kustomization of somebody's own makes, beside our overlays."""
    tree = tmp_path / "kustomize"
    shutil.copytree(KUSTOMIZE, tree, dirs_exist_ok=True)
    own = tree / "overlays" / "own"
    own.mkdir(exist_ok=True)
    own.joinpath("kustomization.yaml").write_text(kustomization)
    return kustomize(own)


def with_components(
    tmp_path: Path, overlay: str, components: list[str]
) -> subprocess.CompletedProcess[str]:
    paths = [f"../../components/{component}" for component in components]
    return combined(tmp_path, json.dumps({"resources": [f"../{overlay}"], "components": paths}))


def daemon_set(documents: list[dict[str, Any]], component: str) -> dict[str, Any]:
    """The pod's specification of hamiregion-<component>."""
    (found,) = (
        document["spec"]["template"]["spec"]
        for document in documents
        if document["kind"] == "DaemonSet"
        and document["metadata"]["name"] == f"hamiregion-{component}"
    )
    return dict(found)


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
    """Of all that runs somewhere."""
    return [
        document["spec"]["template"]["spec"]
        for document in documents
        if document["kind"] in {"DaemonSet", "Job"} and not is_no_agent(document)
    ]


def is_no_agent(document: dict[str, Any]) -> bool:
    return document["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "no-agent"


def check_schemas(documents: list[dict[str, Any]]) -> None:
    for document in documents:
        if document["kind"] not in OPERATOR_KINDS:
            kubernetes_validate.validate(document, "1.30", strict=True)


def check_pod(spec: dict[str, Any]) -> None:
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in spec["containers"]:
        assert container["image"] == IMAGE
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"]["drop"] == ["ALL"]
        assert set(security["capabilities"].get("add", [])) <= {"SYS_PTRACE"}
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
def test_what_listens_is_probed_there_and_no_pod_gives_way_to_others(overlay: str) -> None:
    probed = 0
    specs = pod_specs(built(overlay))
    for spec in specs:
        assert spec["priorityClassName"] == "system-node-critical"
        for name, container in containers_of(spec).items():
            listens = [each for each in container["args"] if each.startswith("--listen")]
            assert len(listens) == (name in {"agent", "exporter"})
            for address in listens:
                port = {"name": mock.ANY, "containerPort": int(address.rpartition(":")[2])}
                assert port in container["ports"]
                named = {each["name"] for each in container["ports"]}
                for probe in ("livenessProbe", "readinessProbe"):
                    asks = container[probe]["httpGet"]
                    assert asks["path"] in {"/healthz", "/readyz"}
                    assert asks["port"] in named
                probed += 1
    assert probed == len(specs) > 0


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_who_only_reads_mounts_nothing_writable(overlay: str) -> None:
    for document in built(overlay):
        if document["kind"] == "DaemonSet" and document["metadata"]["name"].endswith("-exporter"):
            (container,) = document["spec"]["template"]["spec"]["containers"]
            assert all(mount["readOnly"] for mount in container["volumeMounts"])


@needs_kubectl
def test_the_service_and_its_monitor_find_the_exporter() -> None:
    by_kind: dict[str, dict[str, Any]] = {}
    for document in built("hami"):
        by_kind[document["kind"]] = document
    labels = by_kind["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    service = by_kind["Service"]
    assert service["spec"]["selector"].items() <= labels.items()
    wanted = by_kind["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    (endpoint,) = by_kind["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]


@needs_kubectl
def test_the_jobs_are_what_kubernetes_and_the_command_line_accept() -> None:
    documents = documents_of(kustomize(DEPLOY / "jobs"))
    check_schemas(documents)
    specs = pod_specs(documents)
    assert len(documents) == len(job_files())
    assert specs
    for spec in specs:
        check_pod(spec)


def test_the_plans_in_config_maps_are_plans() -> None:
    from libhamiregion.plan import load_plan, parse_plan

    load_plan(KUSTOMIZE / "agent" / "plan.yaml")
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


def test_the_image_that_the_page_builds_is_pushed_and_run() -> None:
    commands = re.findall(r"^    (docker .*)$", PAGE.read_text(), re.MULTILINE)
    assert commands == [
        f"docker build --tag {IMAGE} --file deploy/Dockerfile .",
        f"docker push {IMAGE}",
    ]


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
    for directory, containers in ((own, 4), (tree / "jobs", 1)):
        specs = pod_specs(documents_of(kustomize(directory)))
        images = [each["image"] for spec in specs for each in spec["containers"]]
        assert images == ["ghcr.io/we/ours:1.2.3"] * containers


@needs_kubectl
@pytest.mark.parametrize("component", ["mig", "names", "nvidia-runtime", "recorder"])
@pytest.mark.parametrize("overlay", ["hami", "volcano"])
def test_a_component_of_no_overlay_fits_them_too(
    overlay: str, component: str, tmp_path: Path
) -> None:
    documents = documents_of(with_components(tmp_path, overlay, [component]))
    check_schemas(documents)
    (spec,) = pod_specs(documents)
    containers = containers_of(spec)
    container = containers["exporter"]
    if component == "recorder":
        check_pod(spec)
        assert set(containers) == {"exporter", "recorder"}
        assert mounts_of(containers["recorder"])["/usr/local/vgpu"] == "regions"
    elif component == "names":
        check_pod(spec)
        assert container["args"][-1] == "--names=kubernetes"
    elif component == "mig":
        assert container["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE", "SYS_ADMIN"]
        assert environment_of(container)["NVIDIA_MIG_MONITOR_DEVICES"] == "all"
    else:
        assert spec["runtimeClassName"] == "nvidia"


@needs_kubectl
@pytest.mark.parametrize("overlay", ["hami-repaired", "hami-steered"])
def test_both_daemon_sets_look_where_hami_puts_its_regions(overlay: str) -> None:
    documents = built(overlay)
    for component in ("exporter", "agent"):
        spec = daemon_set(documents, component)
        assert spec["nodeSelector"] == {"gpu": "on"}
        assert host_paths_of(spec)["regions"] == "/usr/local/vgpu"
        for container in spec["containers"]:
            assert environment_of(container)["HOOK_PATH"] == "/usr/local/vgpu"
            assert mounts_of(container)["/usr/local/vgpu"] == "regions"


@needs_kubectl
def test_both_daemon_sets_look_where_volcano_puts_its_regions() -> None:
    """No root is named: of those of 1.12 and of before, a node has one."""
    documents = built("volcano-repaired")
    for component in ("exporter", "agent"):
        spec = daemon_set(documents, component)
        paths = host_paths_of(spec)
        assert (paths["regions"], paths["earlier-regions"]) == ("/usr/local/vgpu", "/tmp/vgpu")
        for container in spec["containers"]:
            assert "HOOK_PATH" not in environment_of(container)
            assert not any(word.startswith("--root") for word in container["args"])
            mounts = mounts_of(container)
            assert mounts["/usr/local/vgpu"] == "regions"
            assert mounts["/tmp/vgpu"] == "earlier-regions"


@needs_kubectl
def test_the_exporter_looks_where_kais_isolator_puts_its_regions() -> None:
    spec = daemon_set(built("kai"), "exporter")
    container = containers_of(spec)["exporter"]
    assert environment_of(container)["CONTAINER_VGPU_MOUNT"] == "/usr/local/vgpu"
    assert mounts_of(container)["/usr/local/vgpu"] == "regions"
    assert not spec["automountServiceAccountToken"]


@needs_kubectl
def test_claims_are_named_by_the_api_with_the_rights_for_it_and_no_others() -> None:
    documents = built("dra")
    spec = daemon_set(documents, "exporter")
    container = containers_of(spec)["exporter"]
    assert container["args"] == ["exporter", "--listen=:9394", "--names=kubernetes"]
    assert spec["automountServiceAccountToken"]
    # No root is named: a node may have HAMi's device plugin as well, or not.
    assert "HOOK_PATH" not in environment_of(container)
    (role,) = (each for each in documents if each["kind"] == "ClusterRole")
    assert {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    } == {
        ("", "pods", "list"),
        ("", "pods", "watch"),
        ("resource.k8s.io", "resourceclaims", "get"),
    }


@needs_kubectl
@pytest.mark.parametrize("overlay", ["hami-repaired", "volcano-repaired"])
def test_names_from_the_api_are_the_agents_too(overlay: str, tmp_path: Path) -> None:
    documents = documents_of(with_components(tmp_path, overlay, ["names", "annotations"]))
    check_schemas(documents)
    for component in ("exporter", "agent"):
        spec = daemon_set(documents, component)
        check_pod(spec)
        assert spec["automountServiceAccountToken"]
        for container in spec["containers"]:
            assert container["args"].count("--names=kubernetes") == 1


@needs_kubectl
@pytest.mark.parametrize("overlay", ["hami-repaired", "volcano-repaired"])
def test_an_agent_beside_the_monitor_writes_nothing_that_the_monitor_writes(overlay: str) -> None:
    spec = daemon_set(built(overlay), "agent")
    assert containers_of(spec)["agent"]["args"] == [*("agent", "--repair", "--listen=:9395")]
    assert not spec["automountServiceAccountToken"]
    for container in spec["containers"]:
        regions = [
            mount for mount in container["volumeMounts"] if mount["name"].endswith("regions")
        ]
        assert not any(mount.get("readOnly") for mount in regions)


@needs_kubectl
@pytest.mark.parametrize("overlay", ["hami-repaired", "volcano-repaired"])
@pytest.mark.parametrize("turned", [False, True], ids=["listed", "reversed"])
def test_components_do_the_same_in_any_order(overlay: str, turned: bool, tmp_path: Path) -> None:
    components = ["nvidia-runtime", "feedback", "mig", "remove-gone", "recorder", "annotations"]
    if turned:
        components.reverse()
    documents = documents_of(with_components(tmp_path, overlay, components))
    check_schemas(documents)
    agent, exporter = daemon_set(documents, "agent"), daemon_set(documents, "exporter")
    assert agent["runtimeClassName"] == exporter["runtimeClassName"] == "nvidia"
    assert agent["automountServiceAccountToken"]
    assert not exporter["automountServiceAccountToken"]
    steering, limits = containers_of(agent)["agent"], containers_of(agent)["limits"]
    assert steering["args"][:3] == ["agent", "--repair", "--listen=:9395"]
    assert set(steering["args"][3:]) == {
        "--feedback",
        "--remove-gone",
        "--kubelet-pods=/proc/1/root/var/lib/kubelet/pods",
    }
    assert steering["securityContext"]["capabilities"] == {
        "drop": ["ALL"],
        "add": ["SYS_PTRACE", "DAC_OVERRIDE", "FOWNER"],
    }
    assert limits["args"][-1] == "--from-annotations"
    assert "NODE_NAME" in environment_of(limits)
    assert "add" not in limits["securityContext"]["capabilities"]
    containers = containers_of(exporter)
    assert set(containers) == {"exporter", "recorder"}
    assert "SYS_ADMIN" in containers["exporter"]["securityContext"]["capabilities"]["add"]
    assert "SYS_ADMIN" not in containers["recorder"]["securityContext"]["capabilities"]["add"]
    for container in (*agent["containers"], *exporter["containers"]):
        check_command_line(container["args"])
        assert container["image"] == IMAGE
        assert mounts_of(container)["/usr/local/vgpu"] == "regions"


@needs_kubectl
@pytest.mark.parametrize("component", ["feedback", "annotations", "remove-gone"])
@pytest.mark.parametrize("overlay", ["hami", "volcano"])
def test_a_component_for_the_agent_is_refused_without_one(
    overlay: str, component: str, tmp_path: Path
) -> None:
    done = with_components(tmp_path, overlay, [component])
    assert done.returncode != 0
    assert "/spec/template/spec/containers/" in done.stderr


@needs_kubectl
@pytest.mark.parametrize("overlay", ["hami", "volcano"])
def test_an_overlay_without_an_agent_has_what_ends_one_and_runs_nowhere(overlay: str) -> None:
    (instead,) = (each for each in built(overlay) if is_no_agent(each))
    (agent,) = (
        each
        for each in built(f"{overlay}-repaired")
        if (each["kind"], each["metadata"]["name"]) == ("DaemonSet", "hamiregion-agent")
    )
    for kept in ("namespace", "name"):
        assert instead["metadata"][kept] == agent["metadata"][kept]
    # The server refuses another selector.
    assert instead["spec"]["selector"] == agent["spec"]["selector"]
    spec = instead["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert (container["image"], container["args"]) == (IMAGE, ["--version"])
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    has, has_not = term["matchExpressions"]
    assert has["key"] == has_not["key"]
    assert [has["operator"], has_not["operator"]] == ["Exists", "DoesNotExist"]


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_before_1_30_a_pod_tells_app_armor_by_annotations(overlay: str, tmp_path: Path) -> None:
    prefix = "container.apparmor.security.beta.kubernetes.io/"
    components = ["recorder", "before-1.30"]
    for document in documents_of(with_components(tmp_path, overlay, components)):
        if document["kind"] != "DaemonSet" or is_no_agent(document):
            continue
        template = document["spec"]["template"]
        assert "appArmorProfile" not in template["spec"]["securityContext"]
        told = template["metadata"]["annotations"]
        in_proc = {
            each["name"]
            for each in template["spec"]["containers"]
            if "SYS_PTRACE" in each["securityContext"]["capabilities"].get("add", ())
        }
        assert told == {f"{prefix}{name}": "unconfined" for name in in_proc}


@needs_kubectl
def test_the_network_policy_lets_the_ports_through_that_are_listened_on(tmp_path: Path) -> None:
    documents = documents_of(with_components(tmp_path, "hami-repaired", ["network-policy"]))
    check_schemas(documents)
    (policy,) = (each for each in documents if each["kind"] == "NetworkPolicy")
    listening = set()
    for component in ("exporter", "agent"):
        (template,) = (
            each["spec"]["template"]
            for each in documents
            if each["kind"] == "DaemonSet" and each["metadata"]["name"].endswith(component)
        )
        labels = policy["spec"]["podSelector"]["matchLabels"]
        assert labels.items() <= template["metadata"]["labels"].items()
        for container in template["spec"]["containers"]:
            listening |= {port["containerPort"] for port in container.get("ports", ())}
    (rule,) = policy["spec"]["ingress"]
    assert {each["port"] for each in rule["ports"]} == listening


@needs_kubectl
@needs_kubectl
def test_openshift_admits_what_the_pods_ask_for_and_nothing_else(tmp_path: Path) -> None:
    components = ["openshift", "mig", "remove-gone", "recorder"]
    documents = documents_of(with_components(tmp_path, "hami-steered", components))
    (allowed,) = (each for each in documents if each["kind"] == "SecurityContextConstraints")
    accounts, capabilities, volumes = set(), set(), set()
    for component in ("exporter", "agent"):
        spec = daemon_set(documents, component)
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


@needs_kubectl
@pytest.mark.parametrize("overlay", ["hami", "hami-steered", "volcano"])
def test_a_quota_admits_the_priority_that_the_pods_have(overlay: str, tmp_path: Path) -> None:
    documents = documents_of(with_components(tmp_path, overlay, ["priority-quota"]))
    (quota,) = (each for each in documents if each["kind"] == "ResourceQuota")
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    classes = {
        each["spec"]["template"]["spec"].get("priorityClassName")
        for each in documents
        if each["kind"] == "DaemonSet" and not is_no_agent(each)
    }
    assert (scope["scopeName"], scope["operator"]) == ("PriorityClass", "In")
    assert set(scope["values"]) == classes


@pytest.mark.parametrize("component", ["feedback", "annotations"])
def test_a_component_is_refused_where_containers_stand_in_another_order(
    component: str, tmp_path: Path
) -> None:
    turned = """
      - {op: move, from: /spec/template/spec/containers/0, path: /spec/template/spec/containers/1}
    """
    patch = {"target": {"kind": "DaemonSet", "name": "hamiregion-agent"}, "patch": turned}
    combined(tmp_path, json.dumps({"resources": ["../hami-repaired"], "patches": [patch]}))
    tree = tmp_path / "kustomize" / "overlays"
    tree.joinpath("own").rename(tree / "turned")
    done = with_components(tmp_path, "turned", [component])
    assert done.returncode != 0
    assert "test failed" in done.stderr


@needs_kubectl
def test_every_kustomization_on_the_page_renders(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```yaml\n(resources:.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    results = [documents_of(combined(tmp_path, block)) for block in blocks]
    for documents in results:
        check_schemas(documents)
    steered_volcano, elsewhere, outside, removing, kai, claims = results
    agent = daemon_set(steered_volcano, "agent")
    assert "--feedback" in containers_of(agent)["agent"]["args"]
    assert agent["runtimeClassName"] == "nvidia"
    assert not OPERATOR_KINDS & {document["kind"] for document in elsewhere}
    for component in ("exporter", "agent"):
        spec = daemon_set(elsewhere, component)
        assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
        assert host_paths_of(spec)["regions"] == "/opt/vgpu"
    exporter = containers_of(daemon_set(outside, "exporter"))["exporter"]
    check_command_line(exporter["args"])
    assert "--outside" in exporter["args"]
    capabilities = exporter["securityContext"]["capabilities"]
    assert capabilities == {"drop": ["ALL"], "add": ["SYS_PTRACE", "CHECKPOINT_RESTORE"]}
    arguments = containers_of(daemon_set(removing, "agent"))["agent"]["args"]
    assert {"--feedback", "--remove-gone"} <= set(arguments)
    for documents, asks in ((kai, False), (claims, True)):
        for component in ("exporter", "agent"):
            for container in daemon_set(documents, component)["containers"]:
                assert ("--names=kubernetes" in container["args"]) == asks


def test_the_page_has_a_row_for_every_overlay_and_component() -> None:
    page = PAGE.read_text()
    components = {path.name for path in (KUSTOMIZE / "components").iterdir()}
    rows = set(re.findall(r"^\| `([a-z0-9.-]+)` \|", page, re.MULTILINE))
    in_every_overlay = {"servicemonitor", "prometheus-rules"}
    assert rows == set(OVERLAYS) | components - in_every_overlay - {"image"}
    for path in re.findall(r"\bdeploy/[a-zA-Z/_.-]*[a-zA-Z]", page):
        assert DEPLOY.parent.joinpath(path).exists() or path.split("/")[-2] == "own", path


@needs_kubectl
def test_the_steering_agent_says_what_the_page_says(tmp_path: Path) -> None:
    words = containers_of(daemon_set(built("hami-steered"), "agent"))["agent"]["args"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "libhamiregion"),
            *(word for word in words if not word.startswith("--listen")),
            *("--once", "--assume-alone", "--root", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    (started,) = re.findall(r"^\S+ (agent +started .*)$", done.stdout, re.MULTILINE)
    assert f"`{' '.join(started.split())}`" in PAGE.read_text()
