"""What each feature of a core schema means, as documents that must and must not pass.

``CASES`` is what a backend is measured by before a feature goes on its allow-list. A document is
given as a JSON text, since how a number or a name is written can matter.
"""

from guided_case import Case
from guided_container_cases import CONTAINER_CASES
from guided_scalar_cases import SCALAR_CASES

CASES: list[Case] = [*SCALAR_CASES, *CONTAINER_CASES]

__all__ = ["CASES", "Case"]
