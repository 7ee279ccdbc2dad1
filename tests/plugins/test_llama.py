from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
)

from octavo.errors import ModelError
from octavo.testing.step_building import StepBuilder
from octavo.weights.load import finish_layers
from octavo_plugins.attention.torch.backend import TorchAttention
from octavo_plugins.models.llama.model import Llama
from octavo_registry.model import Model, ModelSpec
from small_models import RankCollectives, RankGroup, run_ranks

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
WINDOWED_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reference_of(config: PretrainedConfig, seed: int = 0) -> torch.nn.Module:
    """A transformers model whose logits are spread enough for a sharp comparison."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        else:
            torch.nn.init.uniform_(parameter, 0.5 if "norm" in name else -0.5, 1.0)
    return model


def spec_of(reference_config: PretrainedConfig, **changes: Any) -> ModelSpec:
    return ModelSpec(
        **{
            "architecture": "LlamaForCausalLM",
            "config": reference_config.to_dict(),
            "dtype": torch.float32,
            "device": torch.device("cpu"),
            "max_model_len": 128,
            **changes,
        }
    )


def loaded(reference: torch.nn.Module, **changes: Any) -> Llama:
    model = Llama(spec_of(reference.config, **changes))
    assert isinstance(model, Model)
    found = model.load(checkpoint_of(reference))
    assert found == {name for name, _ in model.named_parameters(remove_duplicate=False)}
    finish_layers(model)
    return model


def checkpoint_of(reference: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    tensors = reference.state_dict()
    if reference.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return iter(tensors.items())


class Rows:
    """Random prompts; every step's logits are compared with the reference over the whole row."""

    def __init__(self, reference: torch.nn.Module, model: Llama, **builder: Any) -> None:
        self.reference, self.model = reference, model
        self.builder = StepBuilder(model.cache_specs(), TorchAttention(), **builder)
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, SIZES["vocab_size"], (8, 128), generator=generator)
        with torch.inference_mode():
            self.expected = reference(self.ids).logits
        for _ in self.ids:
            self.builder.add_row()

    def check(self, *rows: tuple[int, int]) -> None:
        first = {row: self.builder.lens[row] for row, _ in rows}
        step = self.builder.step(rows)
        ids_T, expected_TV = (
            torch.cat([source[row, first[row] : first[row] + n] for row, n in rows])
            for source in (self.ids, self.expected)
        )
        with torch.inference_mode():
            hidden_TD = self.model.forward(self.model.embed(ids_T, None), step)
            logits_TV = self.model.logits(hidden_TD)
        difference = (logits_TV - expected_TV).abs().max() / expected_TV.std()
        assert difference < 1e-4, f"logits differ by {difference:.1e} of their spread"

    def check_all(self) -> None:
        """Prefill whole and in chunks, decode alone and in a batch, and all of it mixed."""
        self.check((0, 17))
        self.check((1, 5), (2, 31), (3, 1))
        self.check((1, 7), (2, 13), (0, 1))
        self.check((0, 1), (1, 1), (2, 1), (3, 1))
        self.check((3, 11), (0, 1), (4, 23), (2, 1), (1, 3))
        self.check((2, 1))
        self.check((2, 19))
        self.check((0, 1), (1, 1), (2, 1), (3, 1), (4, 1))


CONFIGS: dict[str, PretrainedConfig] = {
    "plain": LlamaConfig(**SIZES),
    "tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "head_dim": LlamaConfig(**SIZES, head_dim=20),
    "mha": LlamaConfig(**{**SIZES, "num_key_value_heads": 4}),
    "llama3": LlamaConfig(**SIZES, rope_parameters={"rope_theta": 500.0, **LLAMA3}),
    "yarn": LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "linear": LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
    ),
    "window": MistralConfig(**SIZES, sliding_window=9),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_equal_those_of_transformers_at_every_position(config: PretrainedConfig) -> None:
    reference = reference_of(config)
    Rows(reference, loaded(reference)).check_all()


def test_consecutive_blocks_give_the_same_logits() -> None:
    reference = reference_of(CONFIGS["plain"])
    Rows(reference, loaded(reference), shuffled=False).check_all()


def test_windowed_and_full_layers_mix_in_two_cache_groups() -> None:
    config = Qwen2Config(
        **SIZES,
        use_sliding_window=True,
        sliding_window=9,
        layer_types=WINDOWED_LAYERS,
    )
    reference = reference_of(config)
    spec_config = {**config.to_dict(), "attention_bias": True}
    model = Llama(spec_of(config, config=spec_config))
    no_bias = [(f"model.layers.{i}.self_attn.o_proj.bias", torch.zeros(32)) for i in range(3)]
    model.load([*checkpoint_of(reference), *no_bias])
    kinds = [spec.kind for spec in model.cache_specs().values()]
    assert kinds == ["window", "full", "window"]
    rows = Rows(reference, model)
    assert len(rows.builder.specs) == 2
    rows.check_all()


def test_switching_a_mechanism_off_is_noticed() -> None:
    """The comparison bites: without a window or a scaling the logits differ."""
    for name, lacking in (
        ("window", {"sliding_window": None}),
        ("llama3", {"rope_parameters": {}}),
    ):
        reference = reference_of(CONFIGS[name])
        config = {**CONFIGS[name].to_dict(), **lacking}
        with pytest.raises(AssertionError, match="of their spread"):
            Rows(reference, loaded(reference, config=config)).check_all()


def test_two_pipeline_stages_equal_the_whole() -> None:
    for tied in (False, True):
        reference = reference_of(LlamaConfig(**SIZES, tie_word_embeddings=tied))
        stages = [
            loaded(reference, first_layer=0, last_layer=1),
            loaded(reference, first_layer=1, last_layer=3),
        ]
        assert [len(stage.cache_specs()) for stage in stages] == [1, 2]
        specs = {**stages[0].cache_specs(), **stages[1].cache_specs()}
        builder = StepBuilder(specs, TorchAttention())
        step = builder.step([(builder.add_row(), 9), (builder.add_row(), 4)])
        ids_T = torch.arange(13)
        with torch.inference_mode():
            x_TD = stages[0].forward(stages[0].embed(ids_T, None), step)
            found = stages[1].logits(stages[1].forward(x_TD, step))
            expected = reference(ids_T[None, :9]).logits[0]
        torch.testing.assert_close(found[:9], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tp_size", [2, 4])
@pytest.mark.parametrize("config", ["tied", "biases"])
def test_tensor_parallel_ranks_equal_one(tp_size: int, config: str) -> None:
    """99 tokens of vocabulary need padding, and 2 key/value heads are shared by 4 ranks."""
    reference = reference_of(CONFIGS[config])

    def run(ranks: RankCollectives) -> Tensor:
        model = loaded(reference, tp_rank=ranks.rank, tp_size=tp_size, collectives=ranks)
        builder = StepBuilder(model.cache_specs(), TorchAttention())
        step = builder.step([(builder.add_row(), 99)])
        with torch.inference_mode():
            hidden_TD = model.forward(model.embed(torch.arange(99), None), step)
            return model.logits(hidden_TD)

    found = run_ranks(tp_size, run)
    with torch.inference_mode():
        expected = reference(torch.arange(99)[None]).logits[0]
    assert len(found) == tp_size
    for logits in found:
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)


def test_a_split_that_does_not_come_out_even_is_refused() -> None:
    ranks = RankCollectives(RankGroup(3), 0)
    with pytest.raises(ModelError, match="tensor_parallel_size=3"):
        Llama(spec_of(CONFIGS["plain"], tp_size=3, collectives=ranks))
    with pytest.raises(ModelError, match=r"collectives is None"):
        Llama(spec_of(CONFIGS["plain"], tp_size=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "relu6"}, "hidden_act='relu6'"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type='spiral'"),
        ({"sliding_window": 4, "layer_types": ["chunked"] * 3}, r"layer_types\[0\]='chunked'"),
    ],
)
def test_config_values_that_would_change_the_result_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        Llama(spec_of(CONFIGS["plain"], config={**CONFIGS["plain"].to_dict(), **change}))


def test_old_checkpoints_with_inverse_frequencies_load() -> None:
    reference = reference_of(CONFIGS["tied"])
    model = Llama(spec_of(reference.config))
    old = [("model.layers.0.self_attn.rotary_emb.inv_freq", torch.zeros(4))]
    head = [("lm_head.weight", torch.zeros(99, 32))]
    assert "model.embed_tokens.weight" in model.load([*checkpoint_of(reference), *old, *head])
    assert model.lm_head.weight.abs().sum() > 0


def test_every_linear_is_addressed_by_its_path_in_the_model() -> None:
    model = Llama(spec_of(CONFIGS["plain"]))
    named = {name: module for name, module in model.named_modules() if hasattr(module, "name")}
    assert {name: module.name for name, module in named.items()} == {n: n for n in named}
    assert "model.layers.2.self_attn.qkv_proj" in named
