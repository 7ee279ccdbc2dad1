"""Times of byte automata's masks and steps by place: python -m benchmarks.kernels.byte_automaton.

The automaton writes like a usual schema's: an object's start, strings free and bounded with escapes
and UTF-8, and a number. The vocabulary is random, of the sizes of Llama 3's.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.kernels.timing import graph_time_us
from octavo.guided.byte_automaton import pack
from octavo_kernels.byte_automaton import (
    MOST_DEPTH,
    AutomatonStates,
    TokenTable,
    fill_masks,
    walk_,
)
from octavo_registry.guided import CALL, GO, RETURN, ByteAutomaton

VOCAB, STOP = 128256, 128009
BOUND = 500
START, FREE, NUMBER, BOUNDED = 0, 1, 2, 8
"""States; each character of the bounded string has its own."""
TAIL, ESCAPE, LAST, LAST_TWO, DONE = 3, 4, 5, 6, 7
"""States of characters of several bytes, which are called."""
PLACES = {"start": START, "free": FREE, "bounded": BOUNDED, "its end": BOUNDED + BOUND - 8}
PLACES |= {"number": NUMBER}
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
MARKS = np.frombuffer(b' \n-=*"{}[],:0123456789', np.uint8)


def vocabulary(rng: np.random.Generator) -> list[bytes | None]:
    """Words that share beginnings, one in five of two-byte letters; some runs; special tokens."""
    stems = [bytes(rng.choice(LETTERS, 3)) for _ in range(2000)]
    pieces: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    for kind, length in zip(rng.random(127744), rng.gamma(4.0, 1.4, 127744), strict=True):
        word = stems[int(len(stems) * rng.random() ** 2)] + bytes(rng.choice(LETTERS, 20))
        word = (b" " if kind < 0.5 else b"") + word[: max(1, int(length))]
        if kind > 0.98:
            word = bytes(rng.choice(MARKS, 1)) * int(1 + length)
        elif kind > 0.8:
            word = "".join(chr(0x3B0 + byte % 26) for byte in word).encode()
        pieces.append(word)
    pieces[-40:] = [b" " * (81 + count) for count in range(40)]
    return pieces + [None] * 256


def automaton() -> ByteAutomaton:
    """The table, each byte a class."""
    table = np.full((BOUNDED + BOUND + 1, 257), -1, np.int32)
    calls: list[tuple[int, int]] = []

    def string(state: int, after: int) -> None:
        table[state, 0x20:0x7F] = 4 * after + GO
        table[state, ord('"')] = 4 * NUMBER + GO
        table[state, [ord("\\"), *range(0xC2, 0xF0)]] = 4 * len(calls) + CALL
        calls.append((TAIL, after))

    table[START, ord("{")] = 4 * FREE + GO
    table[START, list(b" \n")] = 4 * START + GO
    string(FREE, FREE)
    for count in range(BOUND):
        string(BOUNDED + count, BOUNDED + count + 1)
    table[BOUNDED + BOUND, ord('"')] = 4 * NUMBER + GO
    table[NUMBER, list(b"0123456789")] = 4 * NUMBER + GO
    table[NUMBER, [*b",}", 256]] = 4 * START + GO
    table[TAIL, ord("\\")] = 4 * ESCAPE + GO
    table[TAIL, 0xC2:0xE0] = 4 * LAST + GO
    table[TAIL, 0xE0:0xF0] = 4 * LAST_TWO + GO
    table[ESCAPE, list(b'nrbtf"')] = 4 * DONE + GO
    table[LAST, 0x80:0xC0] = 4 * DONE + GO
    table[LAST_TWO, 0x80:0xC0] = 4 * LAST + GO
    table[DONE] = RETURN
    return ByteAutomaton(
        classes_B=np.arange(256).astype(np.uint8),
        table_QC=table,
        calls_K2=np.array(calls, np.int32),
    )


def classed(wide: ByteAutomaton) -> ByteAutomaton:
    """Make equal columns one, as a compiler does."""
    columns, classes = np.unique(wide.table_QC[:, :256], axis=1, return_inverse=True)
    table = np.concatenate([columns, wide.table_QC[:, 256:]], axis=1)
    return ByteAutomaton(
        classes_B=classes.reshape(256).astype(np.uint8),
        table_QC=np.ascontiguousarray(table),
        calls_K2=wide.calls_K2,
    )


def pool_of(words: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(4, np.int32), words])).cuda()


def states_at(slots: int, state: int) -> AutomatonStates:
    """All in automaton 4, one behind the other where the string is bounded."""
    state_S = torch.full((slots,), state, dtype=torch.int32, device="cuda")
    if state == BOUNDED:
        state_S += torch.arange(slots, dtype=torch.int32, device="cuda") % (BOUND // 2)
    return AutomatonStates(
        at_S=torch.full_like(state_S, 4),
        state_S=state_S,
        depth_S=torch.zeros_like(state_S),
        stack_SD=torch.zeros((slots, MOST_DEPTH), dtype=torch.int32, device="cuda"),
    )


def main() -> None:
    pieces = vocabulary(np.random.default_rng(0))
    tokens = TokenTable.of(pieces, [STOP], VOCAB, "cuda")
    words = pack(classed(automaton()))
    pool_W = pool_of(words)
    print(
        f"V = {VOCAB}, {len(tokens.bytes_N)} bytes; automaton: {words.nbytes / 1024:.0f} KiB, in L2"
    )
    print("us for masks of all rows, of the first alone and of none, and for a step of all rows")
    print(f"{'':10}{'rows':>6}{'allowed':>9}{'all':>8}{'one':>8}{'none':>8}{'step':>8}")
    for name, state in PLACES.items():
        for rows in (1, 8, 64, 256):
            slots_R = torch.arange(rows, dtype=torch.int32, device="cuda")
            masks_RW = torch.zeros((rows, VOCAB // 32), dtype=torch.int32, device="cuda")
            mask_rows_R = torch.empty_like(slots_R)
            times = []
            for num_guided in (rows, 1, 0):
                states = states_at(rows, state)
                states.at_S[num_guided:] = 0
                fill = functools.partial(
                    *(fill_masks, slots_R, states, pool_W, tokens, masks_RW, mask_rows_R)
                )
                times.append(graph_time_us([fill] * 20))
            row = masks_RW[0].cpu().numpy().view(np.uint8)
            # Where this token may not come, rows after the first step have nowhere to go.
            drawn_R = torch.full_like(slots_R, ord("a"))
            walk = functools.partial(
                *(walk_, slots_R, drawn_R, states_at(rows, state), pool_W, tokens)
            )
            times.append(graph_time_us([walk] * 20))
            columns = "".join(f"{microseconds:8.1f}" for microseconds in times)
            print(f"{name:10}{rows:6}{int(np.unpackbits(row).sum()):9}{columns}")


if __name__ == "__main__":
    main()
