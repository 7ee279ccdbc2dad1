"""The rare parts of a plan as frames: what comes and goes with sequences, and what is loaded.

One frame of msgpack has them; payloads above 32 KB are frames of their own, which nobody copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.errors import FrameError
from octavo.messages import AdapterHead, MediaInput, PackedAdapter, TokenSampling
from octavo.steps.loads import (
    AdapterLoad,
    AutomatonLoad,
    AutomatonTokens,
    BlockMoves,
    EncodeItem,
    RowCuts,
    Span,
)
from octavo.steps.plan import Attached, StepPlan
from octavo.steps.slot_fields import Ints
from octavo_registry.executor import ExecutorFacts

Frame = bytes | bytearray | memoryview
Frames = list[Frame]
MOST_INLINE_BYTES: Final = 32 * 1024
_Payload = bytes | int
"""Bytes, or the number of the frame that has them."""


class _SentTexts(NamedTuple):
    token_bytes: list[bytes | None]
    stop_token_ids: tuple[int, ...]


class _Item(msgspec.Struct, array_like=True):
    item: MediaInput
    """Its tensors have no data."""
    data: dict[str, _Payload]
    rows: _Payload


class _Extras(msgspec.Struct, array_like=True):
    attach: list[tuple[int, TokenSampling, int, _Payload]]
    detach: list[int]
    moves: BlockMoves
    encode: list[_Item]
    adapters: list[tuple[Span, AdapterHead, _Payload]]
    automata: list[tuple[int, _Payload]]
    texts: _SentTexts | None
    """With the first automaton of all."""
    cuts: tuple[_Payload, _Payload, _Payload, _Payload] | None


class ExtrasEncoder:
    """Remembers which token texts the other side has."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._texts: AutomatonTokens | None = None

    def encode(self, plan: StepPlan) -> Frames:
        """The frames behind the plan's first; none for a plan without any of this."""
        moves, cuts = plan.moves, plan.cuts
        if not (
            plan.attach
            or plan.detach
            or plan.encode
            or plan.adapters
            or plan.automata
            or cuts is not None
            or moves.swap_out
            or moves.swap_in
            or moves.copy
            or moves.lines
        ):
            return []
        frames: Frames = []

        def payload(data: Frame | NDArray[Any]) -> _Payload:
            view = memoryview(data.view(np.uint8).data if isinstance(data, np.ndarray) else data)
            if len(view) <= MOST_INLINE_BYTES:
                return bytes(view)
            frames.append(view)
            return len(frames) - 1

        texts = None
        if plan.automata and plan.automata[-1].vocabulary is not self._texts:
            self._texts = plan.automata[-1].vocabulary
            texts = _SentTexts(list(self._texts.token_bytes), self._texts.stop_token_ids)
        extras = _Extras(
            attach=[
                (a.slot, a.sampling, a.num_prompt_tokens, payload(a.tokens)) for a in plan.attach
            ],
            detach=plan.detach,
            moves=moves,
            encode=[
                _Item(
                    item=_without_data(each.item),
                    data={name: payload(t.data) for name, t in each.item.tensors.items()},
                    rows=payload(each.rows),
                )
                for each in plan.encode
            ],
            adapters=[
                (load.span, load.adapter.head, payload(load.adapter.data)) for load in plan.adapters
            ],
            automata=[(load.first, payload(load.words)) for load in plan.automata],
            texts=texts,
            cuts=None
            if cuts is None
            else (
                payload(cuts.rows),
                payload(cuts.query_lens),
                payload(cuts.behinds),
                payload(cuts.whole),
            ),
        )
        return [self._encoder.encode(extras), *frames]


class ExtrasDecoder:
    """Remembers the token texts that came with the first automaton."""

    def __init__(self, facts: ExecutorFacts) -> None:
        self._facts = facts
        self._decoder = msgspec.msgpack.Decoder(_Extras)
        self._texts: AutomatonTokens | None = None

    def decode(self, frames: Sequence[Frame], plan: StepPlan) -> None:
        """Put what the frames have into the plan."""
        if not frames:
            raise FrameError("a plan's further frames have not come")
        payloads = _Payloads(frames[1:])
        try:
            extras = self._decoder.decode(frames[0])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise FrameError(f"a plan's second frame is damaged: {error}") from error
        num_slots = self._facts.state.num_slots
        for slot in (*extras.detach, *(each[0] for each in extras.attach)):
            if not 0 <= slot < num_slots:
                raise FrameError(f"a plan names slot {slot} of {num_slots}")
        plan.attach = [
            Attached(slot, sampling, num_prompt_tokens, payloads.ints(tokens))
            for slot, sampling, num_prompt_tokens, tokens in extras.attach
        ]
        plan.detach = extras.detach
        plan.moves = self._checked(extras.moves)
        plan.encode = [
            EncodeItem(_with_data(each, payloads), payloads.ints(each.rows))
            for each in extras.encode
        ]
        for (first, rank), _, _ in extras.adapters:
            if first < 0 or rank < 0:
                raise FrameError(f"an adapter is to lie at {first}, in {rank} lines")
        plan.adapters = [
            AdapterLoad(span, PackedAdapter(head, payloads.data(data)))
            for span, head, data in extras.adapters
        ]
        if extras.texts is not None:
            self._texts = extras.texts
        plan.automata = [
            AutomatonLoad(first, payloads.ints(words), self._known_texts(first))
            for first, words in extras.automata
        ]
        if extras.cuts is not None:
            plan.cuts = _cuts(extras.cuts, payloads, plan.num_rows)

    def _known_texts(self, first: int) -> AutomatonTokens:
        if first < 0 or self._texts is None:
            raise FrameError(f"an automaton is to lie at word {first}, or no token texts have come")
        return self._texts

    def _checked(self, moves: BlockMoves) -> BlockMoves:
        blocks, swaps = self._facts.num_blocks, self._facts.num_swap_blocks
        for pairs, most in (
            (moves.swap_out, (blocks, swaps)),
            (moves.swap_in, (swaps, blocks)),
            (moves.copy, (blocks, blocks)),
        ):
            for pair in pairs:
                if not all(0 <= block < limit for block, limit in zip(pair, most, strict=True)):
                    raise FrameError(f"a plan moves a block that is not there: {pair} of {most}")
        lines, swap_lines = self._facts.num_lines, self._facts.num_swap_lines
        for kind, source, target in moves.lines:
            most = (
                swap_lines if kind == "swap_in" else lines,
                swap_lines if kind == "swap_out" else lines,
            )
            if not (0 <= source < most[0] and 0 <= target < most[1]):
                raise FrameError(f"a plan moves a line that is not there: {source, target}")
        return moves


class _Payloads:
    """What payloads stand for, given the frames that large ones have."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._frames = frames

    def data(self, payload: _Payload) -> memoryview:
        if isinstance(payload, bytes):
            return memoryview(payload)
        if not 0 <= payload < len(self._frames):
            raise FrameError(f"a plan names frame {payload} of {len(self._frames)}")
        return memoryview(self._frames[payload])

    def ints(self, payload: _Payload) -> Ints:
        data = self.data(payload)
        if len(data) % 4:
            raise FrameError(f"{len(data)} bytes are no array of words")
        # Torch takes only what may be written to.
        return np.frombuffer(bytearray(data) if data.readonly else data, np.int32)


def _without_data(item: MediaInput) -> MediaInput:
    tensors = {
        name: msgspec.structs.replace(tensor, data=b"") for name, tensor in item.tensors.items()
    }
    return msgspec.structs.replace(item, tensors=tensors)


def _with_data(sent: _Item, payloads: _Payloads) -> MediaInput:
    if sent.data.keys() != sent.item.tensors.keys():
        raise FrameError("an item's tensors came without their data")
    tensors = {
        name: msgspec.structs.replace(tensor, data=cast(bytes, payloads.data(sent.data[name])))
        for name, tensor in sent.item.tensors.items()
    }
    return msgspec.structs.replace(sent.item, tensors=tensors)


def _cuts(sent: tuple[_Payload, ...], payloads: _Payloads, num_rows: int) -> RowCuts:
    rows, query_lens, behinds = map(payloads.ints, sent[:3])
    whole = np.frombuffer(payloads.data(sent[3]), np.bool_)
    if not len(rows) == len(query_lens) == len(behinds) == len(whole):
        raise FrameError("a plan's cuts are not of as many parts each")
    check_below(rows.view(np.uint32), num_rows, "a cut's row")
    return RowCuts(rows, query_lens, behinds, whole)


def check_below(words: NDArray[np.uint32], limit: int, what: str) -> None:
    """Raise unless all are below ``limit``."""
    # The method ``max`` is the same behind a function of Python's, a tenth of a plan's decoding.
    if len(words) and np.maximum.reduce(words) >= limit:
        raise FrameError(f"{what} is not 0 to {limit - 1} in a plan: {words.max().view(np.int32)}")
