"""Prompts and parameters are checked on the host and put into ids."""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec
import numpy as np
import pytest

import sample_tokenizers
from octavo.errors import (
    ModelError,
    OctavoError,
    ParameterError,
    PluginError,
    PromptError,
    PromptTooLongError,
    UnsupportedConstraint,
)
from octavo.inputs import InputProcessor, split_prompts
from octavo.inputs.media import PlacedMedia
from octavo.messages import EngineRequest
from octavo.params import GuidedParams, SamplingParams
from octavo_registry.model import ModelCapabilities
from octavo_registry.tokenizer import Tokenizer

CONTEXT = 64


@pytest.fixture
def tokenizer() -> Tokenizer:
    return sample_tokenizers.load("byte_level")


@pytest.fixture
def processor(tokenizer: Tokenizer) -> InputProcessor:
    return InputProcessor(
        tokenizer,
        max_model_len=CONTEXT,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=(1,),
        takes_priority=True,
    )


def test_all_forms_of_a_prompt_give_the_same_ids(
    processor: InputProcessor, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("the lazy dog")
    forms: list[Any] = [
        "the lazy dog",
        {"prompt": "the lazy dog"},
        {"prompt_token_ids": ids},
        {"prompt_token_ids": tuple(ids), "prompt": "shown"},
        ids,
        {"prompt": "the lazy dog", "multi_modal_data": None},
    ]
    prepared = [processor.process(str(i), form) for i, form in enumerate(forms)]
    assert all(p.request.prompt_token_ids == ids for p in prepared)
    texts = ["the lazy dog", "the lazy dog", None, "shown", None, "the lazy dog"]
    assert [p.prompt for p in prepared] == texts


def test_one_prompt_or_many_become_a_list() -> None:
    assert split_prompts("a") == ["a"]
    assert split_prompts({"prompt": "a"}) == [{"prompt": "a"}]
    assert split_prompts([1, 2]) == [[1, 2]]
    assert split_prompts([[1, 2], "a"]) == [[1, 2], "a"]
    assert split_prompts([]) == []


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ("half \ud83d pair", "character 5 is half of a surrogate pair"),
        (3.5, "must be text, token ids or a dict, not float"),
        ({"promt": "a"}, r"no key 'promt'; known: prompt, prompt_token_ids"),
        ({"multi_modal_data": {}}, "needs 'prompt' .* or 'prompt_token_ids'"),
        ({"prompt": 1}, "prompt must be text, not int"),
        ({"prompt_token_ids": "abc"}, "prompt_token_ids must be a list, not str"),
        ([5, -1], "token 1 is -1, outside the vocabulary"),
        ([5, 10**9], "token 1 is 1000000000, outside the vocabulary"),
        ([5, True], "token 1 is True of type bool"),
        ([5, "a"], "token 1 is 'a' of type str"),
        ([5, 2.0], "token 1 is 2.0 of type float"),
        ([5] * CONTEXT, "prompt is too long: 64 tokens > 63 maximum, .* truncate_prompt_tokens=63"),
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "takes no image input, only: text"),
        ({"prompt": "a", "cache_salt": "ä"}, "cache_salt='ä' must have at most 128"),
        ({"prompt": "a", "cache_salt": []}, r"cache_salt=\[\] must have at most 128"),
        ([10**5000], "token 0 is <int>, outside the vocabulary"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_refused(
    processor: InputProcessor, prompt: Any, message: str
) -> None:
    with pytest.raises((PromptError, ParameterError), match=message):
        processor.process("r", prompt)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stop_token_ids": [10**6]}, "stop_token_ids names id 1000000"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids names id 1000000"),
        ({"logit_bias": {10**6: 1.0}}, "logit_bias names id 1000000"),
        ({"min_tokens": 64, "max_tokens": None}, "min_tokens=64 do not fit: 2 prompt tokens"),
        ({"guided": GuidedParams(regex="a+")}, "regex cannot be enforced here"),
        ({"allowed_token_ids": [1], "min_tokens": 2}, "allowed_token_ids leaves no token"),
        ({"extra_args": {1: 2}}, "extra_args must be made of JSON types.*Expected `str`"),
        ({"extra_args": {"a": object()}}, "extra_args must be made of JSON types"),
        ({"extra_args": {"a": 10**30}}, "extra_args must be made of JSON types"),
    ],
)
def test_parameters_that_this_model_cannot_honour_are_refused(
    processor: InputProcessor, params: dict[str, Any], message: str
) -> None:
    with pytest.raises((ParameterError, UnsupportedConstraint), match=message):
        processor.process("r", [5, 6], SamplingParams(**params))


def test_more_logprobs_than_the_vocabulary_holds_are_refused() -> None:
    processor = InputProcessor(None, max_model_len=8, vocab_size=10)
    for name in ("logprobs", "prompt_logprobs"):
        with pytest.raises(ParameterError, match=f"{name}=11 is above the vocabulary of 10"):
            processor.process("r", [5], SamplingParams(**{name: 11}))


def test_max_tokens_are_what_the_context_leaves_at_most(processor: InputProcessor) -> None:
    def resolved(max_tokens: int | None) -> int:
        params = SamplingParams(max_tokens=max_tokens)
        return processor.process("r", [5] * 60, params).request.sampling.max_tokens

    assert (resolved(None), resolved(3), resolved(1000)) == (4, 3, 4)


def test_truncation_keeps_the_last_tokens(processor: InputProcessor) -> None:
    ids = list(range(3, 103))
    prepared = processor.process("r", ids, SamplingParams(truncate_prompt_tokens=10))
    assert prepared.request.prompt_token_ids == ids[-10:]


def test_a_bad_word_is_banned_as_it_is_spelled_with_and_without_a_space(
    processor: InputProcessor, tokenizer: Tokenizer
) -> None:
    prepared = processor.process("r", [5], SamplingParams(bad_words=["dog", " fox"]))
    banned = prepared.request.sampling.bad_word_ids
    assert [tokenizer.decode(ids) for ids in banned] == ["dog", " dog", " fox"]


def test_a_bad_word_of_more_tokens_than_its_table_holds_is_refused(
    processor: InputProcessor,
) -> None:
    with pytest.raises(ParameterError, match=r"bad word .* has \d+ tokens .*; at most 32"):
        processor.process("r", [5], SamplingParams(bad_words=["\u0915" * 33]))


def test_end_of_sequence_ids_are_left_out_on_request(processor: InputProcessor) -> None:
    def eos(**params: Any) -> tuple[int, ...]:
        return processor.process("r", [5], SamplingParams(**params)).request.sampling.eos_token_ids

    assert (eos(), eos(ignore_eos=True)) == ((1,), ())


def test_an_end_of_sequence_id_outside_the_vocabulary_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        processor = InputProcessor(None, max_model_len=8, vocab_size=10, eos_token_ids=(2, 99))
    assert "outside the vocabulary of 10" in caplog.text
    assert processor.process("r", [5]).request.sampling.eos_token_ids == (2,)


@pytest.mark.parametrize("seed", [-(2**63), -5, 0, 2**63 - 1])
def test_a_seed_is_kept_within_what_sequences_can_add_to(
    processor: InputProcessor, seed: int
) -> None:
    def resolved(value: int | None) -> int:
        return processor.process("r", [5], SamplingParams(seed=value)).request.sampling.seed

    assert resolved(seed) == resolved(seed)
    assert 0 <= resolved(seed) < 2**62


def test_without_a_seed_each_request_draws_its_own(processor: InputProcessor) -> None:
    seeds = {
        processor.process("r", [5], SamplingParams(seed=seed)).request.sampling.seed
        for seed in (None, None, -1, -1)
    }
    assert len(seeds) == 4


def test_the_engines_seed_repeats_the_seeds_of_requests_without_one() -> None:
    def seeds(seed: int) -> list[int]:
        processor = InputProcessor(None, max_model_len=8, vocab_size=10, seed=seed)
        return [processor.process("r", [5]).request.sampling.seed for _ in range(3)]

    assert seeds(1) == seeds(1) != seeds(2)


def test_a_priority_that_nothing_looks_at_is_refused() -> None:
    processor = InputProcessor(None, max_model_len=8, vocab_size=10)
    with pytest.raises(ParameterError, match="scheduling_policy='priority'"):
        processor.process("r", [5], priority=1)


def test_text_that_no_context_holds_is_refused_before_it_is_tokenized(
    processor: InputProcessor,
) -> None:
    with pytest.raises(PromptError, match="10000000 characters"):
        processor.process("r", "a" * 10**7)


class CountingTokenizer:
    """A token for each character, but for blanks: those of a run are one."""

    def __init__(self) -> None:
        self.num_chars = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.num_chars += len(text)
        return [ord(char) % 10 for char in re.sub(" +", " ", text)]


def test_a_text_too_long_is_counted_no_further_than_that_shows() -> None:
    counting: Any = CountingTokenizer()
    processor = InputProcessor(counting, max_model_len=20_000, vocab_size=10)
    with pytest.raises(PromptTooLongError, match="2000000 characters"):
        processor.process("r", "a" * 2_000_000)
    assert counting.num_chars < 200_000
    text = "a" + " " * 2_000_000 + "b" * 19_000  # more than usual fits
    assert len(processor.process("r", text).request.prompt_token_ids) == 19_002


def test_of_a_text_that_is_cut_no_more_is_tokenized_than_can_be_kept() -> None:
    counting: Any = CountingTokenizer()
    processor = InputProcessor(counting, max_model_len=20_000, vocab_size=10)
    text = "".join(chr(97 + i % 7) for i in range(2_000_000))
    ids = processor.process("r", text, SamplingParams(truncate_prompt_tokens=15_000))
    assert ids.request.prompt_token_ids == [ord(char) % 10 for char in text[-15_000:]]
    assert counting.num_chars < 400_000


def test_sequence_ids_never_repeat(processor: InputProcessor) -> None:
    first = processor.process("a", [5], SamplingParams(n=3)).request.sequences
    second = processor.process("b", [5], SamplingParams(n=2)).request.sequences
    assert len({*first, *second}) == 5


def test_salt_priority_and_adapter_reach_the_engine(processor: InputProcessor) -> None:
    request = processor.process("r", [5], priority=-3, cache_salt="a_B-9", adapter="abc").request
    assert (request.priority, request.cache_salt, request.adapter) == (-3, "a_B-9", "abc")
    from_prompt = processor.process("r", {"prompt": "a", "cache_salt": "s"}).request
    assert from_prompt.cache_salt == "s"
    for bad in ({"cache_salt": "x" * 129}, {"cache_salt": "a\n"}, {"priority": 2**40}):
        with pytest.raises(ParameterError):
            processor.process("r", [5], **bad)  # type: ignore[arg-type]


def test_the_models_defaults_hold_when_no_parameters_are_given() -> None:
    defaults = SamplingParams(temperature=0.25, max_tokens=2)
    processor = InputProcessor(None, max_model_len=8, vocab_size=10, default_params=defaults)
    prepared = processor.process("r", [5])
    assert prepared.params is defaults
    assert (prepared.request.sampling.temperature, prepared.request.sampling.max_tokens) == (
        0.25,
        2,
    )


def test_without_a_tokenizer_only_ids_and_what_needs_no_text_work() -> None:
    processor = InputProcessor(None, max_model_len=8, vocab_size=10)
    assert processor.process("r", [5]).request.prompt_token_ids == [5]
    with pytest.raises(PromptError, match="skip_tokenizer_init"):
        processor.process("r", "text")
    for params in (SamplingParams(stop="x"), SamplingParams(bad_words=["x"])):
        with pytest.raises(ParameterError, match="tokenizer"):
            processor.process("r", [5], params)


def test_media_for_a_model_that_takes_none_is_refused(tokenizer: Tokenizer) -> None:
    processor = InputProcessor(tokenizer, max_model_len=8, vocab_size=tokenizer.vocab_size)
    with pytest.raises(OctavoError, match="takes no image input"):
        processor.process("r", {"prompt": "a", "multi_modal_data": {"image": object()}})


def test_names_of_media_are_those_of_the_requests_salt() -> None:
    """Otherwise a client could ask for what another has named."""
    salts = []

    class Media:
        special_tokens = True

        def split(self, data: object, uuids: object) -> list[Any]:
            return []

        def place(
            self, token_ids: list[int], given: object, *, salt: str, **options: object
        ) -> PlacedMedia:
            salts.append(salt)
            return PlacedMedia(token_ids=token_ids)

    processor = InputProcessor(
        None,
        max_model_len=8,
        vocab_size=10,
        capabilities=ModelCapabilities(modalities=frozenset({"image"})),
        media=Media(),  # type: ignore[arg-type]
    )
    prompt = {"prompt_token_ids": [5], "multi_modal_data": {"image": b""}}
    processor.process("r", prompt, cache_salt="mine")
    processor.process("r", {**prompt, "cache_salt": "yours"})
    assert salts == ["mine", "yours"]


def test_the_tokenizers_special_tokens_are_added_only_on_request() -> None:
    tokenizer = sample_tokenizers.load("byte_level")
    processor = InputProcessor(tokenizer, max_model_len=CONTEXT, vocab_size=tokenizer.vocab_size)
    plain = processor.process("r", "<s>a", add_special_tokens=False).request.prompt_token_ids
    assert plain[0] == tokenizer.bos_token_id


def test_prompts_that_are_no_list_are_refused() -> None:
    for prompts in (None, 3, object()):
        with pytest.raises(PromptError, match="prompts must be one prompt or a list of them"):
            split_prompts(prompts)  # type: ignore[arg-type]


def test_what_a_request_carries_can_cross_to_an_engine_process(processor: InputProcessor) -> None:
    half = np.float64(0.5)
    params = SamplingParams(
        temperature=half, top_p=half, min_p=half, presence_penalty=half, logit_bias={3: half}
    )
    prepared = processor.process(np.str_("r"), {"prompt": "a", "cache_salt": np.str_("b")}, params)
    data = msgspec.msgpack.encode(prepared.request)
    assert msgspec.msgpack.decode(data, type=EngineRequest) == prepared.request


@pytest.mark.parametrize("request_id", [5, b"r", "", "two\nlines", "\ud800", "r" * 257])
def test_a_request_id_that_a_log_or_an_engine_cannot_take_is_refused(
    processor: InputProcessor, request_id: Any
) -> None:
    with pytest.raises(ParameterError, match=r"request_id=.* must have 1 to 256 printable"):
        processor.process(request_id, "a")


def test_parameters_of_another_type_are_refused(processor: InputProcessor) -> None:
    for params in ({}, "x", {"max_tokens": 3}):
        with pytest.raises(ParameterError, match=r"sampling_params=.* must be SamplingParams"):
            processor.process("r", "a", params)  # type: ignore[arg-type]


def test_more_end_of_sequence_ids_than_are_looked_for_are_refused() -> None:
    with pytest.raises(ModelError, match="names 9 end of sequence ids, and at most 8"):
        InputProcessor(None, max_model_len=8, vocab_size=99, eos_token_ids=tuple(range(9)))


def test_a_tokenizer_that_raises_is_no_error_of_the_prompt(tokenizer: Tokenizer) -> None:
    class Raising:
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            raise RuntimeError("no\nway")

    broken: Any = Raising()
    processor = InputProcessor(broken, max_model_len=8, vocab_size=99)
    with pytest.raises(PluginError, match=r"the tokenizer failed in encode: RuntimeError: no way"):
        processor.process("r", "a")


@pytest.mark.parametrize("wrong", [-1, CONTEXT - 1, CONTEXT, 2**31 - 1])
@pytest.mark.parametrize("token", [0, 1])
def test_positions_outside_the_context_never_leave_the_host(wrong: int, token: int) -> None:
    positions_AP = np.array([[0, 1]] * 3, np.int32)
    positions_AP[1, token] = wrong
    placed = PlacedMedia(token_ids=[5, 6], positions=positions_AP.tobytes())
    if (wrong, token) == (CONTEXT - 1, 0):  # the last one, and the answer goes on from 2
        assert placed.check_positions(CONTEXT) == 2
    else:
        with pytest.raises(PromptTooLongError, match="the context has 0 to 63"):
            placed.check_positions(CONTEXT)


def test_an_answer_goes_on_from_the_highest_position_of_the_last_token() -> None:
    positions_AP = np.array([[0, 40], [0, 1], [0, 1]], np.int32)
    placed = PlacedMedia(token_ids=[5, 6], positions=positions_AP.tobytes())
    assert placed.check_positions(CONTEXT) == 41
    assert PlacedMedia(token_ids=[5, 6]).check_positions(CONTEXT) == 2
