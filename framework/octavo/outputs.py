"""What a caller gets back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from octavo.vllm_paths import names_of_vllm
from octavo_registry import Delta, ParsedMessage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__getattr__ = names_of_vllm(__name__)

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log probability, its rank in the vocabulary (1 is the likeliest), its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None
    part: bytes | None = None
    """The token's bytes, where they are only part of a character: its text has "\\ufffd" there."""

    @property
    def token_bytes(self) -> bytes:
        """What the token adds to the text."""
        return (self.decoded_token or "").encode() if self.part is None else self.part


TokenLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's ``n`` continuations."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; None for end of sequence or length."""
    message: ParsedMessage | None = None
    """The text taken apart: reasoning, content and tool calls. Of chats whose model has a parser
    for what it was asked; None where all text is content."""
    deltas: list[Delta] | None = None
    """The message in the order in which it came; with ``output_kind="delta"``, what is new."""
    token_starts: list[int] | None = None
    """With ``logprobs``: where in the whole text each token begins. One without text of its own,
    such as a part of a character, begins where the next one does."""
    delta_logprobs: list[list[TokenLogprobs]] | None = None
    """With both: for each of ``deltas`` the tokens whose first visible character is content of it.
    Tokens of reasoning, of calls and of marks are in none."""

    @property
    def finished(self) -> bool:
        """Whether no more tokens will come."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times in seconds of the monotonic clock; None until reached."""

    arrival_seconds: float
    first_token_seconds: float | None = None
    finished_seconds: float | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    num_preemptions: int = 0
    seconds_in_queue: float | None = None
    """A duration: from arrival in the engine to the first step."""
    seconds_in_prefill: float | None = None
    """A duration: from the first step to the first token."""


@dataclass(frozen=True, slots=True)
class GuideReceipt:
    """What a request's text was held to, and by whom."""

    constraint: str
    backend: str
    compile_seconds: float | None = None
    """How long the request waited for its guide in the engine; None until its first token."""


@dataclass(slots=True)
class RequestOutput:
    """A request and what it has produced so far."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    """Continuations by index; with output_kind "delta" only those that have news."""
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: str | None = None
    """Why the request failed, when a finish_reason is "error"."""
    error_type: str | None = None
    """The class in ``octavo.errors`` of that; "QueueFullError" may be tried again."""
    guided: GuideReceipt | None = None


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    """What a text has become; empty where the text has failed."""

    array: NDArray[np.float32]

    @property
    def data(self) -> Any:
        """The array as a torch tensor."""
        import torch

        return torch.from_numpy(self.array)


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A text's vector; empty where the text has failed."""

    array: NDArray[np.float32]

    @property
    def embedding(self) -> list[float]:
        """The vector as a list, which is made when it is read: 8 us for 1,024 entries."""
        entries: list[float] = self.array.tolist()
        return entries

    @property
    def hidden_size(self) -> int:
        """Entries of the vector."""
        return len(self.array)


@dataclass(slots=True, kw_only=True)
class _TextOutput:
    """A text that was read."""

    request_id: str
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0
    error: str | None = None
    """Why the text has no vector."""
    error_type: str | None = None
    """The class in ``octavo.errors`` of that."""


@dataclass(slots=True, kw_only=True)
class PoolingRequestOutput(_TextOutput):
    """A text and what ``LLM.encode`` has made of it."""

    outputs: PoolingOutput


@dataclass(slots=True, kw_only=True)
class EmbeddingRequestOutput(_TextOutput):
    """A text and its vector."""

    outputs: EmbeddingOutput


@dataclass(slots=True)
class BeamSequence:
    """One beam: its tokens after the prompt, their text and the sum of their logprobs."""

    token_ids: list[int]
    cumulative_logprob: float
    text: str = ""
    finish_reason: FinishReason | None = None
    message: ParsedMessage | None = None
    """The reasoning, content and calls of a chat's text, where the model has parsers."""


@dataclass(slots=True)
class BeamSearchOutput:
    """The best beams of one prompt, best first."""

    prompt_token_ids: list[int]
    sequences: list[BeamSequence] = field(default_factory=list)
