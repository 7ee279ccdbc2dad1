"""One step of whole texts on one device: run the model over the packed rows, make the vectors.

Nothing is kept between steps. Axis suffixes: T tokens of the step, R rows, W entries of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from octavo.cache.groups import CacheLayout
from octavo.errors import PluginError
from octavo.execution.layer_count import LayerCount
from octavo.sampling.forward import Sampled
from octavo.sampling.vectors import COLLECT, WANTED, TextRows, Vectors, finish
from octavo.steps.plan import TokenMasks
from octavo.steps.pooled_plan import PooledPlan, PooledSections
from octavo.steps.recording import Recording
from octavo.steps.staging import Staging
from octavo_registry.attention import AttentionBackend
from octavo_registry.model import Model
from octavo_registry.step import AttentionStep, LayerCache, Step, StepBounds


class PooledRunner:
    """Runs planned steps in order."""

    def __init__(
        self,
        *,
        model: Model,
        layout: CacheLayout,
        backends: Sequence[AttentionBackend],
        collect: str,
        device: torch.device,
        async_depth: int,
    ) -> None:
        self.model = model
        self._layout = layout
        self._backends = list(backends)
        self._layers = {
            name: LayerCache(backend=backend, view=None, group=index)
            for index, (group, backend) in enumerate(zip(layout.groups, backends, strict=True))
            for name in group.layers
        }
        self._collect = COLLECT[collect]
        self._tokens = WANTED[collect]
        self._staging = Staging(device, async_depth)
        self._no_places = torch.zeros(0, dtype=torch.int32, device=device)
        self.layers = LayerCount(cast(nn.Module, model), device)

    def sample(self, masks: TokenMasks) -> Sampled:
        """No step awaits masks."""
        raise RuntimeError("no step awaits masks")

    @property
    def can_record(self) -> bool:
        """No step is recorded."""
        return False

    def prepare(self, recording: Recording) -> bool:
        """No step is recorded."""
        return False

    def close(self) -> None:
        """Nothing is held."""

    @torch.inference_mode()
    def run(self, plan: PooledPlan) -> Sampled:
        """Launch a step; its results are ready when the device has come so far."""
        words = self._staging.send(plan.buffer)
        parts: PooledSections[Tensor] = PooledSections._make(words.split(plan.sizes))
        rows = _rows_of(plan, parts)
        hidden_TD = self._forward(plan, parts, rows)
        if hidden_TD.shape[0] != plan.num_tokens:
            raise PluginError(
                f"{type(self.model).__name__}.forward gave {list(hidden_TD.shape)}, not "
                f"{plan.num_tokens} rows"
            )
        vectors_RW = self._collect(hidden_TD, rows)
        sizes = plan.sizes
        vectors_RW = finish(
            vectors_RW,
            parts.widths if sizes.widths else None,
            parts.unit_lengths if sizes.unit_lengths else None,
        )
        return Sampled(vectors=Vectors(vectors_RW, vectors_RW.isfinite().all(dim=1)))

    def _forward(self, plan: PooledPlan, parts: PooledSections[Tensor], rows: TextRows) -> Tensor:
        bounds = StepBounds(query_lens_R=plan.query_lens, context_lens_R=plan.query_lens)
        groups = []
        for group, backend in zip(self._layout.groups, self._backends, strict=True):
            attention = AttentionStep(
                block_tokens=0,
                query_starts_R1=parts.query_starts,
                context_lens_R=rows.lens_R,
                token_rows_T=rows.rows_T.int(),
                positions_T=rows.positions_T,
                table_SB=self._no_places.view(0, 0),
                table_rows_R=self._no_places,
                slots_T=self._no_places.long(),
                bounds=bounds,
            )
            attention.prepared = backend.prepare(attention, group.spec)
            groups.append(attention)
        types_T = None
        if plan.sizes.seconds:
            seconds_T = parts.seconds.index_select(0, rows.rows_T)
            types_T = (rows.positions_T >= seconds_T).long()
        tokens = self._tokens(rows)
        step = Step(
            num_tokens=plan.num_tokens,
            num_rows=plan.num_rows,
            query_starts_R1=parts.query_starts,
            bounds=bounds,
            positions_AT=rows.positions_T.unsqueeze(0),
            groups=tuple(groups),
            layers=self._layers,
            sample_tokens_R=tokens,
            token_types_T=types_T,
            only_sampled=2 * len(tokens) <= plan.num_tokens,
        )
        return self.model.forward(self.model.embed(parts.ids, None), step)


def _rows_of(plan: PooledPlan, parts: PooledSections[Tensor]) -> TextRows:
    starts_R1 = parts.query_starts
    lens_R = starts_R1.diff()
    device = lens_R.device
    rows_T = torch.repeat_interleave(
        torch.arange(plan.num_rows, device=device), lens_R, output_size=plan.num_tokens
    )
    positions_T = torch.arange(plan.num_tokens, device=device) - starts_R1.index_select(0, rows_T)
    return TextRows(
        starts_R1=starts_R1,
        lens_R=lens_R,
        rows_T=rows_T,
        positions_T=positions_T,
        skips_R=parts.skips if plan.sizes.skips else None,
    )
