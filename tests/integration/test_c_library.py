"""The C core as a library of its own: installed, linked from C, C++, Go and Rust, its interface."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from c_abi import CSRC, PUBLIC, describe
from golden_regions import GoldenRegion
from region_bytes import RegionFile, RegionFileFactory

import libhamiregion as hami

EXAMPLES = CSRC.parent / "examples"
INTERFACE = CSRC / "abi.txt"
MOST_LINES = 200

pytestmark = pytest.mark.skipif(not CSRC.is_dir(), reason="needs the C sources beside the tests")


def needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")


def called(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@attrs.frozen
class Installed:
    """The library below a prefix."""

    prefix: Path

    @property
    def library(self) -> Path:
        return self.prefix / "lib" / "libhamiregion.so"

    def environment(self) -> dict[str, str]:
        """For what finds it at build time and at run time."""
        return {
            "PKG_CONFIG_PATH": str(self.prefix / "lib" / "pkgconfig"),
            "LD_LIBRARY_PATH": str(self.prefix / "lib"),
        }

    def run(self, program: Path, *paths: os.PathLike[str] | str) -> str:
        return called(program, *map(os.fspath, paths), **self.environment())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    needs("make", "cc")
    directory = tmp_path_factory.mktemp("library")
    prefix = directory / "prefix"
    words = (f"PREFIX={prefix}", f"BUILD={directory / 'build'}", "CFLAGS=-O0")
    called("make", "-C", CSRC, "install", *words)
    return Installed(prefix)


# ---- the interface ----


def test_the_interface_is_the_one_that_was_promised(installed: Installed) -> None:
    """A change is meant: `python tests/c_abi.py LIBRARY > csrc/abi.txt`.

    One that breaks programs linked before also gets a new ABI number in csrc/Makefile and a new
    version in csrc/libhamiregion.map.
    """
    promised = INTERFACE.read_text(encoding="utf-8").splitlines()
    assert describe(installed.library) == promised


def test_what_the_headers_declare_is_exported_and_nothing_else(installed: Installed) -> None:
    needs("nm")
    symbols = called("nm", "-D", "--defined-only", installed.library).splitlines()
    # The version itself is an absolute symbol.
    exported = {line.split()[2] for line in symbols if line.split()[1] != "A"}
    lines = INTERFACE.read_text(encoding="utf-8").splitlines()
    declared = {line.split()[1] for line in lines if line.startswith("function ")}
    assert exported == {f"{name}@@HAMIREGION_0" for name in (*declared, "hr_layouts")}


def test_compilers_lay_the_structs_out_as_promised(installed: Installed, tmp_path: Path) -> None:
    """In C, and in C++, whose programs include the same headers."""
    checks = [f"#include <{name}>" for name in PUBLIC]
    checks.append("#include <stddef.h>\n#ifdef __cplusplus\n#define _Static_assert static_assert")
    checks.append("#endif")
    struct = ""
    for line in INTERFACE.read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"struct (\w+) (\d+) bytes", line):
            struct, size = found.groups()
            checks.append(f'_Static_assert(sizeof(struct {struct}) == {size}, "{struct}");')
        elif struct and (found := re.fullmatch(r" {4}(\d+) (\w+) .*", line)):
            offset, field = found.groups()
            checks.append(f'_Static_assert(offsetof(struct {struct}, {field}) == {offset}, "");')
        elif not line.startswith(" "):
            struct = ""
    assert len(checks) > 100
    include = f"-I{installed.prefix}/include/libhamiregion"
    for compiler, suffix in (("cc", "c"), ("c++", "cc")):
        needs(compiler)
        source = tmp_path / f"checks.{suffix}"
        source.write_text("\n".join([*checks, "int main() { return 0; }", ""]))
        called(compiler, "-Wall", "-Wextra", "-Werror", include, "-c", source, cwd=tmp_path)


def test_the_library_is_named_by_its_interface_and_its_release(installed: Installed) -> None:
    needs("readelf")
    assert "[libhamiregion.so.0]" in called("readelf", "-d", installed.library)
    assert str(installed.library.readlink()) == "libhamiregion.so.0"
    assert installed.library.resolve().name == f"libhamiregion.so.0.{hami.__version__}"


def test_the_program_of_the_page_reads_a_region(
    installed: Installed, region_file: RegionFileFactory, tmp_path: Path
) -> None:
    needs("pkg-config")
    page = (CSRC.parent / "docs" / "c-library.md").read_text()
    (block,) = re.findall(r"^```c\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    include, _, body = block.partition("\n\n")
    source = tmp_path / "page.c"
    source.write_text(
        f"{include}\nint main(int argc, char **argv)\n{{\n"
        f"const char *path = argv[argc - 1];\n{body}return code < 0;\n}}\n"
    )
    flags = called(
        "pkg-config", "--cflags", "--libs", "libhamiregion", **installed.environment()
    ).split()
    program = tmp_path / "page"
    called("cc", "-Wall", "-Werror", source, "-o", program, *flags)
    region = region_file(uuids=["GPU-1"], memory_limits=["1GiB"])
    region.add_process(7, {0: 12345})
    assert called(program, region.path, **installed.environment()) == "12345\n"


def test_it_installs_below_another_root_and_goes_again(
    installed: Installed, tmp_path: Path
) -> None:
    stage = tmp_path / "stage"
    build = installed.prefix.parent / "build"
    options = [f"DESTDIR={stage}", "PREFIX=/opt/hami", "LIBDIR=/opt/hami/lib64", f"BUILD={build}"]
    called("make", "-C", CSRC, "install", *options)
    described = (stage / "opt/hami/lib64/pkgconfig/libhamiregion.pc").read_text()
    assert "libdir=/opt/hami/lib64\n" in described
    assert str(stage) not in described
    assert sorted(path.name for path in (stage / "opt/hami/include/libhamiregion").iterdir()) == (
        sorted(PUBLIC)
    )
    called("make", "-C", CSRC, "uninstall", *options)
    assert [path for path in stage.rglob("*") if not path.is_dir()] == []


# ---- the examples ----


def build_c(installed: Installed, directory: Path) -> Path:
    needs("pkg-config")
    program = directory / "read_region_c"
    flags = called("pkg-config", "--cflags", "--libs", "libhamiregion", **installed.environment())
    source = EXAMPLES / "c" / "read_region.c"
    called("cc", "-Wall", "-Wextra", "-Werror", source, *flags.split(), "-o", program)
    return program


def build_go(installed: Installed, directory: Path) -> Path:
    needs("go", "pkg-config")
    program = directory / "read_region_go"
    # No module is fetched: it needs none.
    settings = {"GOCACHE": str(directory / "go"), "GOPROXY": "off", "GOTOOLCHAIN": "local"}
    source = EXAMPLES / "go" / "read_region.go"
    called("go", "build", "-o", program, source, **settings, **installed.environment())
    return program


def build_rust(installed: Installed, directory: Path) -> Path:
    needs("rustc")
    program = directory / "read_region_rust"
    source = EXAMPLES / "rust" / "read_region.rs"
    called("rustc", "-D", "warnings", source, "-L", installed.library.parent, "-o", program)
    return program


Build = Callable[[Installed, Path], Path]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("build", [build_c, build_go, build_rust])
def test_each_language_reads_what_python_reads(
    build: Build,
    installed: Installed,
    golden_regions: list[GoldenRegion],
    region_file: RegionFileFactory,
    tmp_path: Path,
) -> None:
    """Byte for byte: all golden files, and one with hardly any devices and an odd uuid."""
    odd = region_file(uuids=['GPU-"\\', "MIG-1"], memory_limits=[None, 5], sm_limits=[100, 7])
    odd.add_process(9, {1: 2**53 + 1, 3: 4})
    RegionFile(odd.path, odd.layout).put("device_num", 0)
    program = build(installed, tmp_path)
    paths = [*(golden.path for golden in golden_regions), odd.path]
    expected = called(sys.executable, EXAMPLES / "read_region.py", *map(str, paths))
    assert expected.count("\n") == len(paths) == 16
    assert installed.run(program, *paths) == expected

    missing = subprocess.run(
        [program, tmp_path / "missing.cache"],
        env={**os.environ, **installed.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "missing.cache: error -1" in missing.stderr


def test_no_example_is_longer_than_one_reads() -> None:
    sources = [path for name in ("c", "go", "rust") for path in (EXAMPLES / name).iterdir()]
    assert len(sources) == 3
    for source in sources:
        assert len(source.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
