"""Constraints that are made to burn time and memory, alone and a hundred at once among others."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from live_server import LiveServer, running_server
from server_faults import children, named, resident_mib, until

AT_ONCE = 100
MOST_GROWTH_MIB = 300
"""Of all processes: what is refused leaves little behind, but for the memory of 100 threads."""
MOST_SECONDS = 90.0
"""A tenth of that is enough where nothing else runs."""
MOST_SECONDS_OF_OTHERS = 40.0
"""For a constraint that is not known: first tries of 100 bombs may come before it."""


def nested(depth: int, name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {name: schema}, "required": [name]}
    return schema


def one_property_each(name: str) -> dict[str, Any]:
    """The contrary of each alternative stands in all others."""
    return {
        "oneOf": [
            {"properties": {f"{name}{i}": {"type": "integer"}}, "required": [f"{name}{i}"]}
            for i in range(40)
        ]
    }


def combinations(name: str) -> dict[str, Any]:
    return {
        "allOf": [
            {"anyOf": [{"properties": {f"{name}{i}": {"const": j}}} for j in range(4)]}
            for i in range(12)
        ]
    }


def doubling(name: str, depth: int) -> str:
    """Lark that names 2 ** depth letters."""
    lines = [f"{name}{i}: {name}{i + 1} {name}{i + 1}" for i in range(depth)]
    return "\n".join([f"start: {name}0", *lines, f'{name}{depth}: "a"'])


def at_all_places(name: str) -> str:
    """Lark of a terminal that is forty patterns at once, each of them with a long memory."""
    patterns = [f"/(?s:.*)a.{{{i}}}{name}(?s:.*)/" for i in range(5, 45)]
    return f"start: T\nT: {' & '.join(patterns)}"


BOMBS: dict[str, Callable[[str], dict[str, Any]]] = {
    "deep nesting": lambda name: {"guided_json": nested(200, name)},
    "a reference to itself": lambda name: {
        "guided_json": {"$ref": f"#/$defs/{name}", "$defs": {name: {"$ref": f"#/$defs/{name}"}}}
    },
    "a recursion without an end": lambda name: {
        "guided_json": {
            "type": "object",
            "properties": {name: {"$ref": "#"}},
            "required": [name],
            "additionalProperties": False,
        }
    },
    "combinations of alternatives": lambda name: {"guided_json": combinations(name)},
    "contraries of alternatives": lambda name: {"guided_json": one_property_each(name)},
    "a huge enumeration": lambda name: {
        "guided_json": {"enum": [f"{name}{i}" for i in range(20000)]}
    },
    "a pattern of great length": lambda name: {
        "guided_json": {
            "type": "string",
            "pattern": f"^(.*{name}.{{30}})+$",
            "minLength": 3000,
            "maxLength": 50000,
        }
    },
    "parentheses": lambda name: {"guided_regex": "(" * 5000 + name + ")" * 5000},
    "choices": lambda name: {"guided_choice": [f"{name}{i}" * 40 for i in range(10000)]},
    "terminals that double": lambda name: {"guided_grammar": doubling(name.upper(), 30)},
    "rules that double": lambda name: {"guided_grammar": doubling(name, 60)},
    "a terminal of many patterns": lambda name: {"guided_grammar": at_all_places(name)},
    "parentheses of GBNF": lambda name: {
        "guided_grammar": f'root ::= {"(" * 60}"{name}"{"{1,50})" * 60}'
    },
}  # fmt: skip
"""By a name that makes it another one with the same effect."""
LONG = [
    "combinations of alternatives",
    "contraries of alternatives",
    "terminals that double",
    "a terminal of many patterns",
]
NORMAL: tuple[dict[str, Any], ...] = (
    {},
    {"guided_regex": "[ab]{3}-[0-9]"},
    {"guided_json": nested(3, "deep")},
    # Large, and no bombs: what is not used is not worked out.
    {"guided_regex": "((x{1,1000}){1,1000}){1,1000}"},
    {"guided_json": {"type": "array", "items": {"type": "string", "maxLength": 200_000}}},
)


def body(fields: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0, **fields}


HASTY = """
import sys
from octavo.cli import main
from octavo.guided import checking

checking.CPU_SECONDS, checking.LONG_WAIT_SECONDS = 0.4, 2.0
sys.exit(main())
"""
"""A fifth of what a constraint may take: what a hundred bombs do shows five times sooner."""


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("hasty")
    (folder / "octavo_hasty.py").write_text(HASTY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ["PYTHONPATH"]]))
        program = (sys.executable, "-P", "-m", "octavo_hasty")
        with running_server(folder / "log", program=program) as server:
            yield server


def memory_mib(server: LiveServer) -> float:
    """Of the server and its engine; children that compile have limits of their own."""
    pids = [server.process.pid, *children(server.process.pid)]
    compiling = set(named(server.process.pid, "octavo.guided"))
    return resident_mib(pid for pid in pids if pid not in compiling)


def assert_refused(name: str, reply: httpx.Response) -> None:
    assert reply.status_code == 400, (name, reply.text)
    assert reply.json()["error"]["type"] == "invalid_request_error", name


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [list(BOMBS), LONG], ids=["of all kinds", "that take long"])
async def test_a_hundred_bombs_among_others_are_refused_and_change_nothing(hasty, kinds) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=hasty.url, timeout=120, limits=limits) as http:

        async def ask(fields: dict[str, Any]) -> httpx.Response:
            return await http.post("/v1/completions", json=body(fields))

        async def answers() -> list[str]:
            replies = await asyncio.gather(*map(ask, NORMAL))
            assert {reply.status_code for reply in replies} == {200}, [r.text for r in replies]
            return [reply.json()["choices"][0]["text"] for reply in replies]

        async def new_choice(text: str) -> float:
            """Seconds to the answer of a request whose constraint nobody has seen before."""
            began = time.monotonic()
            reply = await ask({"guided_choice": [text]})
            assert reply.json()["choices"][0]["text"] == text
            return time.monotonic() - began

        before = await answers()
        memory = memory_mib(hasty)
        names = [kinds[number % len(kinds)] for number in range(AT_ONCE)]
        new = f"p{time.monotonic_ns()}"  # what was refused before is known
        began = time.monotonic()
        bombs = [
            asyncio.create_task(ask(BOMBS[name](f"{new}{number}")))
            for number, name in enumerate(names)
        ]
        waits, rounds = [], 0
        while not all(bomb.done() for bomb in bombs):
            new_choices = [new_choice(f"{each}{rounds}"[-9:]) for each in "ab"]
            *waited, same = await asyncio.gather(*new_choices, answers())
            assert same == before
            waits += waited
            rounds += 1
        assert time.monotonic() - began < MOST_SECONDS
        assert max(waits) < MOST_SECONDS_OF_OTHERS
        for name, bomb in zip(names, bombs, strict=True):
            assert_refused(name, bomb.result())
        assert rounds >= 3  # nobody else waits until they are refused
        assert await answers() == before
    until(lambda: memory_mib(hasty) - memory < MOST_GROWTH_MIB)
    most = (os.cpu_count() or 1) + 1
    until(lambda: len(named(hasty.process.pid, "octavo.guided")) <= most)
    until(lambda: all(len(children(pid)) <= 1 for pid in named(hasty.process.pid, "octavo.guided")))


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_the_next_request_answered(http, name) -> None:
    assert_refused(name, http.post("/v1/completions", json=body(BOMBS[name]("q"))))
    reply = http.post("/v1/completions", json=body({"guided_choice": [name[:12]]}))
    assert reply.json()["choices"][0]["text"] == name[:12]
