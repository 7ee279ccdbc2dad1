from __future__ import annotations

import importlib
import json
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from octavo.adapters.library import AdapterLibrary
from octavo.cli import main
from octavo.cli.skeleton import KINDS
from octavo.errors import AdapterError
from octavo.testing.step_building import StepBuilder
from octavo_plugins.attention.torch.backend import TorchAttention
from octavo_registry import AdapterFolders, CacheSpec, PluginHost, QKTransform

REGISTERED = {
    "attention": {"attention backend": ["my_attention"]},
    "adapter": {"adapter kind": ["my_adapter"]},
    "command": {"command": ["my_command"]},
    "executor": {"executor": ["my_executor"]},
    "guided": {"guided backend": ["my_guided"]},
    "input_processor": {
        "input processor": ["MyInputProcessorForConditionalGeneration"],
        "multimodal map": ["MyInputProcessorForConditionalGeneration"],
    },
    "logits_processor": {"logits processor": ["my_logits_processor"]},
    "modality": {"modality": ["my_modality"]},
    "model": {"model": ["MyModelForCausalLM"]},
    "quantization": {"quantization": ["my_quantization"]},
    "reasoning_parser": {"reasoning parser": ["my_reasoning_parser"]},
    "route": {"route group": ["my_route"]},
    "source": {"model source": ["my_source"]},
    "tokenizer": {"tokenizer": ["my_tokenizer"]},
    "tool_parser": {"tool parser": ["my_tool_parser"]},
}


ENGINE_PLUGINS = (
    "octavo_plugins.attention.torch",
    "octavo_plugins.executors.local",
    "octavo_plugins.guided.llguidance",
    "octavo_plugins.models.llama",
    "octavo_plugins.sources.local",
    "octavo_plugins.tokenizers.transformers",
)
"""What an engine of the kit's needs, where nothing is installed."""


@pytest.fixture
def make(site, monkeypatch, capsys):
    """Write a skeleton by the command and make its package importable."""

    def make(kind: str) -> Path:
        folder = site.root / f"folder-{kind}"
        assert main(["plugin", "new", kind, f"my_{kind}", "--dir", str(folder)]) == 0
        assert f"octavo plugin test my_{kind}" in capsys.readouterr().out
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        return folder

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_registers_itself(make, kind) -> None:
    folder = make(kind)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["octavo"] == {f"my_{kind}": f"octavo_my_{kind}"}
    host = PluginHost.discover(plugins=[f"octavo_my_{kind}"])
    assert host.registrations(f"octavo_my_{kind}") == REGISTERED[kind]
    compile((folder / "tests" / f"test_my_{kind}.py").read_text(), "test", "exec")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "model"])
def test_a_new_plugin_passes_the_conformance_kit(make, kind, capsys) -> None:
    """So does a model, which tests/examples/test_model_plugin_page.py tries."""
    make(kind)
    module = f"octavo_my_{kind}"
    plugins = [module, *(ENGINE_PLUGINS if kind in ("executor", "route") else ())]
    flags = [word for each in plugins for word in ("--plugin", each)]
    code = main(["plugin", "test", module, *flags, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == 0, report
    assert report["passed"]
    assert report["plugin"] == module


def test_an_existing_folder_is_never_written_to(site, capsys) -> None:
    (site.root / "kept.txt").write_text("mine")
    assert main(["plugin", "new", "source", "other", "--dir", str(site.root)]) == 2
    assert "exists already; give another folder with --dir" in capsys.readouterr().err
    assert [path.name for path in site.root.iterdir()] == ["kept.txt"]


def test_a_new_adapter_format_reads_what_it_says(make, tmp_path) -> None:
    make("adapter")
    host = PluginHost.discover(plugins=["octavo_my_adapter"])
    library = AdapterLibrary(host, AdapterFolders(allowed=None))
    tensors = {"layer.A": torch.ones(2, 8), "layer.B": torch.ones(4, 2)}
    save_file(tensors, tmp_path / "my_adapter.safetensors")
    adapter = library.read(tmp_path)
    assert (adapter.rank, [*adapter.down], adapter.up["layer"].shape) == (2, ["layer"], (4, 2))
    save_file({"layer.A": torch.ones(2, 8)}, tmp_path / "my_adapter.safetensors")
    with pytest.raises(AdapterError, match=r"pairs of tensors, LINEAR\.A and LINEAR\.B"):
        library.read(tmp_path)


def test_a_new_attention_backend_gives_what_the_default_one_gives(make) -> None:
    make("attention")
    backend = importlib.import_module("octavo_my_attention.backend").MyAttentionBackend()
    spec = CacheSpec.sliding(kv_heads=2, head_dim=8, dtype="float32", window=6)
    results = []
    for each in (backend, TorchAttention()):
        generator = torch.Generator().manual_seed(0)
        builder = StepBuilder({"layer": spec}, each)
        rows = [builder.add_row(), builder.add_row()]
        for lens in ((9, 4), (1, 3)):
            step = builder.step(list(zip(rows, lens, strict=True)))
            q_THD, k_TKD, v_TKD, angles_TF, norm_D = (
                torch.randn(shape, generator=generator)
                for shape in ((sum(lens), 4, 8), *[(sum(lens), 2, 8)] * 2, (sum(lens), 4), (8,))
            )
            transform = QKTransform(
                cos_TF=angles_TF.cos(), sin_TF=angles_TF.sin(), q_norm_D=norm_D, k_norm_D=norm_D
            )
            view, group = step.layers["layer"].view, step.groups[0]
            results.append(
                each.attend(
                    *(q_THD, k_TKD, v_TKD, view, group), scale=0.3, window=6, transform=transform
                )
            )
    torch.testing.assert_close(results[:2], results[2:])
