"""The configurations of Phi 3 that the conformance kit tries, and what is switched off."""

from typing import Any

from octavo.testing.variants import Variant


def long_rope(trained: int) -> dict[str, Any]:
    """Entries of config.json; the kit's models run with up to 128 tokens of the 256 allowed."""
    return {
        "original_max_position_embeddings": trained,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 100.0,
            "original_max_position_embeddings": trained,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.8, 2.0, 2.5],
            "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
        },
    }


VARIANTS = {
    "a window, tied": Variant(config={"sliding_window": 20, "tie_word_embeddings": True}),
    "three quarters of each head turn": Variant(
        config={
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.75,
            }
        },
        without={
            "part that does not turn": {
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}
            }
        },
    ),
    "long rope, short factors": Variant(config=long_rope(128)),
    # Every batch that the reference computes at once has a sequence that is longer than this.
    "long rope, long factors": Variant(config=long_rope(32)),
}
