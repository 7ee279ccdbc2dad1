"""Bodies that would take the parser long."""

from __future__ import annotations

import json

import pytest

from octavo.config.server import LimitConfig
from octavo.server.http import body
from octavo.server.http.body import parse_object
from octavo.server.http.errors import HttpError

LIMITS = LimitConfig(max_json_parts=1000)


def made(value: object) -> bytes:
    return json.dumps({"value": value}).encode()


@pytest.mark.parametrize(
    "value",
    [[1] * 1001, [[1]] * 501, [{}] * 501, ["a"] * 501],
    ids=["ids", "lists", "dicts", "texts"],
)
def test_too_many_parts_are_refused_before_they_are_made(monkeypatch, value) -> None:
    data = made(value)
    monkeypatch.setattr(body.json, "loads", None)
    with pytest.raises(HttpError, match="more than 1000 strings, lists and commas") as refused:
        parse_object(data, LIMITS)
    assert refused.value.status == 400


def test_what_is_inside_a_string_is_no_part() -> None:
    text = 'a, [b], {c}, "d", \\' * 1000
    assert parse_object(made(text), LIMITS) == {"value": text}


def test_as_many_parts_as_allowed_are_taken() -> None:
    value = [1] * 998  # 997 commas, the list, the object and the key
    assert parse_object(made(value), LIMITS) == {"value": value}


def test_quotes_without_an_end_are_refused_soon() -> None:
    with pytest.raises(HttpError, match="more than 1000"):
        parse_object(b'{"a": ' + b'""' * 1_000_000, LIMITS)
