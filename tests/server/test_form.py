"""Forms with files: what is in them, however it is written, and what is none."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config.server import LimitConfig
from octavo.multimodal.pieces import QUIET_SECONDS, cut_where_quiet
from octavo.server.apis.transcriptions.body import Segment, compression_ratio, subtitles
from octavo.server.http.errors import HttpError
from octavo.server.http.form import MAX_PARTS, MAX_TEXT_BYTES, parse_form, read_form

names = st.text("abc[_", min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    fields=st.dictionaries(names, st.text(max_size=20), max_size=4),
    lists=st.lists(st.text(max_size=5), max_size=3),
    file=st.binary(max_size=200) | st.sampled_from([b"\r\n--", b"\r\n\r\n", b"--b\r\n--b--"]),
)
def test_what_a_client_sends_is_what_is_read(fields, lists, file) -> None:
    parts = [*((name, (None, value)) for name, value in fields.items())]
    parts += [("more[]", (None, each)) for each in lists]
    request = httpx.Request("POST", "http://x", files=[*parts, ("file", ("a.wav", file))])
    boundary = request.headers["content-type"].partition("boundary=")[2].encode()
    expected = {**fields, "file": file, **({"more": lists} if lists else {})}
    assert parse_form(request.read(), boundary) == expected


def part(head: str, content: bytes = b"x") -> bytes:
    return b"--b\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n"


NAMED = 'Content-Disposition: form-data; name="a"'


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "no end"),
        (part(NAMED), "no end"),
        (part(NAMED) + part(NAMED) + b"--b--", "given twice"),
        (part('Content-Disposition: form-data; name="a[]"') + part(NAMED) + b"--b--", "twice"),
        (part("Content-Disposition: form-data") + b"--b--", "no name"),
        (part("Content-Type: text/plain") + b"--b--", "no name"),
        (part(NAMED, b"\xff") + b"--b--", "not UTF-8"),
        (part("x" * 5000) + b"--b--", "headers"),
        (b"--bx\r\n--b--", "headers"),
        (part(NAMED) * (MAX_PARTS + 1) + b"--b--", "more than 64 parts"),
    ],
)
def test_what_is_no_form_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(HttpError, match=problem) as raised:
        parse_form(data, b"b")
    assert raised.value.status == 400


def test_a_field_of_text_is_no_longer_than_anybody_reads_and_a_file_may_be() -> None:
    ends, long = b"--b--", bytes(MAX_TEXT_BYTES + 1)
    with pytest.raises(HttpError, match="longer than 1 MiB") as raised:
        parse_form(part(NAMED, long) + ends, b"b")
    assert (raised.value.status, raised.value.param) == (413, "a")
    assert parse_form(part(NAMED, long[1:]) + ends, b"b") == {"a": long[1:].decode()}
    assert parse_form(part(NAMED + '; filename="f"', long) + ends, b"b") == {"a": long}


@pytest.mark.parametrize(
    ("content_type", "is_form"),
    [
        (b"multipart/form-data; boundary=b", True),
        (b"Multipart/Form-Data;charset=utf-8; Boundary=b", True),
        (b'multipart/form-data; x="1"; BOUNDARY="b"; charset=utf-8', True),
        (b"multipart/form-data; xboundary=b", False),
        (b"multipart/form-dataX; boundary=b", False),
        (b"multipart/form-data", False),
        (b"multipart/form-data; boundary=", False),
    ],
)
def test_a_content_type_is_read_as_rfc_2046_writes_it(content_type: bytes, is_form: bool) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": part(NAMED) + b"--b--", "more_body": False}

    headers = {b"content-type": content_type, b"transfer-encoding": b"chunked"}
    read = read_form(headers, receive, LimitConfig())
    if is_form:
        assert asyncio.run(read) == {"a": "x"}
        return
    with pytest.raises(HttpError, match="is not multipart") as raised:
        asyncio.run(read)
    assert raised.value.status == 415


@settings(max_examples=40, deadline=None)
@given(length=st.integers(0, 5000), seed=st.integers(0, 9))
def test_pieces_are_the_whole_and_none_is_too_long(length: int, seed: int) -> None:
    samples = np.random.default_rng(seed).normal(size=length).astype(np.float32)
    pieces = cut_where_quiet(samples, 100, 7.0)
    assert np.array_equal(np.concatenate(pieces), samples)
    assert max(map(len, pieces)) <= 700
    assert all(len(piece) > 700 * 5 / 6 - 1 for piece in pieces[:-1])


def test_a_cut_is_in_the_middle_of_the_longest_silence() -> None:
    samples = np.ones(20_000, np.float32)
    samples[9_200:9_300] = 0
    first, second = cut_where_quiet(samples[:12_000], 1000, 10.0)
    assert len(first) == 9_250
    assert len(first) + len(second) == 12_000
    assert QUIET_SECONDS == 0.1


def segment(number: int, start: float, end: float, text: str) -> Segment:
    return Segment(
        id=number,
        seek=0,
        start=start,
        end=end,
        text=text,
        tokens=[],
        temperature=0,
        avg_logprob=-1,
        compression_ratio=1,
        no_speech_prob=0,
    )


def test_subtitles_are_written_as_players_read_them() -> None:
    segments = [segment(0, 0, 1.5, " one"), segment(1, 3661.0315, 3662, " two --> three")]
    assert subtitles(segments, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\none\n\n2\n01:01:01,032 --> 01:01:02,000\ntwo -> three\n"
    )
    assert subtitles(segments, "vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\none\n\n"
        "01:01:01.032 --> 01:01:02.000\ntwo -> three\n"
    )
    assert compression_ratio("abc" * 100) > 10
