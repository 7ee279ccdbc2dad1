"""The forms in which a prompt may be given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Required, TypedDict, TypeGuard

from octavo.errors import PromptError
from octavo.wording import shown
from octavo_registry.model import ModelCapabilities


class TextPrompt(TypedDict, total=False):
    """A prompt with what belongs to it."""

    prompt: Required[str]
    multi_modal_data: Mapping[str, Any]
    multi_modal_uuids: Mapping[str, Any]
    mm_processor_kwargs: Mapping[str, Any]
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """A prompt in token ids; ``prompt`` is their text, which is shown and not read."""

    prompt_token_ids: Required[list[int]]
    prompt: str
    multi_modal_data: Mapping[str, Any]
    multi_modal_uuids: Mapping[str, Any]
    mm_processor_kwargs: Mapping[str, Any]
    cache_salt: str


Prompt = str | Mapping[str, Any] | Sequence[int]
"""Text, token ids, or a dict of KEYS."""

KEYS = (
    "prompt",
    "prompt_token_ids",
    "multi_modal_data",
    "multi_modal_uuids",
    "mm_processor_kwargs",
    "cache_salt",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPrompt:
    """A prompt whose form is known. With both text and ids, the ids are used and the text shown."""

    text: str | None = None
    token_ids: list[int] | None = None
    media: Mapping[str, Any]
    uuids: Mapping[str, Any] | None = None
    """Names of its items, by which they are known instead of by their content."""
    processor_kwargs: Mapping[str, Any] | None = None
    """Its ``mm_processor_kwargs``."""
    cache_salt: str = ""


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Make a list of one prompt or of many; a list of integers is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    try:
        return [prompts] if _is_ids(prompts) else list(prompts)  # type: ignore[arg-type]
    except (TypeError, KeyError) as error:  # what is in a list parse_prompt checks
        raise PromptError(
            f"prompts must be one prompt or a list of them, not {type(prompts).__name__}"
        ) from error


def parse_prompt(prompt: Prompt) -> ParsedPrompt:
    """Tell text from ids and check a dict's keys; token ids are not yet looked at."""
    if isinstance(prompt, str):
        return ParsedPrompt(text=prompt, media={})
    if isinstance(prompt, (list, tuple)):
        return ParsedPrompt(token_ids=list(prompt), media={})
    if not isinstance(prompt, Mapping):
        raise PromptError(
            f"a prompt must be text, token ids or a dict, not {type(prompt).__name__}; "
            "of an array give .tolist()"
        )
    for key in prompt:
        if key not in KEYS:
            raise PromptError(f"a prompt has no key {key!r}; known: {', '.join(KEYS)}")
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and ids is None:
        raise PromptError("a prompt dict needs 'prompt' (text) or 'prompt_token_ids' (a list)")
    if text is not None and not isinstance(text, str):
        raise PromptError(f"prompt must be text, not {type(text).__name__}")
    if ids is not None and not isinstance(ids, (list, tuple)):
        raise PromptError(f"prompt_token_ids must be a list, not {type(ids).__name__}")
    media = prompt.get("multi_modal_data") or {}
    if not isinstance(media, Mapping):
        raise PromptError(f"multi_modal_data must be a dict, not {type(media).__name__}")
    salt = prompt.get("cache_salt")
    return ParsedPrompt(
        text=text,
        token_ids=None if ids is None else list(ids),
        media=media,
        uuids=_dict_or_none(prompt, "multi_modal_uuids"),
        processor_kwargs=_dict_or_none(prompt, "mm_processor_kwargs"),
        cache_salt="" if salt is None else salt,
    )


def _dict_or_none(prompt: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    given = prompt.get(name)
    if given is not None and not isinstance(given, Mapping):
        raise PromptError(f"{name} must be a dict, not {type(given).__name__}")
    return given


def check_token_ids(ids: Sequence[int], vocab_size: int, *, name: str = "prompt") -> None:
    """Raise for the first id that is no integer or is outside the vocabulary.

    The ids, of which there is one at least, are those of the field ``name``.
    """
    # Looking at 100,000 ids one by one takes 10 ms, these three passes 3 ms.
    if set(map(type, ids)) <= {int} and min(ids) >= 0 and max(ids) < vocab_size:
        return
    for position, token in enumerate(ids):
        if type(token) is not int:
            raise PromptError(
                f"{name}: token {position} is {shown(token)} of type {type(token).__name__}, "
                "not an int",
                param=name,
            )
        if not 0 <= token < vocab_size:
            raise PromptError(
                f"{name}: token {position} is {shown(token)}, outside the vocabulary of "
                f"{vocab_size} ids",
                param=name,
            )


def check_modality(modality: str, capabilities: ModelCapabilities) -> None:
    """Raise for a kind of media that the model cannot take."""
    if modality not in capabilities.modalities:
        known = ", ".join(("text", *capabilities.modalities))
        raise PromptError(f"this model takes no {modality} input, only: {known}")


def _is_ids(prompts: Sequence[Any]) -> TypeGuard[Sequence[int]]:
    return len(prompts) > 0 and isinstance(prompts[0], int)
