"""What ``octavo bench`` counts, and how it asks."""

from __future__ import annotations

import asyncio
import json
import math
import random
import socket
import statistics
from collections.abc import Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from unittest.mock import MagicMock
from xml.etree import ElementTree

import pytest

from octavo.benchmarking.load import LoadClient, TimedRequest
from octavo.benchmarking.picture import draw, nice
from octavo.benchmarking.processes import get, num_processes, put, run_load
from octavo.benchmarking.records import Record
from octavo.benchmarking.serve import ServeBench
from octavo.benchmarking.summary import meets, parse_goodput, percentile, summarize
from octavo.benchmarking.workload import (
    Ask,
    Lengths,
    arrivals,
    random_ids,
    random_texts,
    read_asks,
    timed_requests,
)
from octavo.cli import main
from octavo.client import parse_address
from octavo.errors import ConfigError

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str = "", finish: str | None = None, **more: object) -> bytes:
    body = {"choices": [{"text": text, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


END = event(usage={"prompt_tokens": 7, "completion_tokens": 3}, choices=[]) + b"data: [DONE]\n\n"
WHOLE = event("a") + event("b") + event("c", "length") + END
ANSWER = HEAD + chunk(WHOLE) + b"0\r\n\r\n"


@asynccontextmanager
async def answering(answer: Callable[[int, bytes], list[bytes] | None]):
    """A server whose answers are given as bytes by the number of the request; None hangs up."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            seen.append(head + body)
            pieces = answer(len(seen) - 1, head)
            for piece in pieces or ():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.002)
            if pieces is None or not pieces[-1].endswith(b"0\r\n\r\n"):
                writer.close()
                return

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield parse_address(f"http://127.0.0.1:{port}", "a-key"), seen


def requests(count: int) -> list[TimedRequest]:
    return [TimedRequest(number, 0.0, "/v1/completions", b"{}") for number in range(count)]


async def ask(answer: Callable[[int, bytes], list[bytes] | None], count: int = 1, **limits: int):
    async with answering(answer) as (address, seen):
        records = await LoadClient(address, **limits).run(requests(count), perf_counter())
    return records, seen


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40, 10_000])
async def test_a_stream_is_read_whatever_its_pieces(size: int) -> None:
    pieces = [ANSWER[i : i + size] for i in range(0, len(ANSWER), size)]
    (record,), _ = await ask(lambda number, head: pieces)
    assert (record.error, len(record.times)) == ("", 3)
    assert (record.num_prompt_tokens, record.num_output_tokens) == (7, 3)


async def test_chunks_may_cut_events_and_lines_may_end_as_on_windows() -> None:
    text = WHOLE.replace(b"\n", b"\r\n")
    cut = HEAD + b"".join(chunk(text[i : i + 5]) for i in range(0, len(text), 5)) + b"0\r\n\r\n"
    (record,), _ = await ask(lambda number, head: [cut])
    assert (record.error, len(record.times)) == ("", 3)


async def test_times_are_those_at_which_events_came() -> None:
    def answer(number: int, head: bytes) -> list[bytes]:
        return [HEAD, chunk(event("a")), chunk(event("b", "length")), b"0\r\n\r\n"]

    (record,), _ = await ask(answer)
    assert record.sent < record.times[0] < record.times[1] == record.ended
    assert record.ttft + record.gaps()[0] == pytest.approx(record.e2e)


async def test_connections_are_kept_and_one_that_was_closed_is_replaced() -> None:
    def answer(number: int, head: bytes) -> list[bytes] | None:
        return None if number == 1 else [ANSWER]

    records, seen = await ask(answer, 3, max_concurrency=1)
    assert [record.error for record in records] == ["", "", ""]
    assert len(seen) == 4


async def test_requests_carry_the_key_and_the_length() -> None:
    _, (seen,) = await ask(lambda number, head: [ANSWER])
    assert b"authorization: Bearer a-key\r\n" in seen
    assert b"content-length: 2\r\n" in seen


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'HTTP/1.1 503 No\r\ncontent-length: 30\r\n\r\n{"error":{"message":"is full"}}', "503"),
        (HEAD + chunk(event("a")), "broke off"),
        (HEAD + chunk(event("a")) + b"0\r\n\r\n", "without a finish_reason"),
        (HEAD + chunk(b'data: {"error": {"message": "boom"}}\n\n') + b"0\r\n\r\n", "boom"),
        (HEAD + chunk(b"data: nonsense\n\n"), "malformed"),
        (b"SSH-2.0-x\r\n\r\n", "no HTTP"),
        (HEAD + b"zz\r\n", "invalid literal"),
    ],
)
async def test_an_answer_that_is_not_whole_is_an_error(answer: bytes, said: str) -> None:
    (record,), _ = await ask(lambda number, head: [answer])
    assert said in record.error


async def test_no_more_requests_are_under_way_than_allowed() -> None:
    records, _ = await ask(lambda number, head: [ANSWER[:-5], ANSWER[-5:]], 12, max_concurrency=3)
    summary = summarize(records, {})
    assert (summary.completed, summary.peak_concurrency) == (12, 3)


@pytest.mark.parametrize(
    ("body", "num_events"),
    [
        ({"delta": {"role": "assistant", "content": ""}, "finish_reason": None}, 0),
        ({"delta": {"content": "x"}, "finish_reason": None}, 1),
        ({"delta": {"content": None, "reasoning_content": "x"}}, 1),
        ({"delta": {"content": ""}, "finish_reason": None}, 1),
        ({"delta": {}, "finish_reason": "stop"}, 0),
        ({"text": "", "finish_reason": "stop"}, 0),
    ],
)
async def test_what_counts_as_output(body: dict, num_events: int) -> None:
    data = b"data: " + json.dumps({"choices": [body]}).encode() + b"\n\n"
    (record,), _ = await ask(lambda n, head: [HEAD + chunk(data) + b"0\r\n\r\n"])
    assert len(record.times) == num_events


async def test_several_processes_share_a_load_and_tell_how_far_they_are() -> None:
    bar = MagicMock()
    async with answering(lambda number, head: [ANSWER]) as (address, _):
        outcomes = await asyncio.to_thread(
            run_load, address, requests(5), max_concurrency=4, processes=2, bar=bar
        )
    told = [call.kwargs for call in bar.advance.call_args_list]
    assert sum(each["num_requests"] for each in told) == 5
    assert sum(each["num_tokens"] for each in told) == 5 * 3
    assert sorted(r.number for o in outcomes for r in o.records) == [0, 1, 2, 3, 4]
    assert [len(outcome.records) for outcome in outcomes] == [3, 2]


def test_processes_grow_with_streams_and_leave_half_of_the_cores(monkeypatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert [num_processes(n) for n in (1, 128, 129, 10_000)] == [1, 1, 2, 3]


def test_a_message_is_whole_where_a_pipe_takes_a_part_at_a_time() -> None:
    class Narrow:
        data = b""

        def write(self, rest) -> int:
            self.data += bytes(rest[:3])
            return min(3, len(rest))

        def flush(self) -> None: ...

        def read(self, size: int) -> bytes:
            taken, self.data = self.data[:size], self.data[size:]
            return taken

    pipe = Narrow()
    put(pipe, b"0123456789")
    assert get(pipe) == b"0123456789"


def record(ttft: float, gap: float, tokens: int, *, error: str = "", sent: float = 0.0) -> Record:
    times = [sent + ttft + gap * index for index in range(tokens)]
    return Record(0, sent, times, times[-1], 10, tokens, error)


def test_figures_of_a_run() -> None:
    records = [record(0.1, 0.01, 11), record(0.3, 0.02, 11), record(9, 9, 2, error="refused")]
    records[2].ended = 0.4
    summary = summarize(records, {})
    assert (summary.completed, summary.failed, summary.errors) == (2, 1, {"refused": 1})
    assert summary.duration_seconds == pytest.approx(0.5)
    assert summary.output_throughput == pytest.approx(22 / 0.5)
    assert summary.ttft_ms.mean == pytest.approx(200)
    assert summary.tpot_ms.median == pytest.approx(15)
    assert summary.itl_ms.p99 == pytest.approx(20)
    assert summary.e2e_ms.p90 == pytest.approx(200 + 0.9 * 300)
    assert summary.goodput is None


def test_percentiles_are_those_of_the_standard_library() -> None:
    values = sorted(random.Random(0).random() for _ in range(37))
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert [percentile(values, p / 100) for p in (50, 90, 99)] == pytest.approx(
        [cuts[49], cuts[89], cuts[98]]
    )


def test_goodput_counts_whole_answers_within_all_limits() -> None:
    asked = parse_goodput(["ttft:200", "itl:50"])
    assert meets(record(0.1, 0.04, 5), asked)
    assert not meets(record(0.3, 0.04, 5), asked)
    assert not meets(record(0.1, 0.06, 5), asked)
    assert not meets(record(0.1, 0.04, 5, error="cut"), asked)
    assert summarize([record(0.1, 0.1, 2), record(0.3, 0.1, 8)], {"ttft": 200.0}).goodput == 1.0


@pytest.mark.parametrize("given", ["ttft", "ttft:", "ttft:-1", "ttft:nan", "speed:3", "itl:x"])
def test_a_limit_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="goodput"):
        parse_goodput([given])


def test_arrivals_keep_their_rate_and_are_a_poisson_process() -> None:
    times = arrivals(2001, 50.0, random.Random(1))
    gaps = [later - early for early, later in pairwise(times)]
    assert times[-1] == pytest.approx(40.0)
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.1)
    assert arrivals(3, math.inf, random.Random(1)) == [0.0, 0.0, 0.0]
    assert arrivals(1, 5.0, random.Random(1)) == [0.0]


def test_random_prompts_have_the_lengths_that_were_asked_for() -> None:
    lengths = Lengths(input_len=100, output_len=10, range_ratio=0.2)
    asks = list(random_ids(200, lengths, range(5, 9), random.Random(0)))
    assert {len(ask.prompt) for ask in asks} == set(range(80, 121))
    assert {ask.output_len for ask in asks} == set(range(8, 13))
    assert {i for ask in asks for i in ask.prompt} == {5, 6, 7, 8}
    (text,) = random_texts(1, Lengths(input_len=9, output_len=1), random.Random(0))
    assert len(text.prompt.replace(" ", "")) == 18


def test_a_body_has_no_fields_but_openais_unless_they_are_asked_for() -> None:
    ask = Ask(prompt="hello", output_len=5)
    more = {"endpoint": "chat", "model": "m", "extra": {"min_p": 0.5}}
    (with_eos,) = timed_requests([ask], [0.0], ignore_eos=True, **more)
    assert json.loads(with_eos.body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 5,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "min_p": 0.5,
    }
    (plain,) = timed_requests([ask], [0.0], ignore_eos=False, **more)
    assert "ignore_eos" not in json.loads(plain.body)


def test_a_file_gives_prompts_and_lengths_again_and_again(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "one", "max_tokens": 3}\n\n'
        '{"body": {"messages": [{"role": "user", "content": "two"}]}}\n'
    )
    asks = read_asks(file, 3, output_len=9)
    assert [(ask.prompt == "one", ask.output_len) for ask in asks] == [(1, 3), (0, 9), (1, 3)]
    assert asks[1].is_chat


@pytest.mark.parametrize(
    "line",
    ["{", "3", "{}", '{"prompt": 3}', '{"prompt": "a", "max_tokens": 0}', '{"messages": [1]}'],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"prompt": "a"}}\n{line}\n')
    with pytest.raises(ConfigError, match="line 2"):
        read_asks(file, 2, output_len=9)


@pytest.mark.parametrize(
    "given",
    [
        {"num_prompts": 0},
        {"request_rate": 0.0},
        {"request_rate": math.nan},
        {"max_concurrency": 0},
        {"range_ratio": 1.0},
        {"input_len": 0},
        {"endpoint": "embeddings"},
    ],
)
def test_a_load_that_cannot_be_is_refused(given: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        ServeBench(**given)


def test_a_picture_has_a_panel_for_each_measure_and_no_text_of_others() -> None:
    records = [record(0.1, 0.01, 11), record(0.3, 0.02, 11)]
    picture = draw(records, "<b>&</b>")
    titles = [
        node.text
        for node in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
        if node.get("class") == "title"
    ]
    assert titles == [
        "<b>&</b>",
        "time to first token",
        "time per output token",
        "inter-token latency",
        "end to end",
        "output tokens a second",
    ]
    assert "nan" not in picture
    ElementTree.fromstring(draw([], "nothing"))


def test_axes_end_at_round_numbers() -> None:
    assert [nice(v) for v in (0.0, 0.03, 1, 1.01, 37, 100, 812)] == [1, 0.04, 1, 2, 40, 100, 1000]


def test_a_server_that_is_not_there_is_one_line(capsys) -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert main(["bench", "serve", "--url", f"http://127.0.0.1:{port}"]) == 1
    assert "refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--url", "ftp://x"], "http://host:8000"),
        (["serve", "--url", "http://x", "--output-json", "/no/such/folder/x"], "no folder"),
        (["throughput", "nowhere", "--input-len", "0"], "input_len=0"),
        (["startup", "nowhere", "--num-warm", "-1"], "num_warm=-1"),
        (["startup", "nowhere", "--num-warm", "0"], "one of them must be above 0"),
        (["startup", "nowhere", "--max-num-seqs", "0"], "max_num_seqs=0"),
        (["startup", "nowhere", "--num-warm", "1"], "nowhere"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments: list[str], said: str, capsys) -> None:
    assert main(["bench", *arguments]) in (1, 2)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
