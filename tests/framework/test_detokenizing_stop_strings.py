"""Stop strings in text that arrives in any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.detokenizing import StopStrings


def reference(text: str, strings: list[str], include: bool) -> tuple[str, str | None]:
    """What the definition says: the first prefix of the text that ends with a stop string."""
    for end in range(1, len(text) + 1):
        found = [s for s in strings if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return (text[:end] if include else text[: end - len(longest)]), longest
    return text, None


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_cut_of_a_text_gives_what_the_definition_says(data: st.DataObject) -> None:
    strings = data.draw(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4))
    # Text made of beginnings of stop strings: those come close to matching again and again.
    beginnings = sorted({s[:end] for s in strings for end in range(1, len(s))} | {"a", "c"})
    text = "".join(data.draw(st.lists(st.sampled_from(beginnings), max_size=12)))
    cuts = data.draw(st.sets(st.integers(0, len(text))))
    stops = StopStrings(strings, include_in_output=(include := data.draw(st.booleans())))
    shown = ""
    for start, end in pairwise(sorted({0, len(text), *cuts})):
        shown += stops.feed(text[start:end])
        if stops.matched is not None:
            break
    else:
        shown += stops.finish()
    assert (shown, stops.matched) == reference(text, strings, include)


def test_a_match_that_begins_within_a_failed_one_is_found() -> None:
    stops = StopStrings(["aab"])
    assert stops.feed("aaab") == "a"
    assert stops.matched == "aab"


def test_only_text_that_could_begin_a_stop_string_is_held_back() -> None:
    stops = StopStrings(["</end>"])
    assert stops.feed("x <") == "x "
    assert stops.feed("/en") == ""
    assert stops.feed("t> </") == "</ent> "
    assert stops.finish() == "</"


def test_the_string_completed_first_wins_over_one_that_began_earlier() -> None:
    stops = StopStrings(["xyzz", "yz"])
    assert stops.feed("wxyzz") == "wx"
    assert stops.matched == "yz"


@pytest.mark.parametrize(("include", "shown"), [(False, "a"), (True, "aSTOP")])
def test_the_stop_string_is_shown_only_on_request(include: bool, shown: str) -> None:
    stops = StopStrings(["STOP"], include_in_output=include)
    assert stops.feed("aST") + stops.feed("OPb") == shown
    assert stops.matched == "STOP"
