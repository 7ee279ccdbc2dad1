"""Scores a model on what is held out: ``python -m examples.train_tiny_omni.evaluate MODEL``.

Media go to ``octavo.LLM`` as encoded files, and it runs as any model does, greedily.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from examples.train_tiny_omni.corpus import COUNTS, Media, held_out
from examples.train_tiny_omni.files import RATES, encoded
from examples.train_tiny_omni.questions import Question

from octavo import LLM, SamplingParams

MODALITIES = {"picture": "image", "pictures": "image", "clip": "video", "sound": "audio"}
MAX_TOKENS = 60
BAR = 0.95


@dataclass(frozen=True)
class Item:
    """A question, and files by format; ``modality`` is what all of them are."""

    question: Question
    modality: str = ""
    files: Sequence[tuple[str, bytes]] = ()

    def is_right(self, answer: str) -> bool:
        """Whether the answer is the expected text, or the same JSON value."""
        if self.question.value is None:
            return answer.strip() == self.question.answer
        try:
            return bool(json.loads(answer) == self.question.value)
        except ValueError:
            return False


@dataclass(frozen=True)
class Answer:
    item: Item
    text: str

    @property
    def right(self) -> bool:
        return self.item.is_right(self.text)


def items(counts: dict[str, int]) -> Iterator[Item]:
    """Questions of each kind with their media as files."""
    for number, (media, question) in enumerate(held_out(counts, rates=RATES)):
        yield Item(question) if media is None else _with_files(media, question, number)


def _with_files(media: Media, question: Question, number: int) -> Item:
    files = [encoded(item, number + place) for place, item in enumerate(media.items)]
    return Item(question, MODALITIES[media.facts.about], files)


def messages(item: Item) -> list[dict[str, Any]]:
    """The chat in which the question is asked."""
    parts = [{"type": item.modality, item.modality: data} for _, data in item.files]
    text = {"type": "text", "text": item.question.text}
    return [{"role": "user", "content": [*parts, text]}]


def ask(llm: LLM, asked: Sequence[Item]) -> list[Answer]:
    """Answers of the model, all in one batch; one that does not stop is wrong."""
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    outputs = llm.chat([messages(item) for item in asked], params, use_tqdm=False)
    return [
        Answer(item, one.outputs[0].text if one.outputs[0].finish_reason == "stop" else "")
        for item, one in zip(asked, outputs, strict=True)
    ]


def score(answers: Sequence[Answer]) -> float:
    return sum(answer.right for answer in answers) / len(answers)


def report(answers: Sequence[Answer]) -> str:
    """Scores by kind, and what was wrong."""
    by_kind = defaultdict(list)
    for answer in answers:
        by_kind[answer.item.question.kind].append(answer)
    lines = []
    for kind, group in sorted(by_kind.items()):
        lines.append(f"{kind:20} {sum(a.right for a in group):3} of {len(group)}")
        for wrong in (a for a in group if not a.right):
            kinds = "+".join(kind for kind, _ in wrong.item.files)
            lines.append(f"    {kinds} {wrong.item.question.text!r}: {wrong.text!r}")
            lines.append(f"        wanted {wrong.item.question.answer!r}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.train_tiny_omni.evaluate")
    parser.add_argument("model")
    started = time.perf_counter()
    with LLM(parser.parse_args().model, dtype="float32") as llm:
        answers = ask(llm, list(items(COUNTS)))
    print(report(answers))
    print(f"{score(answers):.1%} right in {time.perf_counter() - started:.0f} s; bar {BAR:.0%}")


if __name__ == "__main__":
    main()
