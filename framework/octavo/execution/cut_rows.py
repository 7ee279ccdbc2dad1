"""A step's rows as attention takes them: cut where the items of media begin and end.

Axis suffixes: T tokens of the step, R rows, P parts of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo.steps.loads import RowCuts
from octavo.steps.uploads import upload
from octavo_registry.step import StepBounds


class AttentionRows(NamedTuple):
    """The fields of an ``AttentionStep`` that say what its rows are."""

    query_starts_R1: Tensor
    context_lens_R: Tensor
    token_rows_T: Tensor
    table_rows_R: Tensor
    bounds: StepBounds


def cut_rows(rows: AttentionRows, cuts: RowCuts, positions_T: Tensor) -> AttentionRows:
    """The parts of these rows, each with its sequence's tokens up to its own last."""
    device = positions_T.device
    starts_P1 = np.zeros(len(cuts.rows) + 1, np.int32)
    np.cumsum(cuts.query_lens, out=starts_P1[1:])
    query_starts_P1 = upload(starts_P1, device)
    numbers = np.arange(len(cuts.rows), dtype=np.int32)
    return AttentionRows(
        query_starts_R1=query_starts_P1,
        context_lens_R=positions_T.index_select(0, query_starts_P1[1:] - 1).to(torch.int32) + 1,
        token_rows_T=upload(np.repeat(numbers, cuts.query_lens), device),
        table_rows_R=rows.table_rows_R.index_select(0, upload(cuts.rows, device)),
        bounds=StepBounds(
            query_lens_R=cuts.query_lens,
            context_lens_R=rows.bounds.context_lens_R[cuts.rows] - cuts.behinds,
            whole_R=cuts.whole,
        ),
    )
