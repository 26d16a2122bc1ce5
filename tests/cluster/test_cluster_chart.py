"""The chart: what it renders, and what a real API server makes of it."""

import itertools
import re
import runpy
import shlex
import textwrap
from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml
from api_server import RBAC, Cluster, pods_path
from chart import (
    CHART,
    NAMESPACE,
    OPERATOR,
    RELEASE,
    Document,
    Values,
    collection_of,
    define_foreign_kinds,
    documents,
    helm,
    in_cluster,
    kubectl,
    of_kind,
    pod_of,
    rendered,
)
from fake_nvml.driver import FakeDriver
from fake_nvml.scenes import CARD
from support.exporter_process import ExporterProcess
from support.wait import eventually

from libhamiregion import __version__
from libhamiregion.cli.verbs import hamiregion
from libhamiregion.plan import parse_plan

PAGE = CHART.parents[2] / "docs" / "in-a-cluster.md"
DAEMON_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{RELEASE}"
IMAGE = f"registry.example/hamiregion:{__version__}"
DIGEST = f"sha256:{'a' * 64}"
BY_DIGEST = f"registry.example/hamiregion@{DIGEST}"
RULE = {"name": "half", "select": {"namespace": "notebooks"}, "set": {"memory_limit": "8GiB"}}

# Each name: settings of some values. Renderings have every pair of settings of two names.
FACTORS: dict[str, dict[str, Values]] = {
    "mode": {"exporter": {}, "agent": {"mode": "agent"}},
    "flavor": {name: {} for name in ("hami", "volcano", "kai", "dra")},
    "task": {
        "repair": {},
        "none": {"agent": {"repair": False}},
        "feedback": {"hamiMonitor": "absent", "agent": {"feedback": True}},
        "monitor": {
            "hamiMonitor": "absent",
            "hamiVersion": "2.10",
            "agent": {"feedback": True, "removeGone": True},
        },
    },
    "annotations": {"off": {}, "on": {"agent": {"annotations": {"enabled": True}}}},
    "plan": {
        "off": {},
        "rules": {"agent": {"plan": {"enabled": True, "rules": [RULE]}}},
        "empty": {"agent": {"plan": {"enabled": True}}},
        "own": {"agent": {"plan": {"enabled": True, "configMap": "ours"}}},
    },
    "recorder": {"off": {}, "on": {"recorder": {"enabled": True}}},
    "mig": {"off": {}, "on": {"mig": True, "legacyMetrics": True}},
    "outside": {"off": {}, "on": {"outside": True}},
    "driver": {
        "default": {},
        "runtime": {"driver": {"runtimeClassName": "nvidia"}},
        "cdi": {"driver": {"cdi": "nvidia.com/gpu=all"}},
    },
    "web": {
        "plain": {},
        "passwords": {"webConfig": {"secret": "web"}},
        "tls": {"webConfig": {"secret": "web", "tls": True}},
    },
    "monitor": {
        "none": {},
        "service": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
        "pod": {"podMonitor": {"enabled": True}},
        "annotations": {"scrapeAnnotations": True},
    },
    "extras": {
        "none": {},
        "all": {
            "prometheusRule": {"enabled": True},
            "grafanaDashboard": {"enabled": True},
            "networkPolicy": {"enabled": True},
            "criticalPodsQuota": True,
            "podLabels": {"team": "gpu"},
            "podAnnotations": {"example.com/a": "b"},
            "extraEnv": [{"name": "TZ", "value": "UTC"}],
            "extraArgs": ["--json"],
            "imagePullSecrets": [{"name": "registry"}],
        },
    },
    "security": {
        "auto": {},
        "openshift": {"openshift": True},
        "annotation": {"appArmor": "annotation"},
        "off": {"appArmor": "off", "seLinuxType": "spc_t"},
    },
    "paths": {"default": {}, "k0s": {"paths": {"kubelet": "/var/lib/k0s/kubelet"}}},
    "image": {"tag": {}, "digest": {"image": {"digest": DIGEST}}},
    "kubernetes": {"1.24": {}, "1.29": {}, "1.30": {}, "1.34": {}},
}
Case = dict[str, str]


def cases() -> list[Case]:
    """The fullest one of each mode, and few with every pair of settings.

    Each of the few takes the settings that have most new pairs.
    """
    names = list(FACTORS)
    missing = {
        ((one, a), (other, b))
        for one, other in itertools.combinations(names, 2)
        for a in FACTORS[one]
        for b in FACTORS[other]
    }
    full = {name: list(FACTORS[name])[-1] for name in names} | {"flavor": "volcano"}
    found = [{**full, "mode": mode, "security": "openshift"} for mode in FACTORS["mode"]]
    for case in found:
        missing -= _pairs(case)
    while missing:
        case = dict(min(missing))
        for name in names:
            if name not in case:
                case[name] = max(
                    FACTORS[name], key=lambda each: len(_pairs({**case, name: each}) & missing)
                )
        missing -= _pairs(case)
        found.append(case)
    return found


def _pairs(case: Case) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    settings = [(name, case[name]) for name in FACTORS if name in case]
    return set(itertools.combinations(settings, 2))


def values_of(case: Case) -> Values:
    values: Values = {"flavor": case["flavor"]}
    for name, setting in case.items():
        # Directories of claims are the DRA driver's.
        if name != "flavor" and (name, setting, case["flavor"]) != ("task", "monitor", "dra"):
            _merge(values, FACTORS[name][setting])
    return values


def _merge(into: Values, more: Values) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, dict) else value


CASES = cases()
# Nodes without HAMi have no agent.
CASES.append({**CASES[0], "flavor": "none"})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A server that has the kinds of others, and nothing of ours."""
    with Cluster(tmp_path_factory.mktemp("chart")) as cluster:
        define_foreign_kinds(cluster)
        cluster.namespace(NAMESPACE)
        yield cluster


@pytest.fixture
def uninstalled(cluster) -> Iterator[None]:
    """No release before the test, and none after it."""
    yield
    in_cluster(cluster, "uninstall", RELEASE, "-n", NAMESPACE, "--ignore-not-found")
    eventually(lambda: cluster.ask("GET", DAEMON_SET).status == 404)


# ---- renderings ----------------------------------------------------------------------------------


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


def writable(container: Document) -> set[str]:
    return {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}


def check_pod(pod: Document, case: Case) -> None:
    """The rights, mounts and options that a case asks for, and no others."""
    spec = pod["spec"]
    is_agent = case["mode"] == "agent"
    removes = is_agent and case["task"] == "monitor" and case["flavor"] != "dra"
    plans = is_agent and (case["plan"], case["annotations"]) != ("off", "off")
    first, *others = spec["containers"]
    assert first["name"] == case["mode"]
    assert [each["name"] for each in others] == ["recorder"] * (case["recorder"] == "on")
    capabilities = {"SYS_PTRACE"}
    capabilities |= {"CHECKPOINT_RESTORE"} if case["outside"] == "on" else set()
    if others:
        assert set(others[0]["securityContext"]["capabilities"]["add"]) == capabilities
        assert writable(others[0]) == {"/var/lib/hamiregion"}
    capabilities |= {"SYS_ADMIN"} if case["mig"] == "on" else set()
    capabilities |= {"DAC_OVERRIDE", "FOWNER"} if removes else set()
    assert set(first["securityContext"]["capabilities"]["add"]) == capabilities
    expected = {"/run/hamiregion"}
    if is_agent:
        expected |= {"/usr/local/vgpu", "/run/hamiregion-locks"}
        expected |= {"/tmp/vgpu"} if case["flavor"] == "volcano" else set()
        expected |= {"/var/lib/hamiregion"} if plans else set()
    assert writable(first) == expected
    for each in spec["containers"]:
        assert each["image"] == (BY_DIGEST if case["image"] == "digest" else IMAGE)
        security = each["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"]["drop"] == ["ALL"]
        assert {mount["name"] for mount in each["volumeMounts"]} <= {
            volume["name"] for volume in spec["volumes"]
        }
        assert {"NODE_NAME"} <= {variable["name"] for variable in each["env"]}
        check_command_line(each["args"])
    options = {word.partition("=")[0] for word in first["args"]}
    assert ("--remove-gone" in options) == removes
    steers = removes or (is_agent and case["task"] == "feedback")
    assert ("--feedback" in options) == steers
    assert ("--repair" in options) == (is_agent and case["task"] != "none")
    assert ("--plan" in options) == (is_agent and case["plan"] != "off")
    assert ("--from-annotations" in options) == (is_agent and case["annotations"] == "on")
    assert spec["automountServiceAccountToken"] == ("--from-annotations" in options)
    assert spec["hostPID"]
    for probe in ("livenessProbe", "readinessProbe"):
        scheme = first[probe]["httpGet"].get("scheme", "HTTP")
        assert scheme == ("HTTPS" if case["web"] == "tls" else "HTTP")
    by_field = "appArmorProfile" in spec["securityContext"]
    prefix = "container.apparmor.security.beta.kubernetes.io/"
    named = {key for key in pod["metadata"]["annotations"] if key.startswith(prefix)}
    is_new = case["kubernetes"] in {"1.30", "1.34"}
    assert by_field == (case["security"] == "auto" and is_new)
    if case["security"] == "annotation" or (case["security"] == "auto" and not is_new):
        assert named == {f"{prefix}{each['name']}" for each in spec["containers"]}
    else:
        assert not named


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['mode']}-{case['flavor']}")
def test_a_rendering_is_accepted_and_has_the_rights_of_its_mode(cluster, case):
    found = documents(values_of(case), "--kube-version", case["kubernetes"])
    pod = pod_of(found)
    check_pod(pod, case)
    labels = pod["metadata"]["labels"]
    for kind, path in (
        ("Service", ("selector",)),
        ("DaemonSet", ("selector", "matchLabels")),
        ("NetworkPolicy", ("podSelector", "matchLabels")),
        ("PodMonitor", ("selector", "matchLabels")),
    ):
        for each in of_kind(found, kind):
            selector = each["spec"]
            for step in path:
                selector = selector[step]
            assert selector.items() <= labels.items()
    (service,) = of_kind(found, "Service")
    for each in of_kind(found, "ServiceMonitor"):
        selector = each["spec"]["selector"]["matchLabels"]
        assert selector.items() <= service["metadata"]["labels"].items()
    for each in of_kind(found, "SecurityContextConstraints"):
        check_constraints(each, pod["spec"])
    has_role = bool(of_kind(found, "ClusterRole"))
    assert has_role == pod["spec"]["automountServiceAccountToken"]
    for each in of_kind(found, "ConfigMap"):
        if each["metadata"]["name"].endswith("-plan"):
            expected = {"rules": 1, "empty": 0}
            assert len(parse_plan(each["data"]["plan.yaml"]).rules) == expected[case["plan"]]
    for each in found:
        path = f"{collection_of(each)}?dryRun=All&fieldValidation=Strict"
        cluster.must("POST", path, each)


def check_constraints(allowed: Document, spec: Document) -> None:
    """OpenShift admits what the pods ask for, and nothing else."""
    volumes = {key for volume in spec["volumes"] for key in volume.keys() - {"name"}}
    # An account's token is a projected volume.
    volumes |= {"projected"} if spec["automountServiceAccountToken"] else set()
    assert set(allowed["volumes"]) == volumes
    capabilities = [each["securityContext"]["capabilities"]["add"] for each in spec["containers"]]
    assert set(allowed["allowedCapabilities"]) == {one for each in capabilities for one in each}
    assert allowed["users"] == [f"system:serviceaccount:{NAMESPACE}:{spec['serviceAccountName']}"]
    assert spec["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    for name in ("PrivilegedContainer", "PrivilegeEscalation", "HostNetwork", "HostPorts"):
        assert allowed[f"allow{name}"] is False


@pytest.mark.parametrize(
    ("flavor", "selector", "environment"),
    [
        ("hami", {"gpu": "on"}, {"HOOK_PATH"}),
        ("volcano", {"nvidia.com/gpu.present": "true"}, set()),
        ("kai", {"nvidia.com/gpu.present": "true"}, {"CONTAINER_VGPU_MOUNT"}),
        ("dra", None, set()),
        ("none", {"nvidia.com/gpu.present": "true"}, set()),
    ],
)
def test_a_flavor_looks_on_its_nodes_in_its_directories(flavor, selector, environment):
    paths = {"regions": "/opt/vgpu", "earlierRegions": "/opt/earlier"}
    spec = pod_of(documents({"flavor": flavor, "paths": paths}))["spec"]
    (container,) = spec["containers"]
    assert spec.get("nodeSelector") == selector
    assert {each["name"] for each in container["env"]} - {
        "NODE_NAME",
        "HAMIREGION_SOCKET",
    } == environment
    hosts = {each["name"]: each.get("hostPath", {}).get("path") for each in spec["volumes"]}
    mounts = {each["mountPath"]: hosts[each["name"]] for each in container["volumeMounts"]}
    assert mounts.get("/usr/local/vgpu") == (None if flavor == "none" else "/opt/vgpu")
    assert mounts.get("/tmp/vgpu") == ("/opt/earlier" if flavor == "volcano" else None)
    assert ("/opt/vgpu" in hosts.values()) == (flavor != "none")
    assert not any(word.startswith("--root") for word in container["args"])


def test_without_hami_nodes_with_it_are_left_out_unless_others_are_chosen():
    def affinity(**values: object) -> object:
        return pod_of(documents({"flavor": "none", **values}))["spec"].get("affinity")

    hamis = {"key": "gpu", "operator": "NotIn", "values": ["on"]}
    term = {"nodeSelectorTerms": [{"matchExpressions": [hamis]}]}
    assert affinity() == {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
    own = {"podAffinity": {}}
    assert affinity(affinity=own) == own
    assert affinity(nodeSelector={"gpu": "on"}) is None
    assert affinity(flavor="hami") is None


def test_without_hami_the_exporter_is_ready_with_the_charts_options(nvml_library, tmp_path):
    driver = FakeDriver(nvml_library, tmp_path / "scene")
    driver.play(CARD)
    (container,) = pod_of(documents({"flavor": "none"}))["spec"]["containers"]
    mode, listen, *options = container["args"]
    assert (mode, listen) == ("exporter", "--listen=:9394")
    places = ("--pod-logs", tmp_path, "--library", nvml_library)
    with ExporterProcess(*options, *places, env=driver.environment()) as exporter:
        exporter.wait_until_ready()
        assert exporter.stop() == 0


AGENT: Values = {"mode": "agent", "hamiMonitor": "absent"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "agent", "agent": {"feedback": True}}, "HAMi's monitor writes the same fields"),
        ({**AGENT, "agent": {"removeGone": True}}, "from 2.11 on HAMi's device plugin removes"),
        ({"mode": "agent", "flavor": "kai", "agent": {"removeGone": True}}, "the monitor removes"),
        ({**AGENT, "flavor": "dra", "agent": {"removeGone": True}}, "are the DRA driver's"),
        ({**AGENT, "flavor": "none"}, "the agent has nothing to repair"),
        ({**AGENT, "agent": {"plan": {"rules": [RULE]}}}, "there are rules, but the plan is off"),
        (
            {"agent": {"plan": {"enabled": True, "rules": [RULE], "configMap": "a"}}},
            "rules and configMap exclude each other",
        ),
        ({"driver": {"runtimeClassName": "a", "cdi": "b"}}, "exclude each other"),
        (
            {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
            "every series is there twice",
        ),
        ({"webConfig": {"tls": True}}, "name the Secret"),
        ({"openshift": True, "appArmor": "field"}, "have no AppArmor"),
        ({"mod": "agent"}, "additional properties 'mod' not allowed"),
        ({"hamiVersion": 2.1}, "value must be one of '2.10', '2.11'"),
        ({"agent": {"annotations": {"maximum": "0%"}}}, "does not match pattern"),
        ({"paths": {"regions": "usr"}}, "does not match pattern"),
    ],
)
def test_values_that_would_do_harm_are_refused_in_words(values, message):
    done = helm("template", RELEASE, CHART, values=values)
    assert done.returncode != 0
    assert message in done.stderr


def test_the_exporter_ignores_the_values_of_the_agent():
    """So that a change of the mode alone is enough, in both directions."""
    agent = {"feedback": True, "annotations": {"enabled": True}, "plan": {"rules": [RULE]}}
    assert documents({"agent": agent}) == documents({})


def test_helm_finds_nothing_wrong():
    done = helm("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (version["version"], version["appVersion"]) == (__version__, __version__)


def test_rules_and_dashboard_arrive_as_they_are():
    """A file that is missing would render as nothing."""
    extras = {"prometheusRule": {"enabled": True}, "grafanaDashboard": {"enabled": True}}
    found = documents(extras)
    (rules,) = of_kind(found, "PrometheusRule")
    plain = (CHART / "files" / "rules.yaml").read_text()
    assert rules["spec"] == yaml.safe_load(plain)
    assert sum(len(group["rules"]) for group in rules["spec"]["groups"]) > 10
    (dashboard,) = of_kind(found, "ConfigMap")
    plain = (CHART / "files" / "dashboard.json").read_text()
    assert dashboard["data"]["hamiregion.json"].strip() == plain.strip()
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_readme_has_the_values():
    maker = runpy.run_path(str(CHART.parents[2] / "docs" / "values_table.py"))
    assert (CHART / "README.md").read_text() == maker["text"](), "run `make texts`"
    named = {name for name, _, _ in maker["rows"]()}
    assert set(_leaves(yaml.safe_load((CHART / "values.yaml").read_text()))) == named


def _leaves(values: Values, before: str = "") -> Iterator[str]:
    """Names of values; a mapping that has a comment of its own is one."""
    whole = {"resources", "recorder.resources", "grafanaDashboard.labels"}
    for name, value in values.items():
        path = f"{before}{name}"
        if isinstance(value, dict) and value and path not in whole:
            yield from _leaves(value, f"{path}.")
        else:
            yield path


# ---- in a cluster --------------------------------------------------------------------------------

FULL_AGENT: Values = {
    **AGENT,
    "agent": {
        "feedback": True,
        "annotations": {"enabled": True},
        "plan": {"enabled": True, "rules": [RULE]},
    },
    "recorder": {"enabled": True},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
}


def objects_of(cluster: Cluster, release: str) -> set[str]:
    """Kind and name of all that has a release's label, in all namespaces."""
    selector = f"app.kubernetes.io/instance={release}"
    kinds = [
        *("/api/v1/serviceaccounts", "/api/v1/services", "/api/v1/configmaps"),
        *("/api/v1/resourcequotas", "/apis/apps/v1/daemonsets", f"{RBAC}/clusterroles"),
        *(f"{RBAC}/clusterrolebindings", "/apis/networking.k8s.io/v1/networkpolicies"),
        *(f"/apis/{OPERATOR}/v1/{each}s" for each in ("servicemonitor", "prometheusrule")),
    ]
    return {
        f"{path.rpartition('/')[2]}/{each['metadata']['name']}"
        for path in kinds
        for each in cluster.must("GET", f"{path}?labelSelector={selector}")["items"]
    }


@pytest.mark.usefixtures("uninstalled")
def test_a_change_of_mode_leaves_nothing_of_the_other_mode(cluster):
    """Either way round: nothing that cannot be changed differs, and nothing merges."""
    fresh = {}
    # An upgrade without any value keeps those of before.
    modes: dict[str, Values] = {"exporter": {"mode": "exporter"}, "agent": FULL_AGENT}
    for mode, values in modes.items():
        in_cluster(cluster, "install", RELEASE, CHART, "-n", NAMESPACE, values=values)
        fresh[mode] = cluster.must("GET", DAEMON_SET)["spec"], objects_of(cluster, RELEASE)
        in_cluster(cluster, "uninstall", RELEASE, "-n", NAMESPACE)
        eventually(lambda: cluster.ask("GET", DAEMON_SET).status == 404)
        assert objects_of(cluster, RELEASE) == set()
    in_cluster(cluster, "install", RELEASE, CHART, "-n", NAMESPACE, values={})
    for mode in ("agent", "exporter", "agent"):
        in_cluster(cluster, "upgrade", RELEASE, CHART, "-n", NAMESPACE, values=modes[mode])
        now = cluster.must("GET", DAEMON_SET)["spec"], objects_of(cluster, RELEASE)
        assert now == fresh[mode]


def test_two_releases_do_not_touch_each_other(cluster):
    releases = {"volta": "team-a", "ampere": "team-a", "hopper": "team-b"}
    for namespace in dict.fromkeys(releases.values()):
        cluster.namespace(namespace)
    values = {**AGENT, "agent": {"annotations": {"enabled": True}}}
    for release, namespace in releases.items():
        in_cluster(cluster, "install", release, CHART, "-n", namespace, values=values)
    kept = {each: objects_of(cluster, each) for each in ("ampere", "hopper")}
    assert f"clusterroles/{'hopper'}-hamiregion-team-b" in kept["hopper"]
    in_cluster(cluster, "uninstall", "volta", "-n", "team-a")
    assert objects_of(cluster, "volta") == set()
    assert {each: objects_of(cluster, each) for each in kept} == kept
    for release in kept:
        in_cluster(cluster, "uninstall", release, "-n", releases[release])


@pytest.mark.usefixtures("uninstalled")
def test_the_printed_command_lets_the_pods_in_where_pod_security_refuses_them(cluster):
    enforced = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
    path = f"/api/v1/namespaces/{NAMESPACE}"
    cluster.must("PATCH", path, enforced, kind="application/merge-patch+json")
    notes = in_cluster(cluster, "install", RELEASE, CHART, "-n", NAMESPACE, values={})
    template = cluster.must("GET", DAEMON_SET)["spec"]["template"]
    metadata = {**template["metadata"], "name": "one"}
    body = {"metadata": metadata, "spec": {**template["spec"], "nodeName": "node-1"}}
    refused = cluster.ask("POST", pods_path(NAMESPACE), body)
    assert refused.status == 403
    assert "violates PodSecurity" in refused.message
    (command,) = re.findall(r"^  kubectl (label .*)$", notes, re.MULTILINE)
    done = kubectl(cluster, *command.split())
    assert done.returncode == 0, done.stderr
    made = cluster.must("POST", f"{pods_path(NAMESPACE)}?dryRun=All", body)
    assert made["spec"]["priority"] > 2_000_000_000


def test_the_pages_command_removes_the_container_of_hamis_monitor(cluster):
    containers = [{"name": name, "image": "hami:1"} for name in ("device-plugin", "vgpu-monitor")]
    labels = {"app": "hami"}
    plugin = {
        "metadata": {"name": "hami-device-plugin"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }
    path = "/apis/apps/v1/namespaces/kube-system/daemonsets"
    cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "kube-system"}})
    cluster.must("POST", path, plugin)
    (command,) = re.findall(r"^ +kubectl (patch daemonset .*)$", PAGE.read_text(), re.MULTILINE)
    done = kubectl(cluster, *shlex.split(command))
    assert done.returncode == 0, done.stderr
    spec = cluster.must("GET", f"{path}/hami-device-plugin")["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["containers"]] == ["device-plugin"]


def test_the_values_on_the_page_are_values_of_the_chart():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    values = [yaml.safe_load(textwrap.dedent(block)) for block in blocks]
    assert len(values) >= 4
    rows = re.findall(r"`(\w+: \{[^`]*\})`", PAGE.read_text())
    for each in [*values, *map(yaml.safe_load, rows)]:
        documents(each)


def test_a_runtime_class_that_is_missing_refuses_each_pod(cluster):
    template = pod_of(documents({"driver": {"runtimeClassName": "nvidia"}}))
    body: dict[str, Any] = {"metadata": {"name": "one"}, "spec": template["spec"]}
    refused = cluster.ask("POST", pods_path(cluster.namespace("no-class")), body)
    assert refused.status == 403
    assert 'RuntimeClass "nvidia" not found' in refused.message


@pytest.mark.parametrize("name", ["repair", "limit-edit"])
def test_a_job_is_refused_as_it_is_and_accepted_with_a_node(cluster, name):
    """What an alert or a page prints does nothing until a node is named."""
    text = (CHART.parents[1] / "jobs" / f"{name}.yaml").read_text()
    namespace = cluster.namespace(f"job-{name}")
    refused = kubectl(cluster, "apply", "-n", namespace, text=text)
    assert refused.returncode != 0
    assert "<NODE>" in refused.stderr
    named = text.replace("<NODE>", "node-1").replace("<IMAGE>", IMAGE)
    done = kubectl(cluster, "apply", "-n", namespace, text=named)
    assert done.returncode == 0, done.stderr
    for document in yaml.safe_load_all(named):
        if document["kind"] == "Job":
            (container,) = document["spec"]["template"]["spec"]["containers"]
            check_command_line(container["args"])
        else:
            assert parse_plan(document["data"]["plan.yaml"]).rules == ()


def test_rendered_files_are_applied_without_helm(cluster):
    """As the files of a release are used."""
    text = rendered({}, "--kube-version", "1.34")
    done = kubectl(cluster, "apply", text=text)
    assert done.returncode == 0, done.stderr
    again = kubectl(cluster, "apply", text=text)
    assert {line.rpartition(" ")[2] for line in again.stdout.splitlines()} == {"unchanged"}
    done = kubectl(cluster, "delete", text=text)
    assert done.returncode == 0, done.stderr
    assert objects_of(cluster, RELEASE) == set()
