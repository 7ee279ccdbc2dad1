"""``octavo adapter``: what it shows is true, and what it merges is what PEFT merges."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from octavo.cli import main
from octavo_plugins.adapters.peft.format import PeftFormat
from peft_adapters import edit_config, save_adapter
from small_models import Checkpoint, cases_of

TARGETS = {
    "LlamaForCausalLM": ["q_proj", "down_proj", "embed_tokens", "lm_head"],
    "GPT2LMHeadModel": ["c_attn", "attn.c_proj"],  # weights of [in, out], one of them square
    "Phi3ForCausalLM": ["qkv_proj", "gate_up_proj"],
    "DeepseekV3ForCausalLM": ["q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"],
}


def base_model(architecture: str, folder: Path) -> nn.Module:
    case, variant = next(iter(cases_of(architecture).items()))
    return Checkpoint(case, variant, folder).reference.module


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    folder = tmp_path_factory.mktemp("models") / "llama"
    return folder, base_model("LlamaForCausalLM", folder)


@pytest.fixture
def adapter(llama: tuple[Path, nn.Module], tmp_path: Path) -> Path:
    save_adapter(llama[1], tmp_path / "mine", r=4, lora_alpha=6, target_modules=["q_proj"])
    edit_config(tmp_path / "mine", base_model_name_or_path="org/base")
    return tmp_path / "mine"


def shown(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    assert main(["adapter", *map(str, args), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert main(["adapter", *map(str, args)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("octavo: error: ")
    assert err.count("\n") == 1
    return err


def test_inspect_tells_what_the_folder_holds(adapter, capsys) -> None:
    found = shown(capsys, "inspect", adapter)
    read = PeftFormat().read(adapter)
    assert read is not None
    numbers = [*read.down.values(), *read.up.values()]
    assert found == {
        "adapter": str(adapter),
        "base_model": "org/base",
        "content_hash": read.content_hash,
        "ranks": [4],
        "scalings": [1.5],
        "modules": {"q_proj": 2},
        "num_parameters": sum(tensor.numel() for tensor in numbers),
        "num_bytes": sum(tensor.nbytes for tensor in numbers),
        "dtypes": ["float32"],
    }


def test_inspect_says_the_same_in_words(adapter, capsys) -> None:
    assert main(["adapter", "inspect", str(adapter)]) == 0
    out = capsys.readouterr().out
    for words in ("trained on  org/base", "rank        4", "scaling     1.5", "q_proj (2)", "MiB"):
        assert words in out


def test_inspect_says_whether_it_fits_a_model(llama, adapter, tmp_path, capsys) -> None:
    assert shown(capsys, "inspect", adapter, "--model", llama[0])["fits"] == str(llama[0])
    base_model("Phi3ForCausalLM", tmp_path / "phi3")
    words = refused(capsys, "inspect", adapter, "--model", tmp_path / "phi3")
    assert "the adapter touches no linear of the model: it has model.layers.0.self_attn.q_proj" in (
        words
    )


def test_inspect_of_a_model_that_takes_no_adapters_says_so(adapter, capsys) -> None:
    words = refused(capsys, "inspect", adapter, "--model", "octavo/tiny-omni")
    assert "OctavoOmniForConditionalGeneration takes no adapters; enable_lora is for" in words


def test_a_model_of_another_name_must_be_said_to_be_the_same(adapter, capsys) -> None:
    args = ("inspect", adapter, "--model", "octavo/tiny")
    assert "trained on 'org/base', not on octavo/tiny" in refused(capsys, *args)
    assert "shapes are another model's" in refused(capsys, *args, "--base-model-name", "org/base")


def test_what_is_no_adapter_is_one_line(llama, tmp_path, capsys) -> None:
    assert "no adapter of a known format" in refused(capsys, "inspect", llama[0])
    (tmp_path / "adapter_config.json").write_text("{")
    assert "is no JSON" in refused(capsys, "inspect", tmp_path)


@pytest.mark.parametrize("architecture", TARGETS)
def test_merged_weights_are_those_that_peft_merges(architecture, tmp_path, capsys) -> None:
    base = base_model(architecture, tmp_path / "model")
    model = save_adapter(
        base, tmp_path / "mine", r=4, lora_alpha=6, target_modules=TARGETS[architecture]
    )
    output = tmp_path / "merged"
    args = ("merge", tmp_path / "mine", "--model", tmp_path / "model", "--output", output)
    assert shown(capsys, *args)["merged_into"] == str(output)
    before = load_file(tmp_path / "model" / "model.safetensors")
    found = load_file(output / "model.safetensors")
    model.merge_and_unload().save_pretrained(tmp_path / "by_peft")
    expected = load_file(tmp_path / "by_peft" / "model.safetensors")
    assert found.keys() == before.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], msg=name)
    touched = {name for name in found if not torch.equal(found[name], before[name])}
    assert touched == {
        f"{name}.weight"
        for name, _ in base.named_modules()
        if f".{name}".endswith(tuple(f".{target}" for target in TARGETS[architecture]))
    }
    assert (output / "config.json").read_text() == (tmp_path / "model/config.json").read_text()
    modes = {path.stat().st_mode for path in output.iterdir()}
    assert len(modes) == 1, "who may read the settings may read the weights"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("architecture", "targets", "words"),
    [
        ("Phi3ForCausalLM", {"target_modules": ["lm_head"]}, "ties both ends .* changes lm_head"),
        (
            "MixtralForCausalLM",
            {"target_parameters": ["experts.down_proj"]},
            r"experts are not merged: .*experts\.down_proj",
        ),
    ],
)
def test_what_would_make_another_model_is_not_merged(
    architecture, targets, words, tmp_path, capsys
) -> None:
    save_adapter(base_model(architecture, tmp_path / "model"), tmp_path / "mine", r=4, **targets)
    fits = ("inspect", tmp_path / "mine", "--model", tmp_path / "model")
    assert shown(capsys, *fits)["fits"] == str(tmp_path / "model")
    args = ("merge", tmp_path / "mine", "--model", tmp_path / "model", "--output", tmp_path / "new")
    assert re.search(words, refused(capsys, *args))
    assert not (tmp_path / "new").exists()


def test_merging_keeps_files_and_dtypes(llama, adapter, tmp_path, capsys) -> None:
    tensors = {
        name: tensor.bfloat16()
        for name, tensor in load_file(llama[0] / "model.safetensors").items()
    }
    names, model = sorted(tensors), tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_bytes((llama[0] / "config.json").read_bytes())
    (model / "pytorch_model.bin").write_bytes(b"a pickle")
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, model / file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    index = json.dumps({"weight_map": weight_map})
    (model / "model.safetensors.index.json").write_text(index)
    output = tmp_path / "merged"
    shown(capsys, "merge", adapter, "--model", model, "--output", output)
    assert {path.name for path in output.iterdir()} == {
        "config.json", "model.safetensors.index.json", *parts,
    }  # fmt: skip
    read = PeftFormat().read(adapter)
    assert read is not None
    for file, part in parts.items():
        found = load_file(output / file)
        assert sorted(found) == sorted(part)
        for name, tensor in found.items():
            linear, expected = name.removesuffix(".weight"), tensors[name]
            if linear in read.down:
                change = read.scaling[linear] * (read.up[linear] @ read.down[linear])
                expected = (expected.float() + change).bfloat16()
            assert torch.equal(tensor, expected)


def test_a_folder_that_is_there_is_not_written_over(llama, adapter, tmp_path, capsys) -> None:
    (tmp_path / "merged").mkdir()
    args = ("merge", adapter, "--model", llama[0], "--output", tmp_path / "merged")
    assert "is there already" in refused(capsys, *args)
    assert list((tmp_path / "merged").iterdir()) == []


def test_weights_that_something_quantizes_are_refused_and_nothing_stays(
    llama, adapter, tmp_path, capsys
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_bytes((llama[0] / "config.json").read_bytes())
    tensors = load_file(llama[0] / "model.safetensors")
    quantized = {name: t.to(torch.float8_e4m3fn) for name, t in tensors.items()}
    save_file(quantized, model / "model.safetensors")
    args = ("merge", adapter, "--model", model, "--output", tmp_path / "new" / "merged")
    assert "q_proj.weight is in torch.float8_e4m3fn" in refused(capsys, *args)
    assert list((tmp_path / "new").iterdir()) == []
