"""An observation as text: written whole, and read back from a stranger's file.

The text has the attributes of the classes that an observation is made of, by their names, and is
read by their types. Processes and containers are written once, and named by their number. Tables,
errors and the view of processes have forms of their own.

A document is data from outside, as a region is: its size, the lengths of its columns, every row
number and every word are checked, and fields that are not known here are left alone.
"""

from __future__ import annotations

import collections.abc
import enum
import functools
import json
import math
import re
import sys
import types
import typing
from array import array
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Literal, Union

import attrs

from libhamiregion import errors, lock, tables
from libhamiregion._version import __version__
from libhamiregion.units import EnvironmentLimits

from . import containers as containers_module
from . import driver, evidence, model, names, processes, share
from .containers import MADE_BY_CONTAINER, Container, MissingRegion
from .driver import FIGURES, NvmlDevice, NvmlSample, ProcessColumns
from .evidence import LostFile
from .model import Gap, Observation
from .names import ClaimName, ContainerId, PodName, is_pod_uid
from .processes import (
    SLOT_STATES,
    Entry,
    FileUser,
    HostProcess,
    Mapping,
    ProcessGap,
    ProcessView,
    monitor_in,
)
from .share import Allocation
from .stored_table import UUID_BYTES, StoredTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from libhamiregion.tables import RegionTable

SCHEMA: Final = "hamiregion/observation/1"
#: Bytes of a document at most: that of 1,024 containers with 4,096 processes takes 8 MiB.
MAX_BYTES: Final = 64 << 20
#: Of several nodes together: they are shown under the memory limit of one node's exporter.
MAX_LINES_BYTES: Final = 16 << 20
_ITEMS_LIMIT = 1 << 20
_TEXT_LIMIT = 1 << 16
# Larger numbers are written as text: many programs read numbers as doubles.
_EXACT = 1 << 53
_NUMBER = re.compile(r"-?[0-9]{1,20}\Z")
_TABLES = ("regions", "devices", "processes", "usages")
# The live part of a container, which no document has.
_LEFT_OUT = {"region"}
_SENTENCE = "(redacted)"


class DocumentError(ValueError):
    """A text that is no observation, or none that this version reads."""


def to_json(observation: Observation, *, redact: bool = False) -> str:
    """Write an observation as one object of JSON, in ASCII.

    Args:
        observation: The observation.
        redact: Replace names, UIDs, uuids, ids, cgroups, paths, users and commands by numbers in
            order of appearance, and leave sentences out. What is equal stays equal.
    """
    return json.dumps(_Writer(_Redactor() if redact else None).document(observation))


def from_json(text: str | bytes) -> Observation:
    """Read an observation that `to_json` has written.

    Raises:
        DocumentError: The text is none, is larger than 64 MiB, or has an impossible number.
    """
    return _observation(_parsed(text))


def from_lines(lines: Iterable[bytes]) -> Iterator[tuple[str, Observation | DocumentError]]:
    """Read documents of several nodes, each ``{"node": NAME, "observation": DOCUMENT}`` in a line.

    Yields:
        A node's name, and its observation or why it cannot be read.

    Raises:
        DocumentError: A line is no such object.
    """
    size = 0
    for line in lines:
        size += len(line)
        raw = _dict(_parsed(line))
        node = _text(raw.get("node"))
        try:
            if size > MAX_LINES_BYTES:
                full = f"it is more than {MAX_LINES_BYTES >> 20} MiB with those before it"
                raise DocumentError(f"{full}: choose fewer nodes")
            yield node, _observation(raw.get("observation"))
        except DocumentError as error:
            yield node, error


def _parsed(text: str | bytes) -> Any:
    if len(text) > MAX_BYTES:
        raise DocumentError(f"a document has {MAX_BYTES >> 20} MiB at most")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"no JSON: {type(error).__name__}") from None


def _observation(raw: Any) -> Observation:
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != SCHEMA:
        raise DocumentError(f"the schema is {str(schema)[:80]!r}, not {SCHEMA!r}")
    return _Reader(raw).observation()


def _no_constant(name: str) -> None:
    raise ValueError(name)


# ---- redaction ----------------------------------------------------------------------------------

# Field of a class to the kind of text that takes its place, or that of its keys.
_SECRETS: dict[tuple[type, str], str] = {
    (Container, "pod_uid"): "pod-uid",
    (Container, "claim_uid"): "claim-uid",
    (Container, "directory_name"): "name",
    (Container, "used_by"): "name",
    (Container, "directory"): "path",
    (Container, "region_path"): "path",
    (Container, "path_in_namespace"): "path",
    (Container, "other_files"): "path",
    (ContainerId, "id"): "container-id",
    (ContainerId, "pod_uid"): "pod-uid",
    (PodName, "namespace"): "namespace",
    (PodName, "pod"): "name",
    (PodName, "container"): "name",
    (ClaimName, "namespace"): "namespace",
    (ClaimName, "claim"): "name",
    (ClaimName, "pods"): "name",
    (ClaimName, "pod_uids"): "pod-uid",
    (HostProcess, "user"): "user",
    (HostProcess, "command"): "command",
    (Mapping, "path"): "path",
    (FileUser, "namespace"): "pid-namespace",
    (ProcessGap, "cgroup"): "cgroup",
    (ProcessView, "proc"): "path",
    (Entry, "budget_key"): "cgroup",
    (Entry, "visible_devices"): "devices",
    (LostFile, "path"): "path",
    (NvmlDevice, "uuid"): "GPU",
    (ProcessColumns, "device_uuid"): "GPU",
    (Allocation, "pod_uid"): "pod-uid",
    (Allocation, "container"): "name",
    (Allocation, "uuids"): "GPU",
    (Allocation, "region_directory"): "path",
    (MissingRegion, "message"): "",
    (Gap, "reason"): "",
    (NvmlSample, "message"): "",
    (Observation, "root_problem"): "",
    (Observation, "names"): "container-id",
    (Observation, "not_limited_s"): "container-id",
    (Observation, "node_name"): "node",
    (Observation, "roots"): "path",
    (Observation, "root_errors"): "path",
}


# Reasons that name nothing.
_OWN_SENTENCES = {
    each.message for each in vars(containers_module).values() if isinstance(each, MissingRegion)
}


class _Redactor:
    """Gives each text of a kind a number, by its first appearance.

    What findings depend on stays: own sentences, the form of a pod's UID, that a device is of MIG,
    its index in CUDA_VISIBLE_DEVICES, and the names of monitors and of the regions that containers
    make themselves.
    """

    def __init__(self) -> None:
        self._known: defaultdict[str, dict[str, int]] = defaultdict(dict)

    def text(self, kind: str, text: str) -> str:
        """Return what takes a text's place; a sentence has no kind."""
        if not kind:
            return text if text in _OWN_SENTENCES else _SENTENCE
        if kind == "devices":
            words = [each.strip() for each in text.split(",")]
            return ",".join(
                each if _NUMBER.match(each) else self.text("GPU", each) for each in words
            )
        known = self._known[kind]
        number = known.setdefault(text, len(known) + 1)
        if kind == "pod-uid" and is_pod_uid(text):
            return f"00000000-0000-0000-0000-{number:012}"
        if kind == "command" and (monitor := monitor_in(text)) is not None:
            return monitor
        end = MADE_BY_CONTAINER if kind == "path" and text.endswith(MADE_BY_CONTAINER) else ""
        return f"{'MIG' if text.startswith('MIG-') else kind}-{number}{end}"

    def field(self, owner: type, name: str, value: Any) -> Any:
        """Return what takes the place of an attribute."""
        kind = _SECRETS.get((owner, name))
        if kind is None or value is None:
            return value
        if isinstance(value, tuple):
            return tuple(None if each is None else self.text(kind, each) for each in value)
        if isinstance(value, dict):
            return {
                self.text(kind, key): _SENTENCE if isinstance(each, str) else each
                for key, each in value.items()
            }
        return self.text(kind, value)


# ---- writing ------------------------------------------------------------------------------------


class _Writer:
    def __init__(self, redactor: _Redactor | None) -> None:
        self._redactor = redactor
        self._processes: dict[HostProcess, int] = {}
        self._containers: dict[Container, int] = {}
        self._listed: Iterable[int] = ()

    def document(self, seen: Observation) -> dict[str, Any]:
        """Return an observation as what json takes."""
        self._containers = {each: row for row, each in enumerate(seen.all_containers)}
        self._listed = () if seen.sample is None else seen.sample.pids
        written = {
            "schema": SCHEMA,
            "version": __version__,
            "containers": [self._attributes(each) for each in seen.all_containers],
            **self._attributes(seen),
        }
        # Last: all of them are known by now.
        written["host_processes"] = [self._attributes(each) for each in self._processes]
        return written

    def plain(self, value: Any) -> Any:
        """Return any value of the model as what json takes."""
        if isinstance(value, enum.Enum):
            return value.value
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return value if -_EXACT < value < _EXACT else str(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, HostProcess):
            return self._processes.setdefault(value, len(self._processes))
        if isinstance(value, Container):
            return self._containers.get(value)
        if isinstance(value, tables.RegionTable):
            return self._table(value)
        if isinstance(value, ProcessView):
            return self._view(value)
        if isinstance(value, Exception):
            return self._failure(value)
        if attrs.has(type(value)):
            return self._attributes(value)
        if isinstance(value, collections.abc.Mapping):
            return {str(key): self.plain(each) for key, each in value.items()}
        items = sorted(value) if isinstance(value, frozenset) else value
        return [self.plain(each) for each in items]

    def _attributes(self, value: Any) -> dict[str, Any]:
        found = {}
        for field in attrs.fields(type(value)):
            if field.name not in _LEFT_OUT:
                here = getattr(value, field.name)
                if self._redactor is not None:
                    here = self._redactor.field(type(value), field.name, here)
                    here = 0 if isinstance(value, HostProcess) and field.name == "uid" else here
                found[field.name] = self.plain(here)
        return found

    def _secret(self, kind: str, text: str | None) -> Any:
        return text if text is None or self._redactor is None else self._redactor.text(kind, text)

    def _failure(self, error: Exception) -> dict[str, Any]:
        number, text = None, str(error)
        if isinstance(error, OSError) and error.errno is not None:
            number, text = error.errno, error.strerror or text
        return {"class": type(error).__name__, "errno": number, "text": self._secret("", text)}

    def _table(self, table: RegionTable) -> dict[str, Any]:
        of_tables = (table.regions, table.devices, table.processes, table.usages)
        return {
            **{
                name: {each: self.plain(getattr(rows, each)) for each in rows.columns}
                for name, rows in zip(_TABLES, of_tables, strict=True)
            },
            "uuids": [self._secret("GPU", each) for each in table.devices.uuids()],
            "errors": self.plain(map(table.error, range(len(table)))),
            "layouts_newer": self.plain(map(table.layout_newer, range(len(table)))),
        }

    def _view(self, view: ProcessView) -> dict[str, Any]:
        """The processes that map a file like a region, and those that the driver lists."""
        entries = [
            self._attributes(each)
            for pid, each in view.entries.items()
            if each.process is not None and (each.uses or pid in self._listed)
        ]
        return {**self._attributes(attrs.evolve(view, entries={})), "entries": entries}


# ---- reading ------------------------------------------------------------------------------------

# The names in annotations that are imported for type checkers alone.
_MODULES = lock, tables, names, containers_module, share, driver, processes, evidence, model
_NAMES: dict[str, Any] = {name: each for at in _MODULES for name, each in vars(at).items()}
_NAMES.update({"Mapping": collections.abc.Mapping, "MappingOf": collections.abc.Mapping})
_NAMES.update({"Sequence": collections.abc.Sequence, "EnvironmentLimits": EnvironmentLimits})
_NAMES.update(dict.fromkeys(("Region", "RegionError"), object))


@functools.cache
def _fields_of(kind: type) -> dict[str, tuple[Any, bool]]:
    """Attribute of a class to its type, and whether it has no default."""
    hints = typing.get_type_hints(kind, {**_NAMES, **vars(sys.modules[kind.__module__])})
    return {
        each.name: (hints[each.name], each.default is attrs.NOTHING)
        for each in attrs.fields(kind)
        if each.name not in _LEFT_OUT
    }


class _Reader:
    def __init__(self, raw: dict[str, Any]) -> None:
        self._raw = raw
        self._processes: list[HostProcess] = []
        self._containers: list[Container] = []

    def observation(self) -> Observation:
        """Return the observation."""
        raw = self._raw
        self._processes = [
            self._attributes(HostProcess, each) for each in _list(raw.get("host_processes"))
        ]
        self._containers = [
            self._attributes(Container, each) for each in _list(raw.get("containers"))
        ]
        found: Observation = self._attributes(Observation, raw)
        table = found.table
        _checked(len(found.containers) == len(table), "containers")
        for each, code in zip(found.containers, table.regions.code, strict=True):
            _checked(code != 0 or each.identity is not None, "a region without a file")
        table.paths = tuple(str(each.region_path) for each in found.containers)
        self._check_slots(found)
        return found

    def _check_slots(self, found: Observation) -> None:
        """Make sure that rows that others refer to exist."""
        table, states = found.table, found.states
        if states is not None:
            _checked(len(states.states) == len(table.processes), "states")
            _checked(all(state < len(SLOT_STATES) for state in states.states), "states")
            for at in states.processes:
                _index(at, len(table.processes))
            for row, each in states.proved.items():
                _check_pids(each.pids, table, _index(row, len(table)))
        if found.evidence is not None:
            for row in (*found.evidence.regions, *found.evidence.large):
                _index(row, len(table))
            for large in found.evidence.large.values():
                _checked(len(large.table) == 1, "a table of one region")
                _check_pids(large.processes.pids, large.table, 0)

    def value(self, kind: Any, raw: Any) -> Any:
        """Read a value of a type.

        Raises:
            DocumentError: It is none.
        """
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in {Union, types.UnionType}:
            kinds = [each for each in arguments if each is not type(None)]
            return (
                None if raw is None and len(kinds) < len(arguments) else self.value(kinds[0], raw)
            )
        if origin is Literal:
            return _checked(isinstance(raw, str) and raw in arguments, raw)
        if origin in {tuple, frozenset}:
            return self._items(origin, arguments, raw)
        if origin is collections.abc.Sequence:
            return array("i", map(_pid, _list(raw)))
        if origin in {dict, collections.abc.Mapping}:
            key, item = arguments
            pairs = _dict(raw).items()
            return {self.value(key, at): self.value(item, each) for at, each in pairs}
        if kind is HostProcess:
            return self._processes[_index(raw, len(self._processes))]
        if kind is Container:
            return self._containers[_index(raw, len(self._containers))]
        if kind in _PLAIN:
            return _PLAIN[kind](raw)
        if kind is ProcessView:
            return self._view(_dict(raw))
        if attrs.has(kind):
            return self._attributes(kind, raw)
        values: dict[str, Any] = {each.value: each for each in list[Any](kind)}
        return values[_checked(isinstance(raw, str) and raw in values, raw)]

    def _items(self, make: Callable[[Iterable[Any]], Any], kinds: tuple[Any, ...], raw: Any) -> Any:
        items = _list(raw)
        if len(kinds) == 1 or kinds[-1] is Ellipsis:
            return make(self.value(kinds[0], each) for each in items)
        _checked(len(items) == len(kinds), raw)
        return make(self.value(kind, each) for kind, each in zip(kinds, items, strict=True))

    def _attributes(self, kind: type, raw: Any) -> Any:
        raw, given = _dict(raw), {}
        for name, (hint, is_required) in _fields_of(kind).items():
            if name in raw:
                given[name] = self.value(hint, raw[name])
            elif is_required:
                raise DocumentError(f"{kind.__name__} without {name}")
        made = kind(**given)
        if isinstance(made, HostProcess):
            _checked(bool(made.ns_pids), "a process without a pid")
        elif isinstance(made, ProcessColumns):
            lengths = {len(getattr(made, each)) for each in ("pids", *FIGURES)}
            _checked(len(lengths) == 1, "columns of several lengths")
        return made

    def _view(self, raw: dict[str, Any]) -> ProcessView:
        entries = {}
        for each in self.value(tuple[Entry, ...], raw.get("entries")):
            _checked(each.process is not None, "an entry without a process")
            entries[each.process.pid] = each
        # Times are null if /proc was never read.
        known = {name: each for name, each in raw.items() if each is not None}
        view: ProcessView = self._attributes(ProcessView, {**known, "entries": {}})
        return attrs.evolve(view, entries=entries)


def _table(raw: Any) -> StoredTable:
    raw, columns = _dict(raw), {}
    for name in _TABLES:
        given = _dict(raw.get(name))
        columns[name] = {
            each: [_integer(cell) for cell in _list(cells)] for each, cells in given.items()
        }
    failures = [_failure(each) for each in _list(raw.get("errors"))]
    newer = [None if each is None else _version(each) for each in _list(raw.get("layouts_newer"))]
    uuids = _list(raw.get("uuids"))
    for uuid in uuids:
        _checked(
            uuid is None or (isinstance(uuid, str) and uuid.isascii() and len(uuid) < UUID_BYTES),
            uuid,
        )
    try:
        # The document's containers have the paths.
        return StoredTable([""] * len(failures), columns, uuids, failures, newer)
    except (KeyError, OverflowError, ValueError) as error:
        raise DocumentError(f"the columns do not fit: {error}") from None


def _version(raw: Any) -> tuple[int, int]:
    major, minor = map(_integer, _checked(isinstance(raw, list) and len(raw) == 2, raw))
    return major, minor


def _check_pids(pids: Iterable[int], table: RegionTable, row: int) -> None:
    first, count = table.regions.first_process[row], table.regions.process_count[row]
    _checked(list(pids) == list(table.processes.pid[first : first + count]), "pids")


def _checked(holds: bool, value: Any) -> Any:
    if not holds:
        raise DocumentError(f"not possible here: {str(value)[:80]!r}")
    return value


def _list(raw: Any) -> list[Any]:
    found: list[Any] = _checked(isinstance(raw, list) and len(raw) <= _ITEMS_LIMIT, raw)
    return found


def _dict(raw: Any) -> dict[str, Any]:
    found: dict[str, Any] = _checked(isinstance(raw, dict) and len(raw) <= _ITEMS_LIMIT, raw)
    return found


def _integer(raw: Any) -> int:
    if isinstance(raw, str) and _NUMBER.match(raw):
        raw = int(raw)
    number: int = _checked(type(raw) is int and -(1 << 63) <= raw < 1 << 64, raw)
    return number


def _index(raw: Any, end: int) -> int:
    number: int = _checked(type(raw) is int and 0 <= raw < end, raw)
    return number


def _pid(raw: Any) -> int:
    number: int = _checked(type(raw) is int and -(1 << 31) <= raw < 1 << 31, raw)
    return number


def _text(raw: Any) -> str:
    text: str = _checked(isinstance(raw, str) and len(raw) <= _TEXT_LIMIT, raw)
    return text


def _float(raw: Any) -> float:
    number = _checked(type(raw) in {int, float}, raw)
    _checked(abs(number) < 1 << 63, raw)
    return float(number)


def _flag(raw: Any) -> bool:
    flag: bool = _checked(isinstance(raw, bool), raw)
    return flag


def _failure(raw: Any, kind: type[Exception] = Exception) -> Any:
    """Make the exception again: of the classes of this library, OSError, or RuntimeError."""
    if raw is None:
        return None
    raw = _dict(raw)
    name, text, number = _text(raw.get("class")), _text(raw.get("text")), raw.get("errno")
    known = getattr(errors, name, None) if name in errors.__dict__ else None
    if isinstance(known, type) and issubclass(known, errors.RegionError):
        error: Exception = known.__new__(known)
        error.args = (text,)
        return error
    if number is not None:
        return OSError(_pid(number), text)
    return OSError(text) if kind is OSError else RuntimeError(text)


_PLAIN: dict[Any, Callable[[Any], Any]] = {
    int: _integer,
    str: _text,
    float: _float,
    bool: _flag,
    bytes: lambda raw: bytes(_index(each, 256) for each in _list(raw)),
    tables.RegionTable: _table,
    Exception: _failure,
    OSError: functools.partial(_failure, kind=OSError),
}
