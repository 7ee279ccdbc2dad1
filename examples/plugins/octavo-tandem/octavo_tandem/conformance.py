"""The configurations that the conformance kit tries: what differs from its own tiny one."""

from octavo.testing.variants import Variant

VARIANTS = {
    "one key/value head": Variant(
        config={
            "num_key_value_heads": 1,
            "layer_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "rope_theta": 500.0,
            "logit_scale": 0.5,
        }
    )
}
