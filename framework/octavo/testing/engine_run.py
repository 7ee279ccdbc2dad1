"""Requests through the real engine, with the distribution that each token was sampled from.

Axis suffixes: T tokens of a prompt, N tokens of a continuation, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.adapters.check import check_adapter
from octavo.adapters.packed import pack
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.errors import ConfigError, EngineDeadError, RequestFailedError
from octavo.inputs.media import PlacedMedia
from octavo.messages import EngineRequest, LinearSize, SequenceLogprobs, StepOutputs, TokenSampling
from octavo_registry import Adapter, PluginHost

Tokens = tuple[int, ...]
EnginePrompt = Tokens | PlacedMedia
Logprobs = NDArray[np.float32]

MAX_IDLE_STEPS = 10_000
"""Steps in a row that bring no token: an engine that needs more is stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPrompt(PlacedMedia):
    """A prompt with the one item that it always has, also as a reference takes it."""

    item: Any


def tokens_of(prompt: EnginePrompt) -> Tokens:
    """Its token ids, without what comes with them."""
    return tuple(prompt.token_ids) if isinstance(prompt, PlacedMedia) else prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSequence:
    """What one sequence of a request sampled."""

    prompt: EnginePrompt
    tokens: Tokens
    logprobs_NV: Logprobs
    num_cached_tokens: int
    """Prompt tokens from the prefix cache; told for a prompt's first continuation only."""

    @property
    def sequence(self) -> EnginePrompt:
        """The prompt and what was sampled, as one prompt."""
        if not isinstance(self.prompt, PlacedMedia):
            return self.prompt + self.tokens
        return replace(self.prompt, token_ids=[*self.prompt.token_ids, *self.tokens])


@dataclass(slots=True)
class _Received:
    """What one sequence has got so far."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[SequenceLogprobs] = field(default_factory=list)
    prompt_logprobs: list[SequenceLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0


class EngineRun:
    """One engine, used as a context manager; it may run several batches, one after the other."""

    def __init__(
        self,
        config: EngineConfig,
        host: PluginHost,
        *,
        adapters: Iterable[Adapter] = (),
        adapter_of: Callable[[Tokens], str] = lambda prompt: "",
    ) -> None:
        """``adapter_of`` a prompt is the content hash of one of the adapters, or "" for none."""
        self._core = EngineCore(config, host)
        self._adapter_of = adapter_of
        for adapter in adapters:
            self.add_adapter(adapter)
        self._ids = itertools.count()
        self.num_blocks = self._core.ready.num_blocks
        self.vocab_size = self._core.ready.vocab_size

    def __enter__(self) -> EngineRun:
        return self

    def __exit__(self, *error: object) -> None:
        self._core.close()

    @property
    def linears(self) -> dict[str, LinearSize]:
        """What adapters can change; none where the engine takes no adapters."""
        facts = self._core.ready.adapters
        return {} if facts is None else {n: LinearSize(*it) for n, it in facts.linears.items()}

    def add_adapter(self, adapter: Adapter) -> None:
        """Give it to the engine, checked as any other."""
        facts = self._core.ready.adapters
        if facts is None:
            raise ConfigError("the engine takes no adapters; set enable_lora")
        checked = check_adapter(adapter, self.linears, max_rank=facts.max_rank)
        self._core.add_adapter(pack(checked, facts.dtype))

    def remove_adapter(self, content_hash: str) -> None:
        """Take it back."""
        self._core.remove_adapter(content_hash)

    def count(self, name: str) -> int:
        """One of the engine's counters, by its name in ``EngineCore.stats``."""
        return self._core.stats()[name]

    def generate(
        self,
        prompts: Sequence[EnginePrompt],
        *,
        max_tokens: int,
        n: int = 1,
        temperature: float = 0.0,
        seed: int = 0,
        arrivals: Iterable[int] | None = None,
    ) -> list[SampledSequence]:
        """Continue each prompt ``n`` times; the continuations of a prompt stand together.

        ``arrivals`` are the numbers of requests that join before each step; None: all at once.
        """
        sampling = TokenSampling(
            temperature=temperature, seed=seed, max_tokens=max_tokens, logprobs=self.vocab_size
        )
        requests = [self._request(prompt, sampling, n) for prompt in prompts]
        received = self._run(requests, arrivals or itertools.repeat(len(requests)))
        return [
            SampledSequence(
                prompt=prompt,
                tokens=tuple(received[sequence].tokens),
                logprobs_NV=self._dense(received[sequence].logprobs),
                num_cached_tokens=received[sequence].num_cached_tokens,
            )
            for prompt, request in zip(prompts, requests, strict=True)
            for sequence in request.sequences
        ]

    def score(self, sequences: Sequence[EnginePrompt]) -> list[Logprobs]:
        """What follows each token but the last, computed as prompts: [T - 1, V] each."""
        sampling = TokenSampling(
            temperature=0.0, seed=0, max_tokens=1, prompt_logprobs=self.vocab_size
        )
        requests = [self._request(each, sampling, 1) for each in sequences]
        received = self._run(requests, itertools.repeat(len(requests)))
        return [self._dense(received[r.sequences[0]].prompt_logprobs) for r in requests]

    def _request(self, prompt: EnginePrompt, sampling: TokenSampling, n: int) -> EngineRequest:
        ids = tuple(itertools.islice(self._ids, n))
        if not isinstance(prompt, PlacedMedia):
            prompt = PlacedMedia(token_ids=list(prompt))
        return EngineRequest(
            request_id=str(ids[0]),
            sequences=ids,
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            adapter=self._adapter_of(tokens_of(prompt)),
            media=prompt.inputs,
            positions=prompt.positions,
        )

    def _run(
        self, requests: Sequence[EngineRequest], arrivals: Iterable[int]
    ) -> dict[int, _Received]:
        """Step until all have ended; one that failed raises."""
        received = {sequence: _Received() for r in requests for sequence in r.sequences}
        waiting, joining = deque(requests), iter(arrivals)
        num_idle = 0
        while waiting or self._core.has_work:
            count = min(next(joining), len(waiting)) if waiting else 0
            self._core.add([waiting.popleft() for _ in range(count)])
            outputs = self._core.step()
            _take(outputs, received)
            num_idle = 0 if outputs.tokens else num_idle + 1
            if num_idle > MAX_IDLE_STEPS:
                raise EngineDeadError(f"the engine sampled no token in {MAX_IDLE_STEPS} steps")
        return received

    def _dense(self, entries: Sequence[SequenceLogprobs]) -> Logprobs:
        """Log probabilities by token id; the engine gives them in order of likelihood."""
        dense_NV = np.full((len(entries), self.vocab_size), np.nan, np.float32)
        for row_V, entry in zip(dense_NV, entries, strict=True):
            row_V[entry.token_ids] = entry.logprobs
        return dense_NV


def _take(outputs: StepOutputs, received: dict[int, _Received]) -> None:
    for end in outputs.ends:
        if end.reason == "error":
            raise RequestFailedError(f"a request failed in the engine: {end.error}")
    for report in outputs.prompts:
        received[report.sequence].num_cached_tokens = report.num_cached_tokens
        received[report.sequence].prompt_logprobs += report.logprobs or []
    for sequence, tokens in outputs.by_sequence():
        received[sequence].tokens += tokens
    for sequence, logprobs in outputs.logprobs.items():
        received[sequence].logprobs += logprobs
