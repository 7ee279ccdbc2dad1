"""A planned step as it goes to the device: one packed int32 buffer and a few host-side facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.messages import TokenSampling
from octavo.steps.loads import AdapterLoad, AutomatonLoad, BlockMoves, EncodeItem, RowCuts
from octavo.steps.recording import Recording
from octavo.steps.slot_fields import Ints, SlotIds
from octavo_kernels.row_features import Work

T = TypeVar("T")
N = TypeVar("N", bound=np.generic)


class Sections(NamedTuple, Generic[T]):
    """The sections of a plan's buffer in their order: arrays, their lengths, or tensors."""

    diff_indices: T
    """Words of the state arena."""
    diff_values: T
    slots: T
    """Where the rows of the step are."""
    query_starts: T
    """One more than rows."""
    sample_slots: T
    """Where the rows are that sample a token."""
    logit_tokens: T
    """Tokens whose logits are needed: first those that sample, then prompt logprobs."""
    prompt_targets: T
    """The token that follows each of the latter."""
    held: T
    """Lines of held hidden rows, from which the last of the rows that sample do."""
    family_rows: T
    """Rows that sample, from whose hidden rows others of the family will later."""
    positions: T
    """Positions by axis and token, where they do not follow from the device state."""
    media_tokens: T
    """Tokens that stand for media."""
    media_rows: T
    """Rows of the buffer of what was encoded that replace these tokens."""
    cross_rows: T
    """Rows of that buffer that cross attention is to read from now on."""
    cross_slots: T
    """Where their keys and values go, by cache group."""


_NO_TOKENS = np.zeros(0, np.int32)


def _no_ints() -> Ints:
    return _NO_TOKENS


class Attached(NamedTuple):
    """A sequence that takes a slot, for what keeps something by slot."""

    slot: int
    sampling: TokenSampling
    num_prompt_tokens: int = 0
    tokens: Ints = _NO_TOKENS
    """Tokens of prompt and output so far, where there are processors."""


class StepPlan(msgspec.Struct, kw_only=True, eq=False):
    """What the device does in one step."""

    step_id: int
    buffer: Ints
    """The sections, one behind the other."""
    sizes: Sections[int]
    num_tokens: int
    """More than the rows' own where these may have drafts, which the device shares out."""
    slots: SlotIds | Ints
    """The rows' slots."""
    query_lens: Ints
    """Tokens that are the rows' own."""
    context_lens: Ints
    """Upper bounds by row."""
    features: Ints
    """RowFeature bits of the rows that sample."""
    work: Work
    """What these need of the sampler."""
    num_logprobs: int
    """Largest number that a sampling row asked for; -1: none did."""
    num_prompt_logprobs: int
    of_allowed: NDArray[np.bool_]
    """Rows that sample whose logprobs are of what their guides allow alone."""
    most_yield: int = 1
    """Most tokens that a row yields: one more than it has drafts."""
    awaits_masks: bool = False
    """The host masks some rows: the tokens are sampled when ``TokenMasks`` have come."""
    masked: bool = False
    """The device masks some of the rows that sample, by their automata."""
    attach: list[Attached] = msgspec.field(default_factory=list)
    """Slots whose new sequence brings parameters that name tokens, or meets processors."""
    detach: list[int] = msgspec.field(default_factory=list)
    """Slots whose sequence has left, where there are processors; done before ``attach``.

    All slots behind a step that raised, which may have left out its own.
    """
    moves: BlockMoves = msgspec.field(default_factory=BlockMoves)
    encode: list[EncodeItem] = msgspec.field(default_factory=list)
    """Media whose rows are made before the forward pass."""
    adapters: list[AdapterLoad] = msgspec.field(default_factory=list)
    """What is copied to the device before the forward pass; done in this order."""
    automata: list[AutomatonLoad] = msgspec.field(default_factory=list)
    """What is copied to the device before the forward pass."""
    has_adapters: bool = False
    """Whether any row has one."""
    cuts: RowCuts | None = None
    """How attention takes the rows, where that is not as they are."""
    recording: Recording | None = None
    """The recorded step to run, which every rank has; None: the step is launched kernel by kernel.

    The executor names it.
    """
    repeats: int = 0
    """The first of the steps that this one repeats: it has their rows, each one token on from step
    to step, and brings nothing but a diff. 0: it repeats none."""

    @property
    def is_decode(self) -> bool:
        """Whether each row has one token and samples the next, as rows without one may."""
        sizes = self.sizes
        if self.encode or sizes.prompt_targets or sizes.positions or sizes.family_rows:
            return False
        if sizes.media_tokens or sizes.cross_rows:
            return False
        return 0 < self.num_tokens == self.num_rows == len(self.features) - self.num_held

    @property
    def num_held(self) -> int:
        """Rows that sample from a held hidden row, and have no token in this step."""
        return self.sizes.held

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return len(self.slots)


def pack_sections(sections: Sections[Ints | SlotIds]) -> tuple[Ints, Sections[int]]:
    """Lay the sections into one buffer; returns it and their sizes."""
    buffer = np.concatenate(sections, dtype=np.int32)
    return buffer, Sections._make(map(len, sections))


def split_sections(buffer: NDArray[N], sizes: Sections[int]) -> Sections[NDArray[N]]:
    """The buffer's sections, as views of it."""
    sections, end = [], 0
    for size in sizes:
        start, end = end, end + size
        sections.append(buffer[start:end])
    return Sections._make(sections)


@dataclass(slots=True, kw_only=True)
class TokenMasks:
    """Which tokens some of a step's sampling rows may have."""

    rows_M: Ints
    """Places among the rows of logits: the sampling rows, if none has drafts."""
    bits_MW: Ints
    """Token i at bit i % 32 of word i // 32; a clear bit bans."""
    put_off_P: Ints = field(default_factory=_no_ints)
    """Places of rows that sample in a later step; their hidden rows are held till then."""


@dataclass(slots=True, kw_only=True)
class StepResult:
    """What the host learns of a step, one step late."""

    tokens_RK: Ints
    """What each sampling row yields, in its order; K is the most of any."""
    counts_R: Ints | None = None
    """How many of its tokens count, 0 to K; None: one each. A row of which none counts runs its
    last token again, so that one that samples from a held hidden row has one."""
    logprobs: LogprobArrays | None = None
    """A line for each entry of ``tokens_RK``."""
    prompt_logprobs: LogprobArrays | None = None
    unusable_RK: Ints | None = None
    """For each token: 0, or who left it logits that give none: 1 the model, 2 the first logits
    processor, and so on. None: there are no processors, and nobody has looked."""
    vectors: VectorArrays | None = None
    """What a step of texts gives, which has no tokens."""


@dataclass(slots=True, kw_only=True)
class VectorArrays:
    """A vector for each row of a step of texts."""

    rows_RW: NDArray[np.float32]
    is_finite_R: NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
class LogprobArrays:
    """Log probabilities by row: the chosen token first, then the likeliest in order."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int32]
