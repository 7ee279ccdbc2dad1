"""octavo/tiny-omni is as good as it is said to be, on media and in words it has never met."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from examples.train_tiny_omni.clips import Clip, draw_clip
from examples.train_tiny_omni.corpus import COUNTS, Drawn
from examples.train_tiny_omni.evaluate import BAR, ask, items, report, score
from examples.train_tiny_omni.pictures import Figure, Picture, draw_picture
from examples.train_tiny_omni.sounds import Sound, draw_sound

from octavo import LLM, GuidedParams, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=60)
RED, BLUE = Figure("circle", "red"), Figure("star", "blue")
RATE = 44100


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("octavo/tiny-omni", dtype="float32") as llm:
        yield llm


def drawn(figure: Figure) -> Picture:
    return draw_picture(np.random.default_rng(3), figure, held_out=True)


def clip() -> Clip:
    return draw_clip(np.random.default_rng(1), BLUE, held_out=True, whole=True)


def sound() -> Sound:
    return draw_sound(np.random.default_rng(2), held_out=True, rate=RATE)


def part(item: Drawn | str) -> dict[str, Any]:
    """A part of a message as a user of Python writes it."""
    if isinstance(item, Picture):
        return {"type": "image", "image": item.image}
    if isinstance(item, Clip):
        return {"type": "video", "video": item.frames}
    if isinstance(item, Sound):
        return {"type": "audio", "audio": (item.samples_S, item.rate)}
    return {"type": "text", "text": item}


def answer(llm: LLM, *parts: Drawn | str, **changes: Any) -> str:
    messages = [{"role": "user", "content": [part(each) for each in parts]}]
    params = SamplingParams(temperature=0.0, max_tokens=60, **changes)
    (output,) = llm.chat(messages, params, use_tqdm=False)
    assert output.outputs[0].finish_reason == "stop"
    return output.outputs[0].text


def test_it_names_what_it_sees_and_hears_in_the_order_of_the_parts(llm: LLM) -> None:
    moving, beeps = clip(), sound()
    assert answer(llm, drawn(RED), "What is this?") == "A red circle."
    both = answer(llm, drawn(BLUE), drawn(RED), "What is in these two pictures?")
    assert both == "First a blue star, then a red circle."
    assert answer(llm, "Where does it move?", moving) == f"It moves {moving.direction}."
    assert json.loads(answer(llm, beeps, "Give me count and pitch as JSON.")) == {
        "count": beeps.count,
        "pitch": beeps.pitch,
    }


def test_a_prompt_of_generate_has_a_token_where_an_item_stands(llm: LLM) -> None:
    text = "<|im_start|>user\n<|image|>What colour is it?<|im_end|>\n<|im_start|>assistant\n"
    prompts = [
        {"prompt": text, "multi_modal_data": {"image": drawn(figure).image}}
        for figure in (RED, BLUE)
    ]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [output.outputs[0].text for output in outputs] == ["Red.", "Blue."]


def test_an_answer_follows_a_schema(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "shape": {"type": "string"}},
        "required": ["colour", "shape"],
        "additionalProperties": False,
    }
    question = "Describe colour and shape as JSON."
    found = answer(llm, drawn(BLUE), question, guided=GuidedParams(json=schema))
    assert json.loads(found) == {"colour": "blue", "shape": "star"}


def test_it_talks_without_media(llm: LLM) -> None:
    assert "tiny-omni" in answer(llm, "Who are you?")
    assert "pictures" in answer(llm, "Can you see pictures?")


def test_a_second_question_about_the_same_picture_is_answered(llm: LLM) -> None:
    messages = [
        {"role": "user", "content": [part(drawn(RED)), part("What colour is it?")]},
        {"role": "assistant", "content": "Red."},
        {"role": "user", "content": "And what shape is it?"},
    ]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.outputs[0].text == "A circle."


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("picture",), ("pictures", "about"), ("clip", "sound")])
def test_at_least_95_of_100_answers_about_what_it_never_met_are_right(
    llm: LLM, kinds: tuple[str, ...]
) -> None:
    answers = ask(llm, list(items({kind: COUNTS[kind] for kind in kinds})))
    assert score(answers) >= BAR, report(answers)
