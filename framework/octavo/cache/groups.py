"""Cache groups: layers with equal specs share block tables; all groups share one pool of pages."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace

from octavo.cache.line_layout import LineLayout
from octavo.errors import CacheError
from octavo_registry.cache import CacheSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that keep the same blocks; the i-th of them lives in lane i of each page."""

    spec: CacheSpec
    layers: tuple[str, ...]
    block_tokens: int
    """The layout's, but of kind "media", of which one layer's rows fill all lanes of a page, and of
    kind "step", which has no blocks: 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """How a page is cut: ``num_lanes`` lanes of ``lane_bytes``, one layer's block in each.

    A page belongs to one group at a time, so that groups with any mix of lengths share the pool.
    """

    groups: tuple[CacheGroup, ...]
    num_lanes: int
    lane_bytes: int
    block_tokens: int
    lines: LineLayout | None = None
    """What is kept of sequences beside their blocks; None: no layer has a recurrent state."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one block over all lanes; 0: nothing is kept by token, and there is no pool."""
        return self.num_lanes * self.lane_bytes

    def num_bytes(self, num_blocks: int, num_lines: int) -> int:
        """What so many blocks and lines take."""
        line_bytes = 0 if self.lines is None else self.lines.line_bytes
        return num_blocks * self.page_bytes + num_lines * line_bytes

    @property
    def cross_groups(self) -> tuple[int, ...]:
        """Groups whose blocks hold a sequence's encoded media, and are there from the start."""
        return tuple(i for i, group in enumerate(self.groups) if group.spec.rows is not None)

    @property
    def max_cross_rows(self) -> int:
        """Most rows of encoded media that a sequence may have; 0: no layer reads any."""
        return max((group.spec.rows or 0 for group in self.groups), default=0)

    def held_by(self, layers: Container[str]) -> CacheLayout:
        """The part of a rank that holds these layers: blocks and groups are the same everywhere,
        its pages have the lanes that it needs."""
        groups = tuple(
            replace(group, layers=tuple(name for name in group.layers if name in layers))
            for group in self.groups
        )
        num_lanes = max((len(group.layers) for group in groups), default=0)
        num_lanes = max(num_lanes, min(self.num_lanes, 1))
        if any(group.spec.kind == "media" and group.layers for group in groups):
            num_lanes = self.num_lanes
        lines = None if self.lines is None else self.lines.held_by(layers)
        return replace(self, groups=groups, num_lanes=num_lanes, lines=lines)

    def table_blocks(self, max_model_len: int) -> int:
        """Entries of a block table."""
        across = [-(-(g.spec.rows or 0) // g.block_tokens) for g in self.groups]
        return max([-(-max_model_len // self.block_tokens), *across])

    def blocks_for(self, num_tokens: int, lookahead: int) -> int:
        """Most blocks that a sequence of so many tokens holds at a time, over all groups.

        ``lookahead``: tokens that may be under way before blocks behind a window are given back.
        """
        full = -(-num_tokens // self.block_tokens)
        total = 0
        for group in self.groups:
            if group.spec.rows is not None:
                total += -(-group.spec.rows // group.block_tokens)
                continue
            window = group.spec.window
            seen = num_tokens if window is None else window + lookahead
            total += min(full, -(-seen // self.block_tokens) + 1)
        return total


def make_layout(
    specs: Mapping[str, CacheSpec],
    page_bytes: Callable[[CacheSpec], int],
    block_tokens: int,
    *,
    num_logged: int = 1,
) -> CacheLayout:
    """Group layers by spec and cut pages so that every group fills them with little waste.

    With several specs the lane count is the smallest number of layers that share one; a spec with
    more layers is split into several groups, its last one padded. Encoded media, which are one
    layer's, have all lanes. Layers whose keys live for one step have no lane; where one has none,
    no other has: a step would have to bring all of a sequence, and the cache some of it.

    Recurrent states are in lines, with logs of ``num_logged`` tokens, and not in pages.
    """
    layers_by_spec: dict[CacheSpec, list[str]] = {}
    states = tuple((name, spec) for name, spec in specs.items() if spec.kind == "state")
    lines = LineLayout(specs=states, num_logged=num_logged) if states else None
    for name, spec in specs.items():
        if spec.kind in ("none", "state"):
            continue
        if spec.kind not in ("full", "window", "latent", "cross", "media", "step"):
            raise CacheError(f"layer {name}: the engine has no cache of kind {spec.kind!r}")
        layers_by_spec.setdefault(spec, []).append(name)
    if not layers_by_spec and lines is None:
        raise CacheError("the model declares no attention layer with a cache")
    if any(spec.kind == "step" for spec in layers_by_spec):
        return _layout_in_step(layers_by_spec, block_tokens, states)
    if not layers_by_spec:
        return CacheLayout(
            groups=(), num_lanes=0, lane_bytes=0, block_tokens=block_tokens, lines=lines
        )
    for spec, names in layers_by_spec.items():
        if spec.kind == "media" and len(names) > 1:
            raise CacheError(f"layers {', '.join(names)}: one layer keeps encoded media, for all")
    row_bytes = {
        spec: page_bytes(spec) // block_tokens for spec in layers_by_spec if spec.kind == "media"
    }
    in_lanes = layers_by_spec.keys() - row_bytes.keys() or layers_by_spec.keys()
    num_lanes = min(len(layers_by_spec[spec]) for spec in in_lanes)
    lane_bytes = max(*(page_bytes(spec) for spec in in_lanes), *row_bytes.values(), 0)
    groups = [
        CacheGroup(
            spec=spec,
            layers=tuple(names[start : start + num_lanes]),
            block_tokens=num_lanes * (lane_bytes // row_bytes[spec])
            if spec in row_bytes
            else block_tokens,
        )
        for spec, names in layers_by_spec.items()
        for start in range(0, len(names), num_lanes)
    ]
    return CacheLayout(
        groups=tuple(groups),
        num_lanes=num_lanes,
        lane_bytes=lane_bytes,
        block_tokens=block_tokens,
        lines=lines,
    )


def _layout_in_step(
    layers_by_spec: Mapping[CacheSpec, list[str]],
    block_tokens: int,
    states: tuple[tuple[str, CacheSpec], ...],
) -> CacheLayout:
    """One group for each spec, and no page."""
    kept = [(names[0], spec) for spec, names in layers_by_spec.items() if spec.kind != "step"]
    for name, spec in (*kept, *states):
        raise CacheError(
            f"layer {name} has a cache of kind {spec.kind!r}, and others' keys live for "
            "one step: a model has either"
        )
    groups = [
        CacheGroup(spec=spec, layers=tuple(names), block_tokens=0)
        for spec, names in layers_by_spec.items()
    ]
    return CacheLayout(groups=tuple(groups), num_lanes=0, lane_bytes=0, block_tokens=block_tokens)
