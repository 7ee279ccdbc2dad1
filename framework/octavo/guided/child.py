"""``python -m octavo.guided.child``: compiles constraints, as long as they keep to their limits."""

from __future__ import annotations

import json
from typing import IO

import msgspec
import numpy as np

from octavo.engine.messages import AskedGuide
from octavo.errors import BadRequestError
from octavo.guided.checking import CPU_SECONDS, MEMORY_MIB, WALL_SECONDS, Checked, StartChild
from octavo.guided.choose import choose_guide, read_asked
from octavo.guided.process import Limits, open_pipes, read_frame, write_frame
from octavo_registry import PluginHost
from octavo_registry.faults import one_line
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
    while data := read_frame(requests):
        _answer(answers, compiler.check(msgspec.msgpack.decode(data, type=AskedGuide)))


class _Compiler:
    def __init__(self, start: StartChild) -> None:
        self._host = PluginHost.from_manifest(start.manifest)
        self._vocabulary = start.vocabulary()
        self._limits = Limits()
        self._to_load = ""
        """The backend that the next message asks for; loading is no constraint's to pay."""
        self._backends: dict[str, GuidedBackend] = {}
        for name in self._host.guided_backends.names():
            if self._host.guided_backends.info(name).metadata["native"]:
                self._load(name)

    def check(self, asked: AskedGuide) -> Checked:
        """Compile, and ask for the first tokens: some backends do their work there."""
        try:
            if self._to_load:
                self._load(self._to_load)
                return Checked()
            return self._compiled(asked)
        except MemoryError:
            raise
        except BadRequestError as error:
            return Checked(error=str(error), error_type=type(error).__name__)
        except Exception as error:
            return Checked(error=one_line(error))
        finally:
            self._limits.end()

    def _load(self, name: str) -> None:
        self._to_load = ""
        self._backends[name] = self._host.guided_backends.load(name)(self._vocabulary)

    def _compiled(self, asked: AskedGuide) -> Checked:
        self._limits.begin(cpu_seconds=CPU_SECONDS, seconds=WALL_SECONDS, mib=MEMORY_MIB)
        guide = choose_guide(read_asked(asked), self._host)
        if guide.backend not in self._backends:
            self._to_load = guide.backend
            return Checked(loads=True)
        constraint = Constraint(kind=guide.kind, value=json.loads(guide.value))
        state = self._backends[guide.backend].compile(constraint).start()
        mask_W = np.zeros((self._vocabulary.vocab_size + 31) // 32, np.int32)
        state.fill_bitmask(mask_W)
        state.forced()
        if not mask_W.any():
            return Checked(error=f"no text satisfies the {asked.name} constraint")
        return Checked(guide=guide)


def _answer(pipe: IO[bytes], checked: Checked) -> None:
    write_frame(pipe, msgspec.msgpack.encode(checked))


if __name__ == "__main__":
    main()
