"""A logits processor: rows are their own, nothing asked is nothing changed, preemption is unseen.

Axis suffixes: R rows, V vocabulary, S slots, L tokens of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from octavo.errors import OctavoError
from octavo.sampling.processors import without_trailing
from octavo.testing.report import Check, tried, unclaimed
from octavo.testing.samples import samples_of
from octavo_registry import PluginHost, SequenceTokens

VOCAB_SIZE: Final = 160
NUM_SLOTS, NUM_STEPS = 8, 12
PROMPTS: Final = ((5, 9, 77), (6, 100), (7, 8, 9, 10, 11))
_NOTHING: Final[Mapping[str, Any]] = {}


def check_logits_processor(host: PluginHost, name: str) -> list[Check]:
    """Run it on the logits of made-up sequences, some of which ask for what ``samples`` give."""
    title = f"logits processor {name!r}"
    make = partial(host.logits_processors.make, name)
    validate: Any = getattr(host.logits_processors.load(name), "validate", None)
    if validate is not None:
        validate = host.logits_processors.bind(name, validate)
    asked: Sequence[Mapping[str, Any]] | None = samples_of(host.logits_processors, name, VOCAB_SIZE)
    checks = [tried(f"{title} leaves rows as they are that ask for nothing", _changes(make))]
    if validate is not None:
        takes = f"{title} takes requests that ask for nothing"
        checks.append(tried(takes, _refusals(make, validate, [_NOTHING])))
    does = f"{title} does what is asked"
    if not asked:
        missing = "samples= are not given, so that nothing was asked of it"
        return [*checks, unclaimed(does, missing)]
    return [
        *checks,
        tried(f"{title} takes what its samples ask for", _refusals(make, validate, asked)),
        tried(does, _deafness(make, asked)),
        tried(f"{title} gives a row the same in a batch and in any slot", _mixtures(make, asked)),
        tried(f"{title} goes on where it was when it is preempted", _restarts(make, asked)),
        tried(f"{title} forgets a sequence that has left", _leftovers(make, asked)),
    ]


class _Run:
    """Sequences that sample greedily from logits that follow from their last token."""

    def __init__(self, make: Callable[..., Any], dtype: torch.dtype = torch.float32) -> None:
        device = torch.device("cpu")
        self._processor = make(VOCAB_SIZE, device)
        self._attach = without_trailing(self._processor.attach, most=4)
        self._apply = without_trailing(self._processor.apply, most=3)
        self._dtype = dtype
        self._tokens_SL = torch.zeros(NUM_SLOTS, 64, dtype=torch.int32)
        self._num_tokens_S = torch.zeros(NUM_SLOTS, dtype=torch.int32)
        generator = torch.Generator().manual_seed(0)
        self._logits_VV = torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=generator)
        self.tokens: dict[int, list[int]] = {}
        """Tokens of prompt and output, by slot."""
        self._args: dict[int, tuple[Mapping[str, Any], int]] = {}

    def attach(
        self,
        slot: int,
        args: Mapping[str, Any],
        prompt: Sequence[int],
        output: Sequence[int] = (),
    ) -> None:
        self._attach(slot, dict(args), list(prompt), list(output))
        tokens = [*prompt, *output]
        self.tokens[slot] = tokens
        self._args[slot] = args, len(prompt)
        self._tokens_SL[slot, : len(tokens)] = torch.tensor(tokens)
        self._num_tokens_S[slot] = len(tokens)

    def detach(self, slot: int) -> list[int]:
        self._processor.detach(slot)
        self._args.pop(slot)
        self._num_tokens_S[slot] = 0
        return self.tokens.pop(slot)

    def move(self, slot: int, other: int) -> None:
        """Preempt a sequence, and let it go on in another slot."""
        args, prompt_len = self._args[slot]
        tokens = self.detach(slot)
        self.attach(other, args, tokens[:prompt_len], tokens[prompt_len:])

    def logits(self, slots: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Logits before and behind the processor."""
        last_R = [self.tokens[slot][-1] for slot in slots]
        before_RV = self._logits_VV[last_R].to(self._dtype)
        so_far = SequenceTokens(tokens_SL=self._tokens_SL, num_tokens_S=self._num_tokens_S)
        slots_R = torch.tensor(slots, dtype=torch.int64)
        found: Any = self._apply(before_RV.clone(), slots_R, so_far)
        if not isinstance(found, Tensor):
            raise TypeError(f"apply returned {type(found).__name__}, not a tensor")
        if (found.shape, found.dtype) != (before_RV.shape, before_RV.dtype):
            shape = f"{found.dtype} {list(found.shape)}"
            raise TypeError(f"apply returned {shape} for {before_RV.dtype} {list(before_RV.shape)}")
        if not bool((found.amax(dim=1) > -torch.inf).all()):
            raise ValueError("apply left a row that is NaN, or -inf throughout")
        return before_RV, found

    def step(self, slots: Sequence[int]) -> None:
        """Sample a token in each of these slots."""
        _, behind_RV = self.logits(slots)
        for slot, token in zip(slots, behind_RV.argmax(dim=1).tolist(), strict=True):
            self._tokens_SL[slot, len(self.tokens[slot])] = token
            self.tokens[slot].append(token)
            self._num_tokens_S[slot] += 1


def _changes(make: Callable[..., Any]) -> Iterator[str]:
    for dtype in (torch.float32, torch.bfloat16):
        run = _Run(make, dtype)
        for slot, prompt in enumerate(PROMPTS):
            run.attach(slot, _NOTHING, prompt)
        for _ in range(3):
            before_RV, behind_RV = run.logits([2, 0])
            if not torch.equal(before_RV, behind_RV):
                yield f"logits of {dtype} have changed though extra_args are empty"
            run.step([0, 1, 2])
        run.detach(1)
        run.attach(1, _NOTHING, PROMPTS[0])
        run.step([1])


def _refusals(
    make: Callable[..., Any], validate: Any, asked: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    for args in asked:
        try:
            if validate is not None:
                validate(args)
            _Run(make).attach(0, args, PROMPTS[0])
        except OctavoError as error:
            yield f"{dict(args)!r} is refused: {error}"


def _alone(make: Callable[..., Any], args: Mapping[str, Any], slot: int = 0) -> list[int]:
    run = _Run(make)
    run.attach(slot, args, PROMPTS[0])
    for _ in range(NUM_STEPS):
        run.step([slot])
    return run.tokens[slot]


def _deafness(make: Callable[..., Any], asked: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for args in asked:
        run = _Run(make)
        run.attach(0, args, PROMPTS[0])
        is_heard = False
        for _ in range(NUM_STEPS):
            before_RV, behind_RV = run.logits([0])
            is_heard = is_heard or not torch.equal(before_RV, behind_RV)
            run.step([0])
        if not is_heard:
            yield f"{dict(args)!r} changes no logit in {NUM_STEPS} steps"


def _mixtures(make: Callable[..., Any], asked: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for args in asked:
        expected = _alone(make, args)
        run = _Run(make)
        run.attach(3, _NOTHING, PROMPTS[1])
        run.attach(5, args, PROMPTS[0])
        run.attach(1, asked[0], PROMPTS[2])
        plain = _Run(make)
        plain.attach(3, _NOTHING, PROMPTS[1])
        for step in range(NUM_STEPS):
            run.step([5, 3, 1] if step % 2 else [1, 3, 5])
            plain.step([3])
        if run.tokens[5] != expected:
            yield f"{dict(args)!r} gives {run.tokens[5]} beside others and {expected} alone"
        if run.tokens[3] != plain.tokens[3]:
            yield f"{dict(args)!r} of one row changes another that asks for nothing"


def _restarts(make: Callable[..., Any], asked: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for args in asked:
        expected = _alone(make, args)
        for when in (1, 4, NUM_STEPS - 1):
            run = _Run(make)
            run.attach(0, args, PROMPTS[0])
            for step in range(NUM_STEPS):
                if step == when:
                    run.move(0, 6)
                run.step([6 if step >= when else 0])
            if run.tokens[6] != expected:
                yield (
                    f"{dict(args)!r} gives {run.tokens[6]} when it is preempted after {when} "
                    f"tokens, and {expected} otherwise"
                )


def _leftovers(make: Callable[..., Any], asked: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for args in asked:
        run = _Run(make)
        run.attach(0, args, PROMPTS[0])
        for _ in range(3):
            run.step([0])
        run.detach(0)
        run.attach(0, _NOTHING, PROMPTS[1])
        before_RV, behind_RV = run.logits([0])
        if not torch.equal(before_RV, behind_RV):
            yield f"{dict(args)!r} still changes the next sequence in its slot"
