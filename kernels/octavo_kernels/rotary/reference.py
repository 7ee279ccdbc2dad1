"""What the rotary embedding is: each pair (x[i], x[i + F]) turns by its angle."""

from torch import Tensor


def rotary_(x_THD: Tensor, cos_TF: Tensor, sin_TF: Tensor) -> Tensor:
    """Rotate the first 2 F entries of every head in place, in float32, and return x."""
    num_pairs = cos_TF.shape[-1]
    cos_T1F, sin_T1F = cos_TF.float().unsqueeze(1), sin_TF.float().unsqueeze(1)
    turning_THE = x_THD[..., : 2 * num_pairs]
    turned_THE = turning_THE.float()  # the same tensor where x is float32
    first_THF, second_THF = turned_THE[..., :num_pairs], turned_THE[..., num_pairs:]
    first_sin_THF = first_THF * sin_T1F
    first_THF.mul_(cos_T1F).addcmul_(second_THF, sin_T1F, value=-1)
    second_THF.mul_(cos_T1F).add_(first_sin_THF)
    turning_THE.copy_(turned_THE)
    return x_THD
