"""What moving blocks is."""

from torch import Tensor


def move_blocks(
    source_LNB: Tensor, target_LNB: Tensor, sources_M: Tensor, targets_M: Tensor
) -> None:
    """Copy block ``sources_M[m]`` of every lane onto block ``targets_M[m]``."""
    # Indexing takes half as long again.
    target_LNB.index_copy_(1, targets_M, source_LNB.index_select(1, sources_M))
