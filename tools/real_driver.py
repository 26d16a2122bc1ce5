"""Check the library of `hamiregion run` against NVIDIA's own libraries, without a GPU.

Debian's packages of several drivers and PyPI's CUDA runtimes are unpacked in a directory of their
own. Then, with both ways into a program:

- each answer of cuGetProcAddress is the hook where the driver's own is a hooked function, and the
  driver's own elsewhere;
- each hooked function returns what the driver's own returns, before and after an attempt to start
  the driver;
- prototypes, structs and numbers are those of each cuda.h;
- what the runtime looks for and that allocates, launches or ends something is hooked, or on a list
  with its reason.

Prints a line for each check; the exit status is 1 if one has failed. Needs this package, its
sources, a compiler and the internet.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from debian_packages import DebianPackages, NoPackages

import libhamiregion as hami
from libhamiregion.run.driver import Driver
from libhamiregion.run.libraries import preloaded_library, stand_in_links

HERE = Path(__file__).resolve().parent
PRELOAD = HERE.parent / "csrc/preload"
SUITES = ("bookworm", "trixie")
DRIVERS = (
    "libnvidia-tesla-470-cuda1/bookworm",
    "libnvidia-tesla-cuda1/bookworm",
    *(f"{name}/{suite}" for suite in SUITES for name in ("libcuda1", "libnvidia-ml1")),
)
RUNTIMES = ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")
OLD_VERSIONS = (2000, 3020, 4000, 6050, 7000, 9000, 10000)
VERSIONS = (*OLD_VERSIONS, 11000, 11020, 11040, 12000, 12040, 12090, 13000, 13050)

HANDLED = re.compile(
    "Alloc|Create|Launch|Instantiate|Retain|Import|Open|Map(?!ped)|Upload|Load"
    "|Free|Destroy|Release|Reset|Detach|Unmap|Unload|Close|Trim"
)
NOT_HOOKED = {
    "cu(Ctx)?(Event|Stream|UserObject|TexObject|SurfObject|Logs)": "takes no memory to speak of",
    "cuGreenCtxStreamCreate": "takes no memory to speak of",
    "cu(Module|Library|Link|Kernel)": "code counts as context memory",
    "cu(GL|EGL|VDPAU|Graphics)": "another interface's memory; its contexts count once measured",
    "cuGraph": "what its nodes take counts when it is launched or uploaded",
    "cu(Destroy|Import)External|cuIpc|cuMemPoolImport": "counts for the process that has made it",
    "cuMem(FreeHost|HostAlloc)": "memory of the host",
    "cuCtxResetPersistingL2Cache|cuLaunchHostFunc": "no kernel",
    "cuLaunchCooperativeKernelMultiDevice": "deprecated since CUDA 11.3, and left out on purpose",
    "cuSubgrid": "new in CUDA 13.5, and in no driver of Debian's",
}


# ---- NVIDIA's libraries ----


def unpack_drivers(work: Path) -> dict[str, Path]:
    """Directories of drivers by their version, with the names that programs load."""
    sources = [f"{suite} {part}" for suite in SUITES for part in ("main", "non-free")]
    packages = DebianPackages(work / "debian", sources=sources)
    packages.apt("download", "-q", *DRIVERS)
    places = {}
    for package in sorted(packages.files.glob("*.deb")):
        version = package.name.split("_")[1]
        place = work / version
        subprocess.run(["dpkg-deb", "--extract", package, place], check=True)
        places[version] = place
    for place in places.values():
        for library in [*place.rglob("libcuda.so.*.*"), *place.rglob("libnvidia-ml.so.*.*")]:
            name, _, _ = library.name.partition(".so")
            (place / f"{name}.so.1").symlink_to(library)
    return places


def unpack_runtimes(work: Path) -> dict[str, Path]:
    """Directories of CUDA runtimes by their version."""
    files = work / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(files)]
    subprocess.run([*pip, *RUNTIMES], check=True)
    places = {}
    for wheel in sorted(files.glob("*.whl")):
        version = wheel.name.split("-")[1]
        places[version] = work / f"runtime-{version}"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(places[version])
    return places


# ---- Headers ----

SHOW = """
#include <cstddef>
#include <cstdio>
#include <type_traits>
{header}
template <class T, size_t = sizeof(T)> std::true_type is_complete(T *);
std::false_type is_complete(...);
template <class A>
const char *const kind = !std::is_pointer_v<A> ? "number"
                         : std::is_class_v<std::remove_pointer_t<A>> &&
                                 !decltype(is_complete(A()))::value ? "handle" : "pointer";
template <class R, class... A> void show(const char *name, R (*)(A...))
{{
    std::printf("%s", name);
    (std::printf(" %s%zu", kind<A>, sizeof(A)), ...);
    std::puts("");
}}
#define FIELD(type, field) \\
    std::printf(#type "." #field " %zu %zu\\n", offsetof(type, field), sizeof(type::field))
int main()
{{
{body}
}}
"""
OURS = f"""
#define _Atomic
extern "C" {{
#include "{PRELOAD}/hooks.h"
}}
"""


def facts(work: Path, header: str, body: list[str]) -> dict[str, str]:
    """What a header says: the kinds of a function's arguments, a field's place, a number."""
    source, program = work / "facts.cc", work / "facts"
    source.write_text(SHOW.format(header=header, body="\n".join(body)))
    (work / "empty").mkdir(exist_ok=True)
    (work / "empty/stdatomic.h").write_text("")
    # Only addresses of functions are taken, and none is called.
    command = ["g++", "-std=c++17", "-w", f"-I{work}/empty", "-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run([*command, "-o", program, source], check=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def hooked_functions() -> tuple[list[str], list[str]]:
    """The functions that are hooked, and those that are only called."""
    hooks, _, called = (PRELOAD / "hooks.h").read_text().partition("#define HR_CUDA_CALLED")
    return re.findall(r"X\((cu\w+)", hooks), re.findall(r"X\((cu\w+)", called)


def structs() -> Iterator[tuple[str, str]]:
    """Types and fields of api.h, up to NVML's."""
    text, _, _ = (PRELOAD / "api.h").read_text().partition("typedef int nvmlReturn_t")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"(?<!typedef )struct \{[^{}]*\}", "struct", text)
    for body, name in re.findall(r"typedef struct \{([^{}]*)\} (\w+);", text):
        for field in re.findall(r"(\w+)(?:\[\d+\])?\s*[;,]", body):
            if field != "reserved":
                yield name, field


def numbers() -> list[str]:
    return re.findall(r"\b(CU\w+) = ", (PRELOAD / "api.h").read_text())


def check_header(work: Path, header: Path) -> str:
    """Functions, fields and numbers that a cuda.h has are the same in ours."""
    internal = f'#define __CUDA_API_VERSION_INTERNAL\n#include "{header}"\n'
    # Macros give functions the names of their newest versions.
    command = ["g++", "-E", "-x", "c++", "-"]
    read = subprocess.run(command, input=internal, check=True, capture_output=True, text=True)
    declared = set(re.findall(r"\bCUresult (cu\w+)\(", read.stdout))
    words = set(re.findall(r"\w+", header.read_text()))
    names = [name for each in hooked_functions() for name in each]
    known = [name for name in names if name.removesuffix("_ptsz") in declared]
    body = [f"FIELD({name}, {field});" for name, field in structs() if name in words]
    body += [f'std::printf("{name} %d\\n", (int){name});' for name in numbers() if name in words]
    theirs = [f'show("{name}", &{name.removesuffix("_ptsz")});' for name in known]
    ours = facts(work, OURS, body + [f'show("{name}", hr_cuda.{name});' for name in known])
    for name, text in facts(work, internal, [*body, *theirs]).items():
        assert ours[name] == text, f"{name}: {ours[name]}, not {text}"
    return f"{len(known)} of {len(names)} functions, {len(body)} fields and numbers"


def kinds_of_hooks(work: Path) -> dict[str, list[str]]:
    hooks, _ = hooked_functions()
    body = [f'show("{name}", hr_cuda.{name});' for name in hooks]
    found = facts(work, OURS, body)
    return {name: text.split() for name, text in found.items()}


# ---- Drivers ----


def environments(work: Path, driver: Path) -> dict[str, dict[str, str]]:
    """Of a program without the library, and of one with it in each way."""
    place = work / f"ours-{driver.name}"
    place.mkdir()
    region = place / "region.cache"
    hami.create_region(region, memory_limits=["1GiB"], sm_limits=[50])
    links = stand_in_links(Driver(str(driver / "libcuda.so.1"), str(driver / "libnvidia-ml.so.1")))
    for name, target in links.items():
        (place / name).symlink_to(target)
    bare = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    ours = {**bare, "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region)}
    return {
        "bare": bare,
        "standin": {**ours, "LD_LIBRARY_PATH": f"{place}:{driver}"},
        "preload": {**ours, "LD_PRELOAD": preloaded_library()},
    }


def ask(env: dict[str, str], questions: dict[str, Any]) -> Any:
    command = [sys.executable, str(HERE / "real_driver_probe.py")]
    return json.loads(
        subprocess.check_output(command, env=env, input=json.dumps(questions).encode())
    )


def is_ours(place: list[Any] | None) -> bool:
    return place is not None and "libhamiregion" in place[0]


def check_driver(work: Path, driver: Path, kinds: dict[str, list[str]]) -> str:
    """Addresses and results with the library are those of the driver, or of hooks."""
    exported = names_in(driver / "libcuda.so.1")
    is_new = "cuGetProcAddress_v2" in exported
    questions = {
        "function": "cuGetProcAddress_v2" if is_new else "cuGetProcAddress",
        "names": sorted({stem(name) for name in exported}),
        "versions": VERSIONS,
        "flags": [0, 1, 2],
        "symbols": list(kinds),
        "codes": {name: each for name, each in kinds.items() if name in exported},
    }
    found = {name: ask(env, questions) for name, env in environments(work, driver).items()}
    bare = found["bare"]
    for way in ("standin", "preload"):
        own = found[way]["symbols"]
        hooks: dict[str, list[Any]] = {}
        for name, place in bare["symbols"].items():
            hooks.setdefault(str(place), []).append(own[name])
        for theirs, ours in zip(bare["addresses"], found[way]["addresses"], strict=True):
            expected = hooks.get(str(theirs[2]))
            # The hooks of newer functions are not exported.
            is_hook = (
                is_ours(ours[2])
                and expected
                and (ours[2] in expected or not all(map(is_ours, expected)))
            )
            assert ours[:2] == theirs[:2], (way, theirs, ours)
            assert is_hook if expected else ours == theirs, (way, theirs, ours)
        for name, codes in bare["codes"].items():
            mine = found[way]["codes"][name]
            assert mine == codes, f"{way}: {name} returns {mine}, the driver {codes}"
    hooked = sum(str(answer[2]) in hooks for answer in bare["addresses"])
    return f"{len(bare['addresses'])} addresses, {hooked} of hooks; {len(bare['codes'])} results"


# ---- The runtime ----


def names_in(library: Path) -> set[str]:
    """The driver's functions that a library exports or has the names of."""
    found = re.findall(rb"(?<=\0)(cu[A-Z]\w+)(?=\0)", library.read_bytes())
    return {name.decode() for name in found}


def stem(name: str) -> str:
    """A function's name as cuGetProcAddress knows it."""
    return re.sub(r"(_v\d)?(_pt[sd][sz])?$", "", name)


def check_runtime(runtime: Path, hooks: list[str]) -> str:
    """What it looks for and that has a part in limits is hooked, or is known not to need it."""
    names = names_in(next(runtime.rglob("libcudart.so.*")))
    hooked = {stem(name) for name in hooks}
    missing = [
        name
        for name in sorted(names)
        if HANDLED.search(name)
        and stem(name) not in hooked
        and not any(re.match(pattern, name) for pattern in NOT_HOOKED)
    ]
    assert not missing, f"not hooked, and on no list: {' '.join(missing)}"
    return f"{len(names)} functions"


def main() -> int:
    failed = False
    with tempfile.TemporaryDirectory(prefix="hamiregion-driver-") as directory:
        work = Path(directory)
        try:
            drivers, runtimes = unpack_drivers(work), unpack_runtimes(work)
        except NoPackages as reason:
            print(f"cannot be checked here: {reason}", file=sys.stderr)
            return 2
        kinds = kinds_of_hooks(work)
        checks: list[tuple[str, Callable[[], str]]] = []
        for name, place in drivers.items():
            checks.append((f"driver {name}", partial(check_driver, work, place, kinds)))
        for name, place in runtimes.items():
            header = next(place.rglob("cuda.h"))
            checks.append((f"cuda.h {name}", partial(check_header, work, header)))
            checks.append((f"libcudart {name}", partial(check_runtime, place, list(kinds))))
        for name, check in checks:
            try:
                print(f"ok     {name}: {check()}", flush=True)
            except (AssertionError, subprocess.CalledProcessError) as error:
                failed = True
                print(f"FAILED {name}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
