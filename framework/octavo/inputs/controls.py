"""Control tokens in the texts of a chat: what messages say never becomes one.

A chat template writes control tokens as text, such as ``<|im_end|>``. Where a message has such text
too, one of its characters is hidden behind a private one while the template runs: what then still
reads as a control token was written by the template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from octavo.errors import MessageError, PromptError
from octavo.inputs.covering import Cover, Words
from octavo.inputs.foreign_template import ForeignTemplate
from octavo.inputs.hiding import Hidden
from octavo.inputs.messages import ROLES
from octavo.inputs.template import SPLIT, ChatTemplate, changed
from octavo_registry.tokenizer import ControlTokens, Tokenizer

Write = Callable[[list[dict[str, Any]], dict[str, dict[str, Any]]], str]
"""Makes a text of messages and what belongs to them."""
OWN_ROLES: Final = ("system", "developer", "assistant")
"""Their text is the application's or the model's own, which may write ``<think>``."""
_END: Final = "\0"
MOST_PARTS: Final = 1000
"""In which single characters are hidden; of texts that fall into more, all that may matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatText:
    """A chat as a template has written it."""

    text: str
    marked: Sequence[tuple[int, int]] | None = None
    """Where control tokens stand; None: wherever their text does."""
    controls: frozenset[str] = frozenset()
    shown: str
    """The text for those who look for control tokens in it: without those in contents."""

    def within(self, begin: int, end: int) -> ChatText:
        """Return what stands between two characters."""
        return self if (begin, end) == (0, len(self.text)) else self._part(begin, end)

    def pieces(self, texts: Collection[str]) -> Iterator[ChatText | str]:
        """Take it apart at those of the control tokens that are among ``texts``."""
        end = 0
        for start, behind in self.marked or ():
            found = self.text[start:behind]
            if found in texts:
                if start > end:
                    yield self._part(end, start)
                yield found
                end = behind
        if end < len(self.text):
            yield self._part(end, len(self.text))

    def _part(self, begin: int, end: int) -> ChatText:
        marked = [
            (start - begin, behind - begin)
            for start, behind in self.marked or ()
            if begin <= start and behind <= end
        ]
        return replace(
            self,
            text=self.text[begin:end],
            marked=None if self.marked is None else marked,
            shown=self.shown[begin:end],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The control tokens of one model."""

    special: frozenset[str] = frozenset()
    """Special tokens of every template; those that media stand for are among them."""
    added: frozenset[str] = frozenset()
    """Others that are tokens of their own, and control what goes on if the template writes them."""
    normalized: Callable[[str], str] | None = None
    """Makes a text the one in which the tokenizer looks for them; None: it is the same."""


def read_vocabulary(tokenizer: Tokenizer | None, media: Iterable[str] = ()) -> Vocabulary:
    """``media`` are texts that stand for media."""
    if tokenizer is None:
        return Vocabulary()
    if isinstance(tokenizer, ControlTokens):
        special = {text for text, is_special in tokenizer.added_tokens.items() if is_special}
        added = {text for text in tokenizer.added_tokens if text.strip()}
        normalized = tokenizer.normalized
    else:
        spelled = tokenizer.convert_ids_to_tokens(sorted(tokenizer.special_ids))
        special, added, normalized = {text for text in spelled if text}, set(), None
    for text in media:
        special |= {text, *(token for token in added if token in text)}
    special = {text for text in special if text.strip()}
    return Vocabulary(
        special=frozenset(special),
        added=frozenset(added - special),
        normalized=normalized,
    )


class ContentGuard:
    """Finds and hides control tokens in contents for one template; holds nothing of a request."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate | ForeignTemplate) -> None:
        written = {text for text in vocabulary.added if template.mentions(text)}
        self._template = template
        self._every = _Finder(vocabulary.special | written, vocabulary, template)
        self._own = _Finder(vocabulary.special, vocabulary, template) if written else self._every
        self._words = Words(template.names, self._every.controls)
        self._kept = self._words.pattern()
        self._kept_of_own = self._words.pattern(written)

    def rendered(
        self, write: Write, messages: list[dict[str, Any]], others: dict[str, dict[str, Any]]
    ) -> ChatText:
        """Render a chat, whose contents may be changed; ``others`` are its tools and the like.

        A template that does to texts what is not foreseen may make control tokens of contents.
        It writes a second time, with contents that nothing can be made of: they are its own only
        where it writes the same ones then.
        """
        if not self._every.controls:
            return _as_it_is(write(messages, others))
        if self._template.is_foreseen:
            return self._hide(messages, *others.values())(write(messages, others))
        cover = Cover(self._words)
        covered = [self._covered(message, cover) for message in messages]
        covered_others = {
            name: {key: cover.value(value, self._kept) for key, value in each.items()}
            for name, each in others.items()
        }
        chat = self._hide(messages, *others.values())(write(messages, others))
        try:
            text = cover.uncovered(write(covered, covered_others))
        except PromptError as error:
            raise MessageError(
                "the chat template refuses the messages once they can write no control tokens: "
                f"{error}"
            ) from error
        if self._tokens(chat.shown) == self._tokens(text):
            return chat
        return self._chat_text(cover.restored(text), text)

    def _covered(self, message: dict[str, Any], cover: Cover) -> dict[str, Any]:
        kept = self._kept_of_own if message["role"] in OWN_ROLES else self._kept
        return {**cover.value(message, kept), "role": cover.name(message["role"], ROLES)}

    def _tokens(self, text: str) -> list[str]:
        return [found[0] for found in self._every.whole.finditer(text)]

    def _hide(
        self, messages: list[dict[str, Any]], *others: dict[str, Any]
    ) -> Callable[[str], ChatText]:
        """Change contents in place; return what makes a chat's text of what is then rendered."""
        own: list[str] = []
        rest: list[str] = []
        roles = []
        for message in messages:
            _collect(_contents(message), own if message["role"] in OWN_ROLES else rest)
            roles.append(message["role"])
        _collect(others, rest)
        if not (self._own.is_in(own, ()) or self._every.is_in(rest, roles)):
            return _as_it_is
        hidden = Hidden([*own, *rest, *roles])
        for message in messages:
            finder = self._own if message["role"] in OWN_ROLES else self._every
            message["role"] = finder.hidden_name(message["role"], hidden)
            message.update(_with_values(_contents(message), finder, hidden))
        for other in others:
            other.update(_with_values(other, self._every, hidden))
        return lambda rendered: self._shown(rendered, hidden)

    def _shown(self, rendered: str, hidden: Hidden) -> ChatText:
        rendered = hidden.unescaped(rendered)
        return self._chat_text(hidden.restored(rendered), rendered)

    def _chat_text(self, text: str, shown: str) -> ChatText:
        """Make it of a text and of what it was before contents had their characters back."""
        return ChatText(
            text=text,
            marked=tuple(match.span() for match in self._every.whole.finditer(shown)),
            controls=self._every.controls,
            shown=shown,
        )


class _Finder:
    """Looks for a set of control tokens, whole and in pieces that others can complete."""

    def __init__(
        self,
        controls: frozenset[str],
        vocabulary: Vocabulary,
        template: ChatTemplate | ForeignTemplate,
    ) -> None:
        self.controls = controls
        self.whole = any_of(controls)
        self._normalized = vocabulary.normalized
        self._template = template
        self._longest = max(map(len, controls), default=0)
        self._firsts = "".join({text[0] for text in controls})
        near = f"[^{_END}]{{0,{self._longest}}}"
        lasts = "".join({text[-1] for text in controls})
        self._maybe_head = re.compile(f"([{re.escape(self._firsts) or _END}]{near}){_END}")
        self._maybe_tail = re.compile(f"{_END}({near}[{re.escape(lasts) or _END}])")
        self._heads = {text[:end] for text in controls for end in range(1, len(text))}
        self._tails = {text[begin:] for text in controls for begin in range(1, len(text))}
        self._inners = {
            control[len(head) : len(control) - len(tail)]
            for head in _ends(template.literals, self._heads, self._longest)
            for tail in _begins(template.literals, self._tails, self._longest)
            for control in controls
            if control.startswith(head) and control.endswith(tail)
        } - template.names
        changes = template.changes
        self._letters = [change for change in changes if change[0] != SPLIT]
        cuts = [re.escape(old) for name, old, _ in changes if name == SPLIT]
        self._cuts = [re.compile(cut) for cut in (*cuts, "|".join(cuts)) if cut]
        """What a template splits texts at: it may put parts together that were none before."""
        added = "".join(new for _, _, new in changes)
        ends = self._firsts + lasts
        self._ends = re.compile(f"[{re.escape(ends) or _END}]")
        ends += ends.lower() + ends.upper()
        self._makers = {*self._firsts, *self._firsts.lower(), *self._firsts.upper()}
        """Characters that begin a control token, also once the template has changed a text."""
        self._makers |= {old[0] for _, old, _ in changes if old}
        is_simple = not self._inners and self._normalized is None
        self._borders: re.Pattern[str] | None = None
        """Finds nothing in what can be no part of a control token; None: it could not tell."""
        if controls and is_simple and not any(char in added for char in self._firsts):
            self._borders = re.compile(f"[{re.escape(ends)}]")

    def is_in(self, contents: Collection[str], names: Collection[str]) -> bool:
        """Whether any of these can become a control token, or contents a part of one."""
        if self._normalized is not None:
            contents = [*contents, *map(self._normalized, contents)]
            names = [*names, *map(self._normalized, names)]
        whole = _END.join((*contents, *names))
        if self._borders is not None and not self._borders.search(whole):
            return False
        parts = contents if not self._cuts else list(self._parts(contents))
        borders = (each.strip() for each in parts)
        most = self._longest
        text = _END.join(
            each if len(each) <= 2 * most else f"{each[:most]} {each[-most:]}" for each in borders
        )
        text = f"{_END}{text}{_END}"
        return (
            self._is_in(whole)
            or any(self._head(found[1]) is not None for found in self._maybe_head.finditer(text))
            or any(self._tail(found[1]) is not None for found in self._maybe_tail.finditer(text))
            or (bool(self._inners) and any(self._inner(each) is not None for each in parts))
        )

    def _is_in(self, text: str) -> bool:
        return any(self.whole.search(each) for each in changed(text, self._template.changes))

    def hidden(self, text: str, hidden: Hidden) -> str:
        """``text`` such that no template makes a control token of it."""
        for begin, end in self._spans(text, self._cuts)[:MOST_PARTS]:
            for place in self._places(text[begin:end]):
                at = begin + place
                text = text[:at] + hidden.character(text[at]) + text[at + 1 :]
        text = self.hidden_name(text, hidden)
        if self._is_in(text) or any(map(self._places, self._parts([text]))):
            # once the template has changed it
            for char in sorted(self._makers.intersection(text)):
                text = text.replace(char, hidden.character(char))
        return text

    def hidden_name(self, text: str, hidden: Hidden) -> str:
        """Hide control tokens in a role or type, of which templates make such on purpose."""
        while self.whole.search(text):  # again, for those that begin in another
            text = self.whole.sub(lambda match: hidden.character(match[0][0]) + match[0][1:], text)
        return text

    def _places(self, text: str) -> list[int]:
        """Where it may become a part of a control token by what stands around it."""
        if not self._inners and not self._ends.search(text):
            return []
        found = (self._head(text), self._tail(text), self._inner(text))
        return list(dict.fromkeys(place for place in found if place is not None))

    def _parts(self, contents: Iterable[str]) -> Iterator[str]:
        """What splits may leave of contents, also of changed ones; they themselves are among it."""
        for each in contents:
            for text in changed(each, self._letters):
                cuts = self._cuts if text is each else self._cuts[-1:]
                yield from (text[begin:end] for begin, end in self._spans(text, cuts))

    def _spans(self, text: str, cuts: Iterable[re.Pattern[str]]) -> list[tuple[int, int]]:
        found = {(0, len(text))}
        for cut in cuts:
            begin = 0
            for match in cut.finditer(text):
                found.add((begin, match.start()))
                begin = match.end()
            found.add((begin, len(text)))
        return sorted(found)

    def _head(self, text: str) -> int | None:
        """Where the begin of a control token stands at the text's end."""
        end = text.rstrip()
        for begin in range(max(0, len(end) - self._longest), len(end)):
            if end[begin:] in self._heads:
                return begin
        return None

    def _tail(self, text: str) -> int | None:
        """Where the end of a control token stands at the text's begin: its last character."""
        begin = len(text) - len(text.lstrip())
        for end in range(min(len(text), begin + self._longest), begin, -1):
            if text[begin:end] in self._tails:
                return end - 1
        return None

    def _inner(self, text: str) -> int | None:
        """Where a text begins that is all that the template leaves out of a control token."""
        inner = text.strip() if len(text) <= self._longest else ""
        return text.index(inner) if inner and inner in self._inners else None


def _ends(literals: Iterable[str], known: set[str], longest: int) -> set[str]:
    found = (text[-size:] for text in literals for size in range(1, longest))
    return known & set(found)


def _begins(literals: Iterable[str], known: set[str], longest: int) -> set[str]:
    found = (text[:size] for text in literals for size in range(1, longest))
    return known & set(found)


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of the texts. By a tree: 256 reserved tokens cost no more than one."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for char in text:
            node = node.setdefault(char, {})
        node[_END] = {}
    return re.compile(_alternatives(tree) if tree else r"(?!)")


def _alternatives(node: dict[str, Any]) -> str:
    branches = [
        re.escape(char) + _alternatives(rest) for char, rest in node.items() if char != _END
    ]
    if not branches:
        return ""
    if len(branches) == 1 and _END not in node:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if _END in node else ''}"


def _as_it_is(rendered: str) -> ChatText:
    return ChatText(text=rendered, shown=rendered)


def _contents(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "role"}


def _collect(value: Any, into: list[str]) -> None:
    """Add each string in it, names too."""
    if isinstance(value, str):
        into.append(value)
    elif isinstance(value, dict):
        for key, each in value.items():
            _collect(key, into)
            _collect(each, into)
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, into)


def _with_values(named: dict[str, Any], finder: _Finder, hidden: Hidden) -> dict[str, Any]:
    return {name: _changed(value, finder, hidden) for name, value in named.items()}


def _changed(value: Any, finder: _Finder, hidden: Hidden) -> Any:
    if isinstance(value, str):
        return finder.hidden(value, hidden)
    if isinstance(value, dict):
        return {
            _changed(key, finder, hidden): finder.hidden_name(each, hidden)
            if key == "type" and isinstance(each, str)
            else _changed(each, finder, hidden)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_changed(each, finder, hidden) for each in value]
    return value
