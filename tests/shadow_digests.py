"""What stands on the shadow device for keys, values and hidden rows: digests of whole prefixes."""

from __future__ import annotations

from collections.abc import Collection

from octavo.messages import MediaInput

MASK = 2**63 - 1


def first_digest(adapter: str) -> int:
    """An adapter makes other keys and values of the same tokens."""
    return extend_digest(0, int.from_bytes(adapter.encode())) if adapter else 0


def extend_digest(digest: int, token: int) -> int:
    return hash((digest, token)) & MASK


def next_token(
    digest: int, seed: int, vocab_size: int, bias: float, banned: Collection[int]
) -> int:
    """A sequence's parameters change its tokens: the bias as a number, bans as what they are."""
    token = hash((digest, seed, bias)) % vocab_size
    while token in banned:
        token = (token + 1) % vocab_size
    return token


def content_of(item: MediaInput) -> list[int]:
    """What stands for the rows of an item."""
    return [hash((int(item.content_hash), place)) & MASK for place in range(item.num_rows)]
