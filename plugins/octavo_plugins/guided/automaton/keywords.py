"""What the machines were shown to enforce; a schema whose table is too large is refused as well."""

from octavo.guided.schema import FEATURES

LACKS = (
    "minProperties",  # names that differ cannot be told from those that come again
    "multipleOf:large",
)
KEYWORDS = ("json", "regex", "choice", *(name for name in FEATURES if name not in LACKS))
