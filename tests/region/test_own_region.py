"""A program finds its own region by libvgpu's rule, and opens it without harm to a libvgpu."""

import json
import sys
from pathlib import Path

import pytest
from support.lock_bytes import hold
from support.process import finished

from libhamiregion import (
    NotARegion,
    RegionNotFound,
    RegionNotReady,
    RegionReadOnly,
    create_region,
    own_region,
)
from libhamiregion.units import GIB

VARIABLE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"

# Takes the lock that libvgpu takes, looks at the region, and says whether the lock still stands.
HOLDER = f"""
import contextlib
import fcntl, json, os, subprocess, sys
from libhamiregion import RegionError, open_region, own_region
path, how = sys.argv[1:]
held = os.open(path, os.O_RDWR)
fcntl.lockf(held, fcntl.LOCK_EX)
descriptors = []
opened = open_region if how == "open_region" else lambda file: own_region({{"{VARIABLE}": file}})
for _ in range(3):
    try:
        with opened(path) as region:
            region.snapshot()
            region.repair_slots(dry_run=True)
            region.is_stale()
            region.evidence()
            for refused in (region.recover_lock, region.reap, region.lock_state):
                with contextlib.suppress(RegionError):
                    refused()
    except RegionError:
        pass
    descriptors.append(len(os.listdir("/proc/self/fd")))
ask = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
asked = subprocess.run([sys.executable, "-c", ask, path], stderr=subprocess.PIPE, text=True)
print(json.dumps([descriptors, "BlockingIOError" in asked.stderr]))
"""


def looked(path: Path, how: str) -> tuple[list[int], bool]:
    """The descriptors after each look, and whether the process still has its lock."""
    done = finished([sys.executable, "-c", HOLDER, path, how], check=True)
    descriptors, is_locked = json.loads(done.stdout)
    return descriptors, is_locked


def test_the_environment_names_the_file(region_file, monkeypatch):
    file = region_file(memory_limits=["6GiB"])
    file.add_process(7, {0: GIB})
    monkeypatch.setenv(VARIABLE, str(file.path))
    with own_region() as region, own_region({VARIABLE: str(file.path)}) as again:
        assert region.path == again.path == str(file.path)
        assert region.snapshot().device(0).memory_free_bytes == 5 * GIB
        with pytest.raises(RegionReadOnly):
            region.set_memory_limit("1GiB")


def test_kais_variables_tell_the_directory_that_libvgpu_has_made(region_file, tmp_path):
    environ = {"CONTAINER_VGPU_MOUNT": str(tmp_path), "POD_UID": "0b5c", "CONTAINER_NAME": "train"}
    directory = tmp_path / "containers/0b5c_train"
    directory.mkdir(parents=True)
    file = region_file(name="containers/0b5c_train/usage.cache")
    other = region_file()
    with own_region(environ) as region:
        assert region.path == str(file.path)
    with own_region({**environ, VARIABLE: str(other.path)}) as region:
        assert region.path == str(other.path)


def test_its_error_names_what_was_looked_for(tmp_path):
    missing = tmp_path / "none.cache"
    with pytest.raises(RegionNotFound, match=f"none.cache.*{VARIABLE} names it"):
        own_region({VARIABLE: str(missing)})
    (tmp_path / "link.cache").symlink_to(missing)
    with pytest.raises(NotARegion):
        own_region({VARIABLE: str(tmp_path / "link.cache")})


@pytest.mark.skipif(Path("/tmp/cudevshr.cache").exists(), reason="this machine has such a region")
def test_without_the_variable_it_is_where_libvgpu_makes_it():
    with pytest.raises(RegionNotFound, match=f"/tmp/cudevshr.cache.*{VARIABLE} is not set"):
        own_region({})
    # As where libvgpu could not make the directory that KAI's variables tell.
    kai = {"CONTAINER_VGPU_MOUNT": "/nowhere", "POD_UID": "0b5c", "CONTAINER_NAME": "train"}
    with pytest.raises(RegionNotFound, match=f"/tmp/cudevshr.cache.*{VARIABLE} is not set"):
        own_region(kai)


def test_a_lock_of_libvgpu_in_the_same_process_stands(tmp_path):
    path = tmp_path / "a.cache"
    create_region(path)
    descriptors, is_locked = looked(path, "own_region")
    assert is_locked
    assert len(set(descriptors)) == 1, "one descriptor for the file, however often it is opened"
    assert not looked(path, "open_region")[1], "which is why there is an own_region()"


def test_so_does_one_whatever_is_asked_of_the_lock_and_the_slots(region_file):
    """The owner is judged by a byte, for which the file would be opened once more."""
    file = region_file()
    file.add_process(7, {0: GIB})
    hold(file, 0x40000000)
    assert looked(file.path, "own_region")[1]
    with own_region({VARIABLE: str(file.path)}) as region:
        with pytest.raises(RegionReadOnly, match=r"own_region.*another process"):
            region.lock_state()
        assert region.repair_slots(dry_run=True).left == ()


def test_so_does_one_on_a_file_that_is_still_being_made(tmp_path):
    path = tmp_path / "a.cache"
    path.touch()
    with pytest.raises(RegionNotReady):
        own_region({VARIABLE: str(path)})
    descriptors, is_locked = looked(path, "own_region")
    assert is_locked
    assert len(set(descriptors)) == 1


def test_a_file_that_replaces_it_is_opened_by_itself(tmp_path):
    path = tmp_path / "a.cache"
    create_region(path, memory_limits=["1GiB"])
    with own_region({VARIABLE: str(path)}) as old:
        path.unlink()
        create_region(path, memory_limits=["2GiB"])
        assert old.is_stale()
        with own_region({VARIABLE: str(path)}) as new:
            assert new.memory_limit(0) == 2 * GIB
        assert old.memory_limit(0) == GIB
