"""A /proc of files, with processes of the test's choice."""

from pathlib import Path

from libhamiregion import Region
from libhamiregion.node.procfs import initial_pid_namespace

LINE = "7f0000000000-7f0000001000 rw-s 00000000 00:01 1 /somewhere/else\n"


class FakeProc:
    """A /proc of the first pid namespace, with processes of the test's choice."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "1" / "ns").mkdir(parents=True)
        (directory / "1" / "ns" / "pid").symlink_to(initial_pid_namespace())
        self.elsewhere = directory.parent / "maps_of_another_file"
        self.elsewhere.write_text(LINE)
        self.add(1, self.elsewhere)

    def add(self, pid: int, maps: Path | None, *inner_pids: int) -> Path:
        """A process with these maps, or with none; its directory."""
        own = self.directory / str(pid)
        own.mkdir(exist_ok=True)
        ns_pids = "\t".join(map(str, (pid, *inner_pids)))
        (own / "status").write_text(f"Name:\tx\nState:\tS\nNSpid:\t{ns_pids}\n")
        if maps is None:
            (own / "maps").touch()
        else:
            (own / "maps").hardlink_to(maps)
        return own


def line_of(region: Region) -> str:
    """The region's line of this process's maps, as of one that may write."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines(keepends=True)
    line = next(line for line in maps if line.endswith(f" {region.path}\n"))
    return line.replace(" r--s ", " rw-s ")
