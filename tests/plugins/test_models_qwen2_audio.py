"""Qwen2-Audio against Transformers: several sounds, all lengths, text beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    WhisperFeatureExtractor,
)

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, greedy, randomize, run, which_keep
from media_pictures import TEXT, expanded
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
from octavo.errors import ModelError, OctavoError
from octavo_plugins.models.qwen2_audio import model as qwen2_audio
from octavo_plugins.models.qwen2_audio.inputs import sound_options
from octavo_registry.modalities import MediaSettings

TOKENS = ("<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>")
SOUND = 302
SOUNDS = [sound(seconds) for seconds in (0.5, 1.0, 0.99999, 0.345, 0.031, 0.9965)]
PROMPTS = (
    ([5, SOUND, 9, 11], [0]),
    ([SOUND, 7, 8, SOUND, 3], [1, 3]),
    ([4, 5, 6, 7], []),
    ([SOUND, SOUND, 2, SOUND], [2, 4, 5]),
)
Made = tuple[Path, list[MediaCase], list[torch.Tensor]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The model's folder, its tokens behind the prompts, and its rows of all sounds."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("qwen2_audio")
    assert add_tokenizer(folder, *TOKENS)[-1] == SOUND
    config = Qwen2AudioConfig(
        audio_config=AUDIO,
        text_config={**TEXT, "vocab_size": VOCAB, "model_type": "qwen2"},
        audio_token_index=SOUND,
    )
    model = Qwen2AudioForConditionalGeneration(config).eval()
    randomize(model, 0.3)
    model.save_pretrained(folder)
    taken: list[torch.Tensor] = []
    model.model.multi_modal_projector.register_forward_hook(
        lambda _, inputs, rows_NPD: taken.append(rows_NPD)
    )
    extract = WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    cases, rows = [], {}
    for ids, which in PROMPTS:
        chosen, inputs, counts = [SOUNDS[i] for i in which], {}, []
        if chosen:
            features = extract(
                chosen, sampling_rate=RATE, return_attention_mask=True, return_tensors="pt"
            )
            inputs["input_features"] = features["input_features"]
            inputs["feature_attention_mask"] = mask = features["attention_mask"]
            counts = [((frames - 1) // 2 + 1) // 2 for frames in mask.sum(-1).tolist()]
        expected = greedy(model, expanded(ids, {SOUND: counts}), **inputs)
        cases.append(MediaCase(token_ids=ids, media=given(chosen), expected=expected))
        for i, count, rows_PD in zip(which, counts, taken.pop() if chosen else (), strict=True):
            rows[i] = rows_PD[:count]
    return folder, cases, [rows[i] for i in range(len(SOUNDS))]


def test_tokens_are_those_of_transformers_in_every_way_of_running(made, device) -> None:
    check_equal(*made[:2], most_rows=POSITIONS // 2, device=device)


def test_other_sounds_of_the_same_length_are_other_prompts(made) -> None:
    folder, cases, _ = made
    reversed_sound = SOUNDS[0][::-1].copy()
    swapped = [SOUNDS[5], SOUNDS[4], SOUNDS[2]]
    changed = [(cases[0], given([reversed_sound])), (cases[3], given(swapped))]
    same = [(case, case.media) for case, _ in changed]
    assert which_keep(folder, [*same, *changed]) == [True, True, False, False]


def test_recordings_in_a_chat_are_heard(made) -> None:
    check_chat(made[0], "<|audio_bos|><|AUDIO|><|audio_eos|>")


def error(made: Made) -> float:
    found = rows_of(loaded(made[0], qwen2_audio.Qwen2Audio), SOUNDS)
    return largest_error(found, made[2])


def test_rows_are_those_of_transformers(made) -> None:
    assert error(made) < 1e-4


@pytest.mark.parametrize("silent_frames", [0, 1])
def test_a_sound_that_breaks_off_is_noticed(made, monkeypatch, silent_frames: int) -> None:
    monkeypatch.setattr(qwen2_audio, "SILENT_FRAMES", silent_frames)
    assert error(made) > 1e-3


def test_silence_that_is_attended_to_is_noticed(made, monkeypatch) -> None:
    monkeypatch.setattr(qwen2_audio, "SILENT_FRAMES", 2 * POSITIONS)
    monkeypatch.setattr(qwen2_audio, "num_positions", lambda _: POSITIONS)
    assert error(made) > 1e-3


@pytest.mark.parametrize(("seconds", "reason"), [(1.01, "1.01 seconds"), (0.02, "too short")])
def test_what_cannot_be_heard_whole_is_refused(made, seconds: float, reason: str) -> None:
    folder, cases, _ = made
    case = MediaCase(token_ids=cases[0].token_ids, media=given([sound(seconds)]), expected=[])
    with pytest.raises(OctavoError, match=reason):
        run(folder, [case])


def test_a_feature_extractor_of_another_kind_is_refused() -> None:
    entries = {"sampling_rate": 16_000, "hop_length": 320}
    settings = MediaSettings(config={}, processors={"audio": entries})
    with pytest.raises(ModelError, match="hop_length=320"):
        sound_options("audio", settings)


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(made, tmp_path) -> None:
    check_adapted(*made[:2], tmp_path, Qwen2AudioForConditionalGeneration.from_pretrained)
