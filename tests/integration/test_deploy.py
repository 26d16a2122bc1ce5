"""What deploy/ ships is valid for Kubernetes, Prometheus and our own command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

from libhamiregion import __version__  # noqa: E402
from libhamiregion.agent.export.metrics import CATALOGUE  # noqa: E402
from libhamiregion.cli.verbs import hamiregion  # noqa: E402

DEPLOY = Path(__file__).parents[2] / "deploy"
KUSTOMIZE = DEPLOY / "kustomize"
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
# The operator's own kinds have no schema in Kubernetes.
OPERATOR_KINDS = {"PrometheusRule", "ServiceMonitor"}

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")


def built(overlay: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUSTOMIZE / "overlays" / overlay)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def jobs() -> list[dict[str, Any]]:
    files = sorted((DEPLOY / "jobs").glob("*.yaml"))
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


def check_pod(spec: dict[str, Any]) -> None:
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in spec["containers"]:
        assert container["image"] == f"hamiregion:{__version__}"
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


def test_the_jobs_are_what_kubernetes_and_the_command_line_accept() -> None:
    check_schemas(jobs())
    for spec in pod_specs(jobs()):
        check_pod(spec)


def test_the_plans_in_config_maps_are_plans() -> None:
    from libhamiregion.agent.plan.limit_plan import load_plan, parse_plan

    load_plan(KUSTOMIZE / "components" / "steering" / "plan.yaml")
    plans = [each["data"]["plan.yaml"] for each in jobs() if each["kind"] == "ConfigMap"]
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
    known = {family.name for family in CATALOGUE}
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
        asked = set(re.findall(r"\b(?:hami|hamiregion)_[a-z_]+", source))
        assert asked <= known, source


def test_the_image_has_what_the_manifests_run() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    extras = set(re.findall(r"\[([a-z,]+)\]", dockerfile))
    assert extras == {"cli,exporter,kubernetes,plan"}
    (user,) = re.findall(r"^USER (\d+):\d+$", dockerfile, re.MULTILINE)
    assert user != "0"


@needs_kubectl
@pytest.mark.parametrize("component", ["mig", "nvidia-runtime", "recorder"])
def test_a_component_of_no_overlay_fits_them_too(component: str, tmp_path: Path) -> None:
    tree = tmp_path / "kustomize"
    shutil.copytree(KUSTOMIZE, tree)
    own = tree / "overlays" / "own"
    own.mkdir()
    own.joinpath("kustomization.yaml").write_text(
        f"resources: [../hami]\ncomponents: [../../components/{component}]\n"
    )
    done = subprocess.run(
        ["kubectl", "kustomize", str(own)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    check_schemas(documents)
    (spec,) = pod_specs(documents)
    containers = {each["name"]: each for each in spec["containers"]}
    container = containers["exporter"]
    if component == "recorder":
        check_pod(spec)
        assert set(containers) == {"exporter", "recorder"}
    elif component == "mig":
        assert container["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE", "SYS_ADMIN"]
    else:
        assert spec["runtimeClassName"] == "nvidia"
