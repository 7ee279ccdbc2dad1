"""Where the attention calls of Transformers' models end: with the handler of the forward.

A model is built with ``attn_implementation=NAME``, and is run within ``handled_by(handler)``. Not
every architecture passes keywords on to its layers, so the handler goes by the context instead.

Axis suffixes: T tokens, H query heads, K key/value heads, D head dim; B is a batch of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from octavo.errors import ModelError
from octavo_registry.cache import CacheSpec
from octavo_registry.step import Step

NAME: Final = "octavo"
"""No mask is made for it: rows, causality and windows are the backend's."""
PROBED_NAME: Final = "octavo_probed"
"""Under this name the same function gets the mask that a layer's model asks for, as a rule."""

WITHOUT_EFFECT: Final = frozenset({"position_ids", "cache_position", "use_cache"})
"""What layers pass on besides; queries and keys already hold what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """What a layer asks for."""

    scale: float
    window: int | None
    softcap: float | None
    sinks_H: Tensor | None
    mask: Any
    """None, or under ``PROBED_NAME`` an ``AskedMask``."""
    is_causal: bool


class Handler(Protocol):
    """What attends."""

    def attend(
        self, layer: nn.Module, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: AttentionCall
    ) -> Tensor:
        """Return [T, H, D]."""
        ...


_HANDLER: Final[ContextVar[Handler | None]] = ContextVar("octavo_attention", default=None)


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """Within, attention calls of this thread go to ``handler``."""
    token = _HANDLER.set(handler)
    try:
        yield
    finally:
        _HANDLER.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedLayer:
    """One layer's attention, as the probe saw it."""

    name: str
    """In ``Model.cache_specs`` and ``Step.layers``."""
    cache_spec: CacheSpec


class PagedAttention:
    """The attention of one step, over the paged cache."""

    def __init__(self, layers: Mapping[nn.Module, PagedLayer], step: Step) -> None:
        self._layers, self._step = layers, step

    def attend(
        self, layer: nn.Module, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: AttentionCall
    ) -> Tensor:
        """Attend by the backend of the layer's cache group."""
        paged = self._layers[layer]
        cache = self._step.layers[paged.name]
        out_THD: Tensor = cache.backend.attend(
            q_THD,
            k_TKD,
            v_TKD,
            cache.view,
            self._step.groups[cache.group],
            scale=call.scale,
            window=paged.cache_spec.window,
            softcap=call.softcap,
            sinks=call.sinks_H,
        )
        return out_THD


class AskedMask:
    """The mask that a model asked Transformers for, as the function of its entries.

    A model may hand it to attention, cut to the length of the keys, and nothing else: what it would
    make of the entries, such as a choice among the keys, is not in the function.
    """

    def __init__(self, allows: Any, *, num_queries: int, num_keys: int) -> None:
        self.allows = allows
        """``(batch, head, query, key) -> bool``, of tensors that are broadcast."""
        self._shape = (1, 1, num_queries, num_keys)

    def __getitem__(self, index: Any) -> AskedMask:
        """Take the whole mask or raise: layers cut it to their keys, which are as many."""
        parts = index if isinstance(index, tuple) else (index,)
        if Ellipsis in parts:
            place, missing = parts.index(Ellipsis), len(self._shape) - len(parts) + 1
            parts = (*parts[:place], *[slice(None)] * missing, *parts[place + 1 :])
        if len(parts) > len(self._shape):
            self._refuse()
        for part, size in zip(parts, self._shape, strict=False):
            if not isinstance(part, slice) or part.indices(size) != (0, size, 1):
                self._refuse()
        return self

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what a tensor would have."""
        self._refuse()

    @classmethod
    def __torch_function__(cls, *call: object, **options: object) -> NoReturn:
        """Refuse functions of torch, and operators whose other side is a tensor."""
        cls._refuse()

    @classmethod
    def _refuse(cls, *others: object) -> NoReturn:
        raise ModelError("its code changes the attention mask that it has asked for")

    __hash__ = object.__hash__
    __bool__ = __len__ = __iter__ = __invert__ = __neg__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __and__ = __or__ = __xor__ = __rand__ = __ror__ = __rxor__ = _refuse
    __add__ = __sub__ = __mul__ = __radd__ = __rsub__ = __rmul__ = _refuse
    __setitem__ = __contains__ = _refuse


def ask_for_mask(*, mask_function: Any, q_length: int, kv_length: int, **sizes: Any) -> AskedMask:
    """Stand in for the function that makes masks; called by Transformers."""
    return AskedMask(mask_function, num_queries=int(q_length), num_keys=int(kv_length))


def hand_over(
    module: nn.Module,
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function that Transformers calls; what it does not know, it refuses."""
    unknown = sorted(
        name
        for name, value in others.items()
        if value is not None and value is not False and name not in WITHOUT_EFFECT
    )
    if unknown or dropout or not isinstance(scaling, (int, float, type(None))):
        wrong = unknown or ["dropout" if dropout else f"a scaling of type {type(scaling).__name__}"]
        raise ModelError(f"{type(module).__name__} calls attention with {', '.join(wrong)}")
    if attention_mask is not None and not isinstance(attention_mask, AskedMask):
        raise ModelError(f"{type(module).__name__} makes an attention mask of its own")
    handler = _HANDLER.get()
    if handler is None:
        raise ModelError(f"{type(module).__name__} calls attention for the head")
    key_dim, value_dim = query_BHTD.shape[-1], value_BKTD.shape[-1]
    v_TKD = _by_token(value_BKTD)
    if value_dim < key_dim:  # backends keep keys and values of one size
        v_TKD = F.pad(v_TKD, (0, key_dim - value_dim))
    out_THD = handler.attend(
        module,
        _by_token(query_BHTD).to(v_TKD.dtype),
        _by_token(key_BKTD).to(v_TKD.dtype),
        v_TKD,
        AttentionCall(
            scale=key_dim**-0.5 if scaling is None else float(scaling),
            window=sliding_window,
            softcap=softcap,
            sinks_H=s_aux,
            mask=attention_mask,
            is_causal=getattr(module, "is_causal", True) if is_causal is None else is_causal,
        ),
    )
    return out_THD[..., :value_dim].unsqueeze(0), None


def _by_token(x_BHTD: Tensor) -> Tensor:
    """[1, H, T, D] as [T, H, D]; a view where it was one before."""
    return x_BHTD[0].transpose(0, 1).contiguous()


for _name in (NAME, PROBED_NAME):
    AttentionInterface.register(_name, hand_over)
AttentionMaskInterface.register(PROBED_NAME, ask_for_mask)
