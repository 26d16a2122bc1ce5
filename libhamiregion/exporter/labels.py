"""Label texts: escaped once, kept, and bounded in how many different ones there may be."""

from __future__ import annotations

import re
import threading
from itertools import islice
from typing import TYPE_CHECKING

from libhamiregion.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from libhamiregion.node import HostProcess

    from .families import MetricFamily

#: What stands for all values that are too many.
OTHER = "other"

# Names of Kubernetes have 253 characters at most: none of those is cut.
_VALUE_LIMIT = 253
# A container has 16 devices at most, and real ones keep their uuids.
_UUIDS_PER_CONTAINER = 64
# A container that goes and comes again has no new allowance: a region outside the roots comes and
# goes as its owner maps it.
_GONE_CONTAINERS = 1024
# Regions that only their path tells apart belong to no container: anybody can make some.
_PATHS = 256
# A process calls itself what it likes.
_PROGRAM_LIMIT = 64

_MOST_LABELS = 16

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


def safe_value(text: str) -> str:
    r"""A label's value from outside: one line of printable characters, not too long.

    >>> safe_value("a\nb")
    'a\\nb'
    """
    return printable(text, _VALUE_LIMIT)


def program_of(command: str) -> str:
    r"""The program of a command line: its first word's last part, without its arguments.

    >>> program_of("/usr/bin/python3 train.py --token secret")
    'python3'
    """
    words = command.split(maxsplit=1)
    name = words[0].rstrip("/").rpartition("/")[2] if words else ""
    return printable(name, _PROGRAM_LIMIT)


def constant_labels(labels: Mapping[str, str] | None, taken: Collection[str]) -> dict[str, str]:
    """Labels that somebody wants on every series, checked.

    Args:
        labels: Name to value.
        taken: The names that series have already.

    Raises:
        ValueError: A name that no label can have, or one that is taken; or too many.
    """
    found = {}
    for name, value in (labels or {}).items():
        if not _NAME.match(name) or name.startswith(("__", "label_")):
            raise ValueError(
                f"{name!r} is no name for a label: letters, digits and _, and neither __ nor label_"
                " at the beginning"
            )
        if name in taken:
            raise ValueError(f"metrics have a label {name!r} of their own; choose another name")
        found[name] = safe_value(value)
    if len(found) > _MOST_LABELS:
        raise ValueError(f"{len(found)} labels; {_MOST_LABELS} at most")
    return found


def label_text(names: Sequence[str], *values: str) -> bytes:
    r"""Names and values as a sample line has them, without the braces.

    >>> label_text(("pod", "device_uuid"), 'a"b', "GPU-1")
    b'pod="a\\"b",device_uuid="GPU-1"'
    """
    pairs = zip(names, values, strict=True)
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in pairs]).encode()


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value


def read_labels(text: bytes) -> dict[str, str]:
    r"""The names and values in a label text.

    >>> read_labels(b'pod="a\\"b",zone="vGPU"')
    {'pod': 'a"b', 'zone': 'vGPU'}
    """
    return {
        name: _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
        for name, value in _LABEL.findall(text.decode())
    }


class LabelRows:
    """The label texts of many series.

    Attributes:
        texts: One for each row.
    """

    __slots__ = ("_named", "_renamed", "texts")

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts = texts
        self._named: dict[tuple[tuple[str, str], ...], list[dict[str, str]]] = {}
        self._renamed: LabelRows | None = None

    @classmethod
    def joined(cls, several: Iterable[LabelRows]) -> LabelRows:
        """The texts of several, one after the other."""
        return cls([text for each in several for text in each.texts])

    def __len__(self) -> int:
        return len(self.texts)

    def named(self, family: MetricFamily) -> list[dict[str, str]]:
        """The labels of each row as a mapping, with the family's constant ones; kept."""
        found = self._named.get(family.constant)
        if found is None:
            found = self._named[family.constant] = [
                {**read_labels(text), **dict(family.constant)} for text in self.texts
            ]
        return found

    def renamed(self, names: Mapping[str, str]) -> LabelRows:
        """Give the labels other names, and leave labels without one out; kept once made.

        Rows that are the same without these become one.
        """
        if self._renamed is None:
            rows = [
                {names[name]: value for name, value in read_labels(text).items() if name in names}
                for text in self.texts
            ]
            texts = (label_text(tuple(row), *row.values()) for row in rows)
            self._renamed = LabelRows(list(dict.fromkeys(texts)))
        return self._renamed


#: Of a family without labels.
NO_LABELS = LabelRows([b""])


class CardinalityLimiter:
    """Bounds what containers may write into labels over time, and not only at one moment.

    A container can show another uuid, or its processes another program, at every look. Prometheus
    keeps each series that it has ever seen for weeks, so the number of different values is bounded.

    Threads: may be shared.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The containers that have been gone for longest come first, those that are there last.
        self._uuids: dict[tuple[str, ...], set[tuple[int, str]]] = {}
        self._paths: set[str] = set()
        self._programs: dict[tuple[int, int], str] = {}

    def uuid(self, container: tuple[str, ...], index: int, uuid: str) -> str:
        """The uuid of a container's device as a label: itself, or `OTHER` if there were too many.

        Args:
            container: What tells it from others, as `keep_containers` gets it.
            index: Of the device.
            uuid: As its region has it.
        """
        with self._lock:
            known = self._uuids.setdefault(container, set())
            if (index, uuid) not in known:
                if len(known) >= _UUIDS_PER_CONTAINER:
                    return OTHER
                known.add((index, uuid))
            return uuid

    def path(self, path: str) -> str:
        """The path of a region as a label, where nothing else tells its container: or `OTHER`."""
        with self._lock:
            if path not in self._paths:
                if len(self._paths) >= _PATHS:
                    return OTHER
                self._paths.add(path)
            return path

    def program(self, process: HostProcess | None) -> str:
        """The program of a process: of its command line the first word's last part.

        As it was when it was first asked for. Arguments can hold secrets, and change with every
        job.
        """
        if process is None:
            return ""
        key = (process.pid, process.start_time_ticks)
        with self._lock:
            known = self._programs.get(key)
            if known is None:
                known = self._programs[key] = program_of(process.command)
            return known

    def keep_containers(self, containers: Iterable[tuple[str, ...]]) -> None:
        """Forget other containers, once too many have gone after them."""
        with self._lock:
            here = set(containers) & self._uuids.keys()
            for labels in here:
                self._uuids[labels] = self._uuids.pop(labels)
            gone = len(self._uuids) - len(here)
            for longest_gone in list(islice(self._uuids, max(0, gone - _GONE_CONTAINERS))):
                del self._uuids[longest_gone]

    def keep_programs(self, processes: Iterable[HostProcess]) -> None:
        """Forget the programs of all other processes."""
        pids = {(process.pid, process.start_time_ticks) for process in processes}
        with self._lock:
            for ended in self._programs.keys() - pids:
                del self._programs[ended]
