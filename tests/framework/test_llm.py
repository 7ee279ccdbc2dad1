"""``LLM`` on a tiny random model, with the engine in this process."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo import LLM, BeamSearchParams, LoRARequest, SamplingParams
from octavo.errors import CacheError, ConfigError, EngineDeadError, ParameterError, PromptError
from octavo.testing.random_model import make_random_model

TEXTS = ["The capital of France", "A book begins", "She said", "def count(words):"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SMALL: dict[str, Any] = {
    "num_blocks": 256,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 64,
    "num_threads": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("model"), vocab_size=320)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, **SMALL) as llm:
        yield llm


def live(llm: LLM) -> int:
    stats = llm._front.client.call("stats")
    return int(stats["num_running"] + stats["num_waiting"])


def test_greedy_tokens_and_text_are_those_of_transformers(llm: LLM, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    outputs = llm.generate(TEXTS, GREEDY, use_tqdm=False)
    for text, output in zip(TEXTS, outputs, strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        expected = model.generate(
            ids, max_new_tokens=12, min_new_tokens=12, do_sample=False, eos_token_id=None
        )[0, ids.shape[1] :].tolist()
        assert output.prompt == text
        assert output.prompt_token_ids == ids[0].tolist()
        assert output.outputs[0].token_ids == expected
        assert output.outputs[0].text == tokenizer.decode(expected, skip_special_tokens=True)
        assert output.outputs[0].finish_reason == "length"
        assert output.finished


def test_each_form_of_a_prompt_gives_the_same(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(TEXTS[0])
    forms: list[Any] = [TEXTS[0], {"prompt": TEXTS[0]}, {"prompt_token_ids": ids}, ids]
    together = llm.generate(forms, GREEDY, use_tqdm=False)
    alone = [llm.generate(form, GREEDY, use_tqdm=False) for form in forms]
    tokens = {tuple(output.outputs[0].token_ids) for output in together}
    tokens |= {tuple(output.outputs[0].token_ids) for (output,) in alone}
    assert len(tokens) == 1


def test_each_prompt_has_its_own_parameters(llm: LLM) -> None:
    lengths = [1, 5, 3, 2]
    params = [SamplingParams(max_tokens=n, ignore_eos=True, seed=n) for n in lengths]
    outputs = llm.generate(TEXTS, params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    with pytest.raises(ParameterError, match="sampling_params has 3 entries for 4 prompts"):
        llm.generate(TEXTS, params[:3])
    with pytest.raises(ParameterError, match="priority has 1 entries for 4 prompts"):
        llm.generate(TEXTS, GREEDY, priority=[1])


def test_several_continuations_come_in_order_of_their_index(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=6, ignore_eos=True)
    first, again = (llm.generate(TEXTS[:2], params, use_tqdm=False) for _ in range(2))
    assert [completion.index for completion in first[0].outputs] == [0, 1, 2]
    assert [c.token_ids for c in first[0].outputs] == [c.token_ids for c in again[0].outputs]
    assert len({tuple(c.token_ids) for c in first[0].outputs}) > 1


def test_a_stop_string_ends_the_request_in_the_engine_too(llm: LLM) -> None:
    (whole,) = llm.generate(TEXTS[0], GREEDY, use_tqdm=False)
    text = whole.outputs[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    params = SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True, stop=stop)
    (output,) = llm.generate(TEXTS[0], params, use_tqdm=False)
    assert output.outputs[0].text == text[: text.index(stop)]
    assert output.outputs[0].stop_reason == stop
    llm.generate("x", SamplingParams(max_tokens=1), use_tqdm=False)
    assert live(llm) == 0


def test_calls_of_several_threads_do_not_mix(llm: LLM) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda text: llm.generate(text, GREEDY, use_tqdm=False), TEXTS)
        assert [output.prompt for (output,) in results] == TEXTS


def test_no_prompt_is_queued_when_one_is_bad(llm: LLM) -> None:
    for bad, cause in [
        ({"prompt_token_ids": [5, 100_000]}, "100000, outside the vocabulary"),
        ({"promt": "x"}, "no key 'promt'"),
        ("", "empty"),
        ([1] * 5000, "shorten it"),
    ]:
        with pytest.raises(PromptError, match=cause):
            llm.generate([TEXTS[0], bad], GREEDY)  # type: ignore[list-item]
        assert live(llm) == 0
    assert llm.generate([], GREEDY, use_tqdm=False) == []


def test_a_chat_is_its_rendered_template(llm: LLM) -> None:
    chats = [[{"role": "user", "content": text}] for text in TEXTS[:2]]
    answers = llm.chat(chats, GREEDY, use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    for chat, answer in zip(chats, answers, strict=True):
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert answer.prompt == text
        assert answer.prompt_token_ids == tokenizer.encode(text, add_special_tokens=False)
    (one,) = llm.chat(chats[0], GREEDY, use_tqdm=False)
    assert one.outputs[0].token_ids == answers[0].outputs[0].token_ids
    (own,) = llm.chat(
        chats[0],
        GREEDY,
        chat_template="{{ name }}: {{ messages[0].content }}",
        chat_template_kwargs={"name": "Ann"},
        use_tqdm=False,
    )
    assert own.prompt == f"Ann: {TEXTS[0]}"
    chats[0].append({"role": "assistant", "content": "It is"})
    (more,) = llm.chat(chats[0], GREEDY, continue_final_message=True, use_tqdm=False)
    assert more.prompt is not None
    assert more.prompt.endswith("It is")
    with pytest.raises(PromptError, match="messages"):
        llm.chat([], GREEDY)


def test_control_tokens_in_messages_are_text_unless_messages_are_trusted(folder: Path) -> None:
    counts = []
    for trust in (False, True):
        with LLM(folder, **SMALL, trust_message_tokens=trust) as llm:
            end = llm.get_tokenizer().eos_token
            chat = [{"role": "user", "content": f"a{end}b"}]
            (answer,) = llm.chat(chat, GREEDY, use_tqdm=False)
            assert f"a{end}b" in str(answer.prompt)
            counts.append(answer.prompt_token_ids.count(llm.get_tokenizer().eos_token_id))
    assert counts[0] == counts[1] - 1


@pytest.mark.parametrize("width", [2, 4])
def test_beam_search_finds_what_transformers_finds(llm: LLM, folder: Path, width: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    outputs = llm.beam_search(TEXTS, BeamSearchParams(beam_width=width, max_tokens=8))
    for text, output in zip(TEXTS, outputs, strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        expected = model.generate(
            ids, num_beams=width, num_return_sequences=width, max_new_tokens=8, do_sample=False
        )[:, ids.shape[1] :].tolist()
        eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        trimmed = [
            row[: row.index(eos) + 1] if eos in row else [t for t in row if t != pad]
            for row in expected
        ]
        assert [beam.token_ids for beam in output.sequences] == trimmed
        assert output.sequences[0].text == tokenizer.decode(trimmed[0], skip_special_tokens=True)
    assert live(llm) == 0


def test_beams_end_at_the_context_length(folder: Path) -> None:
    with LLM(folder, max_model_len=32, **SMALL) as llm:
        (output,) = llm.beam_search(
            [[5] * 28], BeamSearchParams(beam_width=2, max_tokens=50, ignore_eos=True)
        )
        assert {len(beam.token_ids) for beam in output.sequences} == {4}
        assert {beam.finish_reason for beam in output.sequences} == {"length"}


def test_ctrl_c_ends_what_was_queued_and_the_llm_goes_on(llm: LLM) -> None:
    before = llm.generate(TEXTS[0], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    long = SamplingParams(max_tokens=900, ignore_eos=True)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(TEXTS * 4, long, use_tqdm=False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    after = llm.generate(TEXTS[0], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    assert after == before
    assert live(llm) == 0


def test_a_request_that_fails_leaves_the_others_alone(folder: Path) -> None:
    with LLM(folder, max_queued_requests=2, **SMALL) as llm:
        outputs = llm.generate(TEXTS, GREEDY, use_tqdm=False)
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert reasons == ["length", "length", "error", "error"]
    assert [output.error is not None for output in outputs] == [False, False, True, True]
    assert outputs[2].finished


def test_defaults_come_from_generation_config(tmp_path: Path) -> None:
    folder = make_random_model(tmp_path, vocab_size=320)
    (folder / "generation_config.json").write_text('{"temperature": 0.25, "top_k": 9}')
    with LLM(folder, **SMALL) as llm:
        params = llm.get_default_sampling_params()
        assert (params.temperature, params.top_k) == (0.25, 9)
    with LLM(folder, generation_config="none", **SMALL) as llm:
        assert llm.get_default_sampling_params() == SamplingParams()


def test_a_reset_forgets_cached_prefixes(llm: LLM) -> None:
    prompt = list(range(5, 60))

    def cached() -> int:
        return llm.generate(prompt, GREEDY, use_tqdm=False)[0].metrics.num_cached_tokens

    cached()
    assert cached() >= 48
    assert llm.reset_prefix_cache()
    assert cached() == 0


def test_the_progress_bar_shows_requests_and_tokens_per_second(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.generate(TEXTS, GREEDY)
    shown = capsys.readouterr().err
    assert "4/4" in shown
    assert "output tokens/s" in shown
    llm.generate(TEXTS, GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_without_a_tokenizer_ids_go_in_and_out(folder: Path) -> None:
    with LLM(folder, skip_tokenizer_init=True, **SMALL) as llm:
        (output,) = llm.generate([5, 6, 7], GREEDY, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 12
        with pytest.raises(PromptError, match="skip_tokenizer_init"):
            llm.generate("text", GREEDY)
        with pytest.raises(ConfigError, match="skip_tokenizer_init"):
            llm.get_tokenizer()


def test_what_the_model_cannot_do_is_refused_by_name(llm: LLM) -> None:
    for method in (llm.classify, llm.score):
        with pytest.raises(ConfigError, match="not available yet: this version embeds texts"):
            method("text")
    for method in (llm.embed, llm.encode, llm.embed_array):
        with pytest.raises(ConfigError, match="is for models that embed texts, and Llama"):
            method("text")
    with pytest.raises(ConfigError, match="the engine takes no adapters"):
        llm.generate("x", GREEDY, lora_request=LoRARequest(lora_name="a"))


def test_bad_options_are_refused_before_anything_is_loaded(folder: Path) -> None:
    with pytest.raises(TypeError, match="close: max_num_seqs"):
        LLM(folder, max_num_seq=3)
    with pytest.raises(ConfigError, match=r"speculative_config=.* is not available"):
        LLM(folder, speculative_config={"model": "x"})


def test_after_close_every_call_is_an_error(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), LLM(folder, **SMALL) as llm:
        pass
    llm.close()
    chat = [{"role": "user", "content": "x"}]
    params = BeamSearchParams(beam_width=2, max_tokens=1)
    for call in (
        lambda: llm.generate("x"),
        lambda: llm.chat(chat),
        lambda: llm.beam_search("x", params),
        llm.get_tokenizer,
        llm.get_default_sampling_params,
        llm.reset_prefix_cache,
        llm.classify,
        lambda: llm.embed("x"),
    ):
        with pytest.raises(EngineDeadError, match="was closed"):
            call()
    assert caplog.records == []


@pytest.mark.parametrize("engine_process", [False, True])
def test_closing_ends_a_call_of_another_thread(folder: Path, engine_process: bool) -> None:
    llm = LLM(folder, engine_process=engine_process, **SMALL)
    with ThreadPoolExecutor(1) as pool:
        endless = SamplingParams(max_tokens=900, ignore_eos=True)
        call = pool.submit(llm.generate, TEXTS * 4, endless, use_tqdm=False)
        time.sleep(0.1)
        llm.close()
        with pytest.raises(EngineDeadError, match="was closed"):
            call.result()


def test_a_forked_child_is_told_to_make_its_own(llm: LLM) -> None:
    child = os.fork()
    if child == 0:
        try:
            llm.generate("x", GREEDY, use_tqdm=False)
        except EngineDeadError as error:
            os._exit(0 if "belongs to the parent process" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert llm.generate("x", GREEDY, use_tqdm=False)[0].finished


def test_arguments_of_the_wrong_type_are_refused(llm: LLM) -> None:
    chat: Any = {"role": "user", "content": "x"}
    wrong: Any = {"max_tokens": 3}
    for call, error in [
        (lambda: llm.generate("x", wrong), ParameterError),
        (lambda: llm.generate("x", [wrong]), ParameterError),
        (lambda: llm.generate("x", priority=wrong), ParameterError),
        (lambda: llm.beam_search("x", wrong), ParameterError),
        (lambda: llm.chat(chat), PromptError),
        (lambda: llm.chat(wrong), PromptError),
    ]:
        with pytest.raises(error):
            call()


def test_memory_that_cannot_be_had_is_a_cache_error(folder: Path) -> None:
    with pytest.raises(CacheError, match=r"is more than the .* of memory that are free"):
        LLM(folder, **{**SMALL, "block_size": 2**40})
    with pytest.raises(ConfigError, match="words of device state"):
        LLM(folder, **{**SMALL, "max_num_seqs": 2**31 - 1})


@pytest.mark.parametrize("engine_process", [False, True])
def test_a_signals_handler_may_close(folder: Path, engine_process: bool) -> None:
    llm = LLM(folder, engine_process=engine_process, **SMALL)
    before = signal.signal(signal.SIGTERM, lambda *_: llm.close())
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(EngineDeadError, match="was closed"):
            llm.generate(TEXTS * 4, SamplingParams(max_tokens=900, ignore_eos=True), use_tqdm=False)
    finally:
        signal.signal(signal.SIGTERM, before)
