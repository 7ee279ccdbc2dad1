"""Adapters that PEFT has saved: read as PEFT reads them, or refused by name."""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from octavo.adapters.base_weights import check_base_weights
from octavo.adapters.check import check_adapter
from octavo.adapters.tensors import content_hash
from octavo.errors import AdapterError
from octavo.weights.checkpoint import open_checkpoint
from octavo_plugins.adapters.peft.format import PeftFormat
from octavo_registry.adapters import Adapter
from peft_adapters import changes, changes_of, edit_config, edit_tensors, save_adapter
from small_models import TEXT_MODELS, Case, Checkpoint, cases_of

FIRST_CASES: dict[Case, Any] = {
    case: variant
    for architecture in TEXT_MODELS
    for case, variant in list(cases_of(architecture).items())[:1]
}
ADAPTABLE = (nn.Linear, nn.Embedding, Conv1D)
ENDLESS = r"(.|..|...)*(\d\d)"
A, B = "layers.0.self_attn.q_proj.lora_A", "layers.0.self_attn.q_proj.lora_B"


class Base:
    """A tiny model of Transformers, and the linears of ours."""

    def __init__(self, case: Case, folder: Path) -> None:
        checkpoint = Checkpoint(case, FIRST_CASES[case], folder)
        self.folder = folder
        self.module: Any = checkpoint.reference.module
        self.linears = checkpoint.linears()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Base:
    case = next(case for case in FIRST_CASES if case[0] == "LlamaForCausalLM")
    return Base(case, tmp_path_factory.mktemp("llama"))


@pytest.fixture
def saved(llama: Base, tmp_path: Path) -> Path:
    """An adapter of rank 4 on queries and values."""
    save_adapter(llama.module, tmp_path / "saved", r=4, target_modules=["q_proj", "v_proj"])
    return tmp_path / "saved"


def read(folder: Path) -> Adapter:
    adapter = PeftFormat().read(folder)
    assert adapter is not None
    return adapter


def assert_equal_to_peft(base: Base, folder: Path, **settings: Any) -> Adapter:
    expected = changes(save_adapter(base.module, folder, **settings))
    adapter = check_adapter(read(folder), base.linears)
    found = changes_of(adapter)
    assert found.keys() == expected.keys()
    assert found
    for name, change in found.items():
        torch.testing.assert_close(change, expected[name], msg=name)
    return adapter


@pytest.mark.parametrize("case", FIRST_CASES, ids=str)
def test_all_linears_of_every_text_model_are_found_by_their_names(
    case: Case, tmp_path: Path
) -> None:
    base = Base(case, tmp_path / "model")
    left_out: tuple[str, ...] = ("wpe", "embed_positions")
    if case[0].startswith("Deepseek"):  # PEFT makes experts' parameters of all such targets
        left_out += ("gate_proj", "up_proj", "down_proj")
    targets = {
        name
        for name, module in base.module.named_modules()
        if isinstance(module, ADAPTABLE) and not name.endswith(left_out)
    }
    adapter = assert_equal_to_peft(
        base, tmp_path / "adapter", r=3, lora_alpha=5, target_modules="|".join(targets)
    )
    left_out += (".gate", ".router")  # parameters, as experts are
    assert adapter.down.keys() == {
        name
        for name, size in base.linears.items()
        if size.experts == 1 and not name.endswith(left_out)
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"r": 8, "lora_alpha": 32, "use_rslora": True},
        {"r": 4, "rank_pattern": {"k_proj": 16}, "alpha_pattern": {"layers.1.*q_proj": 3}},
        {"r": 4, "rank_pattern": {"model.layers.0.self_attn.q_proj": 2, "q_proj": 64}},
        {"r": 4, "rank_pattern": {"proj": 16, "attn.k_proj": 8}},
        {"r": 4, "rank_pattern": {r"^.*\.1\..*": 2}, "use_rslora": True},
        {"layers_to_transform": [1]},
        {"layers_to_transform": 0, "layers_pattern": "layers"},
        {"exclude_modules": ["layers.0.self_attn.q_proj"]},
        {"target_modules": r".*\.1\..*(k|o)_proj", "exclude_modules": ".*k_proj"},
    ],
    ids=str,
)
def test_patterns_and_scalings_are_those_of_peft(
    settings: dict[str, Any], llama: Base, tmp_path: Path
) -> None:
    targets = {"target_modules": ["q_proj", "k_proj"], **settings}
    adapter = assert_equal_to_peft(llama, tmp_path, **targets)
    assert adapter.rank == max(len(down) for down in adapter.down.values())


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def test_a_list_of_modules_may_name_some_that_the_model_has_not(
    architecture: str, tmp_path: Path
) -> None:
    base = Base(next(case for case in FIRST_CASES if case[0] == architecture), tmp_path / "model")
    targets = ["q_proj", "c_attn", "query_key_value", "gate_up_proj"]  # the last is of experts
    adapter = assert_equal_to_peft(base, tmp_path / "adapter", r=4, target_modules=targets)
    assert sorted(adapter.targets) == sorted(targets)


def test_a_listed_module_of_the_model_without_any_tensors_is_refused(
    llama: Base, saved: Path
) -> None:
    edit_tensors(saved, lambda tensors: only(tensors, "v_proj"))
    with pytest.raises(AdapterError, match="says that it changes v_proj, which the model has"):
        check_adapter(read(saved), llama.linears)
    for others in (
        {"layers_to_transform": [0, 1]},
        {"exclude_modules": ["v_proj"]},
        {"target_modules": ".*(q|v)_proj"},
        {"target_modules": "all-linear"},
    ):
        edit_config(saved, **{"target_modules": ["q_proj", "v_proj"], **others})
        check_adapter(read(saved), llama.linears)
        edit_config(saved, layers_to_transform=None, exclude_modules=None)


def test_a_wrong_scaling_is_noticed(llama: Base, tmp_path: Path) -> None:
    expected = changes(save_adapter(llama.module, tmp_path, r=4, target_modules=["q_proj"]))
    edit_config(tmp_path, use_rslora=True)
    name, found = next(iter(changes_of(read(tmp_path)).items()))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(found, expected[name])


@pytest.mark.parametrize(
    "rename",
    [
        lambda key: key.replace(".weight", ".default.weight"),
        lambda key: key.removeprefix("base_model.model."),
        lambda key: key.replace("base_model.model.", "base_model."),
        lambda key: key.replace("model.model.", "model.model.language_model."),
        lambda key: key.replace("model.model.", "model.language_model.model."),
    ],
)
def test_names_of_other_versions_mean_the_same(rename: Any, llama: Base, saved: Path) -> None:
    expected = check_adapter(read(saved), llama.linears)
    edit_tensors(saved, lambda tensors: {rename(key): each for key, each in tensors.items()})
    found = check_adapter(read(saved), llama.linears)
    assert found.down.keys() == expected.down.keys()


def test_the_hash_is_of_what_is_computed_and_of_nothing_else(saved: Path) -> None:
    adapter = read(saved)
    first = adapter.content_hash
    edit_config(saved, lora_dropout=0.5, peft_version="0.1", revision="main")
    assert read(saved).content_hash == first
    other_order = dict(reversed(adapter.down.items()))
    assert content_hash(other_order, adapter.up, adapter.scaling) == first
    edit_config(saved, lora_alpha=9)
    scaled = read(saved).content_hash
    edit_tensors(saved, lambda tensors: {key: -each for key, each in tensors.items()})
    assert len({first, scaled, read(saved).content_hash}) == 3


def test_an_adapter_stays_as_it_was_read_when_its_file_is_cut(saved: Path) -> None:
    adapter = read(saved)
    expected = {name: down.clone() for name, down in adapter.down.items()}
    with (saved / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(100)
    for name, down in adapter.down.items():
        assert torch.equal(down, expected[name])


def test_a_folder_without_its_config_is_of_another_format(saved: Path) -> None:
    (saved / "adapter_config.json").unlink()
    assert PeftFormat().read(saved) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_dora": True}, "use_dora=True"),
        ({"bias": "lora_only"}, "bias='lora_only'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save=.'lm_head'"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices=.1, 2"),
        ({"lora_bias": True}, "lora_bias=True"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa' has changed the base"),
        ({"init_lora_weights": "olora"}, "init_lora_weights='olora'"),
        ({"layer_replication": [(0, 1), (0, 2)]}, "layer_replication="),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_computed_is_refused_by_name(
    settings: dict[str, Any], words: str, llama: Base, tmp_path: Path
) -> None:
    save_adapter(llama.module, tmp_path, r=4, target_modules=["q_proj"], **settings)
    with pytest.raises(AdapterError, match=words):
        read(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_weights_that_were_saved_along_must_be_the_models_own(llama: Base, tmp_path: Path) -> None:
    ends = {"model.embed_tokens", "lm_head"}
    save_adapter(llama.module, tmp_path, r=4, target_modules=["embed_tokens", "lm_head"])
    adapter = read(tmp_path)
    assert adapter.base_weights.keys() == ends
    checkpoint = open_checkpoint(llama.folder)
    check_base_weights(adapter, checkpoint)
    rounded = {name: each.bfloat16() for name, each in adapter.base_weights.items()}
    check_base_weights(replace(adapter, base_weights=rounded), checkpoint)
    for name in ends:
        other = {**adapter.base_weights, name: adapter.base_weights[name].roll(1)}
        with pytest.raises(AdapterError, match=rf"resized or trained there: {name}$"):
            check_base_weights(replace(adapter, base_weights=other), checkpoint)


def test_an_adapter_of_tied_weights_names_the_embedding_alone(tmp_path: Path) -> None:
    base = Base(next(case for case in FIRST_CASES if case[0] == "Phi3ForCausalLM"), tmp_path)
    settings = {"r": 4, "target_modules": ["embed_tokens"], "ensure_weight_tying": True}
    assert base.module.config.tie_word_embeddings
    adapter = assert_equal_to_peft(base, tmp_path / "adapter", **settings)
    change = changes_of(adapter)
    torch.testing.assert_close(change["lm_head"], change["model.embed_tokens"].T)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3' is not supported"),
        ({"use_tomorrows_idea": {"beta": 2}}, "use_tomorrows_idea=.* would change the results"),
        ({"r": 0}, "r=0 must be an integer"),
        ({"r": True}, "r=True must be"),
        ({"r": 8}, r"r and rank_pattern are not .* \(\[4, 64\], not 8 rows\)"),
        ({"lora_alpha": float("nan")}, "lora_alpha=nan must be a finite number"),
        ({"lora_alpha": "16"}, "lora_alpha='16'"),
        ({"alpha_pattern": {"q_proj": None}}, r"alpha_pattern\['q_proj'\]=None"),
        ({"rank_pattern": [1]}, "rank_pattern=.1. must be an object"),
        ({"rank_pattern": {"(": 4}}, r"the pattern '.*\(.*' *: missing"),
        ({"target_modules": [1]}, "target_modules=.1. must be a text or a list"),
        ({"target_modules": ["q_proj"]}, "leave out what .*v_proj"),
        (
            {"target_modules": ["k_proj"]},
            r"s\.0\.\S+q_proj, .*s\.0\.\S+v_proj, .*s\.1\.\S+q_proj, .*s\.1\.\S+v_proj$",
        ),
        ({"exclude_modules": ["v_proj"]}, "leave out what .*v_proj"),
        ({"exclude_modules": ".*1.*v_proj"}, "leave out what .*v_proj"),
        ({"layers_to_transform": [1]}, r"leave out what .*layers\.0"),
        ({"layers_to_transform": "1"}, "layers_to_transform='1'"),
        ({"base_model_name_or_path": 5}, "base_model_name_or_path=5"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_followed_is_refused(
    entries: dict[str, Any], words: str, saved: Path
) -> None:
    edit_config(saved, **entries)
    with pytest.raises(AdapterError, match=words):
        read(saved)


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        ([ENDLESS], "takes too long to compare"),
        ([f"(?:{i}|a)*b" for i in range(20_000)], "takes too long to compare"),
        (["|".join(f"a{i}b*" for i in range(9_000))], "more than 16384 characters"),
        (["(?&x)(?<x>a|(?&x))"], "MemoryError|takes too long"),
    ],
    ids=["one", "many", "long", "deep"],
)
def test_patterns_that_never_end_end(patterns: list[str], words: str, saved: Path) -> None:
    edit_config(saved, rank_pattern=dict.fromkeys(patterns, 4))
    began = time.monotonic()
    with pytest.raises(AdapterError, match=words):
        read(saved)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("text", "words"),
    [(b"{", "is no JSON"), (b"[]", "no JSON object"), (b"[" * 9999, "no JSON"),
     (b" " * (2 << 20), "has more than")],
    ids=["cut", "list", "deep", "long"],
)  # fmt: skip
def test_a_config_that_is_none_is_refused(text: bytes, words: str, saved: Path) -> None:
    (saved / "adapter_config.json").write_bytes(text)
    with pytest.raises(AdapterError, match=words):
        read(saved)


def only(tensors: dict[str, Any], *parts: str) -> dict[str, Any]:
    return {key: each for key, each in tensors.items() if not any(p in key for p in parts)}


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: only(t, "0.self_attn.q_proj.lora_B"), "lora_A without lora_B for .*0.*q_proj"),
        (lambda t: only(t, "0.self_attn.q_proj.lora_A"), "lora_B without lora_A for .*0.*q_proj"),
        (lambda t: {}, "has no tensors"),
        (lambda t: {**t, "model.norm.weight": torch.ones(4)}, "no LoRA matrices: model.norm"),
        (lambda t: {**t, "model.x_proj.bias": torch.ones(4)}, "trained biases .*x_proj.bias"),
        (lambda t: {**t, f"base_model.model.model.{A}.other.weight": torch.ones(4, 64),
                    f"base_model.model.model.{B}.other.weight": torch.ones(64, 4)},
         rf"one matrix under two names: base.*{A}\.other\.weight, base.*{A}\.weight$"),
        (lambda t: {**t, f"x.{A}.other.weight": torch.ones(4, 64)}, "more than one adapter: one"),
        (lambda t: {key: each.long() for key, each in t.items()}, r"not .*lora_A.weight \(I64\)"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_belong_are_listed(edit: Any, words: str, saved: Path) -> None:
    edit_tensors(saved, edit)
    with pytest.raises(AdapterError, match=words):
        read(saved)


@pytest.mark.parametrize("kept", [0, 7, 200, -1])
def test_a_cut_file_is_refused(kept: int, saved: Path) -> None:
    path = saved / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(AdapterError, match=r"was cut|not a safetensors file"):
        read(saved)


def test_a_header_of_two_to_the_63_bytes_is_refused(saved: Path) -> None:
    (saved / "adapter_model.safetensors").write_bytes(struct.pack("<Q", 1 << 63) + b"{}")
    with pytest.raises(AdapterError, match="announces a header of 9223372036854775808"):
        read(saved)


def test_tensors_beyond_the_memory_are_refused_before_they_are_read(saved: Path) -> None:
    num_bytes = 1 << 43
    header = b'{"x":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}' % (
        num_bytes // 4,
        num_bytes,
    )
    with (saved / "adapter_model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        try:
            file.truncate(8 + len(header) + num_bytes)  # a hole: takes no room on the disk
        except OSError:
            pytest.skip("the file system has no files of this size")
    with pytest.raises(AdapterError, match=r"more than half of the .* bytes of memory"):
        read(saved)


def test_a_pickle_is_never_opened(saved: Path) -> None:
    (saved / "adapter_model.safetensors").unlink()
    (saved / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/x'\ntR.")
    with pytest.raises(AdapterError, match=r"only as adapter_model\.bin: pickle files are never"):
        read(saved)
