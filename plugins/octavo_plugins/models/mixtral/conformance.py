"""The configurations of Mixtral that the conformance kit tries."""

from dataclasses import replace
from typing import Any

from octavo.testing.variants import Variant


def keep_weights_as_they_are(model: Any) -> None:
    """Let the chosen experts' weights sum to less than one."""
    for layer in model.model.layers.values():
        layer.mlp.routing = replace(layer.mlp.routing, renormalize=False)


VARIANTS = {
    "two of four experts": Variant(
        config={"num_local_experts": 4},
        without={
            "second expert": {"num_experts_per_tok": 1},
            "renormalisation of weights": keep_weights_as_they_are,
        },
    ),
    "three of eight experts and a window": Variant(
        config={"num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 20}
    ),
}
