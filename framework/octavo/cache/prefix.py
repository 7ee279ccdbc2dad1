"""Prefix keys: a SHA-256 chain over the blocks of a sequence, and the longest cached prefix."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from octavo.cache.groups import CacheLayout
from octavo.cache.pool import BlockPool, Blocks
from octavo.cache.state_lines import StateLines


def chain_seed(*parts: str) -> bytes:
    """Digest that a chain starts from: what besides tokens decides a block's content.

    Each part is length-prefixed, so that no two lists of parts give the same bytes.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def extend_chain(
    digests: list[bytes],
    seed: bytes,
    tokens: NDArray[np.int32],
    block_tokens: int,
    marks: Mapping[int, bytes] = MappingProxyType({}),
) -> None:
    """Append the digests of the full blocks of ``tokens`` that are not in the chain yet.

    ``marks`` are digests of what begins at some of the tokens and is not told by them: media.
    """
    previous = digests[-1] if digests else seed
    num_full = len(tokens) // block_tokens
    data = tokens[len(digests) * block_tokens : num_full * block_tokens].tobytes()
    stride = block_tokens * tokens.itemsize
    for start in range(0, len(data), stride):
        content = previous + data[start : start + stride]
        if marks:
            first = len(digests) * block_tokens
            for place in range(first, first + block_tokens):
                content += marks.get(place, b"")
        previous = hashlib.sha256(content).digest()
        digests.append(previous)


def longest_prefix(
    pool: BlockPool,
    layout: CacheLayout,
    digests: Sequence[bytes],
    max_blocks: int,
    lines: StateLines | None = None,
) -> tuple[int, list[Blocks]]:
    """Length in blocks of the longest usable cached prefix, and its blocks by group.

    A window group needs only the blocks that the next token sees; the entries before them are 0.
    A cross group has no part in it. Where there are ``lines``, one must be kept behind the prefix.
    """
    block_tokens = layout.block_tokens
    found: list[list[int]] = []
    limit = min(max_blocks, len(digests))
    for group_index, group in enumerate(layout.groups):
        blocks: list[int] = []
        if group.spec.rows is not None:
            found.append(blocks)
            continue
        for digest in digests[:limit]:
            block = pool.find(group_index, digest)
            if block is None and group.spec.window is None:
                break
            blocks.append(block or 0)
        if group.spec.window is None:
            limit = len(blocks)
        found.append(blocks)
    stride = 1 if lines is None else max(lines.checkpoint_tokens // block_tokens, 1)
    for length in range(limit - limit % stride, 0, -stride):
        if lines is not None and lines.find(digests[length - 1]) is None:
            continue
        firsts = [
            first_visible(group.spec.window, length * block_tokens) // block_tokens
            for group in layout.groups
        ]
        if all(all(blocks[first:length]) for blocks, first in zip(found, firsts, strict=True)):
            return length, [
                np.array([0] * first + blocks[first:length], np.int32)
                for blocks, first in zip(found, firsts, strict=True)
            ]
    return 0, [np.zeros(0, np.int32) for _ in layout.groups]


def cross_digests(seed: bytes, num_blocks: int) -> list[bytes]:
    """Digests of the blocks of a sequence's encoded media, which ``seed`` names."""
    return [
        hashlib.sha256(seed + place.to_bytes(8, "little")).digest() for place in range(num_blocks)
    ]


def find_all(pool: BlockPool, group: int, digests: Sequence[bytes]) -> Blocks | None:
    """The blocks that hold all of this content; None if one is missing."""
    blocks = [pool.find(group, digest) for digest in digests]
    return None if None in blocks else np.array(blocks, np.int32)


def first_visible(window: int | None, position: int) -> int:
    """First position that a query at ``position`` attends to."""
    return 0 if window is None else max(0, position - window + 1)
