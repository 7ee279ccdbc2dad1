"""Every architecture on a CUDA device, its decode steps recorded as graphs.

In float32 tokens and logits are Transformers'. In bfloat16 rounding moves them; how far is not
guessed, it is measured on the CPU, whose bfloat16 is computed by other code. Axis suffixes: N
tokens of a continuation, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo.model_folder import open_model
from octavo.testing.faults import own_faults
from octavo.testing.model import make_trial
from octavo.testing.modes import MAX_TOKENS, Trial, engine_config, in_a_batch
from octavo.testing.variants import Variant, variants_of
from octavo.weights.load import build_model
from small_models import GPU, HOST, TEXT_MODELS, Case, cases_of

VARIANTS = cases_of(*TEXT_MODELS)
BY_TRANSFORMERS = {
    ("transformers", name): variant
    for name, variant in variants_of(
        HOST.models.info("transformers").metadata["capabilities"]
    ).items()
    if name in ("Cohere2ForCausalLM", "OlmoeForCausalLM")
}
SUBTLE: list[Case] = [
    ("GPT2LMHeadModel", "untied, scores scaled by layer"),
    ("Gemma2ForCausalLM", "soft caps and a window on every other layer"),
    ("GraniteForCausalLM", "four multipliers"),
]
"""What these have of their own changes logits least, beside the rounding of the same model."""

MOST_NOISE = {"median": 1.5, "mean": 2.5}
"""Times that of the CPU. Where rounding chooses another expert a few positions are far off, and
they are not the same ones."""


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*VARIANTS, *BY_TRANSFORMERS], ids=", ".join)
def test_float32_gives_the_tokens_of_transformers(case, tmp_path, caplog) -> None:
    caplog.set_level(logging.DEBUG, "octavo.execution.decode_graphs")
    trial = make_trial(HOST, case[0], {**VARIANTS, **BY_TRANSFORMERS}[case], tmp_path)
    trial = replace(trial, options={**trial.options, **GPU})
    comparison = in_a_batch(trial)
    assert comparison.passed, comparison.as_text()
    if case in VARIANTS:  # experts of Transformers wait for the device
        assert_recorded(caplog.messages, trial)


@pytest.mark.gpu
@pytest.mark.parametrize("case", VARIANTS, ids=", ".join)
def test_bfloat16_is_as_near_to_float32_as_on_the_cpu(case, tmp_path, caplog) -> None:
    trial = trial_in_bfloat16(case, tmp_path)
    noise = difference(trial)
    assert noise["median"] < 0.1
    caplog.set_level(logging.DEBUG, "octavo.execution.decode_graphs")
    trial = replace(trial, options={**trial.options, **GPU})
    found = difference(trial)
    assert_recorded(caplog.messages, trial)
    assert all(found[name] <= times * noise[name] for name, times in MOST_NOISE.items()), (
        f"{found} of the spread of logits, on the CPU {noise}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", SUBTLE, ids=", ".join)
def test_a_missing_mechanism_is_beyond_that(case, tmp_path) -> None:
    """Whatever the others lack shows more, but for what is below rounding: float32 shows that."""
    below_rounding = {"a missing epsilon"}
    trial = trial_in_bfloat16(case, tmp_path)
    noise = difference(trial)
    for name, fault in own_faults(VARIANTS[case].without).items():
        if fault is not None and name not in below_rounding:
            found = difference(fault.put_into(trial))
            assert any(found[kind] > times * noise[kind] for kind, times in MOST_NOISE.items()), (
                f"{name}: {found} of the spread of logits, without it {noise}"
            )


def trial_in_bfloat16(case: Case, folder: Path) -> Trial:
    trial = make_trial(HOST, case[0], with_large_heads(VARIANTS[case]), folder)
    options = {**trial.options, "dtype": "bfloat16", "block_size": 16}
    return replace(trial, options=options, prompts=trial.prompts[::2])


def with_large_heads(variant: Variant) -> Variant:
    """The same, but for sizes that tensor cores' kernels take: heads of 64."""
    config = dict(variant.config)
    config["hidden_size"] = 256
    if "head_dim" in config:
        config["head_dim"] = 64
    rope = config.get("rope_parameters", {})
    if "long_factor" in rope:
        names = ("short_factor", "long_factor")
        factors = {name: np.repeat(rope[name], 4).tolist() for name in names}
        config["rope_parameters"] = {**rope, **factors}
    return replace(variant, config=config)


def difference(trial: Trial) -> Mapping[str, float]:
    """Of greedy continuations' logits from float32 on the same tokens, in units of their spread."""
    with trial.engine() as engine:
        found = engine.generate(trial.prompts, max_tokens=MAX_TOKENS)
    sequences = [each.prompt + each.tokens for each in found]
    distances, spreads = [], []
    for each, logprobs in zip(found, trial.reference.logprobs(sequences), strict=True):
        expected_NV = logprobs[len(each.prompt) - 1 :]
        distances.append(np.sqrt(((each.logprobs_NV - expected_NV) ** 2).mean(axis=1)))
        spreads.append(expected_NV.std(axis=1))
    distance_N = np.concatenate(distances) / np.concatenate(spreads).mean()
    return {"median": float(np.median(distance_N)), "mean": float(distance_N.mean())}


def assert_recorded(messages: list[str], trial: Trial) -> None:
    """Decode steps were recorded where all layers' attention backends can be."""
    config = engine_config(trial.folder, **trial.options).model
    folder = open_model(config, HOST)
    model = build_model(folder, HOST, config=config, device=torch.device("meta"))
    device = torch.device(config.device)
    backends = {
        HOST.hook.select_attention_backend(spec=spec, device=device, query_dtype=folder.dtype)
        for spec in model.cache_specs().values()
    }
    recordable = all(
        HOST.attention_backends.load(name)().most_recorded_queries for name in backends
    )
    assert any(text.startswith("recorded forward") for text in messages) == recordable, backends
    assert recordable or "torch" in backends
