"""SamplingParams to what the engine takes: in token ids, within this model's limits."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.errors import ParameterError
from octavo.limits import MAX_BAD_WORD_TOKENS
from octavo.messages import TokenSampling
from octavo.params import NUMBERS, SamplingParams
from octavo.wording import shown
from octavo_registry.tokenizer import Tokenizer

_SEED_BITS = 62
"""Sequence i uses seed + i, which must still fit a signed 64-bit integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingLimits:
    """What a model sets bounds with."""

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    tokenizer: Tokenizer | None
    seeds: random.Random
    """For requests that bring no seed."""

    def seed_of(self, seed: int | None) -> int:
        """The one that a request brings, or a random one; -1 means none, as elsewhere."""
        if seed is None or seed == -1:
            return self.seeds.getrandbits(_SEED_BITS)
        return seed & ((1 << _SEED_BITS) - 1)


def resolve_sampling(
    params: SamplingParams, limits: SamplingLimits, *, num_prompt_tokens: int
) -> TokenSampling:
    """Check against the model and translate; ``num_prompt_tokens`` is below ``max_model_len``."""
    if params.guided is not None and params.ignore_eos:
        raise ParameterError(
            "guided text ends where its constraint says; ignore_eos cannot be true with it",
            param="ignore_eos",
        )
    if params.stop_strings and limits.tokenizer is None:
        raise ParameterError(
            "stop strings need a tokenizer (skip_tokenizer_init is set); use stop_token_ids",
            param="stop",
        )
    room = limits.max_model_len - num_prompt_tokens
    if params.min_tokens > room:
        raise ParameterError(
            f"min_tokens={shown(params.min_tokens)} do not fit: {num_prompt_tokens} prompt tokens "
            f"leave {room} of the context of {limits.max_model_len}",
            param="min_tokens",
        )
    vocab_size = limits.vocab_size
    for name in ("logprobs", "prompt_logprobs"):
        if (getattr(params, name) or 0) > vocab_size:
            raise ParameterError(
                f"{name}={getattr(params, name)} is above the vocabulary of {vocab_size} ids",
                param=name,
            )
    stop_token_ids = tuple(params.stop_token_ids or ())
    _check_ids("stop_token_ids", stop_token_ids, vocab_size)
    _check_ids("logit_bias", params.logit_bias or (), vocab_size)
    allowed = params.allowed_token_ids
    _check_ids("allowed_token_ids", allowed or (), vocab_size)
    eos_token_ids = () if params.ignore_eos else limits.eos_token_ids
    bad_word_ids = _bad_word_ids(tuple(params.bad_words or ()), limits)
    if allowed is not None:
        banned = {ids[0] for ids in bad_word_ids if len(ids) == 1}
        if params.min_tokens > 0:
            banned.update(stop_token_ids, eos_token_ids)
        if banned.issuperset(allowed):
            raise ParameterError(
                "allowed_token_ids leaves no token to choose: bad_words, or min_tokens with the "
                "ids that end a sequence, ban them all",
                param="allowed_token_ids",
            )
    # Plain numbers: callers may give NumPy's, which cannot cross to an engine process.
    numbers = {name: kind(getattr(params, name)) for name, kind in NUMBERS.items()}
    if not 0 < params.top_k < vocab_size:
        numbers["top_k"] = 0
    return TokenSampling(
        **numbers,
        seed=limits.seed_of(params.seed),
        min_tokens=params.min_tokens,
        max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
        stop_token_ids=stop_token_ids,
        eos_token_ids=eos_token_ids,
        logprobs=-1 if params.logprobs is None else params.logprobs,
        prompt_logprobs=-1 if params.prompt_logprobs is None else params.prompt_logprobs,
        logit_bias={token: float(bias) for token, bias in (params.logit_bias or {}).items()},
        allowed_token_ids=None if allowed is None else tuple(allowed),
        bad_word_ids=bad_word_ids,
        extra_args=_plain_args(params.extra_args),
    )


def _plain_args(args: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy as an engine process would read it; what cannot cross is refused here."""
    if not args:
        return {}
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(dict(args)), type=dict[str, Any])
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ParameterError(
            f"extra_args must be made of JSON types, with names as keys: {error}",
            param="extra_args",
        ) from error


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise ParameterError(
                f"{name} names id {shown(token)}, outside the vocabulary of {vocab_size} ids",
                param=name,
            )


def _bad_word_ids(words: tuple[str, ...], limits: SamplingLimits) -> tuple[tuple[int, ...], ...]:
    """Each word as it is spelled at the start of a text or inside a word, and behind a space."""
    if words and limits.tokenizer is None:
        raise ParameterError(
            "bad_words need a tokenizer (skip_tokenizer_init is set)", param="bad_words"
        )
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        for spelling in (word, f" {word.lstrip()}"):
            assert limits.tokenizer is not None
            ids = tuple(limits.tokenizer.encode(spelling, add_special_tokens=False))
            if not ids:
                raise ParameterError(
                    f"bad word {word!r} has no tokens in this vocabulary", param="bad_words"
                )
            if len(ids) > MAX_BAD_WORD_TOKENS:
                raise ParameterError(
                    f"bad word {shown(word)} has {len(ids)} tokens in this vocabulary; at most "
                    f"{MAX_BAD_WORD_TOKENS}",
                    param="bad_words",
                )
            _check_ids("bad_words", ids, limits.vocab_size)
            sequences[ids] = None
    return tuple(sequences)
