"""How much of JSON Schema is enforced: every schema of a public set is right, refused or wrong.

    python -m benchmarks.schemas suite PATH      # github.com/json-schema-org/JSON-Schema-Test-Suite
    python -m benchmarks.schemas maskbench PATH  # github.com/guidance-ai/jsonschemabench

Twice: the core schema is given to a validator, and to the backend that a server would choose, as a
guide that reads documents byte by byte, written in one line and indented. Right: all valid
documents pass and no invalid one. Open: an invalid one passes. Closed: none does, but a valid one
is stopped. Order: it passes when its properties are put into the order in which the schema lists
them, the only one that a guide writes. Refused: also what no backend can compile, or walk for some
steps, within the limits that a server sets it. Failed: it compiles, and comes to a limit of the
backend while it reads.
Times are of CPU in a copy of its own, for what a server does with a schema before it says yes.
Needs ``jsonschema`` and ``jsonschema-rs``.
"""

from __future__ import annotations

import argparse
import gc
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

from octavo.errors import BadRequestError, UnsupportedConstraint
from octavo.guided.byte_automaton import automaton_guide
from octavo.guided.checking import CPU_SECONDS, MEMORY_MIB
from octavo.guided.choose import AUTO, choose_guide, first_that_compiles
from octavo.guided.hard_strings import hard_strings
from octavo.guided.schema import core_schema, formats
from octavo.guided.trial import has_tokens, walk, walk_far
from octavo.messages import GuideRequest
from octavo.params import GuidedParams
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, Guide, GuideVocabulary

READING_SECONDS = 10
"""Seconds of CPU for all documents of one schema."""
REMOTES = "http://localhost:1234/"


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
    backend: str = ""


def suite(path: Path) -> Iterator[Task]:
    """Draft 2020-12, the required part, and the optional tests that assert formats.

    Documents that the suite says are at hand are bundled, as the standard calls it: a server never
    fetches any, so that they must come with the schema that refers to them.
    """
    folder = path / "tests" / "draft2020-12"
    remotes = _remotes(path / "remotes")
    files = [file for file in sorted(folder.glob("*.json")) if file.name != "format.json"]
    for file in [*files, *sorted((folder / "optional" / "format").glob("*.json"))]:
        for group in json.loads(file.read_text()):
            documents = tuple((test["data"], test["valid"]) for test in group["tests"])
            name = f"{file.relative_to(folder)}: {group['description']}"
            yield Task(name, _bundled(group["schema"], remotes), documents)


def _remotes(folder: Path) -> dict[str, Any]:
    """Schemas by the address where the suite puts them."""
    files = folder.glob("draft2020-12/**/*.json")
    return {f"{REMOTES}{file.relative_to(folder)}": json.loads(file.read_text()) for file in files}


def _bundled(schema: Any, remotes: dict[str, Any]) -> Any:
    """With the documents that it, or one of them, refers to, in its ``$defs``."""
    found: dict[str, Any] = {}
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).partition("#")[0].rpartition("/")[2]
            for address, document in remotes.items():
                if name and address.endswith(f"/{name}") and address not in found:
                    found[address] = document
                    waiting.append(document)
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    if not found or not isinstance(schema, dict):
        return schema
    inside = {}
    for address, document in found.items():
        named = document.get("$id")
        inside[address] = document if named == address else {**document, "$id": address}
        if named not in (None, address):
            inside[named] = document
    return {**schema, "$defs": {**schema.get("$defs", {}), **inside}}


def maskbench(path: Path) -> Iterator[Task]:
    """All schemas of MaskBench; those without documents too."""
    for file in sorted((path / "maskbench" / "data").glob("*.json")):
        content = json.loads(file.read_text())
        documents = tuple((test["data"], test["valid"]) for test in content.get("tests", ()))
        yield Task(file.stem, content["schema"], documents)


SETS = {"suite": suite, "maskbench": maskbench}


class Judge:
    """Judges on both levels, the second by one backend, or by those that ``auto`` tries."""

    def __init__(self, backend: str, *, on_device: bool) -> None:
        self._host = PluginHost.discover()
        self._asked = backend
        self._on_device = on_device
        self._vocabulary = _bytes()
        backends = self._host.guided_backends
        names = backends.names() if backend == AUTO else [backend]
        self._backends = {name: backends.make(name, self._vocabulary) for name in names}
        if backend == AUTO:  # as the child of a server has done before it makes copies
            known = choose_guide(GuidedParams(json=formats.EACH), self._host)
            first_that_compiles(known, self._compiled, self._host)

    def judge(self, task: Task) -> Verdict:
        """In a process of its own, which a schema may end."""
        found = last_word(self._send, task)
        reason = "ended without a word"
        return found or Verdict(task.name, "refused", "refused", reason, CPU_SECONDS)

    def _send(self, pipe: Connection, task: Task) -> None:
        """The verdict without the guide comes first."""
        gc.disable()  # as a copy of the child does
        limit(CPU_SECONDS, MEMORY_MIB)
        begin = time.process_time()
        error: Exception | None = None
        request = None
        try:
            request = choose_guide(
                GuidedParams(json=task.schema, backend=self._asked),
                self._host,
                on_device=self._on_device,
            )
        except BadRequestError as refused:
            error = refused
        chosen = time.process_time() - begin
        limit(READING_SECONDS, 8 * MEMORY_MIB)
        try:
            core = _of_core(core_schema(task.schema).schema, task)
        except UnsupportedConstraint:
            core = "refused"
        found = Verdict(task.name, core, "refused", "too large", CPU_SECONDS)
        pipe.send(found)
        if request is None:
            found = replace(found, reason=str(error), seconds=chosen)
            if "no value satisfies" in found.reason:
                accepted = any(valid for _, valid in task.documents)
                found = replace(found, guide="closed" if accepted else "right")
            pipe.send(found)
            return
        limit(CPU_SECONDS, MEMORY_MIB)
        begin = time.process_time()
        try:
            request, guide = first_that_compiles(request, self._compiled, self._host)
        except Exception as failed:
            reason = str(failed).strip().splitlines()[0][:120]
            seconds = chosen + time.process_time() - begin
            pipe.send(replace(found, reason=reason, seconds=seconds))
            return
        seconds = chosen + time.process_time() - begin
        found = replace(found, seconds=seconds, backend=request.backend)
        limit(READING_SECONDS, 8 * MEMORY_MIB)
        of_guide, reason = _of_guide(guide, json.loads(request.value), task)
        pipe.send(replace(found, guide=of_guide, reason=reason))

    def _compiled(self, request: GuideRequest) -> Guide:
        """As the child of a server tries it."""
        if request.automaton:
            return automaton_guide(request.automaton, self._vocabulary)
        constraint = Constraint(kind=request.kind, value=json.loads(request.value))
        guide = self._backends[request.backend].compile(constraint)
        first = guide.start()
        if not has_tokens(first, self._vocabulary.vocab_size):
            raise UnsupportedConstraint("no text satisfies it")
        if self._host.guided_backends.info(request.backend).metadata["native"]:
            walk(first, self._vocabulary.vocab_size)
            for part in hard_strings(constraint):
                walk_far(self._backends[request.backend].compile(part).start(), self._vocabulary)
        return guide


def _of_guide(guide: Guide, schema: Any, task: Task) -> tuple[str, str]:
    try:
        found = _verdict(_results(guide, task.documents))
    except UnsupportedConstraint as error:
        return "failed", str(error)[:120]
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
        closed = counts["closed"] / max(compiled, 1)
        print(f"{level}: of {compiled} compiled, closed {100 * closed:.2f} %")
    print("enforced by:", dict(Counter(verdict.backend for verdict in verdicts if verdict.backend)))
    for name, is_refused in (("accepted", False), ("refused", True)):
        times = [each.seconds for each in verdicts if (each.guide == "refused") is is_refused]
        print(f"CPU seconds to check, {name}:", _quantiles(times))
    for verdict in verdicts:
        if (verdict.core, verdict.guide) != ("right", "right"):
            print(f"{verdict.core}/{verdict.guide}  {verdict.name}  {verdict.reason}")


def _quantiles(times: list[float]) -> str:
    times = sorted(times) or [0.0]
    shown = {name: times[int(share * (len(times) - 1))] for name, share in _QUANTILES.items()}
    return ", ".join(f"{name} {value:.4f}" for name, value in shown.items())


_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("set", choices=SETS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--every", type=int, default=1, help="only each n-th schema")
    parser.add_argument("--offset", type=int, default=0, help="the first of them")
    parser.add_argument("--backend", default=AUTO)
    parser.add_argument(
        "--device", action="store_true", help="of an engine whose device walks automata"
    )
    parser.add_argument("--times", type=Path, help="where to write name and seconds of each")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    tasks = list(SETS[options.set](options.path))[options.offset :: options.every]
    judge = Judge(options.backend, on_device=options.device)
    with ThreadPoolExecutor(options.processes) as threads:
        verdicts = list(threads.map(judge.judge, tasks))
    if options.times:
        options.times.write_text("".join(f"{e.seconds:.4f} {e.name}\n" for e in verdicts))
    report(verdicts)


if __name__ == "__main__":
    main()
