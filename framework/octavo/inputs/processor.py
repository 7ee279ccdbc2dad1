"""Prompts to engine requests; what it lets through, the engine need not check again."""

from __future__ import annotations

import itertools
import logging
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from msgspec import structs

from octavo.errors import (
    ModelError,
    ParameterError,
    PromptError,
    PromptTooLongError,
    UnsupportedConstraint,
)
from octavo.inputs.controls import ChatText
from octavo.inputs.marked import encode_marked
from octavo.inputs.media import MediaInputs, PlacedMedia
from octavo.inputs.prompt import Prompt, check_modality, check_token_ids, parse_prompt
from octavo.inputs.sampling import SamplingLimits, resolve_sampling
from octavo.limits import MAX_EOS_TOKEN_IDS
from octavo.messages import EngineRequest, GuideRequest
from octavo.model_folder.tokenizer_failures import TokenizerFailure, unnamed_failure
from octavo.multimodal.given import GivenMedia
from octavo.params import GuidedParams, SamplingParams
from octavo.tools.answer_reader import AnswerReader
from octavo.wording import most_tokens, shown
from octavo_registry.faults import FAILURES
from octavo_registry.model import ModelCapabilities
from octavo_registry.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_CACHE_SALT = re.compile(r"[A-Za-z0-9_-]{0,128}")
MAX_CHARS_PER_TOKEN = 128
"""The longest tokens of known vocabularies, runs of blanks. Longer text is refused unread."""
USUAL_CHARS_PER_TOKEN = 4
"""English has more. A text that needs more than this to fit is counted beforehand, in pieces."""
_PIECE_CHARS = 65_536
"""A piece takes the tokenizer a tenth of a second at most."""
_MARGIN = 2
"""A text in pieces has a few tokens more, by its cuts: what has twice too many is too long."""
_MAX_PRIORITY = 2**31 - 1
_MAX_REQUEST_ID_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request for the engine, and what the output processor needs besides."""

    request: EngineRequest
    params: SamplingParams
    prompt: str | None
    """The prompt's text, where text was given."""
    reader: AnswerReader | None = None
    """Takes a chat's answers apart; None: their text is all there is."""


def with_adapter(prepared: PreparedRequest, content_hash: str) -> PreparedRequest:
    """Return the request for that adapter; "" is none."""
    request = structs.replace(prepared.request, adapter=content_hash)
    return replace(prepared, request=request)


def _no_guide(params: GuidedParams) -> GuideRequest:
    raise UnsupportedConstraint(f"{params.constraint} cannot be enforced here", param="guided")


class InputProcessor:
    """Makes requests of one client; it alone hands out the client's sequence ids."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        max_model_len: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...] = (),
        default_params: SamplingParams | None = None,
        capabilities: ModelCapabilities | None = None,
        max_logprobs: int | None = None,
        seed: int = 0,
        takes_priority: bool = False,
        sequence_ids: Iterator[int] | None = None,
        choose_guide: Callable[[GuidedParams], GuideRequest] = _no_guide,
        media: MediaInputs | None = None,
        tokenizer_failed: TokenizerFailure = unnamed_failure,
        check_extra_args: Callable[[Mapping[str, Any]], None] = lambda extra_args: None,
    ) -> None:
        """``vocab_size`` is the model's; ``tokenizer`` None takes prompts as ids only.

        ``seed`` is for requests without one; ``takes_priority``: the scheduler looks at priorities.
        """
        self.default_params = default_params or SamplingParams()
        self._tokenizer = tokenizer
        self._capabilities = capabilities or ModelCapabilities()
        self.sequence_ids = sequence_ids or itertools.count()
        """Numbers of sequences, and of calls for vectors, that are to come."""
        if len(eos_token_ids) > MAX_EOS_TOKEN_IDS:
            raise ModelError(
                f"the model names {len(eos_token_ids)} end of sequence ids, and at most "
                f"{MAX_EOS_TOKEN_IDS} are looked for; choose with "
                "hf_overrides={'eos_token_id': [...]}"
            )
        possible_eos = tuple(i for i in eos_token_ids if 0 <= i < vocab_size)
        if possible_eos != eos_token_ids:
            log.warning(
                "end of sequence ids %s include some outside the vocabulary of %d: never sampled",
                eos_token_ids,
                vocab_size,
            )
        self._limits = SamplingLimits(
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            eos_token_ids=possible_eos,
            tokenizer=tokenizer,
            seeds=random.Random(seed),
        )
        self._max_logprobs = max_logprobs
        self._takes_priority = takes_priority
        self._choose_guide = choose_guide
        self._media = media
        self._tokenizer_failed = tokenizer_failed
        self._check_extra_args = check_extra_args

    def process(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        adapter: str = "",
        add_special_tokens: bool = True,
        media: Sequence[GivenMedia] = (),
        processor_kwargs: Mapping[str, Any] | None = None,
        chat: ChatText | None = None,
    ) -> PreparedRequest:
        """Check everything that a request carries and put it into ids.

        ``params`` None takes the model's defaults; a rendered chat template wants
        ``add_special_tokens=False``, for it has written them itself. ``media`` and
        ``processor_kwargs`` are a chat's; a prompt has its own. ``chat`` tells of a prompt that is
        a chat's text where control tokens stand in it.
        """
        params = self.params_or_default(params)
        parsed = parse_prompt(prompt)
        for modality in (*parsed.media, *(item.modality for item in media)):
            check_modality(modality, self._capabilities)
        if self._media is not None and not self._media.special_tokens:
            add_special_tokens = False
        ids = parsed.token_ids
        if ids is None:
            whole = parsed.text or ""
            is_right = params.truncation_side == "right"
            begin, end = self._kept(whole, params.truncate_prompt_tokens, is_right=is_right)
            marks = self._media.marks if self._media else {}
            if chat is None or chat.marked is None:
                ids = self._encode_around(marks, whole[begin:end], add_special_tokens)
            else:
                ids = self._encode_chat(chat.within(begin, end), marks)
        if (most := params.truncate_prompt_tokens) is not None:
            ids = ids[:most] if params.truncation_side == "right" else ids[-most:]
        salt = _checked_salt(cache_salt or parsed.cache_salt)
        placed = PlacedMedia(token_ids=ids)
        if self._media is not None:
            given = [*media]
            if parsed.media or parsed.uuids:
                given += self._media.split(parsed.media, parsed.uuids)
            placed = self._media.place(
                ids,
                given,
                salt=salt,
                kwargs=parsed.processor_kwargs if processor_kwargs is None else processor_kwargs,
                from_text=parsed.token_ids is None,
            )
            ids = placed.token_ids
        self._check_length(len(ids))
        try:
            check_token_ids(ids, self._limits.vocab_size)
        except PromptError as error:
            if parsed.token_ids is not None or placed.inputs:
                raise
            raise self._tokenizer_failed("encode", error) from error
        behind = placed.check_positions(self._limits.max_model_len)
        sampling = resolve_sampling(params, self._limits, num_prompt_tokens=behind)
        self._check_extra_args(sampling.extra_args)
        request = EngineRequest(
            request_id=_checked_request_id(request_id),
            sequences=tuple(itertools.islice(self.sequence_ids, params.n)),
            prompt_token_ids=ids,
            sampling=sampling,
            priority=self._checked_priority(priority),
            cache_salt=salt,
            adapter=adapter,
            media=placed.inputs,
            positions=placed.positions,
            guide=None if params.guided is None else self._choose_guide(params.guided),
        )
        return PreparedRequest(request=request, params=params, prompt=parsed.text)

    def params_or_default(self, params: SamplingParams | None) -> SamplingParams:
        """Return what was given, or the model's defaults for None."""
        if params is None:
            return self.default_params
        if not isinstance(params, SamplingParams):
            raise ParameterError(
                f"sampling_params={shown(params)} must be SamplingParams", param="sampling_params"
            )
        if self._max_logprobs is not None:
            for name in ("logprobs", "prompt_logprobs"):
                if (getattr(params, name) or 0) > self._max_logprobs:
                    raise ParameterError(
                        f"{name}={getattr(params, name)} is more than "
                        f"max_logprobs={self._max_logprobs}",
                        param=name,
                    )
        return params

    def seeded(self, params: SamplingParams) -> SamplingParams:
        """Draw the seed now, where requests are not processed in the order that they came in."""
        return replace(params, seed=self._limits.seed_of(params.seed))

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the text's ids, which may be more than the context has."""
        self._check_text(text)
        return self._ids(text, add_special_tokens)

    def encode_chat(self, chat: ChatText) -> list[int]:
        """Return the ids of a chat's text."""
        if chat.marked is None:
            return self.encode(chat.text, False)
        return self._encode_chat(chat, {})

    def with_special_tokens(self, ids: list[int]) -> list[int]:
        """Put around the ids what the tokenizer puts around a text."""
        bare, full = self._ids("a", False), self._ids("a", True)
        begins = range(len(full) - len(bare) + 1)
        begin = next(i for i in begins if full[i : i + len(bare)] == bare)
        return [*full[:begin], *ids, *full[begin + len(bare) :]]

    def _encode_chat(self, chat: ChatText, marks: Mapping[str, int]) -> list[int]:
        """With an id in the place of each mark."""
        self._check_text(chat.text)
        ids: list[int] = []
        for piece in chat.pieces(marks):
            if isinstance(piece, str):
                ids.append(marks[piece])
            else:
                ids += self._tokenized(partial(encode_marked, chat=piece))
        return ids

    def _encode_around(
        self, marks: Mapping[str, int], text: str, add_special_tokens: bool
    ) -> list[int]:
        """Token ids of a text, with an id in the place of each mark."""
        if not marks:
            return self.encode(text, add_special_tokens)
        first, *others = re.split(f"({'|'.join(map(re.escape, marks))})", text)
        ids = self.encode(first, add_special_tokens)
        for piece in others:
            ids += [marks[piece]] if piece in marks else self.encode(piece, False)
        return ids

    def _check_text(self, text: str) -> None:
        if len(text) > self._limits.max_model_len * MAX_CHARS_PER_TOKEN:
            raise PromptTooLongError(
                f"the prompt is too long: {len(text)} characters, and "
                f"{most_tokens(self._limits.max_model_len)}; shorten it"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the prompt's character {error.start} is half of a surrogate pair, not text: "
                "were its bytes UTF-8?"
            ) from error

    def _kept(self, text: str, keep: int | None, *, is_right: bool) -> tuple[int, int]:
        """Return the part of a text that has to be read for so many tokens, from its end or begin.

        Raises for what is too long as soon as that is seen: to count 8 million tokens takes 15 s.
        """
        limit = self._limits.max_model_len
        if len(text) <= limit * USUAL_CHARS_PER_TOKEN:
            return 0, len(text)
        self._check_text(text)
        num_tokens = 0
        if is_right and keep is not None:
            end = 0
            while end < len(text) and num_tokens < _MARGIN * keep:
                num_tokens += len(self._ids(text[end : end + _PIECE_CHARS], False))
                end += _PIECE_CHARS
            return 0, min(end, len(text))
        begin = len(text)
        while begin and num_tokens < _MARGIN * (keep or limit):
            end, begin = begin, max(0, begin - _PIECE_CHARS)
            num_tokens += len(self._ids(text[begin:end], False))
        if begin and keep is None:
            raise PromptTooLongError(
                f"the prompt is too long: {len(text)} characters, the last {len(text) - begin} of "
                f"them more tokens than fit, as {most_tokens(limit)}; shorten it, or set "
                f"truncate_prompt_tokens={limit - 1} or less"
            )
        return begin, len(text)

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._tokenized(
            lambda tokenizer: tokenizer.encode(text, add_special_tokens=add_special_tokens)
        )

    def _tokenized(self, encode: Callable[[Tokenizer], list[int]]) -> list[int]:
        if self._tokenizer is None:
            raise PromptError(
                "a text prompt needs a tokenizer (skip_tokenizer_init is set); "
                "give {'prompt_token_ids': [...]}"
            )
        try:
            ids: Any = encode(self._tokenizer)
            if not isinstance(ids, list):
                raise TypeError(f"it returned {type(ids).__name__}, not a list of ids")
        except PromptError:
            raise
        except FAILURES as error:  # this request's failure only, and none of its client's
            raise self._tokenizer_failed("encode", error) from error
        return ids

    def _check_length(self, num_tokens: int) -> None:
        limit = self._limits.max_model_len
        if num_tokens == 0:
            raise PromptError("the prompt is empty: it has no tokens to continue")
        if num_tokens >= limit:
            raise PromptTooLongError(
                f"the prompt is too long: {num_tokens} tokens > {limit - 1} maximum, as "
                f"{most_tokens(limit)}, of which an answer needs one; shorten it, or set "
                f"truncate_prompt_tokens={limit - 1} or less"
            )

    def _checked_priority(self, priority: int) -> int:
        if type(priority) is not int or abs(priority) > _MAX_PRIORITY:
            raise ParameterError(
                f"priority={shown(priority)} must be an integer from {-_MAX_PRIORITY} to "
                f"{_MAX_PRIORITY}",
                param="priority",
            )
        if priority and not self._takes_priority:
            raise ParameterError(
                f"priority={priority} has no effect here; set scheduling_policy='priority'",
                param="priority",
            )
        return priority


def _checked_request_id(request_id: str) -> str:
    # Printable: it goes to logs. Half of a surrogate pair, which is no text, is not.
    printable = isinstance(request_id, str) and request_id.isprintable()
    if not printable or not 0 < len(request_id) <= _MAX_REQUEST_ID_CHARS:
        raise ParameterError(
            f"request_id={shown(request_id)} must have 1 to {_MAX_REQUEST_ID_CHARS} printable "
            "characters",
            param="request_id",
        )
    return str(request_id)  # as for the salt


def _checked_salt(salt: str) -> str:
    if not isinstance(salt, str) or _CACHE_SALT.fullmatch(salt) is None:
        raise ParameterError(
            f"cache_salt={shown(salt)} must have at most 128 characters of A-Z a-z 0-9 _ -",
            param="cache_salt",
        )
    return str(salt)  # a subclass's object could not cross to an engine process
