"""What requests cost: counted step by step and at their ends, in the thread that reads the engine.

A step costs the same for one token as for hundreds, as long as the same sequences advance.
"""

from __future__ import annotations

from collections import Counter as Tally
from typing import Final, Literal

from octavo.observability.metrics import Counter, Histogram, MetricValues
from octavo_registry import RequestOutcome

# vLLM's bounds, so that its dashboards and alerts read the same.
FIRST_TOKEN_SECONDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
NEXT_TOKEN_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_SECONDS: Final = (
    0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NUM_CONTINUATIONS: Final = (1, 2, 5, 10, 20)
# Sequences are never said to have ended: tokens of some still come after a stop string ended them.
MOST_REMEMBERED: Final = 4096
FORGET_SECONDS: Final = 600.0

Reason = Literal["stop", "length", "abort", "error"]
WORST_FIRST: Final[tuple[Reason, ...]] = ("error", "abort", "length", "stop")


class RequestMeter:
    """All metrics of requests; what an ``OutputProcessor`` tells of them goes here."""

    def __init__(self, max_model_len: int) -> None:
        tokens = token_bounds(max_model_len)
        self._last_seconds: dict[int, float] = {}
        """When a sequence's last token came, for those that have one and are not in ``_steady``."""
        self._steady: list[int] = []
        """The sequences of the last step, which all had a token at ``_steady_seconds``."""
        self._steady_seconds = 0.0
        self._most_remembered = MOST_REMEMBERED
        self._prompt_tokens = Counter(
            "prompt_tokens_total", "Prompt tokens of requests that have begun to answer."
        )
        self._cached_tokens = Counter(
            "prompt_tokens_cached_total", "Prompt tokens of these that came from the prefix cache."
        )
        self._generation_tokens = Counter("generation_tokens_total", "Tokens that were generated.")
        self._success = Counter(
            "request_success_total", "Requests that have ended, by reason.", ("finished_reason",)
        )
        for reason in WORST_FIRST:
            self._success.add(0, (reason,))
        self._first_token = Histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_SECONDS
        )
        self._next_token = Histogram(
            "inter_token_latency_seconds",
            "From one token of a sequence to its next.",
            NEXT_TOKEN_SECONDS,
        )
        self._per_token = Histogram(
            "request_time_per_output_token_seconds",
            "Of a request: its time after the first token by the tokens after it.",
            NEXT_TOKEN_SECONDS,
        )
        self._seconds = _of_request("e2e_request_latency_seconds", "From arrival to end.")
        self._queue = _of_request("request_queue_time_seconds", "Waiting in the engine's queue.")
        self._prefill = _of_request(
            "request_prefill_time_seconds", "From the queue's end to the first token."
        )
        self._decode = _of_request(
            "request_decode_time_seconds", "From the first token to the last."
        )
        self._inference = _of_request(
            "request_inference_time_seconds", "From the queue's end to the last token."
        )
        self._prompt_lengths = Histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", tokens
        )
        self._output_lengths = Histogram(
            "request_generation_tokens", "Tokens that a request got.", tokens
        )
        self._max_tokens = Histogram(
            "request_params_max_tokens", "max_tokens of a request.", tokens
        )
        self._n = Histogram("request_params_n", "n of a request.", NUM_CONTINUATIONS)

    def step(self, sequences: list[int], counts: list[int], now: float) -> None:
        """Each of these got a token, or as many as ``counts`` says."""
        self._generation_tokens.add(sum(counts) if counts else len(sequences))
        if counts:
            self._settle()
            for sequence, count in zip(sequences, counts, strict=True):
                if (before := self._last_seconds.get(sequence)) is not None:
                    self._next_token.observe((now - before) / count, count)
            self._steady = sequences
        elif sequences == self._steady:
            self._next_token.observe(now - self._steady_seconds, len(sequences))
        else:
            self._settle()
            # Most of them had their last token together, so that few times are told apart.
            for before, count in Tally(map(self._last_seconds.get, sequences)).items():
                if before is not None:
                    self._next_token.observe(now - before, count)
            self._steady = sequences
        self._steady_seconds = now

    def first_token(self, seconds: float, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        """A request has begun to answer."""
        self._first_token.observe(seconds)
        self._prompt_tokens.add(num_prompt_tokens)
        self._cached_tokens.add(num_cached_tokens)

    def finished(self, outcome: RequestOutcome, max_tokens: int) -> None:
        """A request has ended, in one way or another."""
        reason = next(r for r in WORST_FIRST if r in outcome.finish_reasons)
        self._success.add(1, (reason,))
        self._seconds.observe(outcome.seconds)
        self._prompt_lengths.observe(outcome.num_prompt_tokens)
        self._output_lengths.observe(outcome.num_output_tokens)
        self._max_tokens.observe(max_tokens)
        self._n.observe(len(outcome.finish_reasons))
        if outcome.seconds_in_queue is not None:
            self._queue.observe(outcome.seconds_in_queue)
        if outcome.seconds_to_first_token is None:
            return
        decode = outcome.seconds - outcome.seconds_to_first_token
        self._decode.observe(decode)
        num_later = outcome.num_output_tokens - len(outcome.finish_reasons)
        if num_later > 0:
            self._per_token.observe(decode * len(outcome.finish_reasons) / num_later)
        if outcome.seconds_in_prefill is not None:
            self._prefill.observe(outcome.seconds_in_prefill)
            self._inference.observe(outcome.seconds_in_prefill + decode)

    def read(self) -> list[MetricValues]:
        """Return all of them."""
        return [m.read() for m in vars(self).values() if isinstance(m, Counter | Histogram)]

    def _settle(self) -> None:
        self._last_seconds.update(dict.fromkeys(self._steady, self._steady_seconds))
        self._steady = []
        if len(self._last_seconds) > self._most_remembered:
            past = self._steady_seconds - FORGET_SECONDS
            self._last_seconds = {k: v for k, v in self._last_seconds.items() if v > past}
            self._most_remembered = max(MOST_REMEMBERED, 2 * len(self._last_seconds))


def token_bounds(most: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... up to ``most``."""
    bounds, size = [], 1
    while size <= most:
        bounds += [step * size for step in (1, 2, 5) if step * size <= most]
        size *= 10
    return [float(bound) for bound in bounds]


def _of_request(name: str, help: str) -> Histogram:
    return Histogram(name, help, REQUEST_SECONDS)
