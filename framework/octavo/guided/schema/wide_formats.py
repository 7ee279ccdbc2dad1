"""Formats beyond ASCII, and those of patterns and templates, as patterns.

Each is a part of what its standard admits, chosen so that nothing else is in it: hosts beyond ASCII
have short labels of common letters, and regular expressions bounded groups without references.
"""

from __future__ import annotations

# Letters that a domain name may have as they are (RFC 5892: PVALID, not written right to left).
_LETTERS = (
    "\u00df-\u00f6\u00f8-\u00ff\u03ac-\u03ce\u0430-\u045f"
    "\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
)
_BEYOND_ASCII = "\u0080-\ud7ff\ue000-\U0010ffff"
_UCS = (
    "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"
    + "".join(f"{chr(plane << 16)}-{chr((plane << 16) + 0xFFFD)}" for plane in range(1, 14))
    + "\U000e1000-\U000efffd"
)
_PRIVATE = "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"
_ESCAPE = "%[0-9A-Fa-f]{2}"


def uris(ip_literal: str, *, wide: bool) -> tuple[str, str]:
    """Absolute ones, and references: URIs, or IRIs where ``wide``."""
    extra, private = (_UCS, _PRIVATE) if wide else ("", "")
    plain = f"A-Za-z0-9._~!$&'()*+,;={extra}\\-"
    ascii_plain = "A-Za-z0-9._~!$&'()*+,;=\\-"
    char = f"(?:[{plain}:@]|{_ESCAPE})"
    query = f"(?:[{plain}:@/?{private}]|{_ESCAPE})*"
    tail = f"(?:\\?{query})?(?:#(?:{char}|[/?])*)?"
    authority = (
        f"(?:(?:[{plain}:]|{_ESCAPE})*@)?"
        f"(?:\\[(?:{ip_literal}|[vV][0-9A-Fa-f]+\\.[{ascii_plain}:]+)\\]|(?:[{plain}]|{_ESCAPE})*)"
        "(?::[0-9]*)?"
    )
    rooted = f"//{authority}(?:/{char}*)*|/(?:{char}+(?:/{char}*)*)?"
    absolute = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{rooted}|{char}+(?:/{char}*)*)?{tail}"
    first = f"(?:[{plain}@]|{_ESCAPE})"
    relative = f"(?:{rooted}|{first}+(?:/{char}*)*)?{tail}"
    return absolute, f"(?:{absolute}|{relative})"


def wide_mail(atom: str, host_label: str) -> str:
    """Addresses whose names and hosts may be beyond ASCII."""
    name = f"[{atom}{_BEYOND_ASCII}]+"
    quoted = f'"(?:[ !#-\\[\\]-~{_BEYOND_ASCII}]|\\\\[ -~])*"'
    label = f"(?:{host_label}|[a-z0-9{_LETTERS}]{{1,12}})"
    return f"(?:{name}(?:\\.{name})*|{quoted})@{label}(?:\\.{label})*"


_VARIABLE = f"(?:[A-Za-z0-9_]|{_ESCAPE})+(?:\\.(?:[A-Za-z0-9_]|{_ESCAPE})+)*"
_SPECIFIED = f"{_VARIABLE}(?::[1-9][0-9]{{0,3}}|\\*)?"
URI_TEMPLATE = (
    f"(?:[!#$&-;=?-\\[\\]_a-z~{_UCS}{_PRIVATE}]|{_ESCAPE}"
    f"|\\{{[+#./;?&]?{_SPECIFIED}(?:,{_SPECIFIED})*\\}})*"
)
"""RFC 6570, without operators that it keeps for later."""


def _ordered(chars: str) -> str:
    """Ranges of a class whose first character is not behind the last."""
    return "|".join(f"{low}-[{low}-{chars[-1]}]" for low in chars)


_ESCAPED = (
    "\\\\(?:[dDwWsStnrvf^$\\\\.*+?()\\[\\]{}|/]|c[A-Za-z]|x[0-9A-Fa-f]{2}"
    "|u(?:[0-9A-CEFa-cef][0-9A-Fa-f]{3}|[dD][0-7][0-9A-Fa-f]{2}))"
)
_DIGITS, _LOWER, _UPPER = "0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_RANGE = "|".join(_ordered(chars) for chars in (_DIGITS, _LOWER, _UPPER))
_CLASS = f"\\[\\^?-?(?:{_RANGE}|[^\\\\\\[\\]\\-\\^&~\\n\\r\u2028\u2029]|{_ESCAPED})*\\]"
_CHAR = "[^\\\\^$.*+?()\\[\\]{}|/\\n\\r\u2028\u2029]"
_COUNT = "(?:[*+?]|\\{(?:[0-9]{1,3},?|0,[0-9]{1,3}|1,[1-9][0-9]{0,2})\\})\\??"


def _expression(group: str) -> str:
    return f"(?:(?:{_CHAR}|{_ESCAPED}|\\.|{_CLASS}{group})(?:{_COUNT})?|[\\^$|]|\\\\[bB])*"


def _group(inside: str) -> str:
    return f"|\\((?:\\?:)?{inside}\\)"


def _assertion(inside: str) -> str:
    return f"\\(\\?<?[=!]{inside}\\)"


_INNER = _expression("")
_MIDDLE = _expression(_group(_INNER))
_OUTER = _expression(_group(_MIDDLE))
REGEX = f"(?:{_assertion(_INNER)})?{_OUTER}(?:{_assertion(_INNER)})?"
"""ECMA-262: groups three deep, an assertion at either end, no names and no references."""
