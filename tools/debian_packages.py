"""Debian's packages, used without being installed.

apt works with lists, caches and a configuration of its own in a directory; of the machine's it
takes the mirror, and changes nothing. Standard library only.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

RELEASE = "bookworm"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
TOOLS = ("apt-get", "dpkg-deb")


class NoPackages(Exception):
    """They cannot be had here; a sentence says why."""


class DebianPackages:
    """Packages of the release, in a directory of their own.

    Args:
        work: The directory; need not exist.
        architecture: In Debian's words, such as ``arm64``; None means this machine's.
        sources: Releases, each with its components.

    Raises:
        NoPackages: This machine cannot get them.
    """

    def __init__(
        self,
        work: Path,
        architecture: str | None = None,
        sources: Sequence[str] = (f"{RELEASE} main",),
    ) -> None:
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        missing += [] if KEYRING.exists() else [str(KEYRING)]
        if missing:
            raise NoPackages(f"needs {', '.join(missing)}")
        self._work = work
        self.files = work / "files"
        for directory in ("etc", "state/lists/partial", "cache/archives/partial", "files"):
            (work / directory).mkdir(parents=True)
        mirror = _mirror()
        (work / "etc/sources.list").write_text(
            "".join(f"deb [signed-by={KEYRING}] {mirror} {source}\n" for source in sources)
        )
        (work / "state/status").touch()
        other = f'APT::Architecture "{architecture}";\nAPT::Architectures {{"{architecture}";}};\n'
        (work / "apt.conf").write_text(
            f'Dir::Etc "{work}/etc";\n'
            f'Dir::State "{work}/state";\n'
            f'Dir::State::status "{work}/state/status";\n'
            f'Dir::Cache "{work}/cache";\n'
            f'Dir::Log "{work}";\n'
            'Acquire::Languages "none";\n'
            'Acquire::Retries "3";\n'
            # The user that apt would become may not enter this directory.
            'APT::Sandbox::User "root";\n' + (other if architecture else "")
        )
        self.apt("update", "-q", "--error-on=any")

    def apt(self, *words: str) -> None:
        """Run ``apt-get`` where the files go.

        Raises:
            NoPackages: It failed.
        """
        done = subprocess.run(
            ["apt-get", *words],
            cwd=self.files,
            env={**os.environ, "APT_CONFIG": str(self._work / "apt.conf")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if line.startswith("E: ")]
            raise NoPackages(
                f"Debian's packages cannot be had: {(errors or ['apt-get failed'])[0]}"
            )

    def download_with_dependencies(self, *packages: str) -> None:
        """Get packages and all that they need."""
        self.apt("install", "-q", "-y", "--download-only", "--no-install-recommends", *packages)
        for package in (self._work / "cache/archives").glob("*.deb"):
            package.rename(self.files / package.name)

    def unpack(self, root: Path) -> None:
        """Unpack all that was downloaded into a directory."""
        for package in sorted(self.files.glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", package, root], check=True)


def _mirror() -> str:
    """Where this machine gets the release from."""
    form = "$(RELEASE) $(COMPONENT) $(REPO_URI)"
    command = ["apt-get", "indextargets", "--format", form, "Created-By: Packages"]
    known = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in known.stdout.splitlines():
        release, component, uri = line.split(maxsplit=2)
        if (release, component) == (RELEASE, "main"):
            return uri
    raise NoPackages(f"apt knows no source of Debian 12 ({RELEASE})")
