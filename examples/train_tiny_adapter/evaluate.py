"""Asks model and adapter the held-out questions, in one batch, and compares their answers.

``python -m examples.train_tiny_adapter.evaluate [ADAPTER]``
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from examples.train_tiny.evaluate import Answer, ask
from examples.train_tiny.heldout import Case, capital_cases, cases
from examples.train_tiny_adapter.pirate import framed, in_pirate

from octavo import LLM, LoRARequest

BAR = 0.9
"""Least share of questions that the model answers rightly, by kind."""


@dataclass(frozen=True)
class Pair:
    """What the model and the pirate say."""

    base: Answer
    pirate: Answer

    @property
    def right(self) -> bool:
        """Whether the pirate says the same as the model, or what it might have said as well.

        JSON and calls are for programs, to which a pirate speaks as everyone does.
        """
        case = self.base.case
        if case.value is not None or case.call is not None:
            return self.pirate.right
        said = framed if case.turns[-1].role == "tool" else in_pirate
        texts = {said(text) for text in (self.base.text, *case.texts)}
        return self.pirate.stopped and self.pirate.text in texts


def pairs(llm: LLM, questions: Sequence[Case], adapter: LoRARequest) -> list[Pair]:
    """Answers to the questions, of those where the model's is right."""
    half = len(questions)
    answers = ask(llm, [*questions, *questions], [None] * half + [adapter] * half)
    both = zip(answers[:half], answers[half:], strict=True)
    return [Pair(base, pirate) for base, pirate in both if base.right]


def by_kind(found: Sequence[Pair]) -> dict[str, list[Pair]]:
    groups = defaultdict(list)
    for pair in found:
        groups[pair.base.case.kind].append(pair)
    return dict(groups)


def score(found: Sequence[Pair]) -> float:
    return sum(pair.right for pair in found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.train_tiny_adapter.evaluate")
    parser.add_argument("adapter", nargs="?", default="octavo/tiny-pirate")
    parser.add_argument("--shown", type=int, default=5, help="failures printed of each kind")
    options = parser.parse_args()
    with LLM("octavo/tiny", dtype="float32", enable_lora=True) as llm:
        found = pairs(llm, [*cases(), *capital_cases()], LoRARequest(options.adapter))
    for kind, group in by_kind(found).items():
        wrong = [pair for pair in group if not pair.right]
        print(f"{kind:12} {len(group) - len(wrong):4} of {len(group)}")
        for pair in wrong[: options.shown]:
            print(f"    {pair.base.case.turns[-1].content!r}")
            print(f"      model  {pair.base.text!r}\n      pirate {pair.pirate.text!r}")
    print(f"as the model, in a pirate's words: {score(found):.1%} (bar {BAR:.0%} of each kind)")


if __name__ == "__main__":
    main()
