"""The keywords of JSON Schema: which hold schemas, which constrain, which are mere annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

DIALECTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft-04/schema": 4,
    "https://json-schema.org/draft-06/schema": 6,
    "https://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
    "http://json-schema.org/schema": 2020,
    "https://json-schema.org/schema": 2020,
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SCHEMAS = _words(
    """
    additionalItems additionalProperties contains contentSchema else if items not
    propertyNames then unevaluatedItems unevaluatedProperties
    """
)
LISTS_OF_SCHEMAS = _words(
    """
    allOf anyOf items oneOf prefixItems
    """
)
MAPS_OF_SCHEMAS = _words(
    """
    $defs definitions dependencies dependentSchemas patternProperties properties
    """
)
CONSTRAINTS = _words(
    """
    $dynamicRef $recursiveRef $ref additionalItems additionalProperties allOf anyOf const
    contains dependencies dependentRequired dependentSchemas else enum exclusiveMaximum
    exclusiveMinimum format if items maxContains maxItems maxLength maxProperties maximum
    minContains minItems minLength minProperties minimum multipleOf not oneOf pattern
    patternProperties prefixItems properties propertyNames required then type
    unevaluatedItems unevaluatedProperties uniqueItems
    """
)
ANNOTATIONS = _words(
    """
    $anchor $comment $defs $dynamicAnchor $id $recursiveAnchor $schema $vocabulary
    contentEncoding contentMediaType contentSchema default definitions deprecated
    description example examples id nullable readOnly readonly title writeOnly
    """
)


_KNOWN = CONSTRAINTS | ANNOTATIONS


def check_names(
    schema: Mapping[str, Any], pointer: str, unsupported: Callable[[str, str, str], Exception]
) -> None:
    """Refuse a name that is none of the standard's and almost one that would constrain.

    Any other unknown name is an annotation, as the standard has it. So is one that begins with a
    mark: x-format and _format are not written by mistake.
    """
    for name in schema.keys() - _KNOWN:
        if not name[:1].isalpha() or name.startswith("x-"):
            continue
        if close := _close(name):
            raise unsupported(name, pointer, f"no keyword of JSON Schema; is {close!r} meant?")


@lru_cache(maxsize=1024)
def _close(name: str) -> str | None:
    """The keyword that is almost written so: one name may stand in hundreds of a schema's parts."""
    return next(iter(get_close_matches(name, CONSTRAINTS, n=1, cutoff=0.85)), None)
