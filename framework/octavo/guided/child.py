"""``python -m octavo.guided.child``: compiles constraints, as long as they keep to their limits."""

from __future__ import annotations

import gc
import json
import os
from contextlib import suppress
from typing import IO

import msgspec
from msgspec import structs

from octavo.errors import BadRequestError, UnsupportedConstraint
from octavo.guided.byte_automaton import automaton_guide
from octavo.guided.checking import MEMORY_MIB, Checked, StartChild, Try
from octavo.guided.choose import asked_guide, choose_guide, first_that_compiles, read_asked
from octavo.guided.copies import NICENESS, Copy
from octavo.guided.hard_strings import hard_strings
from octavo.guided.process import BY_LIMIT, Limits, open_pipes, read_frame, write_frame
from octavo.guided.schema import formats
from octavo.guided.trial import has_tokens, heap_bytes, walk, walk_far
from octavo.messages import AskedGuide, GuideRequest
from octavo.params import GuidedParams
from octavo.wording import shown
from octavo_registry import PluginHost
from octavo_registry.faults import FAILURES, one_line
from octavo_registry.guided import Constraint, GuidedBackend


def main() -> None:
    """Answer until the parent closes standard input."""
    requests, answers = open_pipes()
    start = msgspec.msgpack.decode(read_frame(requests), type=StartChild)
    try:
        compiler = _Compiler(start)
    except Exception as error:
        _answer(answers, Checked(error=one_line(error)))
        return
    _answer(answers, Checked())
    gc.freeze()  # copies of this process leave untouched what they share with it
    compiler.prepare()
    while data := read_frame(requests):
        compiler.answer(msgspec.msgpack.decode(data, type=Try), answers)


class _Compiler:
    """Compiles constraints in a copy of this process, and in another when it has died of one."""

    def __init__(self, start: StartChild) -> None:
        self._host = PluginHost.from_manifest(start.manifest)
        self._vocabulary = start.vocabulary()
        self._copy: Copy | None = None
        """In which what comes next is compiled."""
        self._to_load = ""
        """The backend that the next message asks for; loading is no constraint's to pay."""
        self._has_learnt = False
        self._backends: dict[str, GuidedBackend] = {}
        for name in self._host.guided_backends.names():
            if self._host.guided_backends.info(name).metadata["native"]:
                self._load(name)

    def answer(self, asked: Try, answers: IO[bytes]) -> None:
        """Compile, and ask for the first tokens: some backends do their work there."""
        if self._to_load:
            _answer(answers, self._loaded())
            return
        copy = self._copy or self._new_copy()
        data = copy.ask(msgspec.msgpack.encode(asked), asked.seconds)
        if data:
            checked = msgspec.msgpack.decode(data, type=Checked)
            self._to_load = checked.loads
        else:
            status = copy.end()
            is_long = status in BY_LIMIT
            checked = Checked(died=status, by_core=is_long, by_clock=copy.was_late)
        _answer(answers, checked)
        if not data or copy.is_spent or asked.is_long or self._to_load or not self._has_learnt:
            copy.end()  # nobody waits for that, nor for the next
            self.learn()
            self._copy = None if self._to_load else self._new_copy()

    def learn(self) -> None:
        """Compile all formats once: copies made from then on need not read their patterns.

        Nobody waits for the outcome: a plugin's backend that fails on them may take others.
        """
        if self._has_learnt:
            return
        self._has_learnt = True
        with suppress(*FAILURES):
            self._compiled(asked_guide(GuidedParams(json=formats.EACH)), on_device=False)
        gc.freeze()

    def prepare(self) -> None:
        """Make the copy that the first constraint is compiled in."""
        self._new_copy()

    def _new_copy(self) -> Copy:
        self._copy = Copy(self._answered)
        return self._copy

    def _answered(self, question: bytes) -> bytes:
        asked = msgspec.msgpack.decode(question, type=Try)
        return msgspec.msgpack.encode(self._check(asked))

    def _loaded(self) -> Checked:
        try:
            self._load(self._to_load)
        except Exception as error:
            return Checked(error=one_line(error))
        finally:
            self._to_load = ""
            gc.freeze()
        return Checked()

    def _check(self, asked: Try) -> Checked:
        if asked.is_long:
            os.nice(NICENESS)
        limits = Limits()
        limits.begin(cpu_seconds=asked.cpu_seconds, seconds=asked.seconds, mib=MEMORY_MIB)
        try:
            return self._compiled(asked.asked, on_device=asked.on_device)
        except MemoryError:
            raise
        except BadRequestError as error:
            return Checked(error=str(error), error_type=type(error).__name__)
        except Exception as error:
            return Checked(error=one_line(error))
        finally:
            limits.end()

    def _load(self, name: str) -> None:
        self._backends[name] = self._host.guided_backends.make(name, self._vocabulary)

    def _compiled(self, asked: AskedGuide, *, on_device: bool) -> Checked:
        guide = choose_guide(read_asked(asked), self._host, on_device=on_device)
        try:
            guide, num_bytes = first_that_compiles(guide, self._tried, self._host)
        except _NotLoaded as backend:
            return Checked(loads=str(backend))
        if num_bytes is None:
            return Checked(error=f"no text satisfies the {asked.name} constraint")
        return Checked(guide=structs.replace(guide, num_bytes=num_bytes))

    def _tried(self, guide: GuideRequest) -> int | None:
        """The bytes that it takes; None where nothing may come first."""
        constraint = Constraint(kind=guide.kind, value=json.loads(guide.value))
        if guide.automaton:
            first = automaton_guide(guide.automaton, self._vocabulary).start()
            return 0 if any(map(first.allowed, range(self._vocabulary.vocab_size))) else None
        if guide.backend not in self._backends:
            raise _NotLoaded(guide.backend)
        begin = heap_bytes()
        compiled = self._backends[guide.backend].compile(constraint)
        state, vocab_size = compiled.start(), self._vocabulary.vocab_size
        if not has_tokens(state, vocab_size):
            return None
        if not self._host.guided_backends.info(guide.backend).metadata["native"]:
            return 0  # it is kept by processes of its own, with limits on each mask
        walk(state, vocab_size)
        num_bytes = max(0, heap_bytes() - begin)
        for part in hard_strings(constraint):
            try:
                walk_far(self._backends[guide.backend].compile(part).start(), self._vocabulary)
            except UnsupportedConstraint as error:
                raise UnsupportedConstraint(f"{error} for {shown(part.value)}") from error
        return num_bytes


class _NotLoaded(Exception):
    """The backend that is to be loaded first."""


def _answer(pipe: IO[bytes], checked: Checked) -> None:
    write_frame(pipe, msgspec.msgpack.encode(checked))


if __name__ == "__main__":
    main()
