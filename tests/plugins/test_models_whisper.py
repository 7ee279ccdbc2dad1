"""Whisper against Transformers: with times and without, in every way of running, and what bites."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration

import row_reader
from media_equality import NUM_TOKENS, MediaCase, check_equal, run
from octavo import LLM, SamplingParams
from octavo.errors import PromptError
from octavo.execution.forward_pass import ForwardPass
from octavo.execution.memory_budget import budget_of
from octavo_plugins.models.whisper.rules import TokenRules
from octavo_registry import PluginHost
from octavo_registry.model import SequenceTokens
from plan_equality import config_of
from tiny_whisper import (
    BEFORE,
    END,
    FIRST_TIME,
    NEVER,
    NO_TIMES,
    PLAIN_HEAD,
    POSITIONS,
    SECONDS,
    START,
    TIMED_HEAD,
    VOCAB,
    features,
    make_tiny_whisper,
    reference_rules,
    sound,
    transcript,
)

GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, detokenize=False)
CONTEXT = [BEFORE, 30, 31, 32, 33, 34]
HEADS = [PLAIN_HEAD, TIMED_HEAD, [*CONTEXT, *PLAIN_HEAD], [*CONTEXT, *TIMED_HEAD]]

Reference = tuple[Path, WhisperForConditionalGeneration]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("whisper")
    return folder, make_tiny_whisper(folder)


@pytest.fixture(scope="module")
def llm(reference: Reference) -> Iterator[LLM]:
    with open_llm(reference[0]) as made:
        yield made


def open_llm(folder: Path, **options: Any) -> LLM:
    return LLM(
        str(folder),
        dtype="float32",
        skip_tokenizer_init=True,
        num_threads=1,
        kv_cache_memory_gib=0.02,
        engine_process=False,
        **options,
    )


def prompt(head: list[int], number: int, seconds: float = SECONDS) -> dict[str, Any]:
    return {"prompt_token_ids": head, "multi_modal_data": {"audio": sound(number, seconds)}}


def tokens(llm: LLM, prompts: list[Any], params: SamplingParams = GREEDY) -> list[list[int]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(each.token_ids) for output in outputs for each in output.outputs]


@pytest.fixture(scope="module")
def cases(reference: Reference) -> list[MediaCase]:
    """Sounds of several lengths behind each head, some twice."""
    found = []
    for number, head in enumerate([*HEADS, *HEADS]):
        heard = sound(number % 5, SECONDS * (1 - 0.1 * (number % 3)))
        expected = transcript(reference[1], heard, head, NUM_TOKENS)
        if len(expected) == NUM_TOKENS:  # the ways of running go on behind an end
            found.append(MediaCase(token_ids=head, media={"audio": [heard]}, expected=expected))
    assert len({tuple(case.expected) for case in found}) >= 6
    return found


@pytest.mark.slow
def test_tokens_are_those_of_transformers_in_every_way_of_running(reference, cases) -> None:
    check_equal(reference[0], cases, most_rows=POSITIONS, num_groups=2)


@pytest.mark.slow
def test_swapped_rows_hear_again_what_they_heard(reference, cases) -> None:
    outputs = run(
        reference[0], [*cases] * 3, 1, num_blocks=26, max_model_len=32, preemption_mode="swap"
    )
    for output, case in zip(outputs, [*cases] * 3, strict=True):
        assert list(output.outputs[0].token_ids) == case.expected


@pytest.mark.slow
def test_the_kernels_for_gpus_read_what_they_store(reference) -> None:
    """On a CPU by their references."""
    asked = [(number, head) for number in (0, 1) for head in HEADS]
    expected = [transcript(reference[1], sound(number), head, 6) for number, head in asked]
    with open_llm(reference[0], attention_backend="paged", block_size=8) as llm:
        prompts = [prompt(head, number) for number, head in asked]
        assert tokens(llm, prompts, replace(GREEDY, max_tokens=6)) == expected


@pytest.mark.slow
def test_the_encoders_output_is_read_itself_where_a_backend_takes_it(reference, cases) -> None:
    settings = {"attention_backend": "rows", "plugins": [row_reader]}
    check_equal(reference[0], cases, most_rows=POSITIONS, num_groups=2, **settings)


def test_rows_are_kept_only_where_a_backend_reads_them_faster(reference) -> None:
    """Not because one was named that can: without a kernel they take longer."""
    host = PluginHost.discover(plugins=[row_reader])

    def row_bytes(**options: Any) -> int:
        options |= {"kv_cache_memory_gib": 0.01, "block_size": 4}
        return budget_of(config_of(reference[0], **options), host).cross_bytes_per_sequence

    keys = row_bytes()
    assert row_bytes(attention_backend="rows") < keys
    assert row_bytes(attention_backend="rows", max_num_seqs=15) == keys
    assert row_bytes(attention_backend="torch") == keys


@pytest.mark.gpu
def test_a_gpu_gives_the_same_tokens_by_recorded_steps(reference, caplog) -> None:
    caplog.set_level(logging.DEBUG, "octavo.execution.decode_graphs")
    asked = [(number, head) for number in range(4) for head in HEADS]
    expected = [transcript(reference[1], sound(i), head, NUM_TOKENS) for i, head in asked]
    with open_llm(reference[0], device="cuda") as llm:
        for _ in range(2):
            assert tokens(llm, [prompt(head, i) for i, head in asked]) == expected
            number, head = asked[-1]
            assert tokens(llm, [prompt(head, number)]) == expected[-1:]
    assert any(text.startswith("recorded step") for text in caplog.messages)


def test_a_transcript_ends_where_the_reference_ends(tmp_path) -> None:
    model = make_tiny_whisper(tmp_path, end_scale=-2)
    asked = [(number, head) for number in range(5) for head in (PLAIN_HEAD, TIMED_HEAD)]
    expected = [transcript(model, sound(number), head, 25) for number, head in asked]
    with open_llm(tmp_path) as llm:
        prompts = [prompt(head, number) for number, head in asked]
        assert tokens(llm, prompts, replace(GREEDY, max_tokens=25)) == expected
    assert len({len(each) for each in expected if each[-1] == END}) > 2


def test_the_language_is_detected_when_none_is_asked(reference, llm) -> None:
    languages = set()
    for number in range(8):
        detected = reference[1].detect_language(input_features=features([sound(number)]))
        language = int(detected[0])
        (found,) = tokens(llm, [prompt([START], number)])
        head = [START, *found[:2]]
        assert head == [START, language, TIMED_HEAD[2]]
        rest = transcript(reference[1], sound(number), head, NUM_TOKENS - 2)
        assert found[2:] == rest
        languages.add(language)
    assert len(languages) == 2


def test_a_model_of_one_language_has_no_head_but_the_start(tmp_path) -> None:
    model = make_tiny_whisper(tmp_path, multilingual=False)
    with open_llm(tmp_path) as llm:
        for head in ([START], [START, NO_TIMES]):
            assert tokens(llm, [prompt(head, 1)]) == [transcript(model, sound(1), head, NUM_TOKENS)]


@torch.no_grad()
def test_sampled_tokens_have_the_probabilities_of_the_reference(reference, llm) -> None:
    params = replace(GREEDY, temperature=1.0, seed=5, n=3, logprobs=0, prompt_logprobs=0)
    head = [*CONTEXT, *PLAIN_HEAD]
    (output,) = llm.generate(prompt(head, 2), params, use_tqdm=False)
    drawn = {tuple(each.token_ids) for each in output.outputs}
    assert len(drawn) == 3
    encoded = reference[1].model.encoder(features([sound(2)]))
    for each in output.outputs:
        ids = [*head, *each.token_ids]
        logits = reference[1](
            encoder_outputs=encoded, decoder_input_ids=torch.tensor([ids])
        ).logits[0]
        plain = logits.log_softmax(-1)
        for place, entry in enumerate((output.prompt_logprobs or [])[1:]):
            found = entry[ids[place + 1]].logprob
            assert found == pytest.approx(float(plain[place, ids[place + 1]]), abs=1e-4)
        for place, (token, entry) in enumerate(zip(each.token_ids, each.logprobs, strict=True)):
            so_far = SequenceTokens(
                tokens_SL=torch.tensor([ids], dtype=torch.int32),
                num_tokens_S=torch.tensor([len(head) + place], dtype=torch.int32),
            )
            ruled = _rules(llm)(
                logits[len(head) + place - 1 :][:1].clone(),
                torch.zeros(1, dtype=torch.int32),
                so_far,
            )
            expected = float(ruled.log_softmax(-1)[0, token])
            assert entry[token].logprob == pytest.approx(expected, abs=1e-4)


def test_any_tokens_may_be_followed_by_what_the_reference_allows(reference, llm) -> None:
    rng, rules = np.random.default_rng(0), _rules(llm)
    histories, begins = [], []
    for number in range(200):
        before = [BEFORE, *rng.integers(4, VOCAB, 3)] if number % 3 == 0 else []
        head = (PLAIN_HEAD, TIMED_HEAD)[number % 2]
        said = rng.integers(30, END, number % 7)
        times = rng.random(len(said)) < 0.6
        said[times] = FIRST_TIME + np.sort(rng.integers(0, POSITIONS + 1, times.sum()))
        histories.append([*map(int, before), *head, *said.tolist()])
        begins.append(len(before) + len(head))
    longest = max(map(len, histories)) + 1
    padded = [[*each, *[TIMED_HEAD[0]] * (longest - len(each))] for each in histories]
    so_far = SequenceTokens(
        tokens_SL=torch.tensor(padded, dtype=torch.int32),
        num_tokens_S=torch.tensor([*map(len, histories)], dtype=torch.int32),
    )
    torch.manual_seed(0)
    logits_RV = 3 * torch.randn(len(histories), VOCAB)
    slots_R = torch.randperm(len(histories)).int()
    found_RV = rules(logits_RV.clone(), slots_R, so_far)
    for row, slot in enumerate(slots_R.tolist()):
        ids_1T, begin = torch.tensor([histories[slot]]), begins[slot]
        is_timed = histories[slot][begin - 1] != NO_TIMES
        expected = logits_RV[row : row + 1].clone()
        for rule in reference_rules(reference[1], begin, is_timed=is_timed):
            expected = rule(ids_1T, expected)
        torch.testing.assert_close(found_RV[row : row + 1], expected)


def _rules(llm: LLM) -> TokenRules:
    model = llm._front.client._core._executor._worker.runner.model
    rules: TokenRules = model._rules
    return rules


def test_one_sound_is_encoded_once_for_all_who_ask_and_whatever_they_ask(llm) -> None:
    def counts() -> tuple[int, int]:
        stats = llm._front.client.call("stats")
        return stats["num_media_encoded"], stats["num_live_blocks"]

    before, _ = counts()
    tokens(llm, [prompt(head, 11) for head in HEADS * 4])
    assert counts() == (before + 1, 0), "and no block is left"
    tokens(llm, [prompt(PLAIN_HEAD, 12)], replace(GREEDY, n=3, temperature=1.0, seed=1))
    assert counts() == (before + 2, 0)


def test_another_sound_is_another_transcript_though_the_prompt_is_cached(reference, llm) -> None:
    head = [BEFORE, *range(30, 60), *PLAIN_HEAD]  # of more than one block
    for number in (3, 4, 3):
        expected = transcript(reference[1], sound(number), head, NUM_TOKENS)
        assert tokens(llm, [prompt(head, number)]) == [expected]


@pytest.mark.parametrize("change", ["one position less", "another sound's rows"])
def test_what_is_heard_wrongly_shows(reference, monkeypatch, change) -> None:
    across = ForwardPass._across
    prompts = [prompt(PLAIN_HEAD, number) for number in range(6)]
    expected = [transcript(reference[1], sound(i), PLAIN_HEAD, NUM_TOKENS) for i in range(6)]

    def wrong(self: ForwardPass, rows: Any, most_rows: int) -> Any:
        seen = across(self, rows, most_rows)
        if change == "one position less":
            return seen._replace(context_lens_R=seen.context_lens_R - 1)
        self.state.tables_SB[1].copy_(self.state.tables_SB[1].roll(1, dims=0))
        return seen

    with open_llm(reference[0]) as llm:
        assert tokens(llm, prompts) == expected
    monkeypatch.setattr(ForwardPass, "_across", wrong)
    with open_llm(reference[0], enable_prefix_caching=False) as llm:
        assert tokens(llm, prompts) != expected


def test_the_plan_counts_what_is_heard(reference) -> None:
    budget = budget_of(
        config_of(reference[0], kv_cache_memory_gib=0.01, block_size=8), PluginHost.discover()
    )
    assert budget.blocks_per_sequence == 64 // 8 + 3
    assert budget.cross_bytes_per_sequence == 3 * budget.block_bytes
    assert budget.bytes_per_token == budget.block_bytes // 8


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (prompt(PLAIN_HEAD, 0, SECONDS + 0.1), "this model hears 0.4"),
        (
            {"prompt_token_ids": [START], "multi_modal_data": {"audio": [sound(0), sound(1)]}},
            "2 sounds",
        ),
        ({"prompt_token_ids": [START], "multi_modal_data": {"image": np.zeros((4, 4))}}, "image"),
    ],
)
def test_what_is_no_single_short_sound_is_refused(llm, given, problem) -> None:
    with pytest.raises(PromptError, match=problem):
        tokens(llm, [given])


def test_a_prompt_without_sound_is_refused(llm) -> None:
    (output,) = llm.generate({"prompt_token_ids": PLAIN_HEAD}, GREEDY, use_tqdm=False)
    assert "0 items for cross attention" in str(output.error)


def test_a_prompt_without_a_head_may_say_all_that_is_text(reference, llm) -> None:
    (found,) = tokens(llm, [prompt([30, 31], 1)], replace(GREEDY, max_tokens=1))
    logits = reference[1](
        encoder_outputs=reference[1].model.encoder(features([sound(1)])),
        decoder_input_ids=torch.tensor([[30, 31]]),
    ).logits[0, -1]
    logits[NEVER] = -torch.inf
    assert found == [int(logits.argmax())]
