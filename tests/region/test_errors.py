"""The errors: their tree, what they carry, and that they travel."""

import copy
import errno
import inspect
import pickle
from typing import Any

import pytest

import libhamiregion as hami

# Each class, and the builtin that catches it beside RegionError.
TREE: dict[type[hami.RegionError], type[Exception] | None] = {
    hami.RegionNotFound: FileNotFoundError,
    hami.RegionPermissionDenied: PermissionError,
    hami.NotARegion: ValueError,
    hami.RegionNotReady: None,
    hami.AmbiguousLayout: None,
    hami.RegionCorrupt: None,
    hami.RegionStale: None,
    hami.RegionClosed: ValueError,
    hami.RegionReadOnly: None,
    hami.NoSuchDevice: LookupError,
    hami.LockTimeout: TimeoutError,
    hami.LockLost: None,
    hami.LockNotRecoverable: None,
    hami.LimitConflict: None,
    hami.LimitBelowUsage: None,
    hami.LaunchesWouldStop: None,
    hami.ReapRefused: ValueError,
    hami.MemoryLimitExceeded: MemoryError,
    hami.SlotTableFull: None,
    hami.ProcessNotInRegion: LookupError,
    hami.SearchCutShort: TimeoutError,
}
BUILTINS = (OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)

ATTRIBUTES: dict[type[hami.RegionError], dict[str, Any]] = {
    hami.AmbiguousLayout: {"candidates": (hami.Layout.V1_1, hami.Layout.V1_1_POSTINIT)},
    hami.LimitConflict: {"device": 3, "found": 2**63, "expected": None},
    hami.LimitBelowUsage: {"device": 3, "used_bytes": 7, "requested_bytes": 5},
    hami.LaunchesWouldStop: {"device": 0, "processes": 2, "requested_percent": 30},
    hami.NoSuchDevice: {"device": "GPU-x"},
    hami.ReapRefused: {"pids": (7,), "done": ()},
    hami.MemoryLimitExceeded: {
        "device": 3,
        "used_bytes": 7,
        "limit_bytes": 8,
        "requested_bytes": 2,
    },
}


def make(cls: type[hami.RegionError]) -> hami.RegionError:
    error = cls("what, where, and what to do", path="/a/b.cache")
    for name, value in ATTRIBUTES.get(cls, {}).items():
        setattr(error, name, value)
    return error


def test_the_tree_has_every_error_of_the_library():
    found = {
        value
        for value in vars(hami).values()
        if inspect.isclass(value) and issubclass(value, hami.RegionError)
    }
    assert found == {*TREE, hami.RegionError}


def test_each_error_is_a_region_error_and_the_builtin_that_people_catch():
    assert hami.RegionError.__bases__ == (Exception,)
    for cls, builtin in TREE.items():
        assert hami.RegionError in cls.__bases__
        assert builtin is None or issubclass(cls, builtin)
        caught_by = {base for base in BUILTINS if issubclass(cls, base)}
        assert caught_by == {base for base in BUILTINS if builtin and issubclass(builtin, base)}


def test_the_message_stays_a_message():
    # OSError and KeyError dress theirs up.
    assert {str(make(cls)) for cls in TREE} == {"what, where, and what to do"}


def test_an_error_without_a_file_has_no_path():
    assert {cls("no file").path for cls in TREE} == {None}


def test_errors_pickle_and_copy_with_all_that_they_carry():
    for cls in TREE:
        error = make(cls)
        pickles = [pickle.dumps(error, each) for each in range(pickle.HIGHEST_PROTOCOL + 1)]
        for again in [*map(pickle.loads, pickles), copy.deepcopy(error)]:
            assert (type(again), str(again), vars(again)) == (cls, str(error), vars(error))


def test_os_errors_have_their_errno():
    assert make(hami.RegionNotFound).errno == errno.ENOENT  # type: ignore[attr-defined]
    assert make(hami.RegionPermissionDenied).errno == errno.EACCES  # type: ignore[attr-defined]


def test_paths_in_messages_are_escaped(region_file):
    """A container chooses its file's name; a terminal must not obey it."""
    file = region_file(name="\x1b[2J\n.cache")
    file.put("magic", 7)
    with pytest.raises(hami.NotARegion) as error:
        hami.open_region(file)
    assert "\x1b" not in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.path == str(file.path)
