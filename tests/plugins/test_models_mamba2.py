"""Mamba 2, whose layers have a recurrent state and nothing else, against Transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Mamba2Config, Mamba2ForCausalLM

from media_equality import randomize
from octavo import LLM, SamplingParams
from octavo.testing.model import check_variant
from octavo_plugins.models.mamba2.conformance import SIZES, VARIANTS
from small_models import HOST

LENGTHS = (150, 3, 71, 64, 1)
"""Prompts are taken in blocks of 64 tokens."""
COUNT = 12


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_mamba2_passes_the_kit(name: str) -> None:
    checks = check_variant(HOST, "Mamba2ForCausalLM", name, VARIANTS[name])
    assert [f"{c.name}: {c.detail}" for c in checks if not c.passed] == []
    assert any("a skipped copy of a state" in c.name for c in checks if "noticed" in c.detail)


@pytest.fixture(scope="module")
def reference() -> Mamba2ForCausalLM:
    config = Mamba2Config(**SIZES, vocab_size=160, hidden_size=64, num_hidden_layers=3)
    torch.manual_seed(0)
    model = Mamba2ForCausalLM(config).eval()
    randomize(model)
    return model


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mamba2")
    reference.save_pretrained(path)
    return path


def prompts() -> list[list[int]]:
    return [[(11 * i + 7 * j * j) % 150 + 5 for j in range(n)] for i, n in enumerate(LENGTHS)]


def run(folder: Path, **options) -> list[list[int]]:
    wanted = {"dtype": "float32", "num_threads": 1, "skip_tokenizer_init": True, "max_num_seqs": 8}
    params = SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True, detokenize=False)
    with LLM(str(folder), max_model_len=256, **{**wanted, **options}) as llm:
        asked = [{"prompt_token_ids": prompt} for prompt in prompts()]
        outputs = llm.generate(asked, params, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
@torch.inference_mode()
def expected(reference) -> list[list[int]]:
    """The likeliest tokens, each by a forward over all before it."""
    found = []
    for tokens in prompts():
        start = len(tokens)
        for _ in range(COUNT):
            tokens.append(int(reference(torch.tensor([tokens])).logits[0, -1].argmax()))
        found.append(tokens[start:])
    return found


@pytest.mark.parametrize("budget", [2048, 90], ids="{} tokens a step".format)
def test_long_and_short_prompts_together_equal_transformers(folder, expected, budget) -> None:
    assert len({tuple(tokens) for tokens in expected}) == len(LENGTHS)
    assert run(folder, max_num_batched_tokens=budget) == expected


def test_embeddings_may_have_their_old_name(folder, expected, tmp_path) -> None:
    tensors = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("backbone.embeddings", "backbone.embedding"): tensor
        for name, tensor in tensors.items()
    }
    assert renamed.keys() != tensors.keys()
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert run(tmp_path) == expected


def test_another_activation_is_refused(folder, tmp_path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"hidden_act": "relu"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Exception, match="hidden_act='relu'; there is only silu"):
        LLM(str(tmp_path), load_format="dummy", skip_tokenizer_init=True, max_model_len=64)


def test_bfloat16_gives_mostly_the_same(folder, expected) -> None:
    found = [token for tokens in run(folder, dtype="bfloat16") for token in tokens]
    wanted = [token for tokens in expected for token in tokens]
    assert sum(map(int.__eq__, found, wanted)) > 0.5 * len(wanted)
