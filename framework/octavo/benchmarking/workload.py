"""What is asked and when: random prompts or those of a file, arrivals by a rate."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from octavo.benchmarking.load import TimedRequest
from octavo.errors import ConfigError
from octavo.wording import counted

Endpoint = Literal["completions", "chat"]
PATHS: dict[Endpoint, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}
_SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: a text, token ids, or the messages of a chat."""

    prompt: str | list[int] | list[dict[str, Any]]
    output_len: int

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is a conversation."""
        return isinstance(self.prompt, list) and isinstance(self.prompt[0], dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of prompts and outputs, drawn evenly from ``(1 - ratio)`` to ``(1 + ratio)`` times."""

    input_len: int
    output_len: int
    range_ratio: float = 0.0

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be 1 at least")
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"range_ratio={self.range_ratio:g} must be from 0 to below 1")

    def draw(self, rng: random.Random) -> tuple[int, int]:
        """Return the lengths of one prompt and its output."""
        return self._draw(rng, self.input_len), self._draw(rng, self.output_len)

    def largest(self) -> int:
        """Tokens of the longest prompt with the longest output."""
        return self._most(self.input_len) + self._most(self.output_len)

    def __str__(self) -> str:
        """In words."""
        ratio = f", give or take {self.range_ratio:.0%}" if self.range_ratio else ""
        return f"{counted(self.input_len, 'token')} in, {self.output_len:,} out{ratio}"

    def _draw(self, rng: random.Random, length: int) -> int:
        low = math.floor(length * (1 - self.range_ratio))
        return rng.randint(max(1, low), self._most(length))

    def _most(self, length: int) -> int:
        return math.ceil(length * (1 + self.range_ratio))


def random_ids(
    count: int, lengths: Lengths, ids: Sequence[int], rng: random.Random
) -> Iterator[Ask]:
    """Prompts of exactly so many tokens, drawn from ``ids``."""
    for _ in range(count):
        num_input, num_output = lengths.draw(rng)
        yield Ask(prompt=rng.choices(ids, k=num_input), output_len=num_output)


def random_texts(count: int, lengths: Lengths, rng: random.Random) -> Iterator[Ask]:
    """Made-up texts of about so many tokens: two syllables are one to two of most tokenizers."""
    for _ in range(count):
        num_input, num_output = lengths.draw(rng)
        yield Ask(prompt=random_text(num_input, rng), output_len=num_output)


def random_text(num_syllables: int, rng: random.Random) -> str:
    """Words of two syllables."""
    syllables = rng.choices(_SYLLABLES, k=num_syllables)
    pairs = [syllables[i : i + 2] for i in range(0, num_syllables, 2)]
    return " ".join("".join(pair) for pair in pairs)


def read_asks(path: Path, count: int, output_len: int) -> list[Ask]:
    """The prompts of a JSONL file, from the beginning again when it has fewer.

    A line has "prompt" (text or token ids) or "messages", and may have "max_tokens"; a line of an
    OpenAI batch file, with these in its "body", serves as well.
    """
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not lines:
        raise ConfigError(f"{path} has no prompts")
    asks = [
        _read_ask(line, f"{path}, line {number}", output_len)
        for number, line in enumerate(lines[:count], 1)
    ]
    return [asks[number % len(asks)] for number in range(count)]


def _read_ask(line: str, where: str, output_len: int) -> Ask:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error
    if isinstance(given, dict) and isinstance(given.get("body"), dict):
        given = given["body"]
    if not isinstance(given, dict) or not (given.get("prompt") or given.get("messages")):
        raise ConfigError(f'{where} must be an object with "prompt" or "messages"')
    prompt = given.get("prompt") or given["messages"]
    is_messages = "prompt" not in given
    if not isinstance(prompt, list if is_messages else (str, list)) or (
        isinstance(prompt, list)
        and not all(isinstance(each, dict if is_messages else int) for each in prompt)
    ):
        raise ConfigError(f"{where}: the prompt must be a text, token ids or messages")
    max_tokens = given.get("max_tokens", given.get("max_completion_tokens", output_len))
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise ConfigError(f"{where}: max_tokens={max_tokens!r} must be 1 at least")
    return Ask(prompt=prompt, output_len=max_tokens)


def arrivals(count: int, request_rate: float, rng: random.Random) -> list[float]:
    """Seconds after the start at which requests are due; a rate of infinity: all at once.

    The gaps of a Poisson process, scaled so that the whole lasts as long as the rate says.
    """
    if math.isinf(request_rate):
        return [0.0] * count
    gaps = [rng.expovariate(request_rate) for _ in range(count - 1)]
    scale = (count - 1) / request_rate / sum(gaps) if gaps else 0.0
    times = [0.0]
    for gap in gaps:
        times.append(times[-1] + gap * scale)
    return times


def timed_requests(
    asks: Sequence[Ask],
    times: Sequence[float],
    *,
    endpoint: Endpoint,
    model: str,
    ignore_eos: bool,
    extra: dict[str, Any],
) -> list[TimedRequest]:
    """Write the bodies. Fields beyond OpenAI's: ``ignore_eos``, where asked for, and ``extra``."""
    requests = []
    for number, (ask, offset) in enumerate(zip(asks, times, strict=True)):
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": ask.output_len,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if ignore_eos:
            body["ignore_eos"] = True
        body |= _prompt(ask, endpoint) | extra
        requests.append(TimedRequest(number, offset, PATHS[endpoint], json.dumps(body).encode()))
    return requests


def _prompt(ask: Ask, endpoint: Endpoint) -> dict[str, Any]:
    if endpoint == "completions":
        if ask.is_chat:
            raise ConfigError("the file has messages; use --endpoint chat")
        return {"prompt": ask.prompt}
    if ask.is_chat:
        return {"messages": ask.prompt}
    if not isinstance(ask.prompt, str):
        raise ConfigError("the file has token ids, which a chat cannot take; use completions")
    return {"messages": [{"role": "user", "content": ask.prompt}]}
