"""Model architectures: what the engine gives a model, and what a model must offer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo_registry.cache import CacheSpec, Sees
    from octavo_registry.layer_adapters import LayerAdapters
    from octavo_registry.linear import Quantization
    from octavo_registry.step import MediaRows, Step

Task = Literal["generate", "embed", "classify", "score", "reward", "transcribe"]
Modality = str
"""A name in ``host.modalities``: "image", "video", "audio", or a plugin's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """A part of a model whose settings and weights may lie with another model."""

    config: str
    """The entry of config.json that has the part's settings."""
    model: str
    """The entry that names the other model. Without it all is in the model's own folder, and what
    is there goes before what the other model has."""
    prefixes: tuple[tuple[str, str], ...]
    """How names of its tensors begin there, and here; others are not the part's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCapabilities:
    """What an architecture can do, known without importing it; asking for more is an error."""

    tasks: tuple[Task, ...] = ("generate",)
    modalities: tuple[Modality, ...] = ()
    position_axes: Literal[1, 3] = 1
    """3: tokens have a time, a height and a width (M-RoPE), equal for text."""
    lora: bool = False
    pipeline_parallel: bool = False
    tensor_parallel: bool = False
    quantizations: tuple[str, ...] = ()
    """Names of those that it works with; ("*",): all, as models of the framework's layers do."""
    media_attention: Literal["causal", "bidirectional"] = "causal"
    sees: Sees = "before"
    """What a token sees of a text that is only read."""
    parts: tuple[ModelPart, ...] = ()
    transcriber: str | None = None
    """Target of a ``Transcriber``, for models that write down what is said."""
    reference: str | None = None
    """Target ("transformers:LlamaForCausalLM", or a ``reference(config) -> torch.nn.Module`` of the
    plugin's own, "pkg.module:reference") that the conformance kit compares with. None: the kit
    claims self-consistency only."""
    conformance: str | None = None
    """Target of a dict of ``octavo.testing.variants.Variant`` by name: the configurations that the
    conformance kit tries. None: its own tiny one."""


@runtime_checkable
class Collectives(Protocol):
    """What the ranks of one tensor parallel group do together, all in the same order."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' x; may overwrite x."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """Return all ranks' x side by side along the last axis, in the order of ranks."""
        ...


def has_common_kind(spec: CacheSpec) -> bool:
    """Whether a cache is of a kind that is made for every device."""
    return spec.kind != "media"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """All that a model is built from. ``config`` is config.json as a plain dict."""

    architecture: str
    config: Mapping[str, Any]
    dtype: torch.dtype
    device: torch.device
    max_model_len: int
    tp_rank: int = 0
    tp_size: int = 1
    collectives: Collectives | None = None
    """None only with a tp_size of 1."""
    first_layer: int = 0
    last_layer: int | None = None
    """Layers first_layer <= i < last_layer live here; None means to the end (pipeline stages)."""
    quantization: Quantization | None = None
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    """generation_config.json, for what it says of which tokens may be sampled."""
    folder: Path | None = None
    """Where the model lies; None: nowhere, as for a model with made-up weights in a test."""
    trust_remote_code: bool = False
    """Whether Python files of the folder may be run."""
    batch_invariant: bool = False
    """Products must give a row the same bits whatever rows stand beside it."""
    takes_cache: Callable[[CacheSpec], bool] = has_common_kind
    """Whether the engine's attention backends take such a cache, for models that can do with one of
    several."""
    sees: Sees | None = None
    """What a token sees of its row, where keys live for one step (``CacheSpec.in_step``), as of a
    model that reads texts and writes none. None: keys are cached, and it sees those before it."""
    adapters: LayerAdapters | None = None
    """Goes around every linear's method and both ends of the vocabulary; None: the engine takes no
    adapters."""


@runtime_checkable
class Model(Protocol):
    """A model architecture. It is built on ``spec.device`` with uninitialised weights.

    ``forward`` runs once a step for all rows together: no Python per request may stand in it. On
    CUDA the engine records it for steps of one token a row and runs the recording again: nothing in
    it may wait for the device or depend on values there.
    """

    def cache_specs(self) -> dict[str, CacheSpec]:
        """The cache of each attention layer, by the layer's full name, in layer order."""
        ...

    def embed(self, tokens_T: Tensor, media: MediaRows | None) -> Tensor:
        """Token ids to the first hidden state [T, D]; rows of media replace their tokens'."""
        ...

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """All layers of this stage [T, D]; x_TD is embed's result or the previous stage's output.

        See ``Step.only_sampled`` for what the last layer may leave out.
        """
        ...

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Take checkpoint tensors as they stream by; return the parameter names now loaded.

        Raises for a tensor that fits nothing; the framework reports parameters left unloaded.
        """
        ...


@runtime_checkable
class SamplesTokens(Protocol):
    """A model that writes: its hidden states say which token may come next."""

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """Logits [R, V] for the given rows only; the framework may call it in chunks of rows."""
        ...


@runtime_checkable
class FinishesWeights(Protocol):
    """A layer that does something with its weights when all of them have come."""

    def finish_weights(self) -> None:
        """Repack them; calling it again does nothing more."""
        ...


@runtime_checkable
class EncodesMedia(Protocol):
    """A model that makes rows of its own hidden size from images, video or audio."""

    media_row_size: int
    """Entries of a row: the hidden size, and more where later layers take some of their own."""

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """The rows [rows, media_row_size] of each item, as many as its prompt said it has.

        An item is what ``host.multimodal.map_input`` made of it, on the model's device; called
        once for all items that a step needs and that the engine has not kept.
        """
        ...

    def encode_bytes(self, num_rows: int) -> int:
        """Peak bytes that ``encode`` (and ``cross_rows``) allocate for so many rows together."""
        ...


@runtime_checkable
class AttendsAcross(EncodesMedia, Protocol):
    """A model with layers of ``CacheSpec.cross`` or ``media``, as decoders behind an encoder have.

    The engine calls ``cross_rows`` once for each sequence, unless its cache has them by content.
    """

    def cross_rows(self, rows_MW: Tensor) -> Iterator[tuple[str, Tensor, Tensor | None]]:
        """Keys and values [M, K, D] of an item's rows, for each of these layers by name.

        For a layer of ``CacheSpec.media`` the rows [M, 1, D], and None.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTokens:
    """The tokens of all running sequences, on the device and always the same tensors.

    Axis suffixes: S slots that sequences run in, L tokens that a slot has room for.
    """

    tokens_SL: Tensor
    """Tokens from ``num_tokens_S`` on mean nothing."""
    num_tokens_S: Tensor
    """Tokens of prompt and output so far; 0 in a slot that only fills up a step."""


@runtime_checkable
class RulesOutTokens(Protocol):
    """A model of which not every token may follow every other, such as one that gives times."""

    def rule_out(self, logits_RV: Tensor, slots_R: Tensor, so_far: SequenceTokens) -> Tensor:
        """Logits with -inf for what must not come next in the sequences of these slots.

        They may be overwritten. Called for rows that sample, before anything else changes their
        logits; what is said of ``forward`` holds here too.
        """
        ...


@runtime_checkable
class HasWorkspace(Protocol):
    """A model that knows its peak scratch memory better than the framework's upper formula."""

    def workspace_bytes(self, num_tokens: int) -> int:
        """Peak bytes that one forward over that many tokens allocates besides weights and cache."""
        ...
