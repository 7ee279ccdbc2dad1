"""Bytes of tokens that are only parts of characters."""

from __future__ import annotations

import pytest

from octavo import LLM, SamplingParams
from octavo.detokenizing.logprobs import LogprobDecoder
from octavo.messages import SequenceLogprobs
from octavo.server.protocol.logprobs import chat_logprobs
from sample_tokenizers import load

TEXT = (
    "na\u00efve \u6771\u4eac \U0001f642 \U0001f468\u200d\U0001f469\u200d\U0001f467 caf\u00e9\n\tx"
)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_the_bytes_of_a_texts_tokens_are_its_bytes(kind: str) -> None:
    tokenizer = load(kind)
    decoder = LogprobDecoder(tokenizer)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    tokens = [decoder.decode(SequenceLogprobs([each], [-1.0], 1)) for each in ids]
    entries = [candidates[each] for candidates, each in zip(tokens, ids, strict=True)]
    assert b"".join(entry.token_bytes for entry in entries).strip() == TEXT.encode().strip()
    assert any(entry.part is not None for entry in entries)
    told = chat_logprobs(tokens, 1, as_ids=False).content
    assert b"".join(bytes(each.bytes) for each in told).strip() == TEXT.encode().strip()
    assert [each.top_logprobs[0].bytes for each in told] == [each.bytes for each in told]


def test_a_model_that_writes_parts_of_characters_tells_their_bytes() -> None:
    with LLM("octavo/tiny", num_threads=1, num_blocks=64, max_model_len=256) as llm:
        ids = llm.get_tokenizer().encode("\U0001f642", add_special_tokens=False)
        assert len(ids) > 1
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        (output,) = llm.generate([[5, *ids]], params, use_tqdm=False)
    entries = [
        each[i] for each, i in zip((output.prompt_logprobs or [])[1:], ids, strict=True) if each
    ]
    assert b"".join(entry.token_bytes for entry in entries) == "\U0001f642".encode()
