"""Plans as frames for other processes.

The first frame is a header of 32 words with the step's words behind it, of which the decoded plan
has views. A step that repeats one is header and diff: both ends keep the same few steps that may be
repeated. What is rare comes in further frames (``octavo.steps.plan_extras``).
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Final, Generic, TypeVar

import numpy as np
from msgspec.structs import replace

from octavo.errors import FrameError
from octavo.steps.plan import Sections, StepPlan, split_sections
from octavo.steps.plan_extras import ExtrasDecoder, ExtrasEncoder, Frames, check_below
from octavo.steps.recording import Recording, StepKind
from octavo.steps.slot_fields import Ints
from octavo_kernels.row_features import Work
from octavo_registry.executor import ExecutorFacts

VERSION: Final = 0x0C7A0001
HEADER_BYTES: Final = 128
MOST_KEPT: Final = 16
"""Steps that may be repeated; more than are ever under way."""
_FIELDS: Final = f"<iiqqiiiiiii{len(Sections._fields)}ii"
_HEADER: Final = struct.Struct(f"{_FIELDS}{HEADER_BYTES - struct.calcsize(_FIELDS)}x")

T = TypeVar("T")


class _Flag:
    """Plain numbers: those of an enumeration take a fifth of a plan's decoding."""

    AWAITS_MASKS = 1
    MASKED = 2
    HAS_ADAPTERS = 4
    OF_ALLOWED = 8
    REPEATED = 16
    HAS_EXTRAS = 32
    SAMPLES = 64
    """The recording does."""


class _Kept(Generic[T]):
    """What is remembered of steps that may be repeated, by their ids; the least used goes first."""

    def __init__(self) -> None:
        self._steps: OrderedDict[int, T] = OrderedDict()

    def keep(self, step_id: int, step: T) -> None:
        self._steps[step_id] = step
        self._steps.move_to_end(step_id)
        if len(self._steps) > MOST_KEPT:
            self._steps.popitem(last=False)

    def find(self, step_id: int) -> T | None:
        step = self._steps.get(step_id)
        if step is not None:
            self._steps.move_to_end(step_id)
        return step


class PlanEncoder:
    """Makes frames of plans, in the order in which they are decoded."""

    def __init__(self) -> None:
        self._kept: _Kept[int] = _Kept()
        """The context of the first row."""
        self._extras = ExtrasEncoder()

    def encode(self, plan: StepPlan) -> Frames:
        """The plan's frames; they may share its memory."""
        sizes = plan.sizes
        extras = self._extras.encode(plan)
        flags = (
            _Flag.AWAITS_MASKS * plan.awaits_masks
            | _Flag.MASKED * plan.masked
            | _Flag.HAS_ADAPTERS * plan.has_adapters
        )
        begun = self._kept.find(plan.repeats) if plan.repeats and not extras else None
        ahead = 0
        if begun is not None:
            flags |= _Flag.REPEATED
            ahead = int(plan.context_lens[0]) - begun
            pieces = [plan.buffer[: 2 * sizes.diff_indices]]
        else:
            pieces = [plan.buffer, plan.context_lens, plan.features]
            if plan.of_allowed.any():
                flags |= _Flag.OF_ALLOWED
                pieces.append(plan.of_allowed.astype(np.int32))
            if plan.is_decode:
                self._kept.keep(plan.repeats or plan.step_id, int(plan.context_lens[0]))
        if extras:
            flags |= _Flag.HAS_EXTRAS
        recorded_rows = recorded_tokens = 0
        if plan.recording is not None:
            kind, recorded_rows, recorded_tokens = plan.recording
            flags |= _Flag.SAMPLES * kind.samples
        header = _HEADER.pack(
            VERSION,
            flags,
            plan.step_id,
            plan.repeats,
            plan.num_tokens,
            plan.work,
            plan.num_logprobs,
            plan.num_prompt_logprobs,
            ahead,
            recorded_rows,
            recorded_tokens,
            *sizes,
            plan.most_yield,
        )
        return [bytearray().join((header, *[piece.data for piece in pieces])), *extras]


class PlanDecoder:
    """Makes plans of frames; what no encoder has written raises a FrameError.

    Word and slot numbers are checked against what there is, so that nothing writes elsewhere.
    """

    def __init__(self, facts: ExecutorFacts) -> None:
        self._state = facts.state
        self._kept: _Kept[StepPlan] = _Kept()
        self._extras = ExtrasDecoder(facts)

    def decode(self, frames: Frames) -> StepPlan:
        """The plan, with views of the first frame."""
        if not frames or len(frames[0]) < HEADER_BYTES or len(frames[0]) % 4:
            raise FrameError("a plan's first frame is short of its header, or cut within a word")
        version, flags, step_id, repeats, *values = _HEADER.unpack_from(frames[0])
        if version != VERSION:
            raise FrameError(f"a plan of version {version:#x} came, and not {VERSION:#x}")
        sizes: Sections[int] = Sections._make(values[7:-1])
        words: Ints = np.frombuffer(frames[0], np.int32, offset=HEADER_BYTES)
        if flags & _Flag.REPEATED and len(frames) == 1:
            plan = self._repeat(step_id, repeats, values[4], sizes, words)
            plan.recording = self._recording(plan, flags, *values[5:7])
            return plan
        num_rows, num_samples = sizes.slots, sizes.sample_slots
        end = sum(sizes)
        has_allowed = bool(flags & _Flag.OF_ALLOWED)
        num_words = end + num_rows + num_samples * (1 + has_allowed)
        if min(sizes) < 0 or len(words) != num_words:
            raise FrameError(f"a plan has {len(words)} words, and not {num_words} for {sizes}")
        num_tokens, work, num_logprobs, num_prompt_logprobs = values[:4]
        lens_end = end + num_rows
        features_end = lens_end + num_samples
        context_lens = words[end:lens_end]
        buffer = words[:end]
        most_yield = values[-1]
        num_drafts = (most_yield - 1) * num_samples
        slots, query_lens = self._check_rows(buffer, sizes, num_tokens, num_drafts)
        plan = StepPlan(
            step_id=step_id,
            buffer=buffer,
            sizes=sizes,
            num_tokens=num_tokens,
            slots=slots,
            query_lens=query_lens,
            context_lens=context_lens,
            features=words[lens_end:features_end],
            work=Work(work),
            num_logprobs=num_logprobs,
            num_prompt_logprobs=num_prompt_logprobs,
            most_yield=most_yield,
            of_allowed=words[features_end:] != 0 if has_allowed else np.zeros(num_samples, bool),
            awaits_masks=bool(flags & _Flag.AWAITS_MASKS),
            masked=bool(flags & _Flag.MASKED),
            has_adapters=bool(flags & _Flag.HAS_ADAPTERS),
            repeats=repeats,
        )
        plan.recording = self._recording(plan, flags, *values[5:7])
        kept = plan
        if flags & _Flag.HAS_EXTRAS:
            kept = replace(plan)
            self._extras.decode(frames[1:], plan)
        elif len(frames) > 1:
            raise FrameError(f"{len(frames) - 1} frames came behind a plan that has no more")
        if plan.is_decode:
            self._kept.keep(repeats or step_id, kept)
        return plan

    def _recording(
        self, plan: StepPlan, flags: int, num_rows: int, num_tokens: int
    ) -> Recording | None:
        """What the plan names: all but these facts it has in common with its recording."""
        if num_rows == 0:
            return None
        if not (
            plan.num_rows <= num_rows <= self._state.num_slots and plan.num_tokens <= num_tokens
        ):
            raise FrameError(f"a plan of {plan.num_rows} rows names a recording of {num_rows}")
        if flags & _Flag.SAMPLES:
            kind = StepKind(True, plan.work, plan.has_adapters, plan.masked)
        else:
            kind = StepKind(False, has_adapters=plan.has_adapters)
        return Recording(kind, num_rows, num_tokens)

    def _check_rows(
        self, buffer: Ints, sizes: Sections[int], num_tokens: int, num_drafts: int
    ) -> tuple[Ints, Ints]:
        """Slots and lengths of the rows, which fit the state and each other.

        Besides what is theirs there may be so many drafts among the tokens of the step.
        """
        num_words, num_rows = sizes.diff_indices, sizes.slots
        if num_words != sizes.diff_values or sizes.query_starts != num_rows + 1:
            raise FrameError(f"a plan's sections do not fit together: {sizes}")
        # Unsigned: a negative number is above every limit.
        parts = split_sections(buffer.view(np.uint32), sizes)
        starts = parts.query_starts
        query_lens = starts[1:] - starts[:-1]
        if starts[0] != 0 or not 0 <= num_tokens - starts.item(-1) <= num_drafts:
            raise FrameError(f"a plan's rows are not of {num_tokens} tokens together")
        check_below(parts.held, 2 * self._state.num_slots, "a held row's line")
        check_below(parts.family_rows, sizes.sample_slots, "a sampling row")
        num_slots = self._state.num_slots + 1  # with the padding's
        check_below(parts.diff_indices, self._state.num_words, "a word of the state")
        check_below(parts.slots, num_slots, "a row's slot")
        check_below(parts.sample_slots, num_slots, "a sampling row's slot")
        check_below(parts.logit_tokens, num_tokens, "a token with logits")
        check_below(query_lens, num_tokens + 1, "a row's tokens")
        return parts.slots.view(np.int32), query_lens.view(np.int32)

    def _repeat(
        self, step_id: int, repeats: int, ahead: int, sizes: Sections[int], words: Ints
    ) -> StepPlan:
        """The plan of a step whose rows are as many tokens ahead of one that is kept."""
        plan = self._kept.find(repeats)
        if plan is None:
            raise FrameError(f"step {step_id} repeats step {repeats}, which is not kept")
        num_words = sizes.diff_indices
        expected = plan.sizes._replace(diff_indices=num_words, diff_values=num_words)
        if sizes != expected or len(words) != 2 * num_words:
            raise FrameError(f"step {step_id} has other sections than step {repeats}: {sizes}")
        check_below(words[:num_words].view(np.uint32), self._state.num_words, "a word of the state")
        context_lens = plan.context_lens + np.int32(ahead)
        rest = plan.buffer[2 * plan.sizes.diff_indices :]
        return replace(
            plan,
            step_id=step_id,
            repeats=repeats,
            buffer=np.concatenate([words, rest]) if num_words else rest,
            sizes=sizes,
            context_lens=context_lens,
        )
