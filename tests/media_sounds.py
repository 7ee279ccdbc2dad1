"""Small sounds and a configuration for tests of models that hear."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer

from octavo import LLM, SamplingParams
from octavo.testing.tiny_tokenizer import make_tiny_tokenizer
from octavo_registry.model import ModelSpec

VOCAB = 320
RATE = 16_000
POSITIONS = 50
"""Of the small encoder: one second."""
AUDIO = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "num_mel_bins": 80,
    "max_source_positions": POSITIONS,
}


def sound(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """A tone through noise, both getting louder, so that no two parts are alike."""
    rng = np.random.default_rng((int(seconds * RATE), seed))
    time_S = np.arange(int(seconds * RATE)) / RATE
    pitch = rng.uniform(200, 3000)
    samples_S = np.sin(2 * np.pi * pitch * time_S * (1 + time_S)) * 0.4
    samples_S += rng.standard_normal(len(time_S)) * 0.1
    return (samples_S * np.linspace(0.1, 1, len(time_S))).astype(np.float32)


def given(sounds: list[NDArray[np.float32]]) -> dict[str, list[Any]]:
    """As ``multi_modal_data`` has them."""
    return {"audio": [(each, RATE) for each in sounds]} if sounds else {}


def loaded(folder: Path, build: Callable[[ModelSpec], Any]) -> Any:
    """The model of a folder, without an engine."""
    spec = ModelSpec(
        architecture="",
        config=json.loads((folder / "config.json").read_text()),
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_model_len=512,
    )
    model = build(spec)
    assert model.load(load_file(folder / "model.safetensors").items()) == {
        name for name, _ in model.named_parameters()
    }
    return model


@torch.no_grad()
def rows_of(model: Any, sounds: list[NDArray[np.float32]]) -> list[torch.Tensor]:
    """What its encoder makes of sounds together."""
    rows: list[torch.Tensor] = model.encode(
        [{"samples": torch.from_numpy(each)} for each in sounds]
    )
    return rows


def largest_error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Of any entry of the rows that are expected of sounds."""
    return max(
        float((rows_RD[: len(expected_RD)] - expected_RD).abs().max())
        for rows_RD, expected_RD in zip(found, expected, strict=True)
    )


def add_tokenizer(folder: Path, *tokens: str) -> list[int]:
    """Write one, and return the ids of what it has besides."""
    make_tiny_tokenizer(folder, vocab_size=300, max_length=512)
    file = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens])
    tokenizer.save(file)
    return [tokenizer.token_to_id(token) for token in tokens]


def check_chat(folder: Path, text: str) -> None:
    """Recordings in a chat are what their resampled samples are at ``text`` in a prompt."""
    recorded = [sound(0.31, seed=seed) for seed in range(2)]  # as if of half the rate
    files = []
    for each in recorded:
        file = io.BytesIO()
        soundfile.write(file, each, RATE // 2, format="WAV", subtype="FLOAT")
        files.append(base64.b64encode(file.getvalue()).decode())
    content = [
        {"type": "input_audio", "input_audio": {"data": files[0], "format": "wav"}},
        {"type": "text", "text": "and"},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{files[1]}"}},
    ]
    written = f"<|im_start|>user\n{text}\nand\n{text}<|im_end|>\n<|im_start|>assistant\n"
    samples = [(soxr.resample(each, RATE // 2, RATE), RATE) for each in recorded]
    prompts = [
        {"prompt": written, "multi_modal_data": {"audio": order}}
        for order in (samples, samples[::-1])
    ]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    options: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "kv_cache_memory_gib": 0.01}
    with LLM(str(folder), **options) as llm:
        (chat,) = llm.chat([{"role": "user", "content": content}], params, use_tqdm=False)
        same, other = llm.generate(prompts, params, use_tqdm=False)
    first, *_, last = written.split(text)
    encode = Tokenizer.from_file(str(folder / "tokenizer.json")).encode
    ids = chat.prompt_token_ids
    assert ids == same.prompt_token_ids
    assert ids[: len(encode(first).ids)] == encode(first).ids
    assert ids[-len(encode(last).ids) :] == encode(last).ids
    assert chat.outputs[0].token_ids == same.outputs[0].token_ids
    assert chat.outputs[0].token_ids != other.outputs[0].token_ids
