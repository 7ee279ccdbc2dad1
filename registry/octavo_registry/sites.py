"""Sites: where a model's weights stand."""

from __future__ import annotations

from typing import Literal

SiteKind = Literal["linear", "experts", "latent", "embedding", "head"]
"""A linear; the stacks of a layer of experts; the projection that latent attention multiplies into
queries and results; the two ends of the vocabulary."""
