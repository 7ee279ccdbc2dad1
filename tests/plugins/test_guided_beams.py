"""Beams with a constraint are those of a search that looks at every token and asks the guide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo import LLM, BeamSearchParams, GuidedParams
from octavo.errors import ParameterError
from octavo.frontend.beam_search import BeamSearch, Candidates, Continued, run_beam_searches
from octavo.guided.vocabulary import read_vocabulary
from octavo.testing.random_model import make_random_model
from octavo_plugins.guided.llguidance.backend import Backend
from octavo_registry.guided import Constraint, Guide

PROMPTS = ["The colour of the sky", "She said"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("model"), vocab_size=320)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, num_blocks=256, max_num_seqs=16, num_threads=1) as llm:
        yield llm


class Reference:
    """Scores every token of the vocabulary and keeps those that the guide allows."""

    def __init__(self, folder: Path, constraint: Constraint) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        vocabulary = read_vocabulary(
            self.tokenizer, vocab_size=320, stop_token_ids=[self.tokenizer.eos_token_id]
        )
        self._guide: Guide = Backend(vocabulary).compile(constraint)

    def expand(self, sequences: list[Continued]) -> list[Candidates]:
        return [self._candidates(prompt, tokens) for prompt, tokens in sequences]

    def _candidates(self, prompt: list[int], tokens: list[int]) -> Candidates:
        state = self._guide.start()
        assert all(map(state.accept, tokens))
        if state.is_finished():
            return []
        allowed = state.forced()[:1] or [token for token in range(320) if state.allowed(token)]
        with torch.no_grad():
            logits_V = self._model(torch.tensor([prompt + tokens])).logits[0, -1]
        of_allowed = logits_V[allowed].log_softmax(0).tolist()
        return sorted(zip(allowed, of_allowed, strict=True), key=lambda each: -each[1])


@pytest.mark.parametrize(
    ("guided", "constraint"),
    [
        (
            GuidedParams(choice=["red", "green", "blue", "blueish"]),
            Constraint(kind="choice", value=["red", "green", "blue", "blueish"]),
        ),
        (GuidedParams(regex="[a-c]{2,5}!?"), Constraint(kind="regex", value="[a-c]{2,5}!?")),
    ],
    ids=["choice", "regex"],
)
@pytest.mark.parametrize("width", [1, 3])
def test_constrained_beams_are_those_of_a_search_by_brute_force(
    llm: LLM, folder: Path, guided: GuidedParams, constraint: Constraint, width: int
) -> None:
    reference = Reference(folder, constraint)
    params = BeamSearchParams(beam_width=width, max_tokens=9, guided=guided)
    outputs = llm.beam_search(PROMPTS, params)
    prompts = [output.prompt_token_ids for output in outputs]
    searches = [
        BeamSearch(params, max_tokens=9, eos_token_ids=[reference.tokenizer.eos_token_id])
        for _ in prompts
    ]
    run_beam_searches(prompts, searches, reference.expand)
    for output, search in zip(outputs, searches, strict=True):
        assert [b.token_ids for b in output.sequences] == [b.token_ids for b in search.best]
        assert [b.finish_reason for b in output.sequences] == [b.finish_reason for b in search.best]
        np.testing.assert_allclose(
            [beam.cumulative_logprob for beam in output.sequences],
            [beam.cumulative_logprob for beam in search.best],
            atol=1e-4,
        )


def test_a_guide_that_admits_few_texts_gives_few_beams(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=8, max_tokens=9, guided=GuidedParams(regex="[01]"))
    (output,) = llm.beam_search("x", params)
    assert {beam.text for beam in output.sequences} == {"0", "1"}
    assert {beam.finish_reason for beam in output.sequences} == {"stop"}


def test_what_beams_cannot_have_is_refused(llm: LLM) -> None:
    guided = GuidedParams(choice=["a"])
    with pytest.raises(ParameterError, match="ignore_eos"):
        BeamSearchParams(beam_width=2, max_tokens=2, guided=guided, ignore_eos=True)
    with pytest.raises(ParameterError, match="guided"):
        BeamSearchParams(beam_width=2, max_tokens=2, guided="a")  # type: ignore[arg-type]
    wrong = BeamSearchParams(beam_width=2, max_tokens=2, guided=GuidedParams(regex="("))
    with pytest.raises(ParameterError, match="regex"):
        llm.beam_search("x", wrong)
