"""Build the API server that the tests in this directory talk to, and Helm; part of `make cluster`.

kube-apiserver, kubectl, etcd and helm are compiled as Go modules, once, into cache directories that
are named by their versions. Needs Go 1.24 or later and a Go module proxy. Standard library only, so
that any Python >= 3.10 can start it.
"""

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

KUBERNETES = "1.34.4"
ETCD = "3.6.16"
# The last one that Go 1.24 compiles.
HELM = "3.19.5"
OLDEST_GO = (1, 24)
# Kubernetes' go.mod replaces these by directories of its own repository; here they are modules.
STAGING = [
    "api",
    "apiextensions-apiserver",
    "apimachinery",
    "apiserver",
    "cli-runtime",
    "client-go",
    "cloud-provider",
    "cluster-bootstrap",
    "code-generator",
    "component-base",
    "component-helpers",
    "controller-manager",
    "cri-api",
    "cri-client",
    "csi-translation-lib",
    "dynamic-resource-allocation",
    "endpointslice",
    "externaljwt",
    "kms",
    "kube-aggregator",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "metrics",
    "mount-utils",
    "pod-security-admission",
    "sample-apiserver",
]


@dataclass(frozen=True)
class Build:
    """Programs that are compiled together.

    Attributes:
        name: Of the cache directory; names the versions.
        programs: Name to Go package.
        requires: Modules with their versions.
        variables: Variables of Go packages that the linker sets.
        replaces: Lines of go.mod.
    """

    name: str
    programs: dict[str, str]
    requires: list[str]
    variables: dict[str, str]
    replaces: list[str] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        """Where the programs are, or will be."""
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base, "hamiregion-cluster", f"{self.name}-{platform.machine()}")

    @property
    def is_done(self) -> bool:
        return all((self.directory / program).is_file() for program in self.programs)


_MINOR, _PATCH = KUBERNETES.split(".")[1:]
CLUSTER = Build(
    f"kubernetes-{KUBERNETES}-etcd-{ETCD}",
    {
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
        "etcd": "go.etcd.io/etcd/server/v3",
    },
    [f"k8s.io/kubernetes v{KUBERNETES}", f"go.etcd.io/etcd/server/v3 v{ETCD}"],
    {"k8s.io/component-base/version.gitVersion": f"v{KUBERNETES}"},
    [f"k8s.io/{each} => k8s.io/{each} v0.{_MINOR}.{_PATCH}" for each in STAGING],
)
CHARTS = Build(
    f"helm-{HELM}",
    {"helm": "helm.sh/helm/v3/cmd/helm"},
    [f"helm.sh/helm/v3 v{HELM}"],
    # What `helm template` renders for, unless it is given --kube-version.
    {
        "helm.sh/helm/v3/internal/version.version": f"v{HELM}",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": "1",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": _MINOR,
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": "1",
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": _MINOR,
    },
)


def cache() -> Path:
    """Where the programs of Kubernetes and etcd are, or will be."""
    return CLUSTER.directory


def main() -> None:
    cache().parent.mkdir(parents=True, exist_ok=True)
    with (cache().parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for each in (CHARTS, CLUSTER):
            if not each.is_done:
                build(each)
    say(f"kube-apiserver {KUBERNETES} is in {cache()}, helm {HELM} in {CHARTS.directory}")


def find_go() -> str:
    """The first Go on PATH, or where its archive is unpacked by default, that is new enough."""
    for go in (shutil.which("go"), "/usr/local/go/bin/go"):
        if go is None or not Path(go).exists():
            continue
        # Not to be replaced by another version that a go.mod asks for.
        said = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"go(\d+)\.(\d+)", said)
        if found and (int(found[1]), int(found[2])) >= OLDEST_GO:
            return go
    return fail(f"needs Go {'.'.join(map(str, OLDEST_GO))} or later, on PATH or in /usr/local/go")


def build(wanted: Build) -> None:
    go = find_go()
    there = wanted.directory
    with tempfile.TemporaryDirectory(prefix=".build-", dir=there.parent) as name:
        work = Path(name)
        made = work / "made"
        made.mkdir()
        (work / "go.mod").write_text(
            "module cluster\n\n"
            f"go {'.'.join(map(str, OLDEST_GO))}\n\n"
            + "".join(f"require {each}\n" for each in wanted.requires)
            + "".join(f"replace {each}\n" for each in wanted.replaces)
        )
        (work / "programs.go").write_text(
            "//go:build programs\n\npackage programs\n\n"
            + "".join(f'import _ "{package}"\n' for package in wanted.programs.values())
        )
        variables = "".join(f" -X {name}={value}" for name, value in wanted.variables.items())
        for program, package in wanted.programs.items():
            say(f"compiling {program}")
            done = subprocess.run(
                [
                    *("nice", go, "build", "-mod=mod", "-ldflags", f"-s -w{variables}"),
                    *("-o", made / program, package),
                ],
                cwd=work,
                env={
                    **os.environ,
                    "CGO_ENABLED": "0",
                    "GOFLAGS": "-modcacherw",
                    # Modules and their checksums too lie in a cache directory, not in ~/go.
                    "GOPATH": str(there.parent / "go"),
                    "GOWORK": "off",
                    "GOTOOLCHAIN": "local",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                sys.stderr.write(done.stdout[-4000:])
                fail(f"go build of {program} failed with exit code {done.returncode}")
        shutil.rmtree(there, ignore_errors=True)
        made.rename(there)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def fail(text: str) -> str:
    raise SystemExit(f"make cluster: {text}")


if __name__ == "__main__":
    main()
