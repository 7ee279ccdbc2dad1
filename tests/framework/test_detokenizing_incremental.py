"""Text that comes out token by token equals the decoding of the whole."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sample_tokenizers
from octavo.detokenizing import IncrementalDetokenizer
from octavo_registry.tokenizer import Tokenizer


def stream(
    tokenizer: Tokenizer, ids: list[int], sizes: list[int] | None = None, **options: object
) -> list[str]:
    """Feed ids in portions of the given sizes, repeated; return the pieces, the rest included."""
    detokenizer = IncrementalDetokenizer(tokenizer, **options)  # type: ignore[arg-type]
    pieces, start, turn = [], 0, 0
    while start < len(ids):
        size = (sizes or [1])[turn % len(sizes or [1])]
        pieces.append(detokenizer.push(ids[start : start + size]))
        start, turn = start + size, turn + 1
    return [*pieces, detokenizer.finish()]


@pytest.mark.parametrize("kind", sample_tokenizers.KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pieces_put_together_equal_the_decoding_of_all_ids(kind: str, data: st.DataObject) -> None:
    tokenizer = sample_tokenizers.load(kind)
    # Some ids beyond the vocabulary, as a padded embedding can give.
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=60))
    sizes = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    skip = data.draw(st.booleans())
    pieces = stream(tokenizer, ids, sizes, skip_special_tokens=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_runs_of_single_bytes_are_exact(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["byte_level", "sentencepiece"]))
    tokenizer = sample_tokenizers.load(kind)
    raw = data.draw(
        st.lists(
            st.one_of(
                st.characters(codec="utf-8").map(str.encode), st.binary(min_size=1, max_size=3)
            ),
            max_size=25,
        )
    )
    if kind == "sentencepiece":
        names = [f"<0x{byte:02X}>" for byte in b"".join(raw)]
    else:
        names = [byte_level_spelling(byte) for byte in b"".join(raw)]
    ids = tokenizer.hf.convert_tokens_to_ids(names)
    assert None not in ids
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


def byte_level_spelling(byte: int) -> str:
    """The printable character by which byte-level vocabularies write a byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(256 + sorted(set(range(256)) - set(printable)).index(byte))


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_no_piece_holds_half_a_character(kind: str) -> None:
    tokenizer = sample_tokenizers.load(kind)
    text = "日本語 👩‍👩‍👧 ꙮ café \U0001f9ff end"
    pieces = stream(tokenizer, tokenizer.encode(text))
    assert "".join(pieces).strip() == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_replacement_character_of_the_text_itself_comes_out_once() -> None:
    tokenizer = sample_tokenizers.load("byte_level")
    text = "\ufffd\ufffda\ufffd\ufffd\ufffd"
    pieces = stream(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    assert pieces[-1] == "\ufffd"  # the others did not wait for the end


def test_text_goes_on_from_the_prompt_with_its_space() -> None:
    tokenizer = sample_tokenizers.load("sentencepiece")
    prompt, ids = tokenizer.encode("the quick"), tokenizer.encode("brown fox")
    assert "".join(stream(tokenizer, ids, prompt_ids=prompt)) == " brown fox"
    assert "".join(stream(tokenizer, ids)) == "brown fox"


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_a_character_begun_by_the_prompt_is_shown_whole(kind: str) -> None:
    tokenizer = sample_tokenizers.load(kind)
    ids = tokenizer.encode("fox \U0001f9ff end")
    begun = [tokenizer.decode(ids[:end]) for end in range(len(ids))]
    cuts = [end for end, text in enumerate(begun) if text.endswith("\ufffd")]
    assert len(cuts) >= 2
    for cut in cuts:
        pieces = stream(tokenizer, ids[cut:], prompt_ids=ids[:cut])
        assert "".join(pieces) == "\U0001f9ff end"


class Words:
    """Drops the first space of what it decodes; ids 0 and 3 give no text, and 3 is special."""

    vocab_size = 4
    special_ids = frozenset([3])
    byte_fallback_ids: frozenset[int] = frozenset()
    longest_decoded = 0

    def decode(self, ids: list[int], *flags: bool) -> str:
        self.longest_decoded = max(self.longest_decoded, len(ids))
        return "".join(["", " a", " b", ""][i] for i in ids).removeprefix(" ")


@pytest.mark.parametrize("silent", [0, 3, 9])
def test_a_space_survives_many_tokens_without_text(silent: int) -> None:
    assert "".join(stream(Words(), [1] + [silent] * 40 + [2])) == "a b"  # type: ignore[arg-type]


@pytest.mark.parametrize("silent", [3, 9])
def test_skipped_and_unknown_ids_do_not_make_the_window_longer(silent: int) -> None:
    tokenizer = Words()
    stream(tokenizer, [silent] * 100 + [1] + [silent] * 100)  # type: ignore[arg-type]
    assert tokenizer.longest_decoded == 1


def test_a_long_run_of_replacement_characters_costs_no_more_per_token() -> None:
    tokenizer = sample_tokenizers.load("byte_level")
    (broken,) = tokenizer.hf.convert_tokens_to_ids([byte_level_spelling(0xFF)])
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.push([broken]) for _ in range(3000)]
    assert "".join(pieces) + detokenizer.finish() == "\ufffd" * 3000
    assert max(map(len, pieces)) == 1


def test_tens_of_thousands_of_tokens_a_second_are_decoded() -> None:
    tokenizer = sample_tokenizers.load("byte_level")
    ids = tokenizer.encode("".join(sample_tokenizers.TEXTS) * 20)
    detokenizer = IncrementalDetokenizer(tokenizer)
    start = time.process_time()
    for token in ids:
        detokenizer.push([token])
    assert len(ids) / (time.process_time() - start) > 50_000


@pytest.mark.parametrize("kind", sample_tokenizers.KINDS)
def test_special_tokens_that_are_kept_stay_in_the_text(kind: str) -> None:
    tokenizer = sample_tokenizers.load(kind)
    kept, skipped = sorted(tokenizer.special_ids)[:2]
    ids = tokenizer.encode("one two", add_special_tokens=False)
    mark = tokenizer.decode([kept], skip_special_tokens=False)
    options = {"keep_special_tokens": (mark, "one")}
    text = "".join(stream(tokenizer, [skipped, *ids, kept, *ids, skipped], **options))
    assert text == tokenizer.decode([*ids, kept, *ids], skip_special_tokens=False)
    assert mark in text
    assert mark not in "".join(stream(tokenizer, [skipped, *ids, kept, *ids, skipped]))
