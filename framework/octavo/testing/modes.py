"""The ways in which an engine may come to the same tokens, each brought about on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from octavo.config import EngineConfig
from octavo.frontend.options import read_options
from octavo.testing.comparison import Comparison, compare
from octavo.testing.engine_run import EnginePrompt, EngineRun, Tokens
from octavo.testing.reference import Reference
from octavo_registry import Adapter, PluginHost

MAX_TOKENS: Final = 48
NUM_FORKS: Final = 3
FORK_TOKENS: Final = 20
"""A fork goes wrong at its beginning, if at all."""
FEW_TOKENS: Final = 6
"""Enough for most faults to show."""
BLOCK_TOKENS: Final = 8
PROMPT_LENGTHS: Final = (1, 2, 3, 5, 7, 8, 9, 12, 15, 16, 17, 20, 23, 24, 26, 31, 33, 40, 49, 63)
"""Around the borders of blocks and chunks, and past the window."""
NUM_SHARED: Final = 2 * BLOCK_TOKENS
"""Tokens that every second prompt begins with."""

OPTIONS: Final[Mapping[str, Any]] = {
    "device": "cpu",
    "dtype": "float32",
    "num_threads": 1,  # more are slower for a model this small
    "max_model_len": 128,
    "block_size": BLOCK_TOKENS,
    "max_num_seqs": NUM_FORKS * len(PROMPT_LENGTHS),
    "max_num_batched_tokens": 2048,
}


class NotExercised(Exception):
    """What a mode is for did not happen, so that equal tokens prove nothing."""


class NotUsed(Exception):
    """What a mode is for cannot happen to this model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One model folder, what it must equal, and the host whose engine runs it."""

    folder: Path
    host: PluginHost
    reference: Reference
    prompts: tuple[EnginePrompt, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Engine options beside the kit's own."""
    max_tokens: int = MAX_TOKENS
    """How long continuations are."""
    adapters: Sequence[Adapter] = ()
    adapter_of: Callable[[Tokens], str] = lambda prompt: ""
    """The content hash of a prompt's adapter, or none."""

    def engine(self, **options: Any) -> EngineRun:
        """A new engine."""
        return EngineRun(
            engine_config(self.folder, **{**self.options, **options}),
            self.host,
            adapters=self.adapters,
            adapter_of=self.adapter_of,
        )


Mode = Callable[[Trial], Comparison]


def engine_config(folder: Path, **options: Any) -> EngineConfig:
    """What an engine of the kit is started with."""
    flat = {"model": str(folder), **OPTIONS, **options}
    return read_options(flat, caller="engine_config").config


def make_prompts(vocab_size: int) -> tuple[Tokens, ...]:
    """Random and ragged; half of them share a beginning, as far as they reach."""
    generator = np.random.default_rng(0)
    shared = generator.integers(vocab_size, size=NUM_SHARED)
    prompts = [generator.integers(vocab_size, size=length) for length in PROMPT_LENGTHS]
    for prompt in prompts[::2]:
        prompt[:NUM_SHARED] = shared[: len(prompt)]
    return tuple(tuple(prompt.tolist()) for prompt in prompts)


def teacher_forced(trial: Trial, **options: Any) -> Comparison:
    """Every position of prompts and greedy continuations, computed as prompts."""
    with trial.engine(**options) as engine:
        continued = engine.generate(trial.prompts, max_tokens=trial.max_tokens)
        sequences = [each.sequence for each in continued]
        found = engine.score(sequences)
    comparison = Comparison()
    for index, expected in enumerate(trial.reference.logprobs(sequences)):
        comparison.add(f"sequence {index}", found[index], expected)
    return comparison


def alone(trial: Trial) -> Comparison:
    """One request after the other, nothing shared."""
    with trial.engine(enable_prefix_caching=False) as engine:
        each = [engine.generate([prompt], max_tokens=trial.max_tokens) for prompt in trial.prompts]
    return compare([continuation for (continuation,) in each], trial.reference)


def in_a_batch(trial: Trial, **options: Any) -> Comparison:
    """All requests at once."""
    with trial.engine(**options) as engine:
        return compare(engine.generate(trial.prompts, max_tokens=trial.max_tokens), trial.reference)


def in_random_order(trial: Trial) -> Comparison:
    """Requests join while others run."""
    generator = np.random.default_rng(0)

    def arrivals() -> Iterator[int]:
        while True:
            yield int(generator.integers(3))

    prompts = [trial.prompts[i] for i in generator.permutation(len(trial.prompts))]
    with trial.engine() as engine:
        found = engine.generate(prompts, max_tokens=MAX_TOKENS, arrivals=arrivals())
    return compare(found, trial.reference)


def with_warm_prefix_cache(trial: Trial) -> Comparison:
    """Compare prompts when they are asked a second time."""
    with trial.engine(checkpoint_tokens=NUM_SHARED) as engine:
        engine.generate(trial.prompts, max_tokens=trial.max_tokens)
        found = engine.generate(trial.prompts, max_tokens=trial.max_tokens)
    if not any(each.num_cached_tokens >= NUM_SHARED for each in found):
        raise NotExercised("no prompt was found in the prefix cache")
    return compare(found, trial.reference)


def preempted(trial: Trial, *, by: str) -> Comparison:
    """Blocks for about three of the requests at a time."""
    with trial.engine() as roomy:  # it has what max_num_seqs of the longest sequences need
        num_blocks = 1 + 3 * (roomy.num_blocks - 1) // OPTIONS["max_num_seqs"]
    if num_blocks == 1:
        raise NotUsed("nothing is kept by token, and nobody has to give it back")
    with trial.engine(num_blocks=num_blocks, preemption_mode=by) as engine:
        found = engine.generate(trial.prompts, max_tokens=trial.max_tokens)
        counts = {name: engine.count(name) for name in ("num_preemptions", "num_swaps")}
    if not counts["num_preemptions"] or (counts["num_swaps"] > 0) != (by == "swap"):
        raise NotExercised(f"nothing was preempted by {by}: {counts}")
    return compare(found, trial.reference)


def forked(trial: Trial) -> Comparison:
    """Several random continuations of a prompt; each equals the one that is asked for alone.

    That blocks are copied here is shown by the fault that skips it.
    """
    random: Mapping[str, Any] = {"max_tokens": FORK_TOKENS, "temperature": 1.0}
    with trial.engine() as engine:
        forks = engine.generate(trial.prompts, n=NUM_FORKS, **random)
    with trial.engine() as engine:
        streams = [engine.generate(trial.prompts, seed=seed, **random) for seed in range(NUM_FORKS)]
    comparison = compare(forks, trial.reference, greedy=False)
    independent = [stream[i] for i in range(len(trial.prompts)) for stream in streams]
    if comparison.passed:
        comparison.problems += [
            f"fork {index}: other tokens than if asked for alone"
            for index, (fork, other) in enumerate(zip(forks, independent, strict=True))
            if fork.tokens != other.tokens
        ]
    return comparison


def with_mistake(mode: Mode, mistaken: Trial) -> Comparison:
    """A comparison that should fail. What shows in a few tokens shows in all: those come first."""
    few = mode(replace(mistaken, max_tokens=FEW_TOKENS))
    return mode(mistaken) if few.passed else few


MODES: Final[Mapping[str, Mode]] = {
    "in a batch": in_a_batch,
    "one step at a time": lambda trial: in_a_batch(trial, async_depth=1),
    "with three steps under way": lambda trial: in_a_batch(trial, async_depth=3),
    "in chunks of 7 tokens": lambda trial: in_a_batch(trial, max_num_batched_tokens=7),
    "in chunks of 13 tokens": lambda trial: in_a_batch(trial, max_num_batched_tokens=13),
    "as prompts in chunks of 13": lambda trial: teacher_forced(trial, max_num_batched_tokens=13),
    "arriving in random order": in_random_order,
    "with a warm prefix cache": with_warm_prefix_cache,
    "preempted and recomputed": lambda trial: preempted(trial, by="recompute"),
    "preempted and swapped": lambda trial: preempted(trial, by="swap"),
    "forked": forked,
}
"""Logits and tokens must be the same; plain ``teacher_forced`` and ``alone`` come before these."""
