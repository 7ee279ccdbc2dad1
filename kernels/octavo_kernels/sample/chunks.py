"""How many rows of logits are worked on at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def rows_together(logits_RV: Tensor) -> int:
    """Bounds scratch memory, about 32 bytes a logit: 8 MiB on a CPU, 256 MiB elsewhere.

    A CPU wants its caches warm: 256 rows of 32000 with top_p take half the time of one piece.
    """
    num_logits = 2**18 if logits_RV.device.type == "cpu" else 2**23
    return max(1, num_logits // logits_RV.shape[1])


def in_pieces(rows_G: Tensor, logits_RV: Tensor) -> tuple[Tensor, ...]:
    """Row indices, as many together as memory allows; nothing for no rows."""
    return torch.split(rows_G, rows_together(logits_RV)) if len(rows_G) else ()
