"""What logprobs are of: the model's logits, or what tokens are drawn by."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.errors import ConfigError, ParameterError

PROMPTS = ["The capital of France is", "Once upon a time", "Hello"]
MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
Rows = list[dict[int, float]]


@pytest.fixture(scope="module")
def llms() -> Iterator[dict[str, LLM]]:
    made = {
        mode: LLM("octavo/tiny", max_model_len=128, dtype="float32", logprobs_mode=mode)
        for mode in MODES
    }
    yield made
    for llm in made.values():
        llm.close()


def rows(llms: dict[str, LLM], mode: str, **given) -> Rows:
    """By token id, of all tokens of all prompts; the same tokens are drawn in each mode."""
    params = SamplingParams(max_tokens=5, seed=3, logprobs=8, ignore_eos=True, **given)
    found: Rows = []
    for output in llms[mode].generate(PROMPTS, params, use_tqdm=False):
        assert output.outputs[0].logprobs is not None
        found += [
            {token: entry.logprob for token, entry in row.items()}
            for row in output.outputs[0].logprobs
        ]
    return found


def softmax(logits: dict[int, float]) -> dict[int, float]:
    total = math.log(sum(math.exp(value) for value in logits.values()))
    return {token: value - total for token, value in logits.items()}


def test_the_cut_and_the_temperature_count_in_what_is_processed(llms) -> None:
    given = {"temperature": 0.5, "top_k": 3}
    raw = rows(llms, "raw_logprobs", **given)
    for before, after in zip(raw, rows(llms, "processed_logprobs", **given), strict=True):
        kept = sorted(before, key=lambda token: -before[token])[:3]
        wanted = softmax({token: before[token] / 0.5 for token in kept})
        for token in kept:
            assert after[token] == pytest.approx(wanted[token], abs=1e-3)
        assert sum(math.exp(value) for value in after.values()) == pytest.approx(1, abs=1e-4)


def test_logits_are_not_normalized(llms) -> None:
    given = {"temperature": 0.7, "top_p": 0.9, "min_p": 0.01}
    for logits, logprobs in (("raw_logits", "raw_logprobs"), MODES[:1:-1]):
        pairs = zip(rows(llms, logits, **given), rows(llms, logprobs, **given), strict=True)
        shifts = []
        for one, other in pairs:
            apart = [one[t] - other[t] for t in one.keys() & other if math.isfinite(other[t])]
            assert max(apart) - min(apart) < 1e-3
            shifts.append(apart[0])
        assert max(map(abs, shifts)) > 0.1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_and_bans_count_in_what_is_processed(llms, temperature) -> None:
    first = rows(llms, "raw_logprobs", temperature=0.0)
    banned = max(first[0], key=lambda token: first[0][token])
    given = {"temperature": temperature, "logit_bias": {banned: -100}, "min_tokens": 2}
    for mode, is_processed in (("raw_logprobs", False), ("processed_logprobs", True)):
        row = rows(llms, mode, **given)[0]
        assert (row.get(banned, -math.inf) < -50) == is_processed


def test_each_row_of_a_batch_has_its_own(llms) -> None:
    """Greedy rows, cut ones and free ones in one step."""
    several = [
        SamplingParams(max_tokens=4, seed=5, logprobs=6, ignore_eos=True, **given)
        for given in ({"temperature": 0.0}, {"top_k": 2}, {"temperature": 2.0, "top_p": 0.5})
    ]
    llm = llms["processed_logprobs"]
    together = llm.generate(PROMPTS, several, use_tqdm=False)
    for prompt, params, output in zip(PROMPTS, several, together, strict=True):
        (alone,) = llm.generate([prompt], params, use_tqdm=False)
        one, other = output.outputs[0].logprobs or [], alone.outputs[0].logprobs or []
        assert [list(row) for row in one] == [list(row) for row in other]
        for a, b in zip(one, other, strict=True):
            assert [e.logprob for e in a.values()] == pytest.approx(
                [e.logprob for e in b.values()], abs=1e-3
            )
    cut = together[1].outputs[0].logprobs or []
    assert all(sum(math.isfinite(e.logprob) for e in row.values()) == 2 for row in cut)


def test_a_beam_search_needs_logprobs(llms) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=4)
    (wanted,) = llms["raw_logprobs"].beam_search(PROMPTS[:1], params)
    (found,) = llms["processed_logprobs"].beam_search(PROMPTS[:1], params)
    assert [b.token_ids for b in found.sequences] == [b.token_ids for b in wanted.sequences]
    with pytest.raises(ParameterError, match="logprobs_mode='raw_logits'"):
        llms["raw_logits"].beam_search(PROMPTS[:1], params)


def test_other_modes_are_named() -> None:
    with pytest.raises(ConfigError, match="logprobs_mode"):
        LLM("octavo/tiny", logprobs_mode="cooked")
