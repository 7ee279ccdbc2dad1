"""Voxtral against Transformers: sounds of one window and of several, text beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import VoxtralConfig, VoxtralForConditionalGeneration, WhisperFeatureExtractor

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, greedy, randomize, which_keep
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
from octavo.layers.mel import LogMel
from octavo.layers.speech import encoder_config
from octavo_plugins.models.voxtral.model import Voxtral

BEGIN, SOUND = 300, 301
PER_WINDOW = POSITIONS // 2
SOUNDS = [sound(seconds) for seconds in (0.4, 1.0, 2.3, 1.0001, 0.01, 2.3)]
PROMPTS = (
    ([5, BEGIN, SOUND, 9, 11], [0]),
    ([BEGIN, SOUND, 7, 8, BEGIN, SOUND, 3], [1, 2]),
    ([4, 5, 6, 7], []),
    ([SOUND, 2, SOUND], [3, 4]),
)
Made = tuple[Path, list[MediaCase], list[torch.Tensor]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The model's folder, its tokens behind the prompts, and its rows of all sounds."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("voxtral")
    assert add_tokenizer(folder, "[BEGIN_AUDIO]", "[AUDIO]") == [BEGIN, SOUND]
    audio = {name: value for name, value in encoder_config(AUDIO).items() if name not in AUDIO}
    config = VoxtralConfig(
        audio_config={**audio, "num_mel_bins": 80, "max_source_positions": POSITIONS},
        text_config={**TEXT, "vocab_size": VOCAB, "head_dim": 24, "model_type": "llama"},
        audio_token_id=SOUND,
    )
    model = VoxtralForConditionalGeneration(config).eval()
    randomize(model, 0.3)
    model.save_pretrained(folder)
    extract = WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    windows = []
    for each in SOUNDS:
        features_1MF = extract(
            each,
            sampling_rate=RATE,
            truncation=False,
            padding=True,
            pad_to_multiple_of=RATE,
            return_tensors="pt",
        ).input_features
        windows.append(torch.cat(features_1MF.split(2 * POSITIONS, dim=2)))
    cases = []
    for ids, which in PROMPTS:
        counts = [len(windows[i]) * PER_WINDOW for i in which]
        inputs = {"input_features": torch.cat([windows[i] for i in which])} if which else {}
        expected = greedy(model, expanded(ids, {SOUND: counts}), **inputs)
        media = given([SOUNDS[i] for i in which])
        cases.append(MediaCase(token_ids=ids, media=media, expected=expected))
    with torch.no_grad():
        rows = [model.get_audio_features(each).pooler_output for each in windows]
    return folder, cases, rows


def test_tokens_are_those_of_transformers_in_every_way_of_running(made, device) -> None:
    check_equal(*made[:2], most_rows=3 * PER_WINDOW, device=device)


def test_other_sounds_of_the_same_length_are_other_prompts(made) -> None:
    folder, cases, _ = made
    reversed_sound = SOUNDS[2][::-1].copy()
    changed = [
        (cases[1], given([SOUNDS[1], reversed_sound])),
        (cases[3], given([SOUNDS[3][::-1].copy(), SOUNDS[4]])),
    ]
    same = [(case, case.media) for case, _ in changed]
    assert which_keep(folder, [*same, *changed]) == [True, True, False, False]


def test_recordings_in_a_chat_are_heard(made) -> None:
    check_chat(made[0], "[BEGIN_AUDIO][AUDIO]")


def test_rows_are_those_of_transformers(made) -> None:
    folder, _, expected = made
    found = rows_of(loaded(folder, Voxtral), SOUNDS)
    assert [each.shape for each in found] == [each.shape for each in expected]
    assert largest_error(found, expected) < 1e-4


def test_windows_that_are_scaled_one_by_one_are_noticed(made, monkeypatch) -> None:
    def by_windows(self, samples_S, size):
        parts = [of(self, each, RATE) for each in samples_S.split(RATE)]
        return torch.cat(parts, dim=1)

    folder, _, expected = made
    of = LogMel.of
    monkeypatch.setattr(LogMel, "of", by_windows)
    assert largest_error(rows_of(loaded(folder, Voxtral), SOUNDS[2:3]), expected[2:3]) > 1e-3


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(made, tmp_path) -> None:
    check_adapted(*made[:2], tmp_path, VoxtralForConditionalGeneration.from_pretrained)
