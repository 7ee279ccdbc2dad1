"""Rows that the device masks by byte automata: their tokens are those of masks from the host."""

from __future__ import annotations

import json
from functools import partial
from itertools import count

import numpy as np
import pytest

from automaton_guides import AUTOMATA, short
from octavo import LLM, BeamSearchParams, GuidedParams, SamplingParams
from octavo.engine import token_work
from octavo.guided.byte_automaton import AutomatonState, AutomatonWalker, pack, unpack
from octavo.guided.choose import choose_guide
from octavo.sampling.automata import DeviceAutomata
from octavo_registry import PluginHost

KINDS = ("nested", "others", "short")


@pytest.fixture(scope="module")
def start():
    def start(**options) -> LLM:
        wanted = {"dtype": "float32", "num_threads": 1, "max_num_seqs": 12, **options}
        return LLM("octavo/tiny", plugins=["automaton_guides"], **wanted)

    return start


def guided(backend: str, kind: str = "nested", **more) -> SamplingParams:
    wanted = {"temperature": 1.0, "max_tokens": 20, **more}
    return SamplingParams(guided=GuidedParams(grammar=kind, backend=backend), **wanted)


def free(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=30, ignore_eos=True)


def ask(llm: LLM, *params: SamplingParams):
    """One request each, of prompts of different lengths."""
    prompts = [{"prompt_token_ids": list(range(300, 310 + 9 * i))} for i in range(len(params))]
    return llm.generate(prompts, list(params), use_tqdm=False)


def told(outputs) -> list[tuple]:
    """All that requests were told."""
    return [
        (output.error, each.token_ids, each.text, each.finish_reason, each.stop_reason)
        for output in outputs
        for each in output.outputs
    ]


def run(llm: LLM, backends: str) -> list[tuple]:
    """Rows of three automata and free ones, in turn, greedy and drawn."""
    params = []
    for i, backend in enumerate((backends.split() * 4)[:8]):
        if backend == "free":
            params.append(free(i))
        else:
            greedy = {"temperature": 0.0} if i % 4 == 1 else {}
            params.append(guided(backend, KINDS[i % 3], seed=i, **greedy))
    return told(ask(llm, *params))


@pytest.fixture(scope="module")
def llm(start):
    with start() as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(start) -> list[tuple]:
    with start(max_num_seqs=1, async_depth=1) as llm:
        return run(llm, "filled free")


def text_ends(kind: str, text: str) -> bool:
    walker = AutomatonWalker(AUTOMATA[kind])
    place = walker.walk(AutomatonState(), text.encode())
    assert place is not None, f"{text!r} is no {kind} text"
    return walker.may_end(place)


def test_texts_are_those_of_their_automata(expected) -> None:
    assert {error for error, *_ in expected} == {None}
    for i, (_, _, text, reason, _) in enumerate(expected):
        if i % 2 == 0:
            assert text_ends(KINDS[i % 3], text) or reason == "length"
    assert {reason for _, _, _, reason, _ in expected[::2]} == {"stop", "length"}
    assert any("a" in text for _, _, text, _, _ in expected[::2])


def test_tokens_are_those_of_masks_from_the_host(llm, expected) -> None:
    assert run(llm, "walked free") == expected
    assert run(llm, "walked free") == expected  # now from the prefix cache


def test_rows_that_the_host_masks_may_be_among_them(llm, expected) -> None:
    assert run(llm, "walked free filled free") == expected
    assert run(llm, "filled free walked free") == expected


def test_steps_of_masked_rows_await_nothing_and_are_planned_ahead(llm) -> None:
    core = llm._front.client._core
    plans = []
    submit = core._executor.submit
    core._executor.submit = lambda plan: plans.append(plan) or submit(plan)
    try:
        run(llm, "walked free")
    finally:
        core._executor.submit = submit
    assert any(plan.masked for plan in plans)
    assert not any(plan.awaits_masks for plan in plans)
    steady = [plan for plan, last in zip(plans[1:], plans, strict=False)
              if plan.slots is last.slots and plan.masked]  # fmt: skip
    assert len(steady) > 10


@pytest.mark.parametrize(
    "options",
    [
        {"async_depth": 1},
        {"async_depth": 3},
        {"max_num_batched_tokens": 16},
        {"num_blocks": 14, "block_size": 16, "max_model_len": 160},
        {"num_blocks": 14, "block_size": 16, "max_model_len": 160, "preemption_mode": "swap"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "backends", [pytest.param("walked free", marks=pytest.mark.slow), "walked free filled free"]
)
def test_tokens_do_not_depend_on_depth_chunks_or_preemption(
    start, expected, options, backends
) -> None:
    with start(**options) as llm:
        assert run(llm, backends) == expected
        stats = llm._front.client.call("stats")
        assert ("num_blocks" in options) == (stats["num_preemptions"] > 0)


def both(llm: LLM, kind: str = "nested", **more) -> list[tuple]:
    """What a request is told by each of the two, which is the same."""
    outputs = {}
    for backend in ("filled", "walked"):
        params = [free(0), guided(backend, kind, **more), free(1), guided(backend, kind, **more)]
        outputs[backend] = ask(llm, *params)
    assert told(outputs["walked"]) == told(outputs["filled"])
    return outputs["walked"][1::2]


def test_continuations_of_one_prompt_have_a_place_each(llm) -> None:
    outputs = both(llm, n=5, seed=3, temperature=3.0)
    texts = [each.text for each in outputs[0].outputs]
    assert len(set(texts)) == 5


@pytest.mark.parametrize(
    "more",
    [
        {"min_tokens": 9},
        {"max_tokens": 1},
        {"stop": ["s"]},
        {"stop": ["s"], "include_stop_str_in_output": True},
        {"stop_token_ids": list(range(300, 400, 2))},
        {"logit_bias": {72: 3.0, 80: 3.0}},
        {"repetition_penalty": 1.5, "top_k": 50, "top_p": 0.9},
        {"bad_words": ["s", " "]},
    ],
    ids=lambda more: next(iter(more)),
)
def test_other_parameters_mean_the_same(llm, more) -> None:
    assert all(output.error is None for output in both(llm, seed=5, **more))


@pytest.mark.parametrize("logprobs", [0, 3])
def test_logprobs_are_the_same(llm, logprobs) -> None:
    params = [guided(backend, seed=1, logprobs=logprobs) for backend in ("filled", "walked")]
    found = [ask(llm, each, free(0))[0].outputs[0].logprobs for each in params]
    assert len(found[0]) > 3
    for filled, walked in zip(*found, strict=True):
        assert walked.keys() == filled.keys()
        values = [[entry.logprob for entry in each.values()] for each in (filled, walked)]
        assert values[0] == pytest.approx(values[1], abs=1e-3)


@pytest.mark.parametrize("kind", ["nested", "short", "stuck", "empty"])
def test_beams_are_the_same(llm, kind) -> None:
    def beams(backend: str):
        params = BeamSearchParams(
            beam_width=3,
            max_tokens=5,
            guided=GuidedParams(grammar=kind, backend=backend),
        )
        outputs = llm.beam_search([{"prompt_token_ids": [300 + i, 301]} for i in range(2)], params)
        return [
            [(beam.token_ids, beam.finish_reason) for beam in output.sequences]
            for output in outputs
        ]

    found = beams("walked")
    assert found == beams("filled")
    assert any(found) or kind == "stuck"


def test_a_text_that_is_whole_at_once_ends_without_a_token(llm) -> None:
    (output, _) = both(llm, "empty")
    assert output.error is None
    assert [(each.text, each.finish_reason) for each in output.outputs] == [("", "stop")]


def test_where_no_token_goes_on_the_request_fails_as_with_masks_from_the_host(llm) -> None:
    (output, _) = both(llm, "stuck", seed=2)
    assert "no token continues" in output.error
    assert output.error_type == "DeadEndError"


@pytest.mark.parametrize("more", [{}, {"temperature": 0.0}, {"logprobs": 2}], ids=str)
def test_other_parameters_that_ban_all_that_may_come_fail_the_request(llm, more) -> None:
    (output, _) = both(llm, "short", allowed_token_ids=[20], **more)  # a digit
    assert "not allowed" in output.error
    assert output.outputs[0].token_ids == []


@pytest.fixture
def short_of_words(monkeypatch: pytest.MonkeyPatch):
    """Engines whose pool holds one automaton of those that ``run`` asks for."""
    words = max(len(pack(AUTOMATA[kind])) for kind in KINDS)
    monkeypatch.setattr(
        token_work, "Scheduler", partial(token_work.Scheduler, automaton_words=4 + words)
    )
    return words


def test_a_pool_too_small_for_two_automata_is_used_in_turn(short_of_words, start, expected) -> None:
    with start() as llm:
        assert run(llm, "walked free") == expected
        assert run(llm, "walked free filled free") == expected
        stats = llm._front.client.call("stats")
    assert stats["num_device_automata"] == 1
    assert stats["num_automaton_loads"] > len(KINDS)


def test_an_automaton_that_never_fits_fails_its_own_request(
    short_of_words, start, expected, monkeypatch
) -> None:
    with start() as llm:
        monkeypatch.setitem(AUTOMATA, "long", short(short_of_words))
        first, second = ask(llm, guided("walked", "long"), free(1))
        assert told([second]) == expected[1:2]
        assert "words; the engine has room for" in first.error
        assert first.error_type == "UnsupportedConstraint"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("what", ["load", "masks", "walk"])
def test_a_step_that_raises_changes_no_token(start, expected, monkeypatch, depth, what) -> None:
    """At the third time; by then others run, and an automaton may lie half written in the pool."""
    whole, times = getattr(DeviceAutomata, what), count()

    def failing(self, *args):
        number = next(times)
        if what == "load" or number != 3:
            found = whole(self, *args)
        if number == (1 if what == "load" else 3):
            raise RuntimeError("no memory")
        return found

    with start(async_depth=depth) as llm:
        monkeypatch.setattr(DeviceAutomata, what, failing)
        assert run(llm, "walked free filled free") == expected
        assert next(times) > 3


def test_a_schemas_automaton_goes_to_the_engine_with_its_request(llm, monkeypatch) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}, "tags": {"type": "array"}},
        "required": ["name", "tags"],
    }
    asked = GuidedParams(json=schema, backend="automaton")
    request = choose_guide(asked, PluginHost.discover())
    monkeypatch.setitem(AUTOMATA, "schema", unpack(np.frombuffer(request.automaton, np.int32)))
    walked = [SamplingParams(seed=i, max_tokens=40, guided=asked) for i in range(4)]
    filled = [guided("filled", "schema", seed=i, max_tokens=40) for i in range(4)]
    found = ask(llm, *walked)
    assert told(found) == told(ask(llm, *filled))
    whole = [o.outputs[0].text for o in found if o.outputs[0].finish_reason == "stop"]
    assert all(set(json.loads(text)) >= {"name", "tags"} for text in whole)


def test_a_device_without_memory_for_automata_fails_none_but_their_requests(
    start, expected, monkeypatch
) -> None:
    def fails(self, load) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(DeviceAutomata, "load", fails)
    with start() as llm:
        found = run(llm, "walked free filled free")
    assert found[1::2] == expected[1::2]
    assert found[2::4] == expected[2::4]
    assert all("no memory" in error for error, *_ in found[::4])
