"""What attention backends refuse alike, each in its own name."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from octavo_registry.cache import CacheSpec
from octavo_registry.errors import PluginError


def misfit(
    spec: CacheSpec,
    kinds: Collection[str],
    dtypes: Collection[str],
    *,
    whole_rows: bool = False,
) -> str | None:
    """Why ``supports`` refuses the spec, if a backend that knows those cannot run it anywhere."""
    if spec.kind not in kinds:
        return f"kind={spec.kind!r} is not known; known: {', '.join(kinds)}"
    if spec.dtype not in dtypes:
        return f"dtype={spec.dtype!r} is not known; known: {', '.join(dtypes)}"
    if spec.whole_rows and not whole_rows:
        return "attention is causal, and the tokens of an image must see all of it; name 'torch'"
    if spec.key_dim != spec.value_dim and spec.kind != "latent":
        return f"key_dim={spec.key_dim} and value_dim={spec.value_dim} must be equal"
    return None


def check_block_tokens(backend: str, block_tokens: int, known: Iterable[int]) -> None:
    """Raise for blocks of another size than the backend's kernels know."""
    if block_tokens not in known:
        raise PluginError(
            f"attention backend {backend!r}: block_tokens={block_tokens} is not known; known: "
            f"{', '.join(map(str, known))}"
        )


def check_window(backend: str, window: int | None, kept: int | None, *, causal: bool) -> None:
    """Raise for a window to both sides, or one past the ``kept`` tokens of the layer's cache.

    ``kept`` is the window of the layer's CacheSpec: None where all tokens are.
    """
    if window is not None and not causal:
        raise PluginError(f"attention backend {backend!r}: window={window} needs causal=True")
    if kept is not None and (window is None or window > kept):
        raise PluginError(
            f"attention backend {backend!r}: window={window}, but the layer's cache keeps {kept} "
            "tokens; its CacheSpec must have the same window"
        )
