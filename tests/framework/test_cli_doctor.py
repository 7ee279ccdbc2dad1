from __future__ import annotations

import json
import shutil
import sys
from collections import namedtuple

import pytest
import torch

from octavo.cli import findings, main
from octavo.cli.findings import Finding, examine
from octavo_kernels import build
from octavo_registry import PluginHost

H200 = (9, 0)


def found(host: PluginHost | None = None) -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine(host or PluginHost())}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """A machine with an idle H200 and no kernel built yet."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: H200)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H200")
    memory = (130 * 2**30, 140 * 2**30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: memory)
    monkeypatch.setattr(findings, "driver_version", lambda: (13, 1))
    monkeypatch.setattr(findings, "find_nvcc", lambda: "/usr/local/cuda/bin/nvcc")
    monkeypatch.setattr(findings, "PREBUILT", tmp_path)
    monkeypatch.setenv("OCTAVO_KERNEL_CACHE", str(tmp_path))
    monkeypatch.delenv("OCTAVO_JIT", raising=False)


def test_a_machine_without_a_gpu_may_run_models_on_its_cpu(monkeypatch) -> None:
    monkeypatch.setattr(findings, "driver_version", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert found()["torch"].verdict == "good"
    assert found()["driver"].verdict == "note"
    assert "models run on the CPU" in found()["driver"].advice


def test_a_torch_for_cpus_beside_a_driver_is_bad(monkeypatch) -> None:
    monkeypatch.setattr(findings, "driver_version", lambda: (13, 0))
    monkeypatch.setattr(torch.version, "cuda", None)
    assert found()["torch"].verdict == "bad"
    assert "install a torch that is built for CUDA" in found()["torch"].advice


def test_a_driver_older_than_torchs_cuda_is_bad(gpu, monkeypatch) -> None:
    monkeypatch.setattr(findings, "driver_version", lambda: (12, 4))
    assert found()["driver"].verdict == "bad"
    assert "built for CUDA 12" in found()["driver"].advice


def test_a_gpu_that_is_used_or_old_is_told(gpu, monkeypatch) -> None:
    assert found()["GPU 0"].verdict == "good"
    assert found()["GPU 0"].found == (
        "NVIDIA H200, compute capability 9.0, 130.0 of 140.0 GiB free"
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (2**30, 140 * 2**30))
    assert found()["GPU 0"].verdict == "note"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 0))
    assert found()["GPU 0"].verdict == "bad"


def test_kernels_are_counted_and_what_builds_them_is_named(gpu, monkeypatch, tmp_path) -> None:
    kernels = found()["kernels 9.0"]
    assert kernels.verdict == "note"
    assert kernels.found.startswith("0 of ")
    assert "python -m octavo_kernels build --arch 90a" in kernels.advice
    monkeypatch.setattr(findings, "find_nvcc", lambda: None)
    assert found()["kernels 9.0"].verdict == "bad"
    assert "there is no nvcc" in found()["kernels 9.0"].advice
    monkeypatch.setenv("OCTAVO_JIT", "0")
    assert "OCTAVO_JIT=0 forbids" in found()["kernels 9.0"].advice
    for spec in findings.all_specs():
        file = tmp_path / "90a" / f"{spec.name}-{build.source_hash(spec)}.so"
        file.parent.mkdir(exist_ok=True)
        file.touch()
    assert found()["kernels 9.0"].verdict == "good"


@pytest.mark.parametrize("capability", [(10, 0), (12, 0)])
def test_for_gpus_that_nothing_is_prebuilt_for_a_compiler_is_asked_for(
    gpu, monkeypatch, capability
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    subject, arch = f"kernels {capability[0]}.{capability[1]}", f"{capability[0]}{capability[1]}"
    kernels = found()[subject]
    assert kernels.verdict == "note"
    assert kernels.found.endswith("are built, and only images come with them")
    assert f"--arch {arch} (an nvcc that knows sm_{arch}: of CUDA 12.8" in kernels.advice
    monkeypatch.setattr(findings, "find_nvcc", lambda: None)
    assert found()[subject].verdict == "bad"
    assert "there is no nvcc" in found()[subject].advice
    usable = [spec for spec in findings.all_specs() if build.can_be_built_for(spec, arch)]
    assert kernels.found.startswith(f"0 of {len(usable)} ")


def test_small_shared_memory_and_few_files_are_told(monkeypatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**26, 0, 2**26))
    monkeypatch.setattr(findings.resource, "getrlimit", lambda kind: (1024, 524288))
    assert "--shm-size=8g" in found()["shared memory"].advice
    assert found()["open files"].advice.endswith("ulimit -n 65536")


def test_plugins_are_listed_with_version_and_origin(site) -> None:
    site.install("extra", version="4.2")
    site.write("loose")
    host = PluginHost.discover(plugins=["loose"])
    lines = [line.found for line in examine(host) if line.subject == "plugin"]
    assert lines == ["extra of dist-extra 4.2", "loose of module loose"]


def test_the_command_fails_when_a_finding_is_bad(site, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("NO  Python")
    assert lines[1].strip() == "use Python 3.11, 3.12 or 3.13"
    monkeypatch.undo()


def test_json_has_a_line_for_each_finding(site, capsys) -> None:
    main(["doctor", "--json"])
    first = json.loads(capsys.readouterr().out)[0]
    assert first.keys() == {"subject", "verdict", "found", "advice"}
