"""How much of JSON Schema is enforced: every schema of a public set is right, refused or wrong.

    python -m benchmarks.schemas suite PATH      # github.com/json-schema-org/JSON-Schema-Test-Suite
    python -m benchmarks.schemas maskbench PATH  # github.com/guidance-ai/jsonschemabench

Twice: the core schema is given to a validator, and to a backend as a guide that reads documents
byte by byte, written in one line and indented. Right: all valid documents pass and no invalid one.
Open: an invalid one passes. Closed: none does, but a valid one is stopped. Order: it passes when
its properties are put into the order in which the schema lists them, the only one that a guide
writes. Refused: also what a backend cannot compile, or walk for some steps, within the limits that
a server sets it. Failed: it compiles, and comes to a limit of the backend while it reads.
Needs ``jsonschema`` and ``jsonschema-rs``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jsonschema
import jsonschema_rs
import numpy as np

from octavo.errors import UnsupportedConstraint
from octavo.guided.checking import CPU_SECONDS, MEMORY_MIB
from octavo.guided.schema import core_schema
from octavo.guided.trial import walk
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, Guide, GuidedBackend, GuideVocabulary

READING_SECONDS = 10
"""Of CPU, for all documents of one schema."""
FORMATS_ARE_ASSERTED = "optional/format/"
"""Of the suite: its format.json asks that formats be ignored, which this framework never does."""


@dataclass(frozen=True)
class Task:
    """One schema with its documents."""

    name: str
    schema: Any
    documents: tuple[tuple[Any, bool], ...]


@dataclass(frozen=True)
class Verdict:
    """What became of one schema on both levels."""

    name: str
    core: str
    guide: str
    reason: str
    seconds: float


def suite(path: Path) -> Iterator[Task]:
    """Draft 2020-12, the required part, and the optional tests that assert formats."""
    folder = path / "tests" / "draft2020-12"
    files = [file for file in sorted(folder.glob("*.json")) if file.name != "format.json"]
    for file in [*files, *sorted((folder / "optional" / "format").glob("*.json"))]:
        for group in json.loads(file.read_text()):
            documents = tuple((test["data"], test["valid"]) for test in group["tests"])
            name = f"{file.relative_to(folder)}: {group['description']}"
            yield Task(name, group["schema"], documents)


def maskbench(path: Path) -> Iterator[Task]:
    """All schemas of MaskBench; those without documents too."""
    for file in sorted((path / "maskbench" / "data").glob("*.json")):
        content = json.loads(file.read_text())
        documents = tuple((test["data"], test["valid"]) for test in content.get("tests", ()))
        yield Task(file.stem, content["schema"], documents)


SETS = {"suite": suite, "maskbench": maskbench}


class Judge:
    """Judges on both levels, the second by one backend."""

    def __init__(self, backend: str) -> None:
        host = PluginHost.discover()
        self._name = backend
        self._keywords = frozenset(host.guided_backends.info(backend).metadata["keywords"])
        self._backend: GuidedBackend = host.guided_backends.load(backend)(_bytes())
        self._vocab_size = _bytes().vocab_size

    def judge(self, task: Task) -> Verdict:
        """In a process of its own, which a schema may end."""
        found = last_word(self._send, task)
        return found or Verdict(task.name, "refused", "refused", "ended without a word", 0.0)

    def _send(self, pipe: Connection, task: Task) -> None:
        """The verdict without the guide comes first."""
        begin = time.process_time()
        try:
            core = core_schema(task.schema)
        except UnsupportedConstraint as error:
            seconds = time.process_time() - begin
            pipe.send(Verdict(task.name, "refused", "refused", str(error), seconds))
            return
        seconds = time.process_time() - begin
        found = Verdict(task.name, _of_core(core.schema, task), "refused", "too large", seconds)
        pipe.send(found)
        of_guide, reason = self._of_guide(core.schema, core.features, task)
        pipe.send(replace(found, guide=of_guide, reason=reason))

    def _of_guide(self, schema: Any, features: frozenset[str], task: Task) -> tuple[str, str]:
        if missing := features - self._keywords:
            return "refused", f"{self._name} does not enforce {', '.join(sorted(missing))}"
        if schema is False:
            accepted = any(valid for _, valid in task.documents)
            return ("closed" if accepted else "right"), "no document satisfies it"
        limit(CPU_SECONDS, MEMORY_MIB)
        try:
            guide = self._backend.compile(Constraint(kind="json", value=schema))
            walk(guide.start(), self._vocab_size)
        except Exception as error:
            return "refused", f"{self._name}: {str(error).strip().splitlines()[0][:120]}"
        limit(READING_SECONDS, 8 * MEMORY_MIB)
        try:
            found = _verdict(_results(guide, task.documents))
        except UnsupportedConstraint as error:
            return "failed", f"{self._name}: {str(error)[:120]}"
        if found == "closed":
            ranks = {name: rank for rank, name in enumerate(_names(schema))}
            ordered = [(_ordered(item, ranks), valid) for item, valid in task.documents]
            return ("closed" if _verdict(_results(guide, ordered)) != "right" else "order"), ""
        return found, ""


def _bytes() -> GuideVocabulary:
    return GuideVocabulary(
        token_bytes=[*(bytes([byte]) for byte in range(256)), None],
        special_ids={"<end>": 256},
        stop_token_ids=(256,),
        vocab_size=257,
        encode=lambda text: list(text.encode()),
    )


def last_word(send: Callable[..., None], *given: Any) -> Any:
    """The last thing that ``send`` sends from a copy of this process; None when it sends none."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=send, args=(theirs, *given))
    process.start()
    theirs.close()
    found = None
    try:
        while True:
            found = ours.recv()
    except EOFError:
        process.join()
    return found


def limit(seconds: int, mib: int) -> None:
    """The kernel ends this process when what follows takes more."""
    used = int(time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, resource.RLIM_INFINITY))
    data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + mib * 2**20, resource.RLIM_INFINITY))


def _of_core(schema: Any, task: Task) -> str:
    try:
        validator: Any = jsonschema_rs.Draft202012Validator(schema)
        return _verdict([(validator.is_valid(item), valid) for item, valid in task.documents])
    except ValueError:  # it cannot hold every number
        validator = jsonschema.Draft202012Validator(schema)
        return _verdict([(validator.is_valid(item), valid) for item, valid in task.documents])


def _verdict(results: Iterable[tuple[bool, bool]]) -> str:
    wrong = {valid for accepted, valid in results if accepted is not valid}
    return "open" if False in wrong else "closed" if True in wrong else "right"


def _results(guide: Guide, documents: Iterable[tuple[Any, bool]]) -> Iterator[tuple[bool, bool]]:
    for item, valid in documents:
        for indent in (None, 2):
            yield _reads(guide, json.dumps(item, ensure_ascii=False, indent=indent)), valid


def _reads(guide: Guide, text: str) -> bool:
    state, mask_W = guide.start(), np.zeros(9, np.int32)
    for byte in text.encode(errors="surrogatepass"):
        state.fill_bitmask(mask_W)  # as is done for each token that is served
        if not state.accept(byte):
            return False
    return state.is_complete()


def _names(schema: Any) -> dict[str, None]:
    """All names of properties, each where it is listed first."""
    found: dict[str, None] = {}
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            properties = node.get("properties")
            found.update(dict.fromkeys(properties if isinstance(properties, dict) else ()))
            waiting += reversed(node.values())
        elif isinstance(node, list):
            waiting += reversed(node)
    return found


def _ordered(item: Any, ranks: dict[str, int]) -> Any:
    if isinstance(item, list):
        return [_ordered(part, ranks) for part in item]
    if isinstance(item, dict):
        names = sorted(item, key=lambda name: ranks.get(name, len(ranks)))
        return {name: _ordered(item[name], ranks) for name in names}
    return item


def report(verdicts: list[Verdict]) -> None:
    """The figures, then every schema that is not right."""
    for level in ("core", "guide"):
        counts = Counter(getattr(verdict, level) for verdict in verdicts)
        total = sum(counts.values())
        shares = ", ".join(
            f"{name} {counts[name]} ({100 * counts[name] / total:.1f} %)"
            for name in ("right", "order", "refused", "closed", "open", "failed")
        )
        print(f"{level}: {total} schemas: {shares}")
        compiled = total - counts["refused"]
        print(f"{level}: of {compiled} compiled, closed {100 * counts['closed'] / compiled:.2f} %")
    times = sorted(verdict.seconds for verdict in verdicts)
    shown = {name: times[int(share * (len(times) - 1))] for name, share in _QUANTILES.items()}
    print("seconds to rewrite:", ", ".join(f"{name} {value:.4f}" for name, value in shown.items()))
    for verdict in verdicts:
        if (verdict.core, verdict.guide) != ("right", "right"):
            print(f"{verdict.core}/{verdict.guide}  {verdict.name}  {verdict.reason}")


_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("set", choices=SETS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--every", type=int, default=1, help="only each n-th schema")
    parser.add_argument("--offset", type=int, default=0, help="the first of them")
    parser.add_argument("--backend", default="llguidance")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    tasks = list(SETS[options.set](options.path))[options.offset :: options.every]
    judge = Judge(options.backend)
    with ThreadPoolExecutor(options.processes) as threads:
        report(list(threads.map(judge.judge, tasks)))


if __name__ == "__main__":
    main()
