"""What moving blocks is."""

from torch import Tensor


def move_blocks(
    source_LNB: Tensor, target_LNB: Tensor, sources_M: Tensor, targets_M: Tensor
) -> None:
    """Copy block ``sources_M[m]`` of every lane onto block ``targets_M[m]``."""
    target_LNB[:, targets_M] = source_LNB[:, sources_M]
