"""Build the API server that the tests in this directory talk to; part of `make cluster`.

kube-apiserver, kubectl and etcd are compiled as Go modules, once, into a cache directory that is
named by their versions. Needs Go 1.24 or later and a Go module proxy. Standard library only, so
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
from pathlib import Path

KUBERNETES = "1.34.4"
ETCD = "3.6.16"
OLDEST_GO = (1, 24)
PROGRAMS = {
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "etcd": "go.etcd.io/etcd/server/v3",
}
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


def cache() -> Path:
    """Where the programs of these versions are, or will be."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = f"kubernetes-{KUBERNETES}-etcd-{ETCD}-{platform.machine()}"
    return Path(base, "hamiregion-cluster", name)


def main() -> None:
    there = cache()
    there.parent.mkdir(parents=True, exist_ok=True)
    with (there.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((there / program).is_file() for program in PROGRAMS):
            build(there)
    say(f"kube-apiserver {KUBERNETES} is in {there}")


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


def build(there: Path) -> None:
    go = find_go()
    with tempfile.TemporaryDirectory(prefix=".build-", dir=there.parent) as name:
        work = Path(name)
        made = work / "made"
        made.mkdir()
        staging = f"v0.{KUBERNETES.removeprefix('1.')}"
        replaced = [f"k8s.io/{each} => k8s.io/{each} {staging}" for each in STAGING]
        (work / "go.mod").write_text(
            "module cluster\n\n"
            f"go {'.'.join(map(str, OLDEST_GO))}\n\n"
            f"require k8s.io/kubernetes v{KUBERNETES}\n"
            f"require go.etcd.io/etcd/server/v3 v{ETCD}\n"
            + "".join(f"replace {each}\n" for each in replaced)
        )
        (work / "programs.go").write_text(
            "//go:build programs\n\npackage programs\n\n"
            + "".join(f'import _ "{package}"\n' for package in PROGRAMS.values())
        )
        version = f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES}"
        for program, package in PROGRAMS.items():
            say(f"compiling {program}")
            done = subprocess.run(
                [
                    *("nice", go, "build", "-mod=mod", "-ldflags", f"-s -w {version}"),
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
