"""Ultravox against the published architecture, in plain torch around a Whisper and a Llama."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    WhisperConfig,
    WhisperFeatureExtractor,
)
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from media_equality import MediaCase, check_equal, greedy_from_rows, randomize, run, which_keep
from media_pictures import TEXT
from media_sounds import (
    AUDIO,
    POSITIONS,
    RATE,
    VOCAB,
    add_tokenizer,
    check_chat,
    given,
    largest_error,
    loaded,
    rows_of,
    sound,
)
from octavo.errors import ModelError
from octavo.layers.speech import SpeechEncoder
from octavo_plugins.models.ultravox import model as ultravox
from octavo_registry import PluginHost
from plan_equality import check_plan

SOUND = VOCAB
"""No token of the model's: it stands for a text that no tokenizer has."""
STACK, INNER, HOP = 8, 48, 160
WINDOW = 2 * POSITIONS
SOUNDS = [sound(seconds) for seconds in (0.41, 1.0, 2.337, 0.005, 1.9999, 0.345)]
PROMPTS = (
    ([5, SOUND, 9, 11], [0]),
    ([SOUND, 7, 8, SOUND, 3], [1, 2]),
    ([4, 5, 6, 7], []),
    ([SOUND, 2, SOUND, SOUND], [3, 4, 5]),
)


class Scaled(nn.Module):
    """A root-mean-square norm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 0.4))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Reference(nn.Module):
    """Its parts, and how sounds become embeddings; one at a time."""

    def __init__(self, *, norm_between: bool, text: str) -> None:
        super().__init__()
        self.norm_between = norm_between
        kinds: dict[str, Any] = {
            "llama": (LlamaForCausalLM, LlamaConfig),
            "mistral": (MistralForCausalLM, MistralConfig),
        }
        model, config = kinds[text]
        self.language = model(
            config(**{**TEXT, "vocab_size": VOCAB}, tie_word_embeddings=False, pad_token_id=0)
        ).eval()
        self.tower = WhisperEncoder(WhisperConfig(**AUDIO)).eval()
        size = TEXT["hidden_size"]
        self.ln_pre = Scaled(STACK * AUDIO["d_model"])
        self.linear_1 = nn.Linear(STACK * AUDIO["d_model"], INNER, bias=False)
        self.linear_2 = nn.Linear(INNER // 2, size, bias=False)
        self.ln_mid = Scaled(INNER // 2) if norm_between else nn.Identity()
        self.ln_post = nn.Identity() if norm_between else Scaled(size)
        self.extract = WhisperFeatureExtractor(feature_size=AUDIO["num_mel_bins"])

    def windows(self, samples_S: NDArray[np.float32]) -> Iterator[tuple[Tensor, int]]:
        padded = np.pad(samples_S, (0, max(0, 2 * HOP - len(samples_S))))
        found = self.extract(
            padded,
            sampling_rate=RATE,
            padding="longest",
            pad_to_multiple_of=HOP,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        frames = int(found.attention_mask.sum())
        for start in range(0, frames, WINDOW):
            window_MF = found.input_features[0, :, start : start + WINDOW]
            if start:
                window_MF = F.pad(window_MF, (0, WINDOW - window_MF.shape[1]))
            yield window_MF, min(frames - start, WINDOW)

    def heard(self, window_MF: Tensor, frames: int) -> Tensor:
        x = F.gelu(self.tower.conv1(window_MF[None]))
        x = F.gelu(self.tower.conv2(x)).mT
        x = x + self.tower.embed_positions.weight[: x.shape[1]]
        is_sound = torch.arange(x.shape[1]) < (frames - 1) // 2 + 1
        mask = torch.zeros(1, 1, 1, x.shape[1]).masked_fill(~is_sound, float("-inf"))
        for layer in self.tower.layers:
            x = layer(x, mask)
        return self.tower.layer_norm(x)[0]

    def rows(self, samples_S: NDArray[np.float32]) -> Tensor:
        rows = []
        for window_MF, frames in self.windows(samples_S):
            x = self.heard(window_MF, frames)
            x = F.pad(x, (0, 0, 0, -len(x) % STACK)).view(-1, STACK * x.shape[1])
            values, gates = self.linear_1(self.ln_pre(x)).chunk(2, dim=-1)
            x = self.ln_post(self.linear_2(self.ln_mid(F.silu(gates) * values)))
            rows.append(x[: -(-frames // (2 * STACK))])
        return torch.cat(rows)

    @torch.no_grad()
    def greedy(self, ids: list[int], sounds: list[NDArray[np.float32]]) -> list[int]:
        return greedy_from_rows(self.language, ids, SOUND, map(self.rows, sounds))

    def save(self, folder: Path) -> None:
        tensors = {}
        for key, tensor in self.state_dict().items():
            part, _, rest = key.partition(".")
            prefix = {"language": "language_model.", "tower": "audio_tower."}.get(
                part, f"multi_modal_projector.{part}."
            )
            tensors[prefix + rest] = tensor.contiguous().clone()
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        config = {
            "architectures": ["UltravoxModel"],
            "model_type": "ultravox",
            "audio_config": WhisperConfig(**AUDIO).to_dict(),
            "text_config": self.language.config.to_dict(),
            "hidden_size": INNER,
            "stack_factor": STACK,
            "projector_act": "swiglu",
            "projector_ln_mid": self.norm_between,
            "torch_dtype": "float32",
        }
        (folder / "config.json").write_text(json.dumps(config))


Made = tuple[Path, list[MediaCase], list[Tensor]]


@pytest.fixture(
    scope="module", params=[(True, "llama"), (False, "mistral")], ids=["v0.5", "v0.4 on Mistral"]
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The model's folder, its tokens behind the prompts, and its rows of all sounds."""
    norm_between, text = request.param
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("ultravox")
    model = Reference(norm_between=norm_between, text=text)
    randomize(model, 0.3)
    model.save(folder)
    add_tokenizer(folder)
    cases = []
    for ids, which in PROMPTS:
        chosen = [SOUNDS[i] for i in which]
        expected = model.greedy(ids, chosen)
        cases.append(MediaCase(token_ids=ids, media=given(chosen), expected=expected))
    with torch.no_grad():
        return folder, cases, [model.rows(each) for each in SOUNDS]


def test_tokens_are_those_of_the_reference_in_every_way_of_running(made, device) -> None:
    check_equal(*made[:2], most_rows=2 * 7 + 3, device=device)


def test_other_sounds_of_the_same_length_are_other_prompts(made) -> None:
    folder, cases, _ = made
    changed = [
        (cases[0], given([SOUNDS[0][::-1].copy()])),
        (cases[1], given([SOUNDS[1], SOUNDS[2][::-1].copy()])),
        (cases[3], given([SOUNDS[3], SOUNDS[5], SOUNDS[4]])),
    ]
    same = [(case, case.media) for case, _ in changed]
    assert which_keep(folder, [*same, *changed]) == [True] * 3 + [False] * 3


def test_recordings_in_a_chat_are_heard(made) -> None:
    check_chat(made[0], "<|audio|>")


def test_parts_that_lie_with_other_models_are_taken_from_there(made, tmp_path) -> None:
    folder, cases, _ = made
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    for part, theirs, entry in (
        ("language_model", "", "text"),
        ("audio_tower", "model.encoder.", "audio"),
    ):
        other = tmp_path / entry
        other.mkdir()
        (other / "config.json").write_text(json.dumps(config.pop(f"{entry}_config")))
        config[f"{entry}_model_id"] = str(other)
        names = [name for name in tensors if name.startswith(f"{part}.")]
        moved = {theirs + name.removeprefix(f"{part}."): tensors.pop(name) for name in names}
        if entry == "audio":
            moved["model.decoder.embed_tokens.weight"] = torch.zeros(3)
            # What a checkpoint has itself goes before the part's.
            changed = "model.encoder.conv1.weight"
            tensors["audio_tower.conv1.weight"] = moved[changed]
            moved[changed] = torch.zeros_like(moved[changed])
        save_file(moved, other / "model.safetensors")
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_plan(tmp_path, PluginHost.discover())
    outputs = run(tmp_path, cases)
    assert [list(each.outputs[0].token_ids) for each in outputs] == [
        case.expected for case in cases
    ]


def test_rows_are_those_of_the_reference(made) -> None:
    folder, _, expected = made
    found = rows_of(loaded(folder, ultravox.Ultravox), SOUNDS)
    assert [each.shape for each in found] == [each.shape for each in expected]
    assert largest_error(found, expected) < 1e-4


def test_a_last_window_that_hears_its_silence_is_noticed(made, monkeypatch) -> None:
    folder, _, expected = made
    forward = SpeechEncoder.forward
    monkeypatch.setattr(SpeechEncoder, "forward", lambda self, x, n, _: forward(self, x, n))
    found = rows_of(loaded(folder, ultravox.Ultravox), SOUNDS[2:3])
    assert largest_error(found, expected[2:3]) > 1e-3


@pytest.mark.parametrize(
    ("entry", "value"), [("audio_latency_block_size", 100), ("num_projector_layers", 2)]
)
def test_checkpoints_of_another_kind_are_refused(made, entry: str, value: int) -> None:
    config = json.loads((made[0] / "config.json").read_text())
    with pytest.raises(ModelError, match=f"{entry}={value}"):
        ultravox.refuse_others({**config, entry: value})
