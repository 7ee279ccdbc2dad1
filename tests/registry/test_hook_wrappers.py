from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from octavo_registry import PluginHost, hookimpl


def timing(log: list[str], *, fail: str = "") -> Any:
    @hookimpl(wrapper=True)
    def wrapper(architecture: str) -> Iterator[None]:
        log.append("before")
        if fail == "before":
            raise ValueError("before")
        answer = yield
        log.append("after")
        if fail == "after":
            raise ValueError("after")
        return answer + "!"

    return wrapper


@pytest.mark.parametrize(
    ("fail", "answer", "steps"),
    [
        ("", "asked!", ["before", "after"]),
        ("before", "asked", ["before"]),
        ("after", "asked", ["before", "after"]),
    ],
)
def test_a_wrapper_sees_the_call_and_a_failing_one_is_stepped_over(fail, answer, steps) -> None:
    log: list[str] = []
    host = PluginHost()
    host.tool_parsers.add("asked", "nowhere:Parser")
    for name, implementation in (
        ("timing", timing(log, fail=fail)),
        ("parser", hookimpl(lambda: "asked")),
    ):
        hooks = {"select_tool_parser": implementation}
        host.register(SimpleNamespace(__name__=name, OCTAVO_API="1", **hooks))
    selected = host.hook.select_tool_parser(architecture="A", config={}, chat_template=None)
    assert selected == answer
    assert log == steps
    assert host.faults.counts == ({("timing", "select_tool_parser"): 1} if fail else {})
