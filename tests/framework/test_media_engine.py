"""Media in a running engine: encoded once, in room that is bounded, failing alone."""

from __future__ import annotations

import io
import itertools
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.engine.client import InProcessClient
from octavo.engine.core import EngineCore
from octavo.errors import EngineDeadError, PromptError
from octavo.execution.media_encoder import MediaEncoder
from octavo.inputs import InputProcessor
from octavo.inputs.media import MediaInputs, PlacedMedia
from octavo.multimodal.errors import BadMediaError, MediaTooLargeError
from tiny_llava import ROWS, make_tiny_llava, picture

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llava")
    make_tiny_llava(path)
    return path


def open_llm(folder: Path, **options: Any) -> LLM:
    settings = {"dtype": "float32", "num_threads": 1, "kv_cache_memory_gib": 0.05, **options}
    return LLM(str(folder), engine_process=False, **settings)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with open_llm(folder) as made:
        yield made


def prompt(text: str, *numbers: int) -> dict[str, Any]:
    pictures = [picture(number) for number in numbers]
    return {"prompt": "<image>" * len(numbers) + text, "multi_modal_data": {"image": pictures}}


def tokens(llm: LLM, prompts: list[Any], params: SamplingParams = PARAMS) -> list[list[int]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(each.token_ids) for output in outputs for each in output.outputs]


def counts(llm: LLM) -> tuple[int, int]:
    stats = llm._front.client.call("stats")
    return stats["num_media_encoded"], stats["num_media_reused"]


def test_sixteen_requests_on_one_picture_encode_it_once(llm) -> None:
    before, _ = counts(llm)
    tokens(llm, [prompt(f"question {number}", 0) for number in range(16)])
    assert counts(llm)[0] == before + 1
    tokens(llm, [prompt("once more", 0, 1)])
    assert counts(llm)[0] == before + 2


@pytest.mark.parametrize(("room", "batches"), [(3 * ROWS, [3]), (3 * ROWS - 1, [2, 1])])
def test_the_last_item_that_begins_in_a_step_is_encoded_in_it_if_there_is_room(
    folder, llm, monkeypatch, room, batches
) -> None:
    seen: list[int] = []
    encode = MediaEncoder.encode

    def counted(self: MediaEncoder, items: list[Any]) -> None:
        seen.extend([len(items)] if items else [])
        encode(self, items)

    request = prompt("three", 11, 12, 13)
    expected = tokens(llm, [request])
    monkeypatch.setattr(MediaEncoder, "encode", counted)
    steps = {"max_num_batched_tokens": 3 * ROWS - 1, "max_num_seqs": 1}
    with open_llm(folder, media_cache_tokens=room, **steps) as small:
        assert tokens(small, [request]) == expected
    assert seen == batches


def test_one_picture_twice_in_a_prompt_is_two_places_and_one_encoding(llm) -> None:
    before, _ = counts(llm)
    (twice,) = llm.generate(prompt("twice", 5, 5), PARAMS, use_tqdm=False)
    assert counts(llm)[0] == before + 1
    image = llm._front.tokenizer.hf.convert_tokens_to_ids("<image>")
    assert twice.prompt_token_ids.count(image) == 2 * ROWS


def test_an_item_that_the_cache_drops_while_its_request_is_read_is_there_all_the_same(
    llm, folder
) -> None:
    one_item = 6000 / 2**30

    def encoded(text: str, *numbers: int) -> dict[str, Any]:
        files = []
        for number in numbers:
            files.append(io.BytesIO())
            picture(number).save(files[-1], "PNG")
        media = {"image": [file.getvalue() for file in files]}
        return {"prompt": "<image>" * len(numbers) + text, "multi_modal_data": media}

    with open_llm(folder, mm_processor_cache_gb=one_item) as small:
        tokens(small, [encoded("first", 0)])
        assert tokens(small, [encoded("both", 1, 0)]) == tokens(llm, [prompt("both", 1, 0)])


def test_continuations_of_a_picture_are_those_of_a_request_alone(llm) -> None:
    params = SamplingParams(temperature=1, seed=3, n=3, max_tokens=6, ignore_eos=True)
    alone = tokens(llm, [prompt("several", 2)], params)
    crowd = [prompt("several", 2), prompt("other", 3), prompt("more", 4)]
    assert tokens(llm, crowd, params)[:3] == alone


def test_an_item_that_cannot_be_encoded_fails_its_request_alone(folder, monkeypatch) -> None:
    prompts = [prompt("one", 0), prompt("two", 1), prompt("bad", 7), prompt("four", 2)]
    encode = MediaEncoder.encode

    def fragile(self: MediaEncoder, items: list[Any]) -> None:
        if any(each.item.content_hash == poison for each in items):
            raise ValueError("these pixels cannot be")
        encode(self, items)

    with open_llm(folder) as llm:
        requests = [llm._preparing(each, PARAMS)() for each in prompts]
        poison = requests[2].request.media[0].content_hash
        expected = tokens(llm, prompts)
        llm.reset_prefix_cache()
    monkeypatch.setattr(MediaEncoder, "encode", fragile)
    with open_llm(folder) as llm:
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
    assert "these pixels cannot be" in str(outputs[2].error)
    for number in (0, 1, 3):
        assert list(outputs[number].outputs[0].token_ids) == expected[number]


def test_a_beam_search_refuses_media_rather_than_leaving_them_out(llm) -> None:
    with pytest.raises(ValueError, match="takes prompts of text"):
        llm.beam_search(prompt("one", 0), BeamSearchParams(beam_width=2, max_tokens=4))


def test_an_item_for_which_there_is_no_room_is_refused_by_name(folder) -> None:
    with open_llm(folder, media_cache_tokens=ROWS - 1) as llm:
        problem = f"image: .* media_cache_tokens={ROWS - 1} must be {ROWS} at least"
        with pytest.raises(MediaTooLargeError, match=problem):
            llm.generate(prompt("large", 0), PARAMS, use_tqdm=False)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"prompt": "no place", "multi_modal_data": {"image": picture(0)}}, "0 places for image"),
        ({"prompt": "<image><image>", "multi_modal_data": {"image": picture(0)}}, "2 places"),
        ("one <image>", "1 places for image items, and there are 0"),
        ({"prompt": "<image>", "multi_modal_data": {"image": []}}, "there are 0"),
        ({"prompt": "none", "multi_modal_uuids": {"image": "a"}}, "names 'image', of which"),
        ({"prompt": "<image>", "multi_modal_data": {"video": picture(0)}}, "takes no video"),
        ({"prompt": "<image>", "multi_modal_data": {"image": 5}}, "image"),
    ],
)
def test_media_that_fit_no_place_are_refused(llm, given, problem) -> None:
    with pytest.raises((PromptError, BadMediaError), match=problem):
        llm.generate(given, PARAMS, use_tqdm=False)


def test_a_place_that_a_chat_writes_itself_is_text_and_ids_are_taken_as_they_are(llm) -> None:
    place = llm.get_tokenizer().encode("<image>", add_special_tokens=False)
    (output,) = llm.chat([{"role": "user", "content": "<image>?"}], PARAMS, use_tqdm=False)
    assert set(place).isdisjoint(output.prompt_token_ids)
    ids = llm.get_tokenizer().encode("<image>?")
    (output,) = llm.generate([ids], PARAMS, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == PARAMS.max_tokens


def test_pictures_of_a_batch_are_read_at_once_and_draws_stay_in_order(folder, monkeypatch) -> None:
    params = SamplingParams(temperature=1, max_tokens=6, ignore_eos=True)
    prompts = [prompt("one", 0), prompt("two", 1)]
    with open_llm(folder, seed=5, media_threads=1) as llm:
        expected = tokens(llm, prompts, params)
    both = threading.Barrier(2, timeout=30)
    place = MediaInputs.place

    def together(self: MediaInputs, *args: Any, **kwargs: Any) -> PlacedMedia:
        first = both.wait() == 0
        placed = place(self, *args, **kwargs)
        time.sleep(0.05 * first)  # either may come first
        return placed

    monkeypatch.setattr(MediaInputs, "place", together)
    with open_llm(folder, seed=5, media_threads=2) as llm:
        assert tokens(llm, prompts, params) == expected


def test_requests_run_while_later_ones_are_prepared(folder, monkeypatch) -> None:
    first_ran = threading.Event()
    place, collect = MediaInputs.place, EngineCore._collect

    def place_last_late(self: MediaInputs, *args: Any, **kwargs: Any) -> PlacedMedia:
        placed = place(self, *args, **kwargs)
        if len(placed.token_ids) == longest:
            assert first_ran.wait(60)
        return placed

    def collected(self: EngineCore) -> Any:
        first_ran.set()
        return collect(self)

    prompts = [prompt("first", 0), prompt("and the last of all of them", 1)]
    with open_llm(folder, media_threads=2) as llm:
        expected = llm.generate(prompts, PARAMS, use_tqdm=False)
        longest = len(expected[1].prompt_token_ids)
        monkeypatch.setattr(MediaInputs, "place", place_last_late)
        monkeypatch.setattr(EngineCore, "_collect", collected)
        found = llm.generate(prompts, PARAMS, use_tqdm=False)
    assert first_ran.is_set()
    assert [o.outputs[0].token_ids for o in found] == [o.outputs[0].token_ids for o in expected]


def test_a_wrong_prompt_behind_one_that_runs_ends_the_call_and_leaves_nothing(llm) -> None:
    long = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    bad = {"prompt": "no place for it", "multi_modal_data": {"image": [picture(3)]}}
    with pytest.raises(PromptError):
        llm.generate([prompt("one", 0), prompt("two", 1), bad], long, use_tqdm=False)
    stats = llm._front.client.call("stats")
    assert stats["num_running"] == stats["num_waiting"] == 0
    assert len(tokens(llm, [prompt("one", 0)])[0]) == 6


def test_ctrl_c_while_prompts_are_prepared_ends_the_call_and_the_rest_is_not_read(
    folder, monkeypatch
) -> None:
    place, num_placed = MediaInputs.place, itertools.count(1)

    def interrupting(self: MediaInputs, *args: Any, **kwargs: Any) -> PlacedMedia:
        if next(num_placed) == 1:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.05)
        return place(self, *args, **kwargs)

    prompts = [prompt(f"number {number}", 0) for number in range(80)]
    with open_llm(folder, media_threads=2) as llm:
        monkeypatch.setattr(MediaInputs, "place", interrupting)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts, PARAMS, use_tqdm=False)
        reached = next(num_placed)
        time.sleep(0.3)
        assert next(num_placed) == reached + 1 < 80
        stats = llm._front.client.call("stats")
        assert stats["num_running"] == stats["num_waiting"] == 0
        assert len(tokens(llm, [prompt("after", 1)])[0]) == 6


def test_to_close_ends_a_call_whose_prompts_are_still_prepared(folder, monkeypatch) -> None:
    preparing, closing = threading.Event(), threading.Event()
    place = MediaInputs.place

    def late(self: MediaInputs, *args: Any, **kwargs: Any) -> PlacedMedia:
        preparing.set()
        assert closing.wait(60)
        return place(self, *args, **kwargs)

    monkeypatch.setattr(MediaInputs, "place", late)
    with open_llm(folder, media_threads=2) as llm:

        def close() -> None:
            assert preparing.wait(60)
            threading.Timer(1.5, closing.set).start()  # what is read must not be waited for
            llm.close()

        closer = threading.Thread(target=close)
        closer.start()
        with pytest.raises(EngineDeadError, match="closed"):
            llm.generate([prompt("one", 0), prompt("two", 1)], PARAMS, use_tqdm=False)
        closer.join(60)
    assert not closer.is_alive()


def test_a_request_that_is_made_is_queued_while_others_run(
    llm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step may take long: only what is queued by its end can be in the next."""
    prompts = [prompt("first", 91), prompt("second", 92), prompt("third", 93)]
    num_queued, waiting = 0, threading.Event()
    add, poll = InProcessClient.add, InProcessClient.poll
    process = InputProcessor.process

    def added(client: InProcessClient, requests: list[Any]) -> None:
        nonlocal num_queued
        num_queued += len(requests)
        add(client, requests)

    def polled(client: InProcessClient, seconds: float) -> Any:
        if num_queued == len(prompts):
            return poll(client, seconds)
        waiting.set()  # as a client whose engine is in a long step
        assert client._woken.wait(60), "nobody says that another request is made"
        client._woken.clear()
        return None

    def processed(inputs: InputProcessor, name: str, given: Any, *rest: Any, **more: Any) -> Any:
        assert given["prompt"] == prompts[0]["prompt"] or waiting.wait(60)
        return process(inputs, name, given, *rest, **more)

    monkeypatch.setattr(InProcessClient, "add", added)
    monkeypatch.setattr(InProcessClient, "poll", polled)
    monkeypatch.setattr(InputProcessor, "process", processed)
    assert len(tokens(llm, prompts)) == len(prompts)
