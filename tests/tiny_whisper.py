"""A Whisper with random weights that hears 0.4 seconds, and what Transformers makes of sounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.generation import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from media_equality import randomize
from octavo.testing.tiny_tokenizer import make_tiny_tokenizer

RATE = 16_000
POSITIONS = 20
SECONDS = POSITIONS / 50
END, START, ENGLISH, GERMAN, DUTCH, FRENCH = range(290, 296)
TRANSLATE, TRANSCRIBE, BEFORE, NO_SPEECH, NO_TIMES = range(296, 301)
FIRST_TIME = NO_TIMES + 1
NAMES = ["endoftext", "startoftranscript", "en", "de", "nl", "fr"]
NAMES += ["translate", "transcribe", "startofprev", "nospeech", "notimestamps"]
VOCAB = FIRST_TIME + POSITIONS + 1
NEVER = [0, 1, 2, 3, 7, 11, 40, 41, 42, *range(START, NO_TIMES)]
NOT_FIRST = [20, 21, END]
PLAIN_HEAD = [START, ENGLISH, TRANSCRIBE, NO_TIMES]
TIMED_HEAD = [START, GERMAN, TRANSCRIBE]


def sound(number: int, seconds: float = SECONDS) -> tuple[NDArray[np.float32], int]:
    """Another one for each number."""
    rng = np.random.default_rng(number)
    length = int(seconds * RATE)
    tone = np.sin(np.arange(length) * (0.02 + 0.05 * number))
    loudness = rng.random(length // 1600 + 1).repeat(1600)[:length]
    noise = rng.normal(0, 0.3, length)
    return (loudness * (tone + noise)).astype(np.float32), RATE


def make_tiny_whisper(
    folder: Path, *, multilingual: bool = True, end_scale: float = 1.0
) -> WhisperForConditionalGeneration:
    """Write the model, and return the reference; with an ``end_scale`` of -2 its texts end."""
    config = WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=20,
        d_model=48,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=3,
        encoder_ffn_dim=64,
        decoder_ffn_dim=72,
        max_source_positions=POSITIONS,
        max_target_positions=64,
        decoder_start_token_id=START,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(config).eval()
    randomize(model)
    with torch.no_grad():  # positions, head and what is heard matter more than the token before
        model.model.decoder.embed_tokens.weight.mul_(0.4)
        model.model.decoder.embed_tokens.weight[END] *= end_scale
        model.model.decoder.embed_tokens.weight[ENGLISH:BEFORE] *= 10
        model.model.decoder.embed_positions.weight.mul_(10)
        for layer in model.model.decoder.layers:
            layer.encoder_attn.q_proj.weight.mul_(2)
            layer.encoder_attn.k_proj.weight.mul_(2)
            layer.encoder_attn.v_proj.weight.mul_(2)
    many = {
        "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN, "<|nl|>": DUTCH, "<|fr|>": FRENCH},
        "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    }
    model.generation_config = GenerationConfig(
        decoder_start_token_id=START,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        max_length=64,
        suppress_tokens=NEVER,
        begin_suppress_tokens=NOT_FIRST,
        no_timestamps_token_id=NO_TIMES,
        max_initial_timestamp_index=5,
        is_multilingual=multilingual,
        prev_sot_token_id=BEFORE,
        **(many if multilingual else {}),
    )
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return model


def _write_tokenizer(folder: Path) -> None:
    """With the names that Whisper's has, and its habit of adding a head to any text."""
    make_tiny_tokenizer(folder, vocab_size=END, max_length=64)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in NAMES])
    times = [f"<|{number * 0.02:.2f}|>" for number in range(POSITIONS + 1)]
    tokenizer.add_tokens([AddedToken(time, normalized=False) for time in times])
    tokenizer.post_processor = TemplateProcessing(
        single="<|startoftranscript|> <|notimestamps|> $A <|endoftext|>",
        special_tokens=[
            ("<|startoftranscript|>", START),
            ("<|notimestamps|>", NO_TIMES),
            ("<|endoftext|>", END),
        ],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    assert tokenizer.token_to_id("<|0.00|>") == FIRST_TIME
    file = folder / "tokenizer_config.json"
    settings = {**json.loads(file.read_text()), "eos_token": "<|endoftext|>"}
    file.write_text(json.dumps(settings))


def features(sounds: list[tuple[NDArray[np.float32], int]]) -> torch.Tensor:
    """As the reference takes them."""
    process = WhisperFeatureExtractor(feature_size=20, chunk_length=1)
    process.n_samples = POSITIONS * 320
    process.nb_max_frames = POSITIONS * 2
    made: torch.Tensor = process(
        [samples for samples, _ in sounds],
        sampling_rate=RATE,
        return_tensors="pt",
        padding="max_length",
        max_length=POSITIONS * 320,
    )["input_features"]
    return made


def reference_rules(
    model: WhisperForConditionalGeneration, begin: int, *, is_timed: bool
) -> list[Any]:
    """Those of the reference for texts that begin there."""
    rules = [
        SuppressTokensAtBeginLogitsProcessor(NOT_FIRST, begin),
        SuppressTokensLogitsProcessor(NEVER),
    ]
    if is_timed:
        rules.append(WhisperTimeStampLogitsProcessor(model.generation_config, begin))
    return rules


@torch.no_grad()
def transcript(
    model: WhisperForConditionalGeneration, given: Any, head: list[int], num_tokens: int
) -> list[int]:
    """What the reference, with its own rules for tokens, writes behind a head."""
    rules = reference_rules(model, len(head), is_timed=head[-1] != NO_TIMES)
    encoded = model.model.encoder(features([given]))
    ids_1T = torch.tensor([head])
    while ids_1T.shape[1] < len(head) + num_tokens and int(ids_1T[0, -1]) != END:
        logits_1V = model(encoder_outputs=encoded, decoder_input_ids=ids_1T).logits[:, -1]
        for rule in rules:
            logits_1V = rule(ids_1T, logits_1V)
        ids_1T = torch.cat([ids_1T, logits_1V.argmax(-1, keepdim=True)], dim=1)
    tokens: list[int] = ids_1T[0, len(head) :].tolist()
    return tokens
