import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.guided.schema import regex
from octavo.guided.schema.regex_parse import PatternError, parse_pattern
from octavo.guided.schema.regex_plain import plain
from octavo.guided.schema.regex_render import render

pieces = st.sampled_from(["a", "b", "[ab]", "[^a]", ".", "\\d", "\\W", "(?:a|bc)", "", "1"])
patterns = st.recursive(
    pieces,
    lambda inner: st.one_of(
        st.builds(
            "(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}"])
        ),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("{}{}".format, inner, inner),
    ),
    max_leaves=6,
)
anchored = st.one_of(
    patterns,
    st.builds("^{}$".format, patterns),
    st.builds("^{}|{}$".format, patterns, patterns),
    st.builds("(^{}|b){}".format, patterns, patterns),
    st.builds("{}(?:$|a)".format, patterns),
)
texts = st.text("ab1c\n_é", max_size=6)


def found(pattern: str, text: str) -> bool:
    return re.search(pattern.replace("$", "\\Z"), text, re.ASCII) is not None


@given(anchored)
def test_no_string_of_a_pattern_is_shorter_than_its_shortest(pattern):
    node = parse_pattern(pattern)
    shortest = regex.shortest(node)
    if shortest is not None:
        assert not regex.is_empty(regex.both(node, regex.repeat(regex.ANY_CHAR, 0, shortest)))
        if shortest:
            shorter = regex.repeat(regex.ANY_CHAR, 0, shortest - 1)
            assert regex.is_empty(regex.both(node, shorter))


@given(anchored, texts)
def test_a_pattern_is_found_where_pythons_re_finds_it(pattern, text):
    assert regex.matches(parse_pattern(pattern), text) is found(pattern, text)


@given(anchored, texts)
def test_a_rendered_pattern_means_the_same(pattern, text):
    node = parse_pattern(pattern)
    assert found(render(node), text) is regex.matches(node, text)
    assert regex.matches(parse_pattern(render(node)), text) is regex.matches(node, text)


@settings(deadline=None)
@given(patterns, patterns, texts)
def test_what_both_or_only_one_of_two_patterns_finds_can_be_written_as_one(one, two, text):
    first, second = (parse_pattern(f"^{pattern}$") for pattern in (one, two))
    for node in (
        regex.both(first, second),
        regex.both(first, regex.other(second)),
        regex.other(first),
    ):
        try:
            simple = plain(node)
        except regex.TooManyStates:
            continue
        assert regex.matches(simple, text) is regex.matches(node, text)
        assert regex.matches(node, text) is found(render(simple), text)


@settings(deadline=None)
@given(patterns, patterns, texts)
def test_no_text_is_in_two_sets_that_are_said_to_have_nothing_in_common(one, two, text):
    shared = regex.both(parse_pattern(f"^{one}$"), parse_pattern(f"^{two}$"))
    if regex.matches(shared, text):
        assert not regex.is_empty(shared)


@pytest.mark.parametrize(
    ("pattern", "rendered"),
    [
        ("foo", "foo"),
        ("^foo$", "^foo$"),
        ("", ""),
        ("^.*$", "^[^\\x0a\\x0d\u2028\u2029]*$"),
        ("[\\s\\S]*", ""),
        ("^\\d\\w$", "^[0-9][0-9A-Z_a-z]$"),
        ("^a|b$", "^(?:[\\s\\S]*b|a[\\s\\S]*)$"),
        ("^\\u{1F600}\\ud83d\\ude00$", "^😀😀$"),
        ("^[a\\-z\\]]$", "^[\\-\\]az]$"),
        ("^a{,2}{$", "^a\\{,2\\}\\{$"),
        ("^(?<name>a)(?:b)??$", "^ab?$"),
    ],
)
def test_a_pattern_is_written_in_one_plain_dialect(pattern, rendered):
    assert render(parse_pattern(pattern)) == rendered


@pytest.mark.parametrize(
    "pattern",
    [
        "(?!a)b",
        "(?<=a)b",
        "(a)\\1",
        "\\bword",
        "a**",
        "(a",
        "a)",
        "[b-a]",
        "[a",
        "*",
        "\\Z",
        "(^a)*",
    ],
)
def test_what_is_no_regular_expression_is_refused(pattern):
    with pytest.raises(PatternError):
        parse_pattern(pattern)


def test_a_pattern_that_makes_backtracking_engines_hang_is_matched_at_once():
    assert not regex.matches(parse_pattern("^(?:a+)+$"), "a" * 2_000 + "b")


def test_categories_of_unicode_are_known():
    node = parse_pattern("^\\p{Lu}\\p{L}*\\P{L}$")
    assert regex.matches(node, "Ärger!")
    assert not regex.matches(node, "ärger!")


def test_equal_sets_are_one_whatever_was_asked_of_them_before() -> None:
    asked, fresh = (parse_pattern("^(?:ab|[0-9]{2,3})c*$") for _ in range(2))
    assert not asked.nullable
    assert not asked.has_algebra
    assert asked.size > 5
    assert len({asked, fresh}) == 1


def test_what_follows_a_character_is_worked_out_once() -> None:
    node = regex.both(parse_pattern("^a*b$"), regex.other(parse_pattern("^ab$")))
    assert regex.derivative(node, ord("a")) is regex.derivative(node, ord("a"))


@pytest.mark.parametrize(
    ("pattern", "shorter"),
    [
        ("[a-c]{1,255}", "[a-c]"),
        ("a*b{2,}", "b{2}"),
        ("^a{1,9}b{3,9}", "^a{1,9}b{3}"),
        ("a+b+$", "ab+$"),
        ("(?:ab)?c*", ""),
        (".*", ""),
        ("^x{0,5}", ""),
    ],
)
def test_where_any_text_stands_beside_a_repetition_the_least_of_it_is_searched(pattern, shorter):
    assert parse_pattern(pattern) == parse_pattern(shorter)
