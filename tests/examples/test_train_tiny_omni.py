"""The corpus, media and training of examples/train_tiny_omni."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from examples.train_tiny_omni import questions
from examples.train_tiny_omni import train as training
from examples.train_tiny_omni.batches import Batch, Mixture, load_batches
from examples.train_tiny_omni.clips import BIGGEST, DIRECTIONS, draw_clip
from examples.train_tiny_omni.corpus import IMAGE, Corpus, draw_media, held_out
from examples.train_tiny_omni.evaluate import items
from examples.train_tiny_omni.features import chosen_frames
from examples.train_tiny_omni.model import EncoderConfig, OmniConfig
from examples.train_tiny_omni.pictures import COLOURS, HELD_OUT, SHAPES, SIDE, Figure, draw_figure
from examples.train_tiny_omni.questions import Facts, gives_away, held_out_phrases, load
from examples.train_tiny_omni.ranges import Range
from examples.train_tiny_omni.sounds import TONES, draw_sound
from examples.train_tiny_omni.train import save_tokenizer, train

from octavo.inputs.chat import ChatRenderer
from octavo_plugins.modalities.video.sampling import Sampling
from octavo_plugins.tokenizers.transformers.tokenizer import TransformersTokenizer

KINDS = {"picture": 6, "pictures": 6, "clip": 6, "sound": 6, "about": 6}


def texts(number: int, count: int) -> list[str]:
    documents = islice(Corpus().documents(number), count)
    return ["".join(piece.text for piece in document.pieces) for document in documents]


def test_training_and_test_share_no_number_and_no_pair_of_shape_and_colour() -> None:
    rng = np.random.default_rng(0)
    numbers = Range(0, 10, 4, 6)
    assert not any(4 < numbers.draw(rng, False) < 6 for _ in range(200))
    assert all(4 <= numbers.draw(rng, True) <= 6 for _ in range(200))
    figures = [draw_figure(rng, held_out=False) for _ in range(2000)]
    seen = {(figure.shape, figure.colour) for figure in figures}
    assert len(seen) == len(SHAPES) * len(COLOURS) - len(HELD_OUT)
    assert not seen & HELD_OUT
    assert {shape for shape, _ in HELD_OUT} == set(SHAPES)
    assert {colour for _, colour in HELD_OUT} == set(COLOURS)


def test_no_document_has_a_wording_of_the_test() -> None:
    assert len(held_out_phrases()) > 80
    assert not any(gives_away(text) for number in range(2) for text in texts(number, 40))
    wordings = [question.text for _, question in held_out(KINDS)]
    assert all(gives_away(wording) for wording in wordings)


def test_what_is_held_out_is_left_out_wherever_it_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "held_out_phrases", lambda: ("what", "json", "please", "is "))
    found = " ".join(texts(2, 40)).lower()
    assert not any(phrase in found for phrase in questions.held_out_phrases())


def test_a_document_has_a_place_for_each_item() -> None:
    for document in islice(Corpus().documents(1), 40):
        text = "".join(piece.text for piece in document.pieces)
        assert sum(text.count(f"<|{name}|>") for name in ("image", "video", "audio")) == len(
            document.items
        )


def test_the_answers_say_what_was_drawn() -> None:
    figures = [Figure("star", "orange"), Figure("ring", "blue")]
    both = Facts(figures)
    assert both.texts["both"] == "First an orange star, then a blue ring."
    assert both.nth[1]["nth_colour"] == "Blue."
    rng = np.random.default_rng(0)
    for _ in range(20):
        clip = draw_clip(rng, figures[0], held_out=True, whole=True)
        (x, y), (to_x, to_y) = clip.pictures[0].place, clip.pictures[-1].place
        across, down = to_x - x, to_y - y
        step = DIRECTIONS[clip.direction]
        assert across * step[0] + down * step[1] > 2 * abs(across * step[1] + down * step[0])


def test_the_picture_has_its_shape_where_it_says() -> None:
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        (picture,) = draw_media(rng, "picture").items
        pixels = np.asarray(picture.image)
        assert pixels.shape[2] == 3
        assert min(picture.image.size) >= round(SIDE.low * BIGGEST)
        assert max(map(abs, picture.place)) < 1, shape


def test_the_beeps_are_as_many_and_as_high_as_they_are_said_to_be() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        sound = draw_sound(rng, held_out=True, rate=16000)
        spectrum = np.abs(np.fft.rfft(sound.samples_S))
        loudest = np.fft.rfftfreq(len(sound.samples_S), 1 / sound.rate)[spectrum.argmax()]
        assert (loudest > 600) == (sound.pitch == "high"), loudest
        assert TONES[sound.pitch].low * 0.9 < loudest < TONES[sound.pitch].high * 2.2
        power = sound.samples_S[: len(sound.samples_S) // 160 * 160].reshape(-1, 160).std(1)
        is_loud = power > 0.4 * power.max()
        assert int(is_loud[0]) + int((is_loud[1:] > is_loud[:-1]).sum()) == sound.count


@pytest.mark.parametrize("count", [1, 5, 8, 9, 24, 300])
def test_frames_are_chosen_as_the_video_decoder_does(count: int) -> None:
    assert chosen_frames(count) == Sampling(num_frames=8).choose(count, seconds=3.0)


def test_a_batch_is_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    mixture = Mixture(seed=3, num_batches=2, num_tokens=700)
    alone, shared = (list(load_batches(tmp_path / "tokenizer.json", mixture, n)) for n in (0, 2))
    for one, other in zip(alone, shared, strict=True):
        for field in dataclasses.fields(Batch):
            assert torch.equal(getattr(one, field.name), getattr(other, field.name)), field.name


def test_the_chat_template_writes_what_training_wrote(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    renderer = ChatRenderer(TransformersTokenizer(tmp_path))
    parts = [{"type": "text", "text": "See "}, {"type": "image"}, {"type": "text", "text": "?"}]
    system = {"role": "system", "content": "Be brief."}
    messages = [system, {"role": "user", "content": parts}, {"role": "assistant", "content": "A"}]
    ends = "<|im_end|>\n"
    for content in (parts, f"See {IMAGE}?"):
        messages[1]["content"] = content
        assert renderer.template().render(messages, add_generation_prompt=True) == (
            f"<|im_start|>system\nBe brief.{ends}<|im_start|>user\nSee {IMAGE}?{ends}"
            f"<|im_start|>assistant\nA{ends}<|im_start|>assistant\n"
        )


def test_the_test_asks_in_words_and_in_json_about_all_kinds() -> None:
    kinds = Counter(question.kind for _, question in held_out(dict.fromkeys(KINDS, 12)))
    assert len(kinds) == 9
    for media, question in held_out({"pictures": 8}):
        if question.value is not None:
            assert media is not None
            assert json.loads(question.answer) == question.value
            assert len(question.value) == 2


def test_each_part_of_the_model_that_speaks_of_itself_is_replaced_or_new() -> None:
    data = load("questions")
    written = json.dumps(
        json.loads(
            (
                Path(training.__file__).parents[1] / "train_tiny" / "data" / "smalltalk.json"
            ).read_text()
        )
    )
    assert all(json.dumps(old)[1:-1] in written for old in data["replaced"])


def test_the_score_counts_other_words_and_other_values_as_wrong() -> None:
    by_kind = {item.question.kind: item for item in items({"sound": 12})}
    spoken, written = by_kind["sound, in words"], by_kind["sound, in JSON"]
    assert spoken.is_right(f" {spoken.question.answer}\n")
    assert not spoken.is_right(spoken.question.answer.rstrip("."))
    assert written.is_right(json.dumps(written.question.value, indent=1))
    assert not written.is_right("{}")
    assert not written.is_right(f"{written.question.answer}!")


@pytest.mark.slow
def test_training_lowers_the_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = EncoderConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2
    )
    monkeypatch.setattr(training, "OmniConfig", lambda: OmniConfig(vision=small, audio=small))
    monkeypatch.setattr(training, "COUNTS", {"picture": 2, "about": 2})
    monkeypatch.setattr(training, "LOG_EVERY", 2)
    train(tmp_path, steps=5, tokens=500, seconds=600, seed=0, workers=0, reports=1)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    first, last = (float(lines[i].split("loss")[1].split(",")[0]) for i in (0, -1))
    assert last < first - 1
