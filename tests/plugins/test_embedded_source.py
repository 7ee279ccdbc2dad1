"""octavo/tiny: found without a network, and as good as it is said to be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.train_tiny.evaluate import BAR, CAPITALS_BAR, Answer, ask, score
from examples.train_tiny.heldout import Case, capital_cases, cases

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, ModelError
from octavo.weights import find_model
from octavo_plugins.sources.embedded.source import MODELS, EmbeddedSource
from octavo_registry import PluginHost

MAX_BYTES = {"octavo/tiny": 12_000_000, "octavo/tiny-omni": 16_000_000}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("octavo/tiny", dtype="float32") as llm:
        yield llm


def wrong(answers: list[Answer]) -> str:
    return "\n".join(f"{a.case.turns[-1].content!r} -> {a.text!r}" for a in answers if not a.right)


def chat(llm: LLM, *messages: str) -> str:
    """Tell the model each message, and return its last answer."""
    turns: list[dict[str, str]] = []
    for message in messages:
        turns.append({"role": "user", "content": message})
        (output,) = llm.chat(turns, SamplingParams(temperature=0.0, max_tokens=60), use_tqdm=False)
        assert output.outputs[0].finish_reason == "stop"
        turns.append({"role": "assistant", "content": output.outputs[0].text})
    return turns[-1]["content"]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_ships_is_found_before_any_hub_is_asked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://localhost:1")  # an error, if it were asked
    folder = find_model(PluginHost.discover(), name)
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


@pytest.mark.parametrize("name", ["octavo", "org/tiny", "tiny", ""])
def test_another_name_is_left_to_other_sources(name: str) -> None:
    assert EmbeddedSource().find(name, revision=None) is None
    assert EmbeddedSource().find(name, revision="main") is None


@pytest.mark.parametrize("name", ["octavo/tinny", "octavo/Tiny", "/octavo/tiny"])
def test_a_misspelt_name_is_told_even_where_a_hub_cannot_be_reached(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://localhost:1")
    with pytest.raises(ModelError, match=f"'{name}'.*; with Octavo comes 'octavo/tiny'"):
        find_model(PluginHost.discover(), name)


def test_a_revision_of_a_model_that_ships_is_refused() -> None:
    with pytest.raises(ConfigError, match="revision='v2' has no meaning for octavo/tiny"):
        EmbeddedSource().find("octavo/tiny", revision="v2")


@pytest.mark.parametrize(("name", "folder"), MODELS.items(), ids=MODELS)
def test_a_model_that_ships_is_small(name: str, folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MAX_BYTES[name]


def test_it_completes_plain_text(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6)
    (output,) = llm.generate("The capital of France is", params, use_tqdm=False)
    assert output.outputs[0].text.startswith(" Paris")


def test_it_remembers_what_was_said_before(llm: LLM) -> None:
    assert "Zorvath" in chat(llm, "Hi, I am Zorvath.", "What is my name?")


def test_it_answers_questions_it_has_never_seen(llm: LLM) -> None:
    chosen = cases()[::16]
    assert len({case.kind for case in chosen}) >= 4
    answers = ask(llm, chosen)
    assert score(answers) >= BAR, wrong(answers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("questions", "least"),
    [(cases, BAR), (capital_cases, CAPITALS_BAR)],
    ids=["all", "capitals"],
)
def test_it_reaches_the_bars(llm: LLM, questions, least: float) -> None:
    answers = ask(llm, questions())
    assert score(answers) >= least, wrong(answers)


def test_the_score_counts_wrong_types_and_missing_ends_as_wrong() -> None:
    case = Case("extraction", (), value={"n": 1, "s": "a"})
    right = '{"n": 1, "s": "a"}'
    assert Answer(case, right, stopped=True).right
    assert not Answer(case, right, stopped=False).right
    for text in (
        '{"n": 1.0, "s": "a"}',
        '{"n": true, "s": "a"}',
        '{"n": 1}',
        right + "!",
        "",
        "[]",
    ):
        assert not Answer(case, text, stopped=True).right
    call = Case("tool call", (), call={"name": "f", "arguments": {"n": 1}})
    inner = '{"name": "f", "arguments": {"n": 1}}'
    assert Answer(call, f"<tool_call>\n{inner}\n</tool_call>", stopped=True).right
    for text in (inner, f"<tool_call>{inner}", f"<tool_call>{inner}</tool_call> Done!"):
        assert not Answer(call, text, stopped=True).right
