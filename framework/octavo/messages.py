"""What crosses between a client and an engine, as msgspec packs it; the same in one process or two.

A *sequence* is one continuation of a request, named by an integer that the client chose; a request
with ``n`` continuations brings ``n`` of them. The engine knows tokens only: text, stop strings and
templates belong to the client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from octavo.config import EngineConfig
from octavo.errors import OctavoError, error_name
from octavo.outputs import FinishReason
from octavo.params import SamplingNumbers
from octavo.pooled_calls import PooledCall, PooledRows
from octavo_registry.faults import one_line
from octavo_registry.guided import ConstraintKind
from octavo_registry.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSampling(SamplingNumbers):
    """The part of SamplingParams that the device applies, checked and in token ids."""

    seed: int
    """Sequence i of the request uses seed + i."""
    min_tokens: int = 0
    max_tokens: int
    """Resolved: never more than the context leaves."""
    stop_token_ids: tuple[int, ...] = ()
    """Reported as stop_reason."""
    eos_token_ids: tuple[int, ...] = ()
    """End of sequence; empty when ignored."""
    logprobs: int = -1
    """-1: none; 0: the chosen token's only."""
    logprobs_of_allowed: bool = False
    """Whether they are of the tokens that the guide allows alone, and not of all."""
    prompt_logprobs: int = -1
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    extra_args: dict[str, Any] = field(default_factory=dict)


class AskedGuide(msgspec.Struct, frozen=True):
    """A constraint as a caller gave it, not checked yet."""

    name: str
    """The name of a field of ``GuidedParams``."""
    value: str
    """As JSON."""
    backend: str | None = None


class GuideRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A constraint on a request's text, checked, and the backend that enforces it."""

    backend: str
    kind: ConstraintKind
    value: str
    """A ``Constraint``'s value as JSON: equal constraints are equal texts."""
    automaton: bytes = b""
    """The packed byte automaton, if the backend is one whose guides are."""
    others: tuple[str, ...] = ()
    """Backends that enforce it too, for when the first cannot compile it; in this order."""
    num_bytes: int = 0
    """What the guide took where it was tried; 0: nobody has looked."""


class TensorData(msgspec.Struct, frozen=True):
    """A tensor on its way to another process."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class MediaInput(msgspec.Struct, frozen=True, kw_only=True):
    """An item of a prompt, and the placeholder tokens that its rows replace, if it has any."""

    content_hash: str
    spans: tuple[tuple[int, int], ...]
    """Placeholder tokens that follow each other: the first and how many, in order."""
    tensors: dict[str, TensorData]
    """What the model's ``encode`` takes."""
    cross_rows: int = 0
    """Rows that cross attention reads and no tokens stand for: then there are no spans."""

    @property
    def start(self) -> int:
        """The first placeholder."""
        return self.spans[0][0] if self.spans else 0

    @property
    def end(self) -> int:
        """Behind the last one."""
        return sum(self.spans[-1]) if self.spans else 0

    @property
    def num_rows(self) -> int:
        """One for each placeholder, or those of cross attention."""
        return sum(length for _, length in self.spans) + self.cross_rows


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prompt and how to continue it."""

    request_id: str
    sequences: tuple[int, ...]
    """Ids, unique among the client's live sequences; one per continuation."""
    prompt_token_ids: list[int]
    sampling: TokenSampling
    priority: int = 0
    """Lower runs earlier, under the priority policy."""
    cache_salt: str = ""
    adapter: str = ""
    """Content hash of the LoRA adapter; empty for none."""
    guide: GuideRequest | None = None
    media: tuple[MediaInput, ...] = ()
    """In the order of their tokens."""
    positions: bytes = b""
    """Positions of the prompt's tokens, int32 by axis, if they are not their numbers (M-RoPE)."""
    num_guided_tokens: int = 0
    """So many of the prompt's last tokens belong to the text that the guide is for."""


class AdapterHead(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter's bytes are: the matrices of each linear in this order, down before up."""

    content_hash: str
    rank: int
    """The largest of its linears' ranks."""
    dtype: str
    shapes: dict[str, tuple[int, int, int]]
    """Rank, inputs and outputs by the linear's name."""


class PackedAdapter(NamedTuple):
    """An adapter, checked and ready for the device; see ``octavo.adapters.packed``."""

    head: AdapterHead
    data: memoryview
    """Crosses to an engine process as a frame of its own, which nobody copies."""


@dataclass(frozen=True, slots=True)
class LinearSize:
    """One linear as checkpoints and adapters know it: whole, whatever ranks hold of it.

    The input embedding is one whose inputs are the tokens of the vocabulary.
    """

    inputs: int
    outputs: int
    transposed: bool = False
    """Checkpoints have its weight as [in, out]; an adapter's matrices stand as everywhere."""
    experts: int = 1
    """So many stand in one tensor; an adapter has their inputs and outputs side by side."""


class AdapterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a front end must know of the model to check and pack adapters."""

    linears: dict[str, tuple[int, int, bool, int]]
    """Each linear's inputs, outputs, whether checkpoints store it as [in, out], and the number of
    experts whose weights stand in one tensor."""
    max_rank: int
    dtype: str


class StartEngine(msgspec.Struct, frozen=True, tag=True):
    """First message to an engine process: what it loads, exactly."""

    config: EngineConfig
    manifest: Manifest
    log_level: int
    worker_addresses: tuple[str, ...] = ()
    """Further clients, whose sequences are those that are congruent to their place here."""


class AddRequests(msgspec.Struct, frozen=True, tag=True):
    """Queue these."""

    requests: list[EngineRequest]


class AbortSequences(msgspec.Struct, frozen=True, tag=True):
    """End these now and free what they hold; unknown ids are ignored."""

    sequences: list[int]


class AddAdapter(msgspec.Struct, frozen=True, tag=True):
    """Let later requests name an adapter; its bytes are the frame behind this one."""

    head: AdapterHead


class RemoveAdapter(msgspec.Struct, frozen=True, tag=True):
    """Take no more requests that name it; those that are there go on."""

    content_hash: str


class CallUtility(msgspec.Struct, frozen=True, tag=True):
    """Run a named engine method between steps: "reset_prefix_cache", "stats", "metrics"."""

    call_id: int
    method: str


class ReplaceWorker(msgspec.Struct, frozen=True, tag=True):
    """The worker at this place is lost: end its sequences, and connect to another's address."""

    place: int
    address: str


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End the engine."""


ClientMessage = (
    AddRequests
    | PooledCall
    | AbortSequences
    | AddAdapter
    | RemoveAdapter
    | CallUtility
    | ReplaceWorker
    | Shutdown
)


class SequenceLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities at one token: the chosen one first, then the likeliest in order."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    """The chosen token's rank."""


class SequenceEnd(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that ended with this batch."""

    sequence: int
    reason: FinishReason
    stop_token_id: int | None = None
    """Set when an entry of ``stop_token_ids`` ended it."""
    error: str | None = None
    error_type: str = "RequestFailedError"
    """The class in ``octavo.errors`` that a caller should see."""
    is_text: bool = False
    """The last token of one that has stopped belongs to its text: its guide allows no more."""


def error_end(sequence: int, error: BaseException, *, before: str = "") -> SequenceEnd:
    """The end of a sequence that this has ended; ``before`` says of what it is the cause."""
    ours = isinstance(error, OctavoError)
    return SequenceEnd(
        sequence,
        "error",
        error=f"{before}{error if ours else one_line(error)}",
        error_type=error_name(error),
    )


class PromptReport(msgspec.Struct, frozen=True, array_like=True):
    """Sent once for a request, with its first sequence's first token."""

    sequence: int
    num_cached_tokens: int
    logprobs: list[SequenceLogprobs] | None = None
    """One entry per prompt token but the first, when asked for."""
    seconds_in_queue: float | None = None
    """From its arrival in the engine to its first step."""
    seconds_in_prefill: float | None = None
    """From there to this token; what preemptions took is in it."""
    seconds_for_guide: float | None = None
    """Before it was queued: until the guide that it asked for was compiled."""
    guided_by: str = ""
    """The backend of that guide, which may not be the first that was asked."""


class StepOutputs(msgspec.Struct, frozen=True, tag=True):
    """What one step gave: sequences, and their new tokens in the same order."""

    sequences: list[int] = []
    tokens: list[int] = []
    counts: list[int] = []
    """How many of ``tokens`` each sequence has; empty: one each."""
    logprobs: dict[int, list[SequenceLogprobs]] = {}
    """Log probabilities of a sequence's tokens, only for those that asked."""
    ends: list[SequenceEnd] = []
    prompts: list[PromptReport] = []
    preempted: list[int] = []
    pooled: list[PooledRows] = []

    def add(self, sequence: int, tokens: Sequence[int]) -> None:
        """Give a sequence more tokens, behind those that it has."""
        if self.counts or len(tokens) != 1:
            self.counts.extend([1] * (len(self.sequences) - len(self.counts)))
            self.counts.append(len(tokens))
        self.sequences.append(sequence)
        self.tokens.extend(tokens)

    def by_sequence(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Sequences with their new tokens; one may come more than once."""
        if not self.counts:
            return zip(self.sequences, zip(self.tokens, strict=True), strict=True)
        tokens = iter(self.tokens)
        bursts = (tuple(islice(tokens, count)) for count in self.counts)
        return zip(self.sequences, bursts, strict=True)


def join_steps(steps: list[StepOutputs]) -> list[StepOutputs]:
    """Make one of steps that follow one another; those with logprobs stay as they are."""
    joined: list[StepOutputs] = []
    is_open = False
    for step in steps:
        if step.logprobs or not is_open:
            joined.append(step)
            is_open = not step.logprobs
            continue
        last = joined[-1]
        joined[-1] = StepOutputs(
            sequences=last.sequences + step.sequences,
            tokens=last.tokens + step.tokens,
            counts=_counts(last) + _counts(step) if last.counts or step.counts else [],
            ends=last.ends + step.ends,
            prompts=last.prompts + step.prompts,
            preempted=last.preempted + step.preempted,
            pooled=last.pooled + step.pooled,
        )
    return joined


def _counts(step: StepOutputs) -> list[int]:
    return step.counts or [1] * len(step.sequences)


class UtilityResult(msgspec.Struct, frozen=True, tag=True):
    """Answer to CallUtility; ``error`` is set when it raised."""

    call_id: int
    value: Any = None
    error: str | None = None


class EngineReady(msgspec.Struct, frozen=True, tag=True):
    """First message of an engine; the client needs nothing else about the model."""

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    adapters: AdapterFacts | None = None
    """None: it takes none."""
    masks_on_device: bool = False
    """Whether it masks tokens by byte automata sooner than by other guides."""


class EngineFailed(msgspec.Struct, frozen=True, tag=True):
    """Last message of an engine that cannot go on; the cause in one line."""

    message: str
    error: str = "EngineDeadError"
    """Name of the class in ``octavo.errors`` that the client raises."""


EngineMessage = StepOutputs | UtilityResult | EngineReady | EngineFailed
