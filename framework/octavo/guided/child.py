"""``python -m octavo.guided.child``: compiles constraints, as long as they keep to their limits."""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import IO

import msgspec
import numpy as np

from octavo.engine.messages import AskedGuide
from octavo.errors import BadRequestError
from octavo.guided.checking import (
    CPU_SECONDS,
    MEMORY_MIB,
    Checked,
    StartChild,
    read_frame,
    write_frame,
)
from octavo.guided.choose import choose_guide, read_asked
from octavo.guided.guides import made_backend
from octavo.guided.vocabulary import longest_tokens
from octavo_registry import PluginHost
from octavo_registry.faults import one_line
from octavo_registry.guided import Constraint, GuidedBackend, GuideVocabulary


def main() -> None:
    """Answer until the parent closes standard input."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent says when this ends
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what a plugin prints is no answer
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
        self._vocabulary = GuideVocabulary(
            token_bytes=start.token_bytes,
            special_ids=start.special_ids,
            stop_token_ids=start.stop_token_ids,
            vocab_size=start.vocab_size,
            encode=longest_tokens(start.token_bytes),  # what is forced must be some tokens
        )
        # Before any constraint: loading is not theirs to pay.
        self._backends: dict[str, GuidedBackend] = {
            name: made_backend(name, self._host, self._vocabulary)
            for name in self._host.guided_backends.names()
        }

    def check(self, asked: AskedGuide) -> Checked:
        """Compile, and ask for the first tokens: some backends do their work there."""
        _limit()
        try:
            guide = choose_guide(read_asked(asked), self._host)
            constraint = Constraint(kind=guide.kind, value=json.loads(guide.value))
            state = self._backends[guide.backend].compile(constraint).start()
            mask_W = np.zeros((self._vocabulary.vocab_size + 31) // 32, np.int32)
            state.fill_bitmask(mask_W)
            state.forced()
        except MemoryError:
            raise
        except BadRequestError as error:
            kind = type(error).__name__
            return Checked(error=str(error), error_type=kind)
        except Exception as error:
            return Checked(error=one_line(error))
        if not mask_W.any():
            return Checked(error=f"no text satisfies the {asked.name} constraint")
        return Checked(guide=guide)


def _limit() -> None:
    """The kernel ends this process when the next constraint takes too much."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    resource.setrlimit(
        resource.RLIMIT_DATA, (_data_bytes() + MEMORY_MIB * 2**20, resource.RLIM_INFINITY)
    )


def _data_bytes() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def _answer(pipe: IO[bytes], checked: Checked) -> None:
    write_frame(pipe, msgspec.msgpack.encode(checked))


if __name__ == "__main__":
    main()
