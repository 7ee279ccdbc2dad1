"""``octavo plan``: its bytes are those of the loaded model, and its advice holds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.cache.budget import GIB
from octavo.cli import main
from octavo.errors import ConfigError
from octavo.execution.memory_budget import Budget, budget_of
from octavo.testing.random_model import make_random_model
from octavo.testing.reference import write_with_reference, write_without_reference
from octavo.testing.variants import Variant, variants_of
from octavo_registry import PluginHost
from plan_equality import check_plan, config_of
from small_models import TEXT_MODELS

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover()


@pytest.fixture(scope="module")
def llama_8b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a real model's size, and without weights."""
    folder = tmp_path_factory.mktemp("llama")
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return folder


def all_variants(*, first: bool) -> list[Any]:
    """The first configuration of each architecture, or the others."""
    models = PluginHost.discover().models
    found = []
    for name in (*TEXT_MODELS, "transformers"):
        variants = list(variants_of(models.info(name).metadata["capabilities"]).items())
        chosen = variants[:1] if first else variants[1:]
        found += [pytest.param(name, variant, id=f"{name}: {title}") for title, variant in chosen]
    return found


def check_architecture(name: str, variant: Variant, host: PluginHost, folder: Path) -> None:
    capabilities = host.models.info(name).metadata["capabilities"]
    declared, target = variant.architecture or name, variant.reference or capabilities.reference
    if target is None:
        write_without_reference(folder, declared, host, variant)
    else:
        write_with_reference(folder, declared, target, variant)
    check_plan(folder, host, model_impl=name, dtype="bfloat16")


@pytest.mark.parametrize(("name", "variant"), all_variants(first=True))
def test_bytes_of_weights_and_cache_are_those_of_the_loaded_model(
    name, variant, host, tmp_path
) -> None:
    check_architecture(name, variant, host, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), all_variants(first=False))
def test_so_they_are_in_every_configuration(name, variant, host, tmp_path) -> None:
    check_architecture(name, variant, host, tmp_path)


def test_so_they_are_in_another_dtype_than_that_of_the_files(host, tmp_path) -> None:
    check_plan(make_random_model(tmp_path, dtype="bfloat16"), host, dtype="float32")


def test_nothing_is_allocated_and_no_weights_are_needed(host, llama_8b) -> None:
    budget = budget_of(config_of(llama_8b), host, 140)
    assert budget.num_parameters == 8_030_261_248
    assert budget.file_bytes is None
    assert budget.weight_bytes == pytest.approx(2 * 8_030_261_248, rel=0.01)
    assert budget.bytes_per_token == 2 * 32 * 8 * 128 * 2
    assert budget.problem is None
    parts = budget.weight_bytes + budget.workspace_bytes + budget.cache_bytes
    assert 0 <= budget.usable_bytes - parts < 16 * budget.bytes_per_token


def test_the_pool_of_adapters_is_planned_beside_the_weights(host, llama_8b, tmp_path) -> None:
    check_plan(make_random_model(tmp_path), host, enable_lora=True, lora_pool_rank=40)
    plain, adapted = (
        budget_of(config_of(llama_8b, enable_lora=enabled, max_loras=4), host, 140)
        for enabled in (False, True)
    )
    hidden, inner, kv, vocabulary = 4096, 14336, 1024, 128256
    down = (3 + 1 + 2) * hidden + inner
    up = hidden + 2 * kv + hidden + 2 * inner + hidden
    ends = 2 * (vocabulary + hidden)
    assert adapted.adapter_bytes == 4 * 16 * 2 * (32 * (down + up) + ends)
    assert adapted.weight_bytes - plain.weight_bytes == adapted.adapter_bytes
    assert adapted.cache_bytes < plain.cache_bytes - adapted.adapter_bytes
    assert plain.adapter_bytes == 0


def test_tensor_parallel_devices_share_weights_and_cache(host, llama_8b) -> None:
    alone = budget_of(config_of(llama_8b), host, 140)
    shared = budget_of(config_of(llama_8b, tensor_parallel_size=2), host, 140)
    assert shared.weight_bytes == pytest.approx(alone.weight_bytes / 2, rel=0.01)
    assert shared.bytes_per_token == alone.bytes_per_token / 2


def test_ranks_on_a_cpu_share_its_memory(host, tmp_path) -> None:
    folder = make_random_model(tmp_path)
    alone = budget_of(config_of(folder), host)
    shared = budget_of(config_of(folder, tensor_parallel_size=2), host)
    assert shared.usable_bytes == pytest.approx(alone.usable_bytes / 2, rel=0.2)
    assert shared.device == f"{alone.device} as one of 2 ranks"


def test_headers_tell_the_bytes_in_files(host, tmp_path) -> None:
    budget = budget_of(config_of(make_random_model(tmp_path, dtype="bfloat16", sharded=True)), host)
    assert budget.file_bytes == 2 * budget.num_parameters


def test_the_language_model_of_another_is_planned_by_its_own_sizes(host, tmp_path) -> None:
    folder = make_random_model(tmp_path)
    plain = budget_of(config_of(folder), host).workspace_bytes
    config = json.loads((folder / "config.json").read_bytes())
    text = {"intermediate_size": 16 * config["intermediate_size"], "hidden_size": 64}
    (folder / "config.json").write_text(json.dumps({**config, "text_config": text}))
    more = budget_of(config_of(folder, max_num_batched_tokens=2**20), host).workspace_bytes
    (folder / "config.json").write_text(json.dumps({**config, "text_config": {}}))
    assert (
        more > 4 * budget_of(config_of(folder, max_num_batched_tokens=2**20), host).workspace_bytes
    )
    assert budget_of(config_of(folder), host).workspace_bytes == plain


def test_layers_with_a_window_cost_a_sequence_and_not_a_token(host, tmp_path) -> None:
    layers = ["sliding_attention", "full_attention"]
    folder = make_random_model(tmp_path, sliding_window=20, layer_types=layers)
    budget = budget_of(config_of(folder, max_num_batched_tokens=16), host)
    one_layer = 2 * 2 * 16 * 4  # keys and values, heads, dims, bytes
    assert budget.bytes_per_token == one_layer
    # 20 tokens and three steps under way are 68: five blocks of 16 and the one that is begun.
    assert budget.window_bytes_per_sequence == 6 * 16 * one_layer


@pytest.mark.parametrize(
    ("gib", "options", "change"),
    [
        (37, {}, "--gpu-memory-utilization 0.97"),
        (33, {}, "--max-model-len"),
        (21, {"max_model_len": 20_000}, "--gpu-memory-utilization 0.97"),
        (
            20.5,
            {
                "gpu_memory_utilization": 0.97,
                "max_model_len": 14_000,
                "max_num_batched_tokens": 32_768,
            },
            "--max-num-batched-tokens 2048",
        ),
        (24, {"max_num_batched_tokens": 1024}, "--max-model-len"),
        (16, {}, "a device of"),
        (24, {"num_blocks": 2}, "--num-blocks"),
        (80, {"num_blocks": 2}, "--num-blocks 8193"),
        (80, {"kv_cache_memory_gib": 0}, "--kv-cache-memory-gib 16.002"),
        (80, {"kv_cache_memory_gib": 0.0001, "max_model_len": 4000}, "--kv-cache-memory-gib 0.491"),
        (80, {"kv_cache_memory_gib": 1000}, "--kv-cache-memory-gib"),
        (80, {"num_blocks": 10**6}, "--num-blocks"),
        (16, {"num_blocks": 20_000}, "a device of 64 GiB"),
        (30, {"dtype": "float32", "max_model_len": 2048}, "--dtype bfloat16"),
    ],
)
def test_what_it_says_to_change_makes_it_fit(host, llama_8b, gib, options, change) -> None:
    budget = budget_of(config_of(llama_8b, **options), host, gib)
    assert budget.problem is not None
    assert budget.change is not None
    assert budget.change.startswith(change)
    if budget.change.startswith("--"):
        words = budget.change.split()
        for flag, value in zip(words[::2], words[1::2], strict=True):
            read = float(value) if "." in value else int(value) if value.isdigit() else value
            options = {**options, flag.removeprefix("--").replace("-", "_"): read}
    else:
        gib = int(budget.change.split()[3])
    assert budget_of(config_of(llama_8b, **options), host, gib).problem is None


def test_the_largest_context_is_one_that_an_engine_accepts_and_the_next_is_not(
    host, llama_8b
) -> None:
    largest = budget_of(config_of(llama_8b), host, 28).largest_context
    assert 0 < largest < 131_072
    budget = budget_of(config_of(llama_8b, max_model_len=largest), host, 28)
    assert budget.problem is None
    assert budget.concurrency >= 1
    # A shorter context takes less workspace too, hence the distance.
    assert budget_of(config_of(llama_8b, max_model_len=largest * 2), host, 28).problem is not None


def test_a_cpu_is_planned_by_the_memory_that_it_has(host, llama_8b, monkeypatch) -> None:
    monkeypatch.setattr("octavo.execution.plan_target.host_memory", lambda: 14 * GIB)
    problem = budget_of(config_of(llama_8b), host).problem
    assert problem == "the weights alone are above the 14.00 GiB to be had"
    monkeypatch.setattr("octavo.execution.plan_target.host_memory", lambda: 18 * GIB)
    budget = budget_of(config_of(llama_8b), host)
    assert budget.problem == "one sequence of 131072 tokens is more than the KV cache holds"
    assert (
        budget_of(config_of(llama_8b, max_model_len=budget.largest_context), host).problem is None
    )
    free = budget.usable_bytes - budget.weight_bytes - budget.workspace_bytes
    assert free // 2 - budget.block_bytes < budget.cache_bytes <= free // 2
    asked = budget_of(config_of(llama_8b, kv_cache_memory_gib=4), host)
    assert asked.problem == "20.02 GiB are needed, but of memory 18.00 GiB are free"
    monkeypatch.setattr("octavo.execution.plan_target.host_memory", lambda: 26 * GIB)
    assert budget_of(config_of(llama_8b, max_model_len=32_752), host).problem is None


def test_a_pool_for_a_cpu_is_as_large_as_one_sequence_needs_or_memory_has_room_for(
    host, llama_8b, monkeypatch
) -> None:
    monkeypatch.setattr("octavo.execution.plan_target.host_memory", lambda: 64 * GIB)
    assert budget_of(config_of(llama_8b), host).change == "--kv-cache-memory-gib 16.002"
    large = budget_of(config_of(llama_8b, kv_cache_memory_gib=500), host)
    assert large.problem is not None
    assert large.change is not None
    _, gib = large.change.split()
    assert 40 < float(gib) < 49
    assert budget_of(config_of(llama_8b, kv_cache_memory_gib=float(gib)), host).problem is None


def test_a_pool_is_not_told_to_be_larger_than_rows_can_fill(host, llama_8b) -> None:
    options = {"max_num_seqs": 2, "max_model_len": 160, "num_blocks": 10**6}
    budget = budget_of(config_of(llama_8b, **options), host, 80)
    assert budget.change == "--num-blocks 21"


def test_an_automatic_context_counts_sequences_of_what_the_cache_holds(host, llama_8b) -> None:
    budget = budget_of(config_of(llama_8b, max_model_len="auto", num_blocks=5), host, 80)
    assert (budget.max_model_len, budget.largest_context, budget.concurrency) == (64, 64, 1.0)
    assert budget.problem is None


def test_the_command_shows_it_and_tells_by_its_exit_code(host, llama_8b, capsys) -> None:
    assert main(["plan", str(llama_8b), "--memory", "140"]) == 0
    shown = capsys.readouterr().out
    assert "8.03 B parameters in bfloat16" in shown
    assert "128 KiB a token" in shown
    assert shown.endswith("It fits.\n")
    assert main(["plan", str(llama_8b), "--memory", "16"]) == 1
    assert "It does not fit: the weights alone are above" in capsys.readouterr().out
    assert main(["plan", str(llama_8b), "--memory", "16", "--json"]) == 1
    assert json.loads(capsys.readouterr().out).keys() == {
        field.name for field in dataclasses.fields(Budget)
    }


@pytest.mark.parametrize("gib", ["nan", "inf", "1e300", "0", "-5"])
def test_a_device_of_no_size_is_refused(capsys, gib) -> None:
    assert main(["plan", "any", "--memory", gib]) == 2
    assert "must be above 0, and at most" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["meta", "xpu:0", "tpu"])
def test_a_device_that_no_model_runs_on_is_refused(host, llama_8b, device) -> None:
    with pytest.raises(ConfigError, match=rf"device='{device}' is .*; try 'cpu' or 'cuda'"):
        budget_of(config_of(llama_8b, device=device), host)


def test_a_plan_leaves_no_tensor_behind(host, llama_8b) -> None:
    """The meta device is for building alone: what is made later is real."""
    budget_of(config_of(llama_8b), host, 140)
    assert torch.zeros(1).device.type == "cpu"
