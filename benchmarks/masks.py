"""What a mask takes, by backend: documents of a public set over a vocabulary of 128,000 tokens.

    python -m benchmarks.masks PATH  # github.com/guidance-ai/jsonschemabench

Each backend compiles each schema within the limits of a server, and reads the first valid document
of it token by token, with a mask before each. All in one thread of one process, in which the
backend itself is called: for backends that are not native an engine adds a message to and fro.
"""

from __future__ import annotations

import argparse
import json
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.schemas import Task, last_word, limit, maskbench
from octavo.errors import UnsupportedConstraint
from octavo.guided.checking import CPU_SECONDS, MEMORY_MIB
from octavo.guided.schema import CoreSchema, core_schema
from octavo.guided.vocabulary import longest_tokens
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, GuidedBackend, GuideVocabulary

NUM_TOKENS = 128_000
READING_SECONDS = 5
"""Seconds of CPU for one document; what takes longer counts as not compiled."""
_PIECE = re.compile(r" ?[A-Za-z]+| ?[0-9]{1,3}| ?[^\sA-Za-z0-9]+|\s+")


@dataclass(frozen=True)
class Times:
    """Times of one schema, in seconds of CPU, which other work on the machine does not lengthen."""

    compile: float
    masks: tuple[float, ...]
    """Each with the token that is taken then."""


def vocabulary() -> GuideVocabulary:
    """All bytes, then the commonest pieces of Python's own library, then their beginnings."""
    counts: Counter[str] = Counter()
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("**/*.py")):
        if "site-packages" not in file.parts:
            counts.update(_PIECE.findall(file.read_text(errors="ignore")))
    pieces = [piece for piece, _ in counts.most_common()]
    begun = Counter(piece[:size] for piece in pieces for size in range(2, len(piece)))
    every = dict.fromkeys([*(bytes([byte]) for byte in range(256)), *map(str.encode, pieces)])
    every |= dict.fromkeys(piece.encode() for piece, _ in begun.most_common())
    tokens: list[bytes | None] = [*list(every)[: NUM_TOKENS - 1], None]
    return GuideVocabulary(
        token_bytes=tokens,
        special_ids={"<end>": len(tokens) - 1},
        stop_token_ids=(len(tokens) - 1,),
        vocab_size=len(tokens),
        encode=longest_tokens(tokens),
    )


def measure(
    pipe: Connection, backend: GuidedBackend, core: CoreSchema, tokens: list[int], num_words: int
) -> None:
    limit(CPU_SECONDS, MEMORY_MIB)
    row = np.zeros(num_words, np.int32)
    begin = time.thread_time()
    guide = backend.compile(Constraint(kind="json", value=core.schema))
    compiled = time.thread_time()
    limit(READING_SECONDS, 8 * MEMORY_MIB)
    state, masks = guide.start(), list[float]()
    for token in tokens:
        before = time.thread_time()
        state.fill_bitmask(row)
        if not state.accept(token):
            return
        masks.append(time.thread_time() - before)
    pipe.send(Times(compiled - begin, tuple(masks)))


def prepared(task: Task, encode: Callable[[str], list[int]]) -> tuple[CoreSchema, list[int]] | None:
    """The schema with the tokens of its first valid document; None without one."""
    documents = [item for item, valid in task.documents if valid]
    if not documents:
        return None
    try:
        core = core_schema(task.schema)
    except UnsupportedConstraint:
        return None
    return core, encode(json.dumps(documents[0], ensure_ascii=False))


def shown(times: list[Times]) -> str:
    masks = sorted(1e3 * each for one in times for each in one.masks)
    compiles = sorted(1e3 * one.compile for one in times)
    parts = [
        f"{name} p50 {found[len(found) // 2]:.3f} p99 {found[99 * len(found) // 100]:.3f} "
        f"max {found[-1]:.1f} ms"
        for name, found in (("mask", masks), ("compile", compiles))
        if found
    ]
    return ", ".join([f"{len(times)} schemas", f"{len(masks)} tokens", *parts])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--every", type=int, default=100, help="only each n-th schema")
    parser.add_argument("--backends", nargs="+", help="all, if none is named")
    options = parser.parse_args()
    backends = PluginHost.discover().guided_backends
    words = vocabulary()
    tasks = [
        prepared(each, words.encode) for each in list(maskbench(options.path))[:: options.every]
    ]
    found: dict[str, dict[int, Times]] = {}
    for name in options.backends or backends.names():
        keywords = set(backends.info(name).metadata["keywords"])
        backend = backends.load(name)(words)
        found[name], num_asked = {}, 0
        for number, task in enumerate(tasks):
            if task is not None and task[0].features <= keywords:
                num_asked += 1
                times = last_word(measure, backend, *task, (words.vocab_size + 31) // 32)
                if times is not None:
                    found[name][number] = times
        print(f"{name}: of {num_asked}: {shown(list(found[name].values()))}", flush=True)
    common = set.intersection(*(set(each) for each in found.values()))
    for name, times in found.items():
        print(f"{name}, where all of them read: {shown([times[each] for each in common])}")


if __name__ == "__main__":
    main()
