from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from octavo.frontend.beam_search import (
    BeamSearch,
    Candidates,
    Continued,
    num_candidates,
    run_beam_searches,
)
from octavo.params import BeamSearchParams

EOS = 2


def random_llama(seed: int, vocab: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        eos_token_id=EOS,
        pad_token_id=0,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval()


def expander(model: LlamaForCausalLM, count: int):  # type: ignore[no-untyped-def]
    def expand(sequences: list[Continued]) -> list[Candidates]:
        found = []
        for prompt, tokens in sequences:
            with torch.no_grad():
                logits_V = model(torch.tensor([prompt + tokens])).logits[0, -1].float()
            best = logits_V.log_softmax(-1).topk(count)
            found.append(list(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        return found

    return expand


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("width", "length_penalty"), [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0), (3, 0.0), (3, 2.0)]
)
def test_the_sequences_are_those_of_transformers(width: int, length_penalty: float) -> None:
    for seed in range(3):
        model = random_llama(seed, vocab=12)
        params = BeamSearchParams(beam_width=width, max_tokens=10, length_penalty=length_penalty)
        prompt = [3 + seed, 5, 7]
        search = BeamSearch(params, max_tokens=10, eos_token_ids=[EOS])
        run_beam_searches([prompt], [search], expander(model, min(num_candidates(params, 1), 12)))
        expected = model.generate(
            torch.tensor([prompt]),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=10,
            length_penalty=length_penalty,
            do_sample=False,
        )
        for beam, row in zip(search.best, expected.tolist(), strict=True):
            tokens = row[len(prompt) :]
            if EOS in tokens:
                tokens = tokens[: tokens.index(EOS) + 1]
            assert beam.token_ids == tokens


def test_a_wide_beam_finds_the_likeliest_sequence_of_all() -> None:
    model = random_llama(9, vocab=5)
    expand = expander(model, 5)
    params = BeamSearchParams(beam_width=64, max_tokens=3, ignore_eos=True, length_penalty=0.0)
    search = BeamSearch(params, max_tokens=3, eos_token_ids=[EOS])
    run_beam_searches([[1]], [search], expand)

    def total(tokens: tuple[int, ...]) -> float:
        return sum(dict(expand([([1], [*tokens[:i]])])[0])[token] for i, token in enumerate(tokens))

    best = max(itertools.product(range(5), repeat=3), key=total)
    assert tuple(search.best[0].token_ids) == best
    assert math.isclose(search.best[0].cumulative_logprob, total(best), abs_tol=1e-5)
    assert {beam.finish_reason for beam in search.best} == {"length"}


def test_searches_advance_together_and_end_apart() -> None:
    calls: list[int] = []

    def expand(sequences: list[Continued]) -> list[Candidates]:
        calls.append(len(sequences))
        return [
            [(EOS, -0.1), (5, -3.0)] if prompt == [1] else [(5, -0.1), (6, -3.0)]
            for prompt, _ in sequences
        ]

    params = BeamSearchParams(beam_width=1, max_tokens=3)
    searches = [BeamSearch(params, max_tokens=3, eos_token_ids=[EOS]) for _ in range(2)]
    run_beam_searches([[1], [4]], searches, expand)
    assert calls == [2, 1, 1]
    assert [s.best[0].token_ids for s in searches] == [[EOS], [5, 5, 5]]
    assert [s.best[0].finish_reason for s in searches] == ["stop", "length"]


def test_a_beam_that_nothing_may_follow_ends_as_it_is() -> None:
    search = BeamSearch(
        BeamSearchParams(beam_width=2, max_tokens=9, length_penalty=0.0),
        max_tokens=9,
        eos_token_ids=[EOS],
    )
    search.advance([[(5, -0.1), (6, -0.2)]])
    search.advance([[], [(7, -0.1)]])
    search.advance([[]])
    assert [beam.token_ids for beam in search.best] == [[5], [6, 7]]
    assert [beam.finish_reason for beam in search.best] == ["stop", "stop"]
    assert search.live == []


def test_an_end_below_the_best_is_not_kept() -> None:
    params = BeamSearchParams(beam_width=1, max_tokens=2)
    search = BeamSearch(params, max_tokens=2, eos_token_ids=[EOS])
    search.advance([[(5, -0.1), (EOS, -0.2)]])
    assert [beam.token_ids for beam in search.live] == [[5]]
    assert search.best == []


def test_a_beam_at_a_dead_end_is_dropped() -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=9)
    search = BeamSearch(params, max_tokens=9, eos_token_ids=[EOS])
    search.advance([[(5, -0.1), (6, -0.2)]])
    search.advance([None, [(EOS, -0.1)]])
    assert [beam.token_ids for beam in search.best] == [[6, EOS]]
    assert search.live == []
