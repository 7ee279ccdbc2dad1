"""Chat templates of strangers, run under limits in a process that may be killed.

A template is a program: two nested loops take an hour, a filter fills the memory. So what a request
brings is compiled and run in a copy of a child, with a bound on its time, memory and output.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from octavo.errors import MessageError, PromptError, QueueFullError, RequestFailedError
from octavo.guided.child_pool import ChildPool
from octavo.guided.process import HEADROOM_SECONDS, ChildProcess
from octavo.inputs.template import Change

CHILD: Final = "octavo.inputs.template_child"
CPU_SECONDS: Final = 1.0
WALL_SECONDS: Final = 5.0
MEMORY_MIB: Final = 256
MAX_SOURCE_CHARS: Final = 2**16
"""The longest that models have are 40,000."""
MAX_CHANGES: Final = 64
"""Most changes to texts, by filters such as "replace"; they must make no control tokens."""
MAX_CHARS: Final = 2**23
"""Longest text that a template writes."""
START_SECONDS: Final = 60.0
MOST_CHILDREN: Final = 2
MOST_WAITING: Final = 64
WAIT_SECONDS: Final = 20.0
"""For a child."""


class StartTemplates(msgspec.Struct, frozen=True):
    """First message to a child: what templates may name."""

    variables: dict[str, Any]


class TemplateTask(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a child."""

    source: str
    chat: str = ""
    """JSON of the messages and the variables; empty: asks for the template's facts."""


class TemplateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What ``ChatTemplate`` says of itself, under the same names."""

    takes_text: bool
    takes_parts: bool
    takes_objects: bool
    ignores_messages: bool
    variables: frozenset[str]
    names: frozenset[str]
    literals: frozenset[str]
    changes: tuple[Change, ...]
    is_foreseen: bool


class TemplateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A child's answer: one of the two, or what is wrong."""

    facts: TemplateFacts | None = None
    text: str = ""
    error: str = ""
    of_messages: bool = False
    """The error is one that the template has with these messages."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ForeignTemplate:
    """A ``ChatTemplate`` that runs elsewhere."""

    source: str
    facts: TemplateFacts
    templates: ForeignTemplates

    def __getattr__(self, name: str) -> Any:
        """Return one of the facts."""
        return getattr(self.facts, name)

    def render(self, messages: list[dict[str, Any]], /, **variables: Any) -> str:
        """Run the template under its limits."""
        return self.templates.answer(self.source, [messages, variables]).text

    def mentions(self, word: str) -> bool:
        """Whether the word stands in its source."""
        return word in self.source


class ForeignTemplates:
    """Reads and runs templates for one renderer; used from any thread, which waits."""

    def __init__(self, variables: Mapping[str, Any]) -> None:

        def begin(child: ChildProcess) -> None:
            start = msgspec.msgpack.encode(StartTemplates(dict(variables)))
            if child.ask(start, START_SECONDS) is None:
                child.kill()
                raise RequestFailedError("the process that runs chat templates has failed")

        self._pool = ChildPool(CHILD, begin)
        self._room = threading.Semaphore(MOST_CHILDREN)
        self._waiting = threading.Semaphore(MOST_WAITING)

    def read(self, source: str) -> ForeignTemplate:
        """Compile a template and see what it takes; raises PromptError where it is none."""
        if len(source) > MAX_SOURCE_CHARS:
            raise PromptError(
                f"chat_template has {len(source)} characters; at most {MAX_SOURCE_CHARS}",
                param="chat_template",
            )
        facts = self.answer(source, None).facts
        if facts is None:
            raise RequestFailedError("the process that runs chat templates told nothing")
        if len(facts.changes) > MAX_CHANGES:
            raise PromptError(
                f"chat_template changes texts in {len(facts.changes)} ways (replace, split, ...); "
                f"at most {MAX_CHANGES}",
                param="chat_template",
            )
        return ForeignTemplate(source=source, facts=facts, templates=self)

    def answer(self, source: str, chat: list[Any] | None) -> TemplateAnswer:
        """What a child says; its errors are raised."""
        task = TemplateTask(source=source, chat="" if chat is None else json.dumps(chat))
        question = msgspec.msgpack.encode(task)
        with self._place(), self._pool.child() as child:
            data = child.ask(question, WALL_SECONDS + HEADROOM_SECONDS)
        if data is None:
            raise RequestFailedError("the process that runs chat templates has ended")
        answer = msgspec.msgpack.decode(data, type=TemplateAnswer)
        if answer.error:
            if answer.of_messages:
                raise MessageError(answer.error)
            raise PromptError(answer.error, param="chat_template")
        return answer

    def close(self) -> None:
        """End the children; calling it again does nothing."""
        self._pool.close()

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._waiting.acquire(blocking=False):
            raise QueueFullError("too many chat templates of requests wait; try later")
        try:
            if not self._room.acquire(timeout=WAIT_SECONDS):
                raise QueueFullError(
                    f"no place to run a chat template within {WAIT_SECONDS:.0f} s; try later"
                )
            try:
                yield
            finally:
                self._room.release()
        finally:
            self._waiting.release()
