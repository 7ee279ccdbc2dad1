from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from octavo_kernels import __main__ as command_line
from octavo_kernels import build as building
from octavo_kernels.build import (
    ALL_ARCHES,
    KernelBuildError,
    KernelSpec,
    arch_for,
    build,
    compile_command,
    find_nvcc,
    library_path,
    source_hash,
)

FAKE_NVCC = """#!/bin/sh
echo run >> {log}
sleep 0.2
while [ "$1" != "-o" ]; do shift; done
echo library > "$2"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one kernel, an empty cache, and a compiler that notes its runs."""
    folder = tmp_path / "package"
    for name in ("twice", "include"):
        (folder / name).mkdir(parents=True)
    (folder / "twice" / "kernel.cu").write_text("int x;")
    (folder / "include" / "octavo.cuh").write_text("")
    compiler = tmp_path / "cuda" / "bin" / "nvcc"
    compiler.parent.mkdir(parents=True)
    compiler.write_text(FAKE_NVCC.format(log=tmp_path / "runs"))
    compiler.chmod(0o755)
    monkeypatch.setattr(building, "PACKAGE", folder)
    monkeypatch.setattr(building, "PREBUILT", folder / "prebuilt")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("OCTAVO_KERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OCTAVO_JIT", raising=False)
    return folder


def spec(**changes: object) -> KernelSpec:
    return KernelSpec(**({"name": "twice", "functions": {}} | changes))  # type: ignore[arg-type]


def runs(tmp_path: Path) -> int:
    log = tmp_path / "runs"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_a_library_is_built_on_first_use_and_found_again(package: Path, tmp_path: Path) -> None:
    path = library_path(spec(), "80")
    assert path.parent == tmp_path / "cache" / "80"
    assert path.read_text() == "library\n"
    assert library_path(spec(), "80") == path
    assert runs(tmp_path) == 1


def test_a_prebuilt_library_comes_before_the_cache(package: Path, tmp_path: Path) -> None:
    built = build(spec(), "80", package / "prebuilt")
    assert library_path(spec(), "80") == built
    assert runs(tmp_path) == 1


def test_of_several_that_want_a_library_one_compiles(package: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: library_path(spec(), "80"), range(4)))
    assert len(paths) == runs(tmp_path) == 1


def test_a_change_of_sources_headers_or_flags_is_another_library(package: Path) -> None:
    hashes = {source_hash(spec()), source_hash(spec(flags=("-DX",)))}
    (package / "include" / "octavo.cuh").write_text("// changed")
    hashes.add(source_hash(spec()))
    (package / "twice" / "part.cuh").write_text("// new")
    hashes.add(source_hash(spec()))
    (package / "twice" / "kernel.cu").write_text("int y;")
    hashes.add(source_hash(spec()))
    assert len(hashes) == 5


def test_without_leave_to_build_a_missing_library_is_an_error_that_names_it(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_JIT", "0")
    with pytest.raises(KernelBuildError, match=r"'twice' is not built for sm_80 and OCTAVO_JIT=0"):
        library_path(spec(), "80")
    assert runs(tmp_path) == 0


def test_without_a_compiler_the_error_has_the_command(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "find_nvcc", lambda: None)
    with pytest.raises(KernelBuildError, match=r"there is no nvcc; .* nvcc -O3 .*twice/kernel\.cu"):
        library_path(spec(), "80")


def test_a_device_that_a_kernel_is_not_for_is_refused() -> None:
    for capability in ((7, 0), (8, 0), (10, 0)):
        with pytest.raises(KernelBuildError, match=r"'twice' is for sm_90a; .*capability is"):
            arch_for(spec(arches=("90a",)), capability)
    with pytest.raises(KernelBuildError, match=r"capability is 7\.0"):
        arch_for(spec(), (7, 0))


def test_what_the_compiler_says_is_in_the_error_and_nothing_is_left(
    package: Path, tmp_path: Path
) -> None:
    compiler = tmp_path / "cuda" / "bin" / "nvcc"
    compiler.write_text("#!/bin/sh\necho 'kernel.cu(1): error: no' >&2\nexit 2\n")
    with pytest.raises(KernelBuildError, match=r"kernel\.cu\(1\): error: no"):
        library_path(spec(), "80")
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_device_gets_the_library_of_its_own_or_an_older_architecture_of_its_kind() -> None:
    capabilities = [
        (7, 5),
        (8, 0),
        (8, 6),
        (8, 7),
        (8, 9),
        (9, 0),
        (10, 0),
        (10, 3),
        (11, 0),
        (12, 1),
    ]
    arches = ["75", "80", "80", "80", "89", "90a", "100", "100", "110", "120"]
    assert [arch_for(spec(), capability) for capability in capabilities] == arches


@pytest.mark.parametrize("jobs", [1, 3])
def test_ahead_of_time_no_more_compile_together_than_jobs(
    jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def build_slowly(spec: KernelSpec, arch: str, folder: Path) -> Path:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return folder

    monkeypatch.setattr(command_line, "build", build_slowly)
    monkeypatch.setattr(sys, "argv", ["octavo_kernels", "build", "--jobs", str(jobs)])
    assert command_line.main() == 0
    assert most == jobs


def test_kernels_of_all_devices_are_built_for_newer_ones_on_demand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, str]] = []

    def note(spec: KernelSpec, arch: str, folder: Path) -> Path:
        asked.append((spec.name, arch))
        return folder

    monkeypatch.setattr(command_line, "build", note)
    monkeypatch.setattr(sys, "argv", ["octavo_kernels", "build", "--arch", "100", "--arch", "120a"])
    assert command_line.main() == 0
    general = [spec.name for spec in command_line.all_specs() if spec.arches == ALL_ARCHES]
    assert sorted(asked) == sorted((name, arch) for name in general for arch in ("100", "120a"))
    for unknown in ("42", "sm_90", "90"):
        monkeypatch.setattr(sys, "argv", ["octavo_kernels", "build", "--arch", unknown])
        with pytest.raises(SystemExit):
            command_line.main()


WHOLE = "90a"
"""The architecture, of every kernel, for which libraries are linked too."""


@pytest.mark.long
@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")
def test_every_kernel_compiles_for_all_its_architectures(tmp_path: Path) -> None:
    """Hardly optimised, and a host's code for one, which finds the same errors."""
    quick = quick_flags()
    done = subprocess.run(
        [sys.executable, "-m", "octavo_kernels", "build", "--cache", "--arch", WHOLE],
        env=os.environ | {"OCTAVO_KERNEL_CACHE": str(tmp_path), "NVCC_APPEND_FLAGS": quick},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    built = {path.name.partition("-")[0] for path in (tmp_path / WHOLE).glob("*.so")}
    assert built == {spec.name for spec in command_line.all_specs()}

    def compile_for_device(work: tuple[KernelSpec, str, str]) -> str:
        spec, source, arch = work
        output = tmp_path / f"{spec.name}-{source}-{arch}"
        command = compile_command(replace(spec, sources=(source,)), arch, output)
        more = ["-cubin", *quick.split()]
        done = subprocess.run([*command, *more], capture_output=True, text=True)
        return "" if output.exists() else f"{spec.name} sm_{arch}: {done.stdout}{done.stderr}"

    work = [
        (spec, source, arch)
        for spec in command_line.all_specs()
        for source in spec.sources
        for arch in spec.arches
        if arch != WHOLE
    ]
    assert {arch for *_, arch in work} == {*ALL_ARCHES} - {WHOLE}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        assert "".join(pool.map(compile_for_device, work)) == ""


def quick_flags() -> str:
    """What compiles fastest: one flag from CUDA 13 on, those that switch phases off before."""
    told = subprocess.run([str(find_nvcc()), "--help"], capture_output=True, text=True).stdout
    return "-Ofc=max" if "-Ofc" in told else "-Xcicc -O0 -Xptxas -O0"
