"""A tokenizer: texts survive it, and ids mean the same whatever stands beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from octavo.guided.vocabulary import vocabulary_of
from octavo.testing.report import Check, tried, unclaimed
from octavo.testing.samples import samples_of
from octavo.testing.tiny_tokenizer import make_tiny_tokenizer
from octavo_registry import PluginHost, Tokenizer
from octavo_registry.faults import FAILURES, one_line

TEXTS: Final = (
    "the wind changes with the season",
    "a captain trusts his charts, and nobody crosses the ocean alone.",
    "one two three\nfour  five",
    "sum(3, 4) == 7",
    "sea",
)


def check_tokenizer(host: PluginHost, name: str) -> list[Check]:
    """Load it from a folder that its ``samples`` write, or from one with a tokenizer.json."""
    title = f"tokenizer {name!r}"
    with TemporaryDirectory(prefix="octavo-kit-") as at:
        folder = Path(at)
        if host.tokenizers.info(name).metadata["samples"]:
            texts: Sequence[str] = samples_of(host.tokenizers, name, folder) or TEXTS
            hint = ""
        else:
            make_tiny_tokenizer(folder, vocab_size=320, max_length=128)
            texts, hint = TEXTS, "; if its files are of another kind, name samples= that write some"
        try:
            tokenizer = host.tokenizers.make(name, folder, trust_remote_code=False)
        except FAILURES as error:
            detail = f"{one_line(error)}{hint}"
            return [Check(name=f"{title} loads its files", passed=False, detail=detail)]
        facts = tried(f"{title} says what it is", _odd_facts(tokenizer))
        if not facts.passed:
            return [facts]
        trial = _Trial(tokenizer, texts)
        return [
            facts,
            tried(f"{title} gives texts back", trial.lost_texts()),
            tried(f"{title} decodes ids by themselves", trial.uneven_ids()),
            tried(f"{title} tells special tokens from text", trial.special_problems()),
            _vocabulary_check(f"{title} has the bytes of tokens, for guided text", tokenizer),
        ]


def _odd_facts(tokenizer: Tokenizer) -> Iterator[str]:
    size = tokenizer.vocab_size
    if type(size) is not int or size < 1:
        yield f"vocab_size is {size!r}, not a count"
    for name in ("bos_token_id", "eos_token_id"):
        token = getattr(tokenizer, name)
        if token is not None and not (type(token) is int and 0 <= token < size):
            yield f"{name} is {token!r}, which is no id below {size} and not None"
    for name in ("special_ids", "byte_fallback_ids"):
        ids = getattr(tokenizer, name)
        if not isinstance(ids, frozenset):
            yield f"{name} is {type(ids).__name__}, not a frozenset"
        if odd := [each for each in ids if type(each) is not int or not 0 <= each < size]:
            yield f"{name} has {odd[0]!r}, which is no id below {size}"
    template: Any = tokenizer.chat_template
    if not (template is None or isinstance(template, str | dict)):
        yield f"chat_template is {type(template).__name__}, not a text, texts by name or None"


class _Trial:
    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        self._tokenizer, self._texts = tokenizer, texts

    def _ids(self, text: str, *, special: bool = False) -> list[int]:
        ids: Any = self._tokenizer.encode(text, add_special_tokens=special)
        if not isinstance(ids, list) or any(type(each) is not int for each in ids):
            raise TypeError(f"encode returned {type(ids).__name__} {ids!r}, not a list of int")
        if odd := [each for each in ids if not 0 <= each < self._tokenizer.vocab_size]:
            raise ValueError(f"encode({text!r}) has the id {odd[0]}, beyond vocab_size")
        return ids

    def lost_texts(self) -> Iterator[str]:
        """Texts whose letters do not come back, or whose ids change."""
        seen = set()
        for text in self._texts:
            ids = self._ids(text)
            back: Any = self._tokenizer.decode(ids)
            if not isinstance(back, str):
                yield f"decode returned {type(back).__name__}, not a text"
            if _letters(back) != _letters(text):
                yield f"{text!r} came back as {back!r}"
            if self._ids(text) != ids:
                yield f"{text!r} has other ids when it is encoded again"
            if tuple(ids) in seen:
                yield f"{text!r} has the ids of another text"
            seen.add(tuple(ids))
            spellings = self._tokenizer.convert_ids_to_tokens(ids)
            if len(spellings) != len(ids) or not all(isinstance(s, str) for s in spellings):
                yield f"convert_ids_to_tokens gave {spellings!r} for {len(ids)} ids"
        if self._ids("") != []:
            yield f"an empty text has the ids {self._ids('')}"

    def uneven_ids(self) -> Iterator[str]:
        """Ids whose text depends on what follows them."""
        tokenizer = self._tokenizer
        for text in self._texts:
            ids = self._ids(text)
            whole = tokenizer.decode(ids)
            for end in range(len(ids)):
                if set(ids[: end + 1]) & tokenizer.byte_fallback_ids:
                    break
                begun = tokenizer.decode(ids[:end]).rstrip("\ufffd")
                if not whole.startswith(begun):
                    yield f"{end} of the ids of {text!r} are {begun!r}, which is not its beginning"
            beyond = tokenizer.decode([*ids, tokenizer.vocab_size + 7])
            if beyond != whole:
                yield f"an id outside the vocabulary turned {whole!r} into {beyond!r}"
        if tokenizer.decode([]) != "":
            yield f"no ids are {tokenizer.decode([])!r}"

    def special_problems(self) -> Iterator[str]:
        """Special tokens that stay in a text, or that are put into it unasked."""
        tokenizer, text = self._tokenizer, self._texts[0]
        ids = self._ids(text)
        around = self._ids(text, special=True)
        if set(ids) & tokenizer.special_ids:
            yield f"{text!r} has special tokens though add_special_tokens is False"
        if [each for each in around if each not in tokenizer.special_ids] != ids:
            yield f"add_special_tokens gives {text!r} other ids than special ones around it"
        for token in sorted(tokenizer.special_ids)[:8]:
            plain = tokenizer.decode([*ids, token], skip_special_tokens=True)
            if plain.strip() != tokenizer.decode(ids).strip():
                yield f"the special token {token} is left in {plain!r}"


def _letters(text: str) -> str:
    """What a tokenizer must keep: not blanks, nor the case of letters."""
    return "".join(text.split()).casefold()


def _vocabulary_check(name: str, tokenizer: Tokenizer) -> Check:
    try:
        vocabulary_of(tokenizer, vocab_size=tokenizer.vocab_size, stop_token_ids=())
    except FAILURES as error:
        return unclaimed(name, f"guided text is refused: {one_line(error)}")
    return Check(name=name, passed=True)
