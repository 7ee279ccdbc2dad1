"""What the products are: as octavo_kernels.linear's."""

from octavo_kernels.linear.reference import ACTIVATIONS, gated_linear, linear, linear_add_

__all__ = ["ACTIVATIONS", "gated_linear", "linear", "linear_add_"]
