"""How much of JSON Schema is enforced: every schema of a public set is right, refused or wrong.

    python -m benchmarks.schemas suite PATH      # github.com/json-schema-org/JSON-Schema-Test-Suite
    python -m benchmarks.schemas maskbench PATH  # github.com/guidance-ai/jsonschemabench

Twice: the core schema is given to a validator, and to llguidance as a guide that reads documents
byte by byte, written in one line and indented. Right: all valid documents pass and no invalid one.
Open: an invalid one passes. Closed: none does, but a valid one is stopped. Order: it passes when
its properties are put into the order in which the schema lists them, the only one that a guide
writes. Needs ``jsonschema-rs`` and ``llguidance``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
from llguidance import LLMatcher, LLTokenizer

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema import FEATURES, core_schema, without_nul

NOT_ENFORCED = frozenset(
    {"minProperties", "patternProperties:quotes", "controls", "multipleOf:large"}
)
"""Features that llguidance takes and does not enforce; see tests/guided_features.py."""
OPTIONS = {"json_allowed_escapes": 'nrbtf\\"'}
"""Without \\u, by which a listed name could be written once more as another one."""
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
    features: frozenset[str] = frozenset()


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


def judge(task: Task) -> Verdict:
    """Rewrite one schema and try its documents."""
    begin = time.process_time()
    try:
        core = core_schema(task.schema)
    except UnsupportedConstraint as error:
        seconds = time.process_time() - begin
        return Verdict(task.name, "refused", "refused", str(error), seconds)
    seconds = time.process_time() - begin
    validator = jsonschema_rs.Draft202012Validator(core.schema)
    of_core = _verdict((validator.is_valid(item), valid) for item, valid in task.documents)
    of_guide, reason = _guided(core.schema, core.features, task)
    return Verdict(task.name, of_core, of_guide, reason, seconds, core.features)


def _verdict(results: Iterable[tuple[bool, bool]]) -> str:
    wrong = {valid for accepted, valid in results if accepted is not valid}
    return "open" if False in wrong else "closed" if True in wrong else "right"


def _guided(schema: Any, features: frozenset[str], task: Task) -> tuple[str, str]:
    if missing := features - (FEATURES.keys() - NOT_ENFORCED):
        return "refused", f"llguidance does not enforce {', '.join(sorted(missing))}"
    if schema is False:
        accepted = any(valid for _, valid in task.documents)
        return ("closed" if accepted else "right"), "no document satisfies it"
    if schema is True:
        schema = {}
    grammar = LLMatcher.grammar_from_json_schema(without_nul(schema), overrides=OPTIONS)
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    if matcher.is_error():
        return "refused", f"llguidance: {matcher.get_error().splitlines()[0][:120]}"

    def results(documents: Iterable[tuple[Any, bool]]) -> Iterator[tuple[bool, bool]]:
        for item, valid in documents:
            for indent in (None, 2):
                yield _reads(matcher, json.dumps(item, ensure_ascii=False, indent=indent)), valid

    found = _verdict(results(task.documents))
    if found == "closed":
        ranks = {name: rank for rank, name in enumerate(_names(schema))}
        ordered = [(_ordered(item, ranks), valid) for item, valid in task.documents]
        return ("closed" if _verdict(results(ordered)) != "right" else "order"), ""
    return found, ""


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


def _reads(matcher: LLMatcher, text: str) -> bool:
    found = text.encode(errors="surrogatepass")
    matcher.reset()
    return matcher.try_consume_tokens(list(found)) == len(found) and matcher.is_accepting()


def report(verdicts: list[Verdict]) -> None:
    """The figures, then every schema that is not right."""
    for level in ("core", "guide"):
        counts = Counter(getattr(verdict, level) for verdict in verdicts)
        total = sum(counts.values())
        shares = ", ".join(
            f"{name} {counts[name]} ({100 * counts[name] / total:.1f} %)"
            for name in ("right", "order", "refused", "closed", "open")
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
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    tasks = list(SETS[options.set](options.path))[options.offset :: options.every]
    with ProcessPoolExecutor(options.processes) as pool:
        report(list(pool.map(judge, tasks, chunksize=8)))


if __name__ == "__main__":
    main()
