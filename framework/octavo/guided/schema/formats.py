"""The formats that are enforced, each as the pattern that defines it here."""

from __future__ import annotations

from functools import cache

from octavo.guided.schema.regex import Regex
from octavo.guided.schema.regex_parse import parse_pattern
from octavo.guided.schema.scalars import Strings
from octavo.guided.schema.source import Location, unsupported
from octavo.guided.schema.wide_formats import REGEX, URI_TEMPLATE, uris, wide_mail

_YEARS_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_YEARS_LEAP}-02-29)"
)
# A leap second is written only where it can be in UTC itself; behind another offset it is refused.
_OFFSET = "[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]"
_FRACTION = "(?:\\.[0-9]+)?"
_TIME = (
    f"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{_FRACTION}(?:[zZ]|{_OFFSET})"
    f"|23:59:60{_FRACTION}(?:[zZ]|[+-]00:00))"
)
_DURATION_TIME = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION = (
    f"P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
    f"(?:{_DURATION_TIME})?|{_DURATION_TIME})"
)
# Two dashes in the third and fourth place announce Punycode, which no pattern can check.
_END, _MID = "[A-Za-z0-9]", "[A-Za-z0-9-]"
_LABEL = f"{_END}(?:{_MID}{{0,2}}{_END}|{_MID}(?:{_END}{_MID}|-{_END}){_MID}{{0,58}}{_END})?"
_HOST = f"{_LABEL}(?:\\.{_LABEL})*"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = f"{_OCTET}(?:\\.{_OCTET}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LAST_GROUPS = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"
_IPV6 = (
    "(?:"
    + "|".join(
        [
            f"(?:{_GROUP}:){{6}}{_LAST_GROUPS}",
            f"::(?:{_GROUP}:){{5}}{_LAST_GROUPS}",
            f"(?:{_GROUP})?::(?:{_GROUP}:){{4}}{_LAST_GROUPS}",
            f"(?:(?:{_GROUP}:){{0,1}}{_GROUP})?::(?:{_GROUP}:){{3}}{_LAST_GROUPS}",
            f"(?:(?:{_GROUP}:){{0,2}}{_GROUP})?::(?:{_GROUP}:){{2}}{_LAST_GROUPS}",
            f"(?:(?:{_GROUP}:){{0,3}}{_GROUP})?::{_GROUP}:{_LAST_GROUPS}",
            f"(?:(?:{_GROUP}:){{0,4}}{_GROUP})?::{_LAST_GROUPS}",
            f"(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}",
            f"(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::",
        ]
    )
    + ")"
)
_ATOM_CHARS = "A-Za-z0-9!#$%&'*+/=?^_`{|}~\\-"
_ATOM = f"[{_ATOM_CHARS}]+"
_QUOTED = '"(?:[ !#-\\[\\]-~]|\\\\[ -~])*"'
_MAIL_HOST = f"(?:{_HOST}|\\[(?:{_IPV4}|IPv6:{_IPV6})\\])"
_URI, _URI_REFERENCE = uris(_IPV6, wide=False)
_IRI, _IRI_REFERENCE = uris(_IPV6, wide=True)
_POINTER = "(?:/(?:[^/~]|~[01])*)*"

PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "duration": _DURATION,
    "email": f"(?:{_ATOM}(?:\\.{_ATOM})*|{_QUOTED})@{_MAIL_HOST}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "idn-email": wide_mail(_ATOM_CHARS, _LABEL),
    "uri-template": URI_TEMPLATE,
    "regex": REGEX,
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
"""Whole strings."""
MAX_CHARS = {"hostname": 253}
EACH = {"properties": {name: {"type": "string", "format": name} for name in PATTERNS}}
"""A schema with all of them: a process that has compiled it need not read their patterns again."""

_NOT_ENFORCED = ("idn-hostname",)


def format_strings(name: object, place: Location) -> Strings | None:
    """The strings of a format; None where the standard knows no such format: an annotation."""
    if not isinstance(name, str):
        raise unsupported("format", place.pointer, "must be a string")
    if name in PATTERNS:
        return Strings(high=MAX_CHARS.get(name), pattern=_parsed(name), pointer=place.pointer)
    if name in _NOT_ENFORCED:
        raise unsupported("format", place.pointer, f"{name!r} cannot be enforced")
    letters = _letters(name)
    for known in (*PATTERNS, *_NOT_ENFORCED):
        if _letters(known) == letters:
            raise unsupported("format", place.pointer, f"{name!r} is unknown; is {known!r} meant?")
    return None


@cache
def _parsed(name: str) -> Regex:
    return parse_pattern(f"^(?:{PATTERNS[name]})$")


def _letters(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())
