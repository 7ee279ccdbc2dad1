"""GBNF as Lark: the texts that llguidance then admits are those of the grammar."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from octavo import GuidedParams
from octavo.errors import ParameterError
from octavo.guided.constraint import checked_constraint
from octavo.guided.gbnf import is_gbnf, lark_of_gbnf
from octavo.testing.guided_samples import vocabulary
from octavo_plugins.guided.llguidance.backend import Backend

WORDS = vocabulary()
BACKEND = Backend(WORDS)
FIRST_BYTE = WORDS.token_bytes.index(b"\0")
JSON = r"""
# JSON, a little simplified
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


class Grammar:
    def __init__(self, grammar: str) -> None:
        checked = checked_constraint(GuidedParams(grammar=grammar))
        self.guide = BACKEND.compile(checked.constraint)

    def admits(self, text: str) -> bool:
        """The same for as few tokens as there can be and for a token each byte."""
        found = []
        for tokens in (WORDS.encode(text), [FIRST_BYTE + byte for byte in text.encode()]):
            state = self.guide.start()
            found.append(all(map(state.accept, tokens)) and state.is_complete())
        assert found[0] == found[1]
        return found[0]


@pytest.mark.parametrize(
    ("grammar", "valid", "invalid"),
    [
        (
            JSON,
            ('{}', '{"a":[1,-2.5e+3,true],"é\\"\\u00e9":null}', '{"a": {\n "b":"日本"} }'),
            ("", "[1]", '{"a":1', '{"a":01}', '{"a":"\n"}', '{"a":"\\u00g0"}', "{} {}"),
        ),
        ('root ::= "a"? [b-d]+ "-" "."*', ("b-", "abcd-...", "d-."), ("a-", "bb", "aab-", "e-")),
        ('root ::= [a-c]+ "cd"', ("acd", "ccd", "cccd", "abccd"), ("cd", "ab", "accdd")),
        ('root ::= ("ab" | "a") ("bc" | "c")', ("abbc", "abc", "ac"), ("ab", "bc", "abcc")),
        ('root ::= [a-z]* "x" [a-z]', ("xa", "axb", "xxx", "aaxbxc"), ("x", "ab", "xab-")),
        ('root ::= "true" | "trie" | [a-z] "!"', ("true", "trie", "t!"), ("tr", "tru!", "trues")),
        ('root ::= ([a-b]+ ","?){3}', ("aba", "a,b,a,", "aa,bbb"), ("a", "ab", "a,,ba", ",aba")),
        ('root ::= ([a-z] | "<" [a-z]* ">")*', ("", "ab<c>d", "<><>"), ("<", "a<b", ">")),
        (
            'root ::= item ("\\n" item)*\nitem ::= "- " [^\\n]+',
            ("- a", "- a b\n- - c", "- é"),
            ("", "-a", "- ", "- a\n", "- a\n\n- b"),
        ),
        ('root ::= "(" root ")" |\n  "" # may be empty', ("", "()", "(())"), ("(", "())", "()()")),
        ('root ::= a-b\na-b ::= [\\]\\-^] "\\x41" "\\u00e9"', ("]Aé", "-Aé"), ("aAé", "]aé")),
        ("root ::= .{2} [^.]", ("日本語", "a\nb"), ("ab", "ab.", "abcd")),
        ('root ::= "a"{2} "b"{1,2} "c"{2,} "d"{0}', ("aabcc", "aabbcccc"), ("abcc", "aabccd")),
        ('root ::= "/" "\\"" "\\\\" "/i"', ('/"\\/i',), ("/i", '"')),
    ],
)  # fmt: skip
@pytest.mark.parametrize("most_pattern_chars", [2**16, 0], ids=["pattern", "characters"])
def test_texts_of_a_grammar_are_admitted_and_no_others(
    monkeypatch, most_pattern_chars, grammar, valid, invalid
) -> None:
    monkeypatch.setattr("octavo.guided.gbnf.MOST_PATTERN_CHARS", most_pattern_chars)
    checked = Grammar(grammar)
    assert [text for text in valid if not checked.admits(text)] == []
    assert [text for text in invalid if checked.admits(text)] == []


def random_part(chance: random.Random, depth: int) -> tuple[str, str]:
    """A part of a grammar, and the same as a regular expression."""
    kind = chance.randrange(3 if depth else 2)
    if kind == 0:
        text = "".join(chance.choices("abc", k=chance.randint(1, 3)))
        return f'"{text}"', f"(?:{text})"
    if kind == 1:
        inside = chance.choice(["a", "ab", "bc", "^a", "a-c"])
        return f"[{inside}]", f"[{inside}]"
    sort = chance.choice(["sequence", "choice", "loop", "loop"])
    if sort == "loop":
        gbnf, regex = random_part(chance, depth - 1)
        count = chance.choice(["*", "+", "?", "{2}", "{1,2}", "{2,}"])
        return f"({gbnf}){count}", f"(?:{regex}){count}"
    parts = [random_part(chance, depth - 1) for _ in range(2)]
    between = " " if sort == "sequence" else " | "
    gbnf = between.join(gbnf for gbnf, _ in parts)
    regex = between.strip().join(regex for _, regex in parts)
    return f"({gbnf})", f"(?:{regex})"


@pytest.mark.parametrize("most_pattern_chars", [2**16, 0], ids=["pattern", "characters"])
def test_random_grammars_admit_what_their_regular_expressions_match(
    monkeypatch, most_pattern_chars
) -> None:
    monkeypatch.setattr("octavo.guided.gbnf.MOST_PATTERN_CHARS", most_pattern_chars)
    texts = ["".join(each) for n in range(6) for each in itertools.product("abc", repeat=n)]
    for seed in range(200):
        chance = random.Random(seed)
        parts = [random_part(chance, 3) for _ in range(2)]
        grammar = f"root ::= r1 r2\nr1 ::= {parts[0][0]}\nr2 ::= {parts[1][0]}"
        pattern = re.compile("".join(regex for _, regex in parts))
        matching = [text for text in texts if pattern.fullmatch(text)]
        checked = Grammar(grammar)
        for text in (*chance.sample(texts, 20), *chance.sample(matching, min(20, len(matching)))):
            assert checked.admits(text) == bool(pattern.fullmatch(text)), (grammar, text)


def test_what_would_be_single_characters_is_one_pattern_where_nothing_leads_back() -> None:
    assert lark_of_gbnf('root ::= a "cd"\na ::= [a-c]+') == "start: /[a-c]+cd/"
    assert "start: /" not in lark_of_gbnf('root ::= [a-c]+ "cd" | "(" root ")"')
    doubled = "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(40))
    assert "start: /" not in lark_of_gbnf(f'root ::= r0\n{doubled}\nr40 ::= [a]* "ab"')


def test_runs_and_words_of_a_json_grammar_stay_whole() -> None:
    lark = lark_of_gbnf(JSON)
    assert "/true/" in lark
    assert r"\x{80}-\x{10FFFF}]+/" in lark


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ('a ::= "b"', "no rule 'root'"),
        ("root ::= other", "no rule 'other'"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is there already"),
        ('root ::= ("a"', "a parenthesis is not closed"),
        ('root ::= "a")', "a rule, NAME ::=, is expected"),
        ('root ::= "a', "cannot be read"),
        ('root ::= "a"\n  "b" & "c"', "line 2: '& \"c\"' cannot be read"),
        ("root ::= *", "nothing is repeated"),
        ('root ::= "a"{3,2}', "at least 3 and at most 2"),
        ("root ::= []", "no character is in the class"),
        ("root ::= [z-a]", "z-a is in the wrong order"),
        ('root ::= "\\q"', "escape \\q is not known"),
        (f"root ::= {'(' * 65}", "more than 64 parentheses"),
    ],
)
def test_faults_of_a_grammar_are_named(grammar, problem) -> None:
    with pytest.raises(ParameterError, match=re.escape(problem)) as caught:
        checked_constraint(GuidedParams(grammar=grammar))
    assert caught.value.param == "grammar"


def test_lark_stays_lark() -> None:
    lark = 'start: "root ::= a" | A\nA: /[a-z]/'
    assert not is_gbnf(lark)
    assert checked_constraint(GuidedParams(grammar=lark)).constraint.value == lark
