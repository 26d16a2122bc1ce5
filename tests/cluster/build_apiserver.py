"""Build the API server that the tests in this directory talk to; part of `make cluster`.

Debian 12 has etcd, kubectl and Go 1.19 as packages, and of Kubernetes 1.20.2 the whole source. What
is made of them lies in a cache directory, by version, so that a second call builds nothing. Nothing
is installed: apt works with lists, caches and a configuration of its own, and the machine's are
neither read nor written. Standard library only, so that any Python >= 3.10 can start it.
"""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from debian_packages import RELEASE, DebianPackages, NoPackages

SOURCE = "1.20.5+really1.20.2-1.1+deb12u1"
KUBERNETES = "1.20.2"
# The reflect2 among Kubernetes' own sources is from before Go 1.18, and crashes with later ones.
REFLECT = "github.com/modern-go/reflect2"
PACKAGES = (
    "etcd-server",
    "golang-1.19-go",
    "golang-1.19-src",
    "golang-github-modern-go-reflect2-dev",
    "kubernetes-client",
)
PROGRAMS = ("etcd", "kube-apiserver", "kubectl")


def cache() -> Path:
    """Where the programs of this version are, or will be."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "hamiregion-cluster", f"{SOURCE}-{platform.machine()}")


def main() -> None:
    there = cache()
    if not is_complete(there):
        check_machine()
        there.parent.mkdir(parents=True, exist_ok=True)
        with (there.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Another call may have built it meanwhile.
            if not is_complete(there):
                build(there)
    say(f"kube-apiserver {KUBERNETES} is in {there}")


def is_complete(directory: Path) -> bool:
    return all((directory / program).is_file() for program in PROGRAMS)


def check_machine() -> None:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    if release.get("ID") != "debian" or release.get("VERSION_CODENAME") != RELEASE:
        name = release.get("PRETTY_NAME", "unknown")
        fail(f"needs Debian 12 ({RELEASE}), whose packages it builds the API server from: {name}")
    if shutil.which("tar") is None:
        fail("needs tar")


def build(there: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".build-", dir=there.parent) as name:
        work = Path(name)
        say("getting etcd, kubectl, Go and the source of Kubernetes from Debian (140 MB)")
        try:
            download(work).unpack(work / "root")
        except NoPackages as error:
            fail(str(error))
        unpack(work)
        made = work / "made"
        made.mkdir()
        say("compiling kube-apiserver (5 minutes of CPU time)")
        compile_server(work, made / "kube-apiserver")
        for program in ("etcd", "kubectl"):
            shutil.move(work / "root/usr/bin" / program, made)
        shutil.rmtree(there, ignore_errors=True)
        made.rename(there)


def download(work: Path) -> DebianPackages:
    packages = DebianPackages(work)
    packages.apt("source", "-q", "--download-only", f"kubernetes={SOURCE}")
    packages.apt("download", "-q", *PACKAGES)
    return packages


def unpack(work: Path) -> None:
    (source,) = (work / "files").glob("kubernetes_*.orig.tar.*")
    tree(work).mkdir(parents=True)
    # Debian's patches are about kubectl.
    must(
        work,
        "tar",
        "--extract",
        "--file",
        source,
        "--strip-components=1",
        "--directory",
        tree(work),
    )
    shutil.rmtree(tree(work) / "vendor" / REFLECT)
    shutil.move(work / "root/usr/share/gocode/src" / REFLECT, tree(work) / "vendor" / REFLECT)


def tree(work: Path) -> Path:
    """Kubernetes' source, where Go looks for what has no modules."""
    return work / "gopath/src/k8s.io/kubernetes"


def compile_server(work: Path, target: Path) -> None:
    package = "k8s.io/kubernetes/vendor/k8s.io"
    generate = work / "openapi-gen"
    go(work, "build", "-o", generate, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    must(
        work,
        *(generate, "--output-file-base", "zz_generated.openapi"),
        *("--go-header-file", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"),
        *("--report-filename", work / "violations"),
        *("--input-dirs", ",".join(described(work))),
        *("--output-package", "k8s.io/kubernetes/pkg/generated/openapi"),
        *("--output-base", work / "gopath/src"),
        cwd=tree(work),
        env=go_environment(work),
    )
    version = f"{package}/component-base/version"
    flags = {"gitVersion": f"v{KUBERNETES}", "gitMajor": "1", "gitMinor": "20"}
    says = " ".join(f"-X {version}.{name}={value}" for name, value in flags.items())
    # Without what it has for the clouds: none of that is asked for.
    go(
        work,
        "build",
        "-tags",
        "providerless",
        "-ldflags",
        f"-s -w {says}",
        "-o",
        target,
        "./cmd/kube-apiserver",
    )


def described(work: Path) -> list[str]:
    """The packages whose types the API describes; those of examples left out."""
    found = set()
    for below in ("cmd", "pkg", "staging/src/k8s.io"):
        for path in (tree(work) / below).rglob("*.go"):
            if b"+k8s:openapi-gen=" in path.read_bytes() and not path.name.endswith("_test.go"):
                found.add(path.parent.relative_to(tree(work)).as_posix())
    return sorted(
        f"k8s.io/kubernetes/{each.replace('staging/src/', 'vendor/')}"
        for each in found
        if not {"code-generator", "sample-apiserver", "sample-controller"} & set(each.split("/"))
    )


def go_environment(work: Path) -> dict[str, str]:
    root = work / "root/usr/lib/go-1.19"
    return {
        "GOROOT": str(root),
        "GOPATH": str(work / "gopath"),
        "GOCACHE": str(work / "gocache"),
        "GOENV": "off",
        "GOFLAGS": "",
        "GO111MODULE": "off",
        "CGO_ENABLED": "0",
        "PATH": f"{root}/bin:{os.environ['PATH']}",
    }


def go(work: Path, *words: object) -> None:
    nice = ("nice", "-n", "10")
    must(
        work,
        *nice,
        work / "root/usr/lib/go-1.19/bin/go",
        *words,
        cwd=tree(work),
        env=go_environment(work),
    )


def must(work: Path, *words: object, **options: object) -> None:
    done = run(work, *words, **options)
    if done.returncode != 0:
        sys.stderr.write(done.stdout[-4000:])
        fail(f"{Path(str(words[0])).name} failed with exit code {done.returncode}")


def run(work: Path, *words: object, cwd: Path | None = None, env: dict[str, str] | None = None):
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd or work,
        env={**os.environ, "TMPDIR": str(work), **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def fail(text: str) -> None:
    raise SystemExit(f"make cluster: {text}")


if __name__ == "__main__":
    main()
