"""Texts that are to become vectors, in token ids by columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from octavo.errors import ConfigError, ParameterError, PromptError, PromptTooLongError
from octavo.inputs.prompt import ParsedPrompt, Prompt, check_token_ids, parse_prompt
from octavo.model_folder.pooling import PoolingSetup
from octavo.model_folder.tokenizer_failures import TokenizerFailure
from octavo.params import PoolingParams
from octavo.wording import listed, shown
from octavo_registry.faults import FAILURES
from octavo_registry.tokenizer import EncodesBatches, Tokenizer

SLICE_TEXTS = 128
"""Texts that are tokenised, and sent to the engine, together."""
MAX_CHARS_PER_TOKEN = 128
"""A text with more of these for each token that a model takes is refused, and not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSlice:
    """Some texts of a call."""

    first: int
    ids: list[list[int]]
    skips: list[int]
    """Tokens at each text's beginning that are a prompt's, and do not count."""

    @property
    def columns(self) -> tuple[bytes, bytes, bytes]:
        """Token ids, lengths and skips, as ``PooledCall`` has them."""
        lengths = np.array([len(ids) for ids in self.ids], np.int32)
        ids = np.array([*chain.from_iterable(self.ids)], np.int32)
        skips = np.minimum(self.skips, lengths - 1).astype(np.int32)
        return ids.tobytes(), lengths.tobytes(), skips.tobytes() if any(self.skips) else b""


class TextInputs:
    """Puts prompts into ids, with what the model's folder says stands before them."""

    def __init__(
        self,
        setup: PoolingSetup,
        tokenizer: Tokenizer | None,
        *,
        max_model_len: int,
        vocab_size: int,
        tokenizer_failed: TokenizerFailure,
    ) -> None:
        self._setup = setup
        self._tokenizer = tokenizer
        self._max_model_len, self._vocab_size = max_model_len, vocab_size
        self._failed = tokenizer_failed

    def slices(self, prompts: Sequence[Prompt], params: PoolingParams) -> Iterator[TextSlice]:
        """The prompts in ids, some at a time; one that is wrong or too long raises."""
        name = params.prompt_name
        prompt = self._prompt(name)
        most = self._most_tokens(params.truncate_prompt_tokens)
        skip = self._prompt_tokens(prompt)
        for first in range(0, len(prompts), SLICE_TEXTS):
            some = [*map(parse_prompt, prompts[first : first + SLICE_TEXTS])]
            if name is not None:
                _check_texts(some, first, name)
            yield TextSlice(
                first=first,
                ids=self._ids(some, first, prompt, most),
                skips=[skip if each.token_ids is None else 0 for each in some],
            )

    def _prompt(self, name: str | None) -> str:
        """The text that stands before others."""
        prompts, name = self._setup.prompts, name or self._setup.default_prompt
        if name is None:
            return ""
        if name not in prompts:
            raise ParameterError(
                f"prompt_name={name!r} is none of the model's prompts: "
                f"{listed([*prompts]) or 'it has none'}",
                param="prompt_name",
            )
        return prompts[name]

    def _most_tokens(self, asked: int | None) -> int | None:
        """Tokens that a text is cut to; None: it is not cut."""
        if asked is None:
            return None
        most = self._max_model_len if asked == -1 else asked
        if not self._num_special < most <= self._max_model_len:
            raise ParameterError(
                f"truncate_prompt_tokens={asked} must be from {self._num_special + 1} to "
                f"{self._max_model_len}, or -1: as many as the model takes",
                param="truncate_prompt_tokens",
            )
        return most

    def _ids(
        self, prompts: Sequence[ParsedPrompt], first: int, prompt: str, most: int | None
    ) -> list[list[int]]:
        texts: list[str] = []
        found: list[list[int] | None] = []
        for number, parsed in enumerate(prompts, first):
            if parsed.media or parsed.uuids or parsed.processor_kwargs or parsed.cache_salt:
                raise PromptError(f"prompt {number}: a model that embeds takes text or ids alone")
            if parsed.token_ids is None:
                texts.append(self._checked(parsed.text or "", number, prompt, most))
            found.append(parsed.token_ids)
        encoded = iter(self._encode(texts))
        ids = [next(encoded) if each is None else each for each in found]
        for number, (each, given) in enumerate(zip(ids, found, strict=True), first):
            if not each:
                raise PromptError(f"prompt {number} has no tokens")
            if given is not None:
                check_token_ids(given, self._vocab_size, name=f"prompt {number}")
        if most is not None:
            return [self._cut(each, most) for each in ids]
        for number, each in enumerate(ids, first):
            if len(each) > self._max_model_len:
                raise PromptTooLongError(
                    f"prompt {number} has {len(each)} tokens, and the model takes "
                    f"{self._max_model_len}; shorten it, or cut it with truncate_prompt_tokens=-1"
                )
        return ids

    def _checked(self, text: str, number: int, prompt: str, most: int | None) -> str:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"prompt {number}: its character {error.start} is half of a surrogate pair, not "
                "text: were its bytes UTF-8?"
            ) from error
        if most is None and len(text) > self._max_model_len * MAX_CHARS_PER_TOKEN:
            raise PromptTooLongError(
                f"prompt {number} has {len(text)} characters, and the model takes "
                f"{self._max_model_len} tokens; shorten it"
            )
        text = prompt + text
        return text.lower() if self._setup.lower_case else text

    def _cut(self, ids: list[int], most: int) -> list[int]:
        """Leave out what stands before the special tokens at the end."""
        if len(ids) <= most:
            return ids
        tail = self._around[1]
        behind = len(tail) if ids[len(ids) - len(tail) :] == tail else 0  # ids may have none
        return ids[: most - behind] + ids[len(ids) - behind :]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise PromptError(
                "there is no tokenizer (skip_tokenizer_init is set); give prompts as token ids"
            )
        try:
            if isinstance(tokenizer, EncodesBatches):
                return tokenizer.encode_batch(texts)
            return [tokenizer.encode(text) for text in texts]
        except FAILURES as error:
            raise self._failed("encode", error) from error

    def _prompt_tokens(self, prompt: str) -> int:
        """Tokens of the prompt that do not count, with those before it."""
        if not prompt or self._setup.include_prompt:
            return 0
        (ids,) = self._encode([prompt.lower() if self._setup.lower_case else prompt])
        return len(ids) - self._num_special_behind

    @cached_property
    def _num_special(self) -> int:
        return len(self._around[0]) + len(self._around[1])

    @cached_property
    def _num_special_behind(self) -> int:
        return len(self._around[1])

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before a text, and behind it."""
        if self._tokenizer is None:
            return [], []
        bare, whole = self._tokenizer.encode("a", False), self._tokenizer.encode("a", True)
        begins = range(len(whole) - len(bare) + 1)
        begin = next((i for i in begins if whole[i : i + len(bare)] == bare), None)
        if begin is None:
            raise ConfigError(f"the tokenizer makes {shown(whole)} of 'a', in which {bare} is not")
        return whole[:begin], whole[begin + len(bare) :]


def _check_texts(prompts: Sequence[ParsedPrompt], first: int, name: str) -> None:
    """Refuse to put a prompt of the model's before token ids."""
    for number, each in enumerate(prompts, first):
        if each.token_ids is not None:
            raise PromptError(
                f"prompt {number} is token ids, which are taken as they are: prompt_name={name!r} "
                "is for texts"
            )
