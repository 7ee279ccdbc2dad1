"""Tokenizers: what the framework needs to turn prompts into ids and ids into text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. A registered target is called as ``target(folder,
    trust_remote_code=bool)`` with the folder of the tokenizer's files, once per client.

    One that wraps another library's may have that as ``hf``: ``LLM.get_tokenizer()`` hands it out
    in the place of the plugin's own.

    ``decode`` depends on its arguments alone, and for ids a and b ``decode(a + b)`` begins with
    ``decode(a)``, save for an unfinished character at the end of a and for byte-fallback runs.
    """

    vocab_size: int
    """One more than the highest id, added tokens included; the model's may be larger."""
    bos_token_id: int | None
    eos_token_id: int | None
    special_ids: frozenset[int]
    """The ids that ``skip_special_tokens`` leaves out of text."""
    byte_fallback_ids: frozenset[int]
    """Ids that each stand for one byte and are decoded by whole runs ("<0xE4>" of sentencepiece);
    empty for byte-level vocabularies, whose bytes are decoded one by one."""
    special_tokens: Mapping[str, Any]
    """What chat templates may name: "bos_token", "eos_token" and the like."""
    chat_template: str | Mapping[str, str] | None
    """Jinja source, or several by name ("default", "tool_use")."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of the text; special tokens written in it become their ids."""
        ...

    def decode(
        self,
        ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Text of the ids, never cleaned up; ids outside the vocabulary give no text."""
        ...

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        """The vocabulary's own spelling of each id; None for an id that it lacks.

        Guides take the bytes of tokens from it: it is the token's text, or follows the rules of
        byte-level vocabularies or of SentencePiece. Special tokens are spelled as their text.
        """
        ...


@runtime_checkable
class EncodesBatches(Protocol):
    """What a tokenizer may have besides: it encodes many texts at a time."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, as ``encode`` gives them."""
        ...


@runtime_checkable
class ControlTokens(Protocol):
    """What a tokenizer may have besides: it keeps control tokens out of texts of strangers.

    Without it the framework takes such a text apart, and tells the vocabulary's spelling of
    ``special_ids`` alone.
    """

    added_tokens: Mapping[str, bool]
    """Texts that become one token wherever they stand; True: a special one."""

    normalized: Callable[[str], str] | None
    """Makes a text that in which they are looked for; None: they are found in the text as it is."""

    def encode_marked(
        self, text: str, marked: Sequence[tuple[int, int]], controls: frozenset[str]
    ) -> list[int]:
        """Ids of the text, without special tokens around it, in which those of ``controls`` are
        tokens only at the places of ``marked`` (start and end, in order), and else text.
        """
        ...
