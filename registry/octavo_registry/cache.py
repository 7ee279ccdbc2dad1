"""What a layer keeps between steps: the specification from which cache groups are made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

CacheKind = Literal["full", "window", "latent", "cross", "media", "state", "step", "none"]
Sees = Literal["before", "all"]
"""The tokens of its row that a query sees: itself and those before it, or all."""


ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4}


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor that a recurrent state is made of, or that tells what one token adds to it."""

    shape: tuple[int, ...]
    dtype: str
    """A torch dtype's name."""

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"a state of {self.dtype!r}; there is {', '.join(ITEM_BYTES)}")
        if min(self.shape, default=1) < 1:
            raise ValueError(f"a state of shape {list(self.shape)} has nothing in it")

    @property
    def num_bytes(self) -> int:
        """Bytes of one of them."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """One layer's cache. Layers with equal specs share a cache group and its block tables.

    Build it with the class methods; ``dtype`` is a torch dtype's name ("float32", "bfloat16").
    """

    kind: CacheKind
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    dtype: str = "float32"
    window: int | None = None
    """Tokens that a query sees, itself included; for kinds "window" and "step". One that sees to
    both sides sees those that are fewer than so many places away."""
    tensors: tuple[StateTensor, ...] = ()
    """What a state of fixed size is made of; only for kind "state", as the next."""
    log: tuple[StateTensor, ...] = ()
    """What a token adds to it."""
    rows: int | None = None
    """Most rows of encoded media that a sequence's tokens see; for kinds "cross" and "media"."""
    whole_rows: bool = False
    """Steps may have rows whose tokens see all of their row, as ``StepBounds.whole_R`` says."""
    sees: Sees = "before"
    """What a query sees of its row; "all" only for kind "step"."""

    def __post_init__(self) -> None:
        if self.kind != "step" and (self.kind == "window") != (self.window is not None):
            raise ValueError(f"window={self.window} does not fit kind={self.kind!r}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window={self.window} must be at least 1")
        if (self.kind in ("cross", "media")) != (self.rows is not None):
            raise ValueError(f"rows={self.rows} does not fit kind={self.kind!r}")
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows={self.rows} must be at least 1")
        if self.sees not in ("before", "all") or (self.sees == "all" and self.kind != "step"):
            raise ValueError(f"sees={self.sees!r} does not fit kind={self.kind!r}")
        if (self.kind == "state") != bool(self.tensors and self.log):
            raise ValueError(f"tensors and log do not fit kind={self.kind!r}")
        has_keys = self.kind in ("full", "window", "latent", "cross", "media", "step")
        if has_keys and min(self.kv_heads, self.key_dim) < 1:
            raise ValueError(f"kind={self.kind!r} needs kv_heads and key_dim")
        if self.kind == "latent" and not 1 <= self.value_dim <= self.key_dim:
            raise ValueError(
                f"value_dim={self.value_dim} must be between 1 and key_dim={self.key_dim}: the "
                "values of a latent cache are parts of its keys"
            )

    @classmethod
    def full(cls, *, kv_heads: int, head_dim: int, dtype: str) -> CacheSpec:
        """Every earlier token is kept."""
        return cls(
            kind="full", kv_heads=kv_heads, key_dim=head_dim, value_dim=head_dim, dtype=dtype
        )

    @classmethod
    def sliding(cls, *, kv_heads: int, head_dim: int, dtype: str, window: int) -> CacheSpec:
        """The last ``window`` tokens are kept, the query's own included; older blocks are freed."""
        return cls(
            kind="window",
            kv_heads=kv_heads,
            key_dim=head_dim,
            value_dim=head_dim,
            dtype=dtype,
            window=window,
        )

    @classmethod
    def latent(cls, *, key_dim: int, value_dim: int, dtype: str) -> CacheSpec:
        """Every earlier token is kept, as one key for all heads.

        Its first ``value_dim`` entries are the value, which is not stored again.
        """
        return cls(kind="latent", kv_heads=1, key_dim=key_dim, value_dim=value_dim, dtype=dtype)

    @classmethod
    def cross(cls, *, kv_heads: int, head_dim: int, dtype: str, rows: int) -> CacheSpec:
        """Up to so many rows of encoded media are kept, which all tokens of a sequence see."""
        return cls(
            kind="cross",
            kv_heads=kv_heads,
            key_dim=head_dim,
            value_dim=head_dim,
            dtype=dtype,
            rows=rows,
        )

    @classmethod
    def media(cls, *, heads: int, width: int, dtype: str, rows: int) -> CacheSpec:
        """Up to so many rows of encoded media are kept as they are, once for all layers.

        All ``heads`` of a query read them as keys and values of ``width`` entries. A model has one
        layer of this kind at most, which others share.
        """
        return cls(
            kind="media", kv_heads=heads, key_dim=width, value_dim=width, dtype=dtype, rows=rows
        )

    @classmethod
    def in_step(
        cls,
        *,
        kv_heads: int,
        head_dim: int,
        dtype: str,
        window: int | None = None,
        sees: Sees = "before",
        value_dim: int | None = None,
    ) -> CacheSpec:
        """Nothing is kept: keys live for one step, which has all tokens of each of its rows.

        With a ``value_dim`` a token's value is the beginning of its key, and v is None.
        """
        return cls(
            kind="step",
            kv_heads=kv_heads,
            key_dim=head_dim,
            value_dim=value_dim or head_dim,
            dtype=dtype,
            window=window,
            sees=sees,
        )

    @classmethod
    def state(cls, *, tensors: tuple[StateTensor, ...], log: tuple[StateTensor, ...]) -> CacheSpec:
        """A state of fixed size is kept, which all earlier tokens have made, one after the other.

        What the last tokens add is kept beside it, so that each of them may still turn out not to
        count: of a Mamba 2 or gated delta net layer the last inputs of the convolution and the
        matrices are the state; a token adds its input of the convolution, and gates.
        """
        return cls(kind="state", tensors=tensors, log=log)

    @classmethod
    def none(cls) -> CacheSpec:
        """The layer keeps nothing."""
        return cls(kind="none")
