"""An LLM as a model of Outlines: its Generator, chats, several answers, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

import outlines
import pytest
from pydantic import BaseModel, Field

from octavo import LLM, GuidedParams, SamplingParams
from octavo_plugins.guided.outlines.model import OutlinesModel

PARAMS = SamplingParams(max_tokens=40, seed=1)


class Count(BaseModel):
    number: int = Field(ge=3, le=4)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("octavo/tiny", num_threads=1, kv_cache_memory_gib=0.05) as made:
        yield made


def ask(llm: LLM, text: str, params: SamplingParams) -> list[str]:
    (output,) = llm.chat([{"role": "user", "content": text}], params, use_tqdm=False)
    return [answer.text for answer in output.outputs]


@pytest.mark.slow
def test_a_generator_holds_all_answers_to_its_type(llm) -> None:
    model = OutlinesModel(llm)
    generator = outlines.Generator(model, Count)
    answers = generator.batch(["How many?", "And now?"], sampling_params=PARAMS, use_tqdm=False)
    assert {3, 4} >= {Count.model_validate_json(answer).number for answer in answers}
    city = model("Where?", Literal["Rome", "Paris"], sampling_params=PARAMS, use_tqdm=False)
    guided = GuidedParams.of(Literal["Rome", "Paris"])
    assert [city] == ask(llm, "Where?", SamplingParams(max_tokens=40, seed=1, guided=guided))


@pytest.mark.slow
def test_without_a_type_answers_are_the_models_own(llm) -> None:
    generator = outlines.Generator(OutlinesModel(llm))
    several = SamplingParams(max_tokens=8, n=2, seed=1)
    assert generator("Hello", sampling_params=several, use_tqdm=False) == ask(llm, "Hello", several)
    chat = outlines.inputs.Chat([{"role": "user", "content": "Hello"}])
    (text,) = ask(llm, "Hello", PARAMS)
    assert generator(chat, sampling_params=PARAMS, use_tqdm=False) == text
    with pytest.raises(NotImplementedError, match="AsyncLLM"):
        list(generator.stream("Hello"))


@pytest.mark.slow
def test_json_stands_between_other_texts(llm) -> None:
    params = SamplingParams(max_tokens=300, guided=GuidedParams.of(tuple[Count, Count]), seed=2)
    (output,) = llm.generate("Numbers: ", params, use_tqdm=False)
    assert output.guided.constraint == "structural_tag"
    (text,) = [answer.text for answer in output.outputs]
    assert (text[0], text[-1]) == ("(", ")")
    counts = json.loads(f"[{text[1:-1]}]")
    assert len([Count.model_validate(count) for count in counts]) == 2
