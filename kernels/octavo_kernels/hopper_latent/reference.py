"""What attention over shared rows is: all heads of a query over rows that are keys and values."""

from __future__ import annotations

import torch
from torch import Tensor


def attend(
    q_HRD: Tensor,
    cache_LBND: Tensor,
    table_SB: Tensor,
    table_rows_R: Tensor,
    context_lens_R: Tensor,
    out_HRD: Tensor,
    *,
    scale: float,
) -> None:
    """Row by row in float32."""
    lanes, _, lane_rows, _ = cache_LBND.shape
    for row, context in enumerate(context_lens_R.tolist()):
        if context == 0:
            continue
        positions_C = torch.arange(context, device=cache_LBND.device)
        columns_C, within_C = positions_C // (lanes * lane_rows), positions_C % (lanes * lane_rows)
        blocks_C = table_SB[table_rows_R[row].long()].long()[columns_C]
        x_CD = cache_LBND[within_C // lane_rows, blocks_C, within_C % lane_rows].float()
        weights_HC = (q_HRD[:, row].float() @ x_CD.T * scale).softmax(-1)
        out_HRD[:, row] = (weights_HC @ x_CD).to(out_HRD.dtype)
