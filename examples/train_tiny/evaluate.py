"""Scores a model on the held-out questions: ``python -m examples.train_tiny.evaluate [MODEL]``.

It runs as any model does, through ``octavo.LLM``, greedily and on the CPU unless told otherwise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from examples.train_tiny.chat import CALL, END_OF_CALL
from examples.train_tiny.heldout import Case, capital_cases, cases

from octavo import LLM, LoRARequest, SamplingParams
from octavo.outputs import CompletionOutput

MAX_TOKENS = 120
BAR, CAPITALS_BAR = 0.95, 0.90


@dataclass(frozen=True)
class Answer:
    case: Case
    text: str
    stopped: bool

    @property
    def right(self) -> bool:
        return self.stopped and is_right(self.case, self.text)


def is_right(case: Case, text: str) -> bool:
    """Whether the answer is the expected text, JSON value or call."""
    if case.contains:
        return case.contains in text
    if case.value is not None:
        return parsed(text) == typed(case.value)
    if case.call is not None:
        inner = text.strip()
        if not (inner.startswith(CALL) and inner.endswith(END_OF_CALL)):
            return False
        return parsed(inner[len(CALL) : -len(END_OF_CALL)]) == typed(case.call)
    return text.strip() in case.texts


def parsed(text: str) -> str | None:
    """A JSON text in one spelling; None if it is none."""
    try:
        return typed(json.loads(text))
    except ValueError:
        return None


def typed(value: object) -> str:
    """For comparing: in Python True equals 1 and 1 equals 1.0, in JSON they differ."""
    return json.dumps(value, sort_keys=True)


def ask(
    llm: LLM, questions: Sequence[Case], adapters: Sequence[LoRARequest | None] | None = None
) -> list[Answer]:
    """Answers of the model, or of the adapter that a question has, all in one batch."""
    tokenizer = llm.get_tokenizer()
    prompts = []
    for case in questions:
        text = tokenizer.apply_chat_template(
            case.messages(),
            tools=[tool.as_openai() for tool in case.tools] or None,
            tokenize=False,
            add_generation_prompt=True,
        )
        prompts.append({"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)})
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    outputs = llm.generate(prompts, params, lora_request=adapters, use_tqdm=False)
    completions: list[CompletionOutput] = [output.outputs[0] for output in outputs]
    return [
        Answer(case, completion.text, completion.finish_reason == "stop")
        for case, completion in zip(questions, completions, strict=True)
    ]


def score(answers: Sequence[Answer]) -> float:
    return sum(answer.right for answer in answers) / len(answers)


def report(answers: Sequence[Answer], num_shown: int) -> None:
    by_kind = defaultdict(list)
    for answer in answers:
        by_kind[answer.case.kind].append(answer)
    for kind, group in by_kind.items():
        print(f"{kind:12} {sum(a.right for a in group):4} of {len(group)}")
        for answer in [a for a in group if not a.right][:num_shown]:
            case = answer.case
            wanted = case.texts[:1] or case.value or case.call or case.contains
            print(f"    {case.turns[-1].content!r}")
            print(f"      got    {answer.text!r}\n      wanted {wanted!r}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.train_tiny.evaluate")
    parser.add_argument("model", nargs="?", default="octavo/tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--shown", type=int, default=5, help="failures printed of each kind")
    options = parser.parse_args()
    started = time.perf_counter()
    with LLM(options.model, device=options.device, dtype=options.dtype) as llm:
        answers, capitals = ask(llm, cases()), ask(llm, capital_cases())
    report([*answers, *capitals], options.shown)
    print(f"held-out questions {score(answers):.1%} (bar {BAR:.0%})")
    print(f"reworded capitals  {score(capitals):.1%} (bar {CAPITALS_BAR:.0%})")
    print(f"{time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
