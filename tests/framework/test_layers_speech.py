"""Log-mel features and the speech encoder against Transformers' Whisper."""

from __future__ import annotations

import time
from typing import Any

import librosa
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperFeatureExtractor
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from media_equality import randomize
from octavo.layers import speech
from octavo.layers.loading import load_weights
from octavo.layers.mel import HOP, RATE, WINDOW, LogMel, mel_filters
from octavo.layers.speech import SpeechEncoder
from octavo_registry.model import ModelSpec

CPU = torch.device("cpu")
FRAMES = 40


def sound(seconds: float, seed: int = 0) -> Tensor:
    """A tone that rises through noise, then silence for a fifth of the time."""
    time_S = torch.arange(int(seconds * RATE)) / RATE
    noise_S = torch.randn(len(time_S), generator=torch.Generator().manual_seed(seed))
    sound_S = torch.sin(2000 * time_S * (1 + time_S / seconds)) * 0.5 + noise_S * 0.05
    return sound_S * (time_S < 0.8 * seconds)


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("padding", ["max_length", "do_not_pad"])
@pytest.mark.parametrize("seconds", [0.5, 3.21237, 30.0])
def test_features_are_those_of_transformers(num_mels: int, padding: str, seconds: float) -> None:
    extractor = WhisperFeatureExtractor(feature_size=num_mels)
    samples_S = sound(seconds)
    expected = extractor(
        samples_S.numpy(), padding=padding, sampling_rate=RATE, return_tensors="pt"
    ).input_features
    if padding == "max_length":
        samples_S = torch.nn.functional.pad(samples_S, (0, 30 * RATE - len(samples_S)))
    found = LogMel(num_mels, CPU)(samples_S[None])
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1e-5


def test_features_of_a_long_sound_are_made_in_blocks() -> None:
    samples_S = sound(65.43)
    expected = WhisperFeatureExtractor()(
        samples_S.numpy(),
        padding="do_not_pad",
        truncation=False,
        sampling_rate=RATE,
        return_tensors="pt",
    ).input_features
    found = LogMel(80, CPU)(samples_S[None])
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("num_mels", [40, 80, 128])
def test_filters_are_those_of_librosa(num_mels: int) -> None:
    expected_MK = librosa.filters.mel(sr=RATE, n_fft=WINDOW, n_mels=num_mels)
    np.testing.assert_allclose(mel_filters(num_mels).T, expected_MK, atol=1e-8)


def test_features_are_the_spectrum_of_librosa_in_the_range_of_whisper() -> None:
    samples_S = sound(2.0)
    power_MF = librosa.feature.melspectrogram(
        y=samples_S.numpy(), sr=RATE, n_fft=WINDOW, hop_length=HOP, n_mels=80, pad_mode="reflect"
    )
    decibels_MF = librosa.power_to_db(power_MF, ref=1.0, amin=1e-10, top_db=80)[:, :-1]
    found_MF = LogMel(80, CPU)(samples_S[None])[0]
    np.testing.assert_allclose(found_MF.numpy(), (decibels_MF / 10 + 4) / 4, atol=1e-4)


def test_sounds_that_come_together_keep_their_own_loudness() -> None:
    log_mel = LogMel(80, CPU)
    loud_S, soft_S = sound(1), sound(1, seed=1) * 1e-3
    together = log_mel(torch.stack([loud_S, soft_S]))
    torch.testing.assert_close(together[0], log_mel(loud_S[None])[0])
    torch.testing.assert_close(together[1], log_mel(soft_S[None])[0])


def test_thirty_seconds_of_sound_take_a_few_milliseconds() -> None:
    log_mel, samples_1S = LogMel(128, CPU), sound(30)[None]
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        log_mel(samples_1S)
        best = min(best, time.perf_counter() - start)
    assert best < 0.04  # 0.004 on an idle core


@pytest.fixture(scope="module")
def encoders() -> tuple[Any, SpeechEncoder]:
    config = WhisperConfig(
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=48,
        num_mel_bins=80,
        max_source_positions=FRAMES // 2,
    )
    torch.manual_seed(0)
    theirs = WhisperEncoder(config).eval()
    randomize(theirs)
    spec = ModelSpec(
        architecture="WhisperEncoder",
        config=config.to_dict(),
        dtype=torch.float32,
        device=CPU,
        max_model_len=8,
    )
    ours = SpeechEncoder("encoder", spec)
    tensors = ((f"encoder.{name}", tensor) for name, tensor in theirs.state_dict().items())
    loaded = load_weights(ours, tensors)
    assert loaded == {name for name, _ in ours.named_parameters()}
    return theirs, ours


@torch.no_grad()
def test_the_encoder_is_that_of_transformers(encoders: tuple[Any, SpeechEncoder]) -> None:
    theirs, ours = encoders
    features_NMF = torch.randn(3, 80, FRAMES, generator=torch.Generator().manual_seed(0))
    expected_PD = theirs(features_NMF).last_hidden_state.flatten(0, 1)
    torch.testing.assert_close(ours(list(features_NMF)), expected_PD, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_sounds_of_any_lengths_together_are_as_each_alone(
    encoders: tuple[Any, SpeechEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ours = encoders
    rng = np.random.default_rng(0)
    features = [
        torch.from_numpy(rng.standard_normal((80, frames), dtype=np.float32))
        for frames in (FRAMES, 7, 8, 8, 31)
    ]
    lengths, heard = [20, 4, 3, 4, 16], [20, 4, 3, 2, 12]
    alone = [
        ours([each], [length], [keys])
        for each, length, keys in zip(features, lengths, heard, strict=True)
    ]
    assert [len(each) for each in alone] == lengths
    for most in (speech.MOST_POSITIONS, 25, 1):
        monkeypatch.setattr(speech, "MOST_POSITIONS", most)
        together = ours(features, lengths, heard)
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)
    deaf = ours([features[3]], [4], [4])
    assert (deaf - alone[3]).abs().max() > 0.01  # two positions more or less are heard
