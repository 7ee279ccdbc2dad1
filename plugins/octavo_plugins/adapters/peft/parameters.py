"""Matrices of parameters that ``target_parameters`` names: routers, and experts in one tensor.

PEFT wraps a module once for each of its parameters, in their order: a name says how deep in these
wrappers its matrices lie, and not which parameter is theirs. Axis suffixes: X experts, R rank, I
inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from octavo_plugins.adapters.peft.settings import EXPERTS, PeftSettings

WRAPPER = ".base_layer"


def parameters(settings: PeftSettings, names: Iterable[str]) -> dict[str, str]:
    """The parameter of each name that is a wrapper's; the others are modules."""
    found = {}
    for name in names:
        module, depth = name, 0
        while module.endswith(WRAPPER):
            module, depth = module.removesuffix(WRAPPER), depth + 1
        wrapped = settings.parameters_of(module)
        if depth < len(wrapped):
            found[name] = wrapped[-1 - depth]
    return found


def module_of(parameter: str) -> str:
    """As the model knows it: by its own name if it is of experts, or by that of its linear."""
    return parameter.removesuffix(".weight")


def is_of_experts(parameter: str) -> bool:
    """Whether it has the weights of all experts."""
    return parameter.endswith(EXPERTS)


def side_by_side(down: Tensor, up: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A [XR, I] and B [O, RX] of experts as one pair [R, XI] and [XO, R]; others as they are.

    Shapes that are none of these stay, for what compares them with the model's.
    """
    if down.dim() != 2 or up.dim() != 2 or len(down) % rank or up.shape[1] != len(down):
        return down, up
    down_XRI, up_ORX = down.unflatten(0, (-1, rank)), up.unflatten(1, (rank, -1))
    return down_XRI.transpose(0, 1).flatten(1), up_ORX.permute(2, 0, 1).flatten(0, 1)
