"""Which templates only do to texts what is foreseen where control tokens in contents are hidden.

Foreseen are joining, trimming of blanks, letters' case, splitting and replacing by constants. All
else (an index, ``strip`` of letters, formats, ...) may make a text of contents that none of them
is, so that it is unknown what of the result the template has written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from jinja2 import nodes

_FILTERS: Final = frozenset(
    ("tojson", "length", "count", "list", "selectattr", "rejectattr", "join", "upper", "lower",
     "title", "capitalize", "default", "d", "string", "int", "float", "abs", "round", "items",
     "dictsort", "safe", "sum", "min", "max")
)  # fmt: skip
_METHODS: Final = frozenset(
    ("startswith", "endswith", "upper", "lower", "title", "capitalize", "splitlines", "items",
     "keys", "values", "get", "append", "join", "find", "index", "count", "isdigit", "isspace")
)  # fmt: skip
_TRIMS: Final = frozenset(("trim", "strip", "lstrip", "rstrip"))
_GLOBALS: Final = frozenset(
    ("raise_exception", "strftime_now", "range", "namespace", "dict", "caller")
)
_OF_LISTS: Final = frozenset(("selectattr", "rejectattr", "list"))
"""Filters that make a list of a list."""
_LOOKS: Final = (
    nodes.Getattr, nodes.Getitem, nodes.Test, nodes.Compare, nodes.Operand, nodes.Not,
)  # fmt: skip
"""What looks into a value, or at it."""
_LISTS: Final = frozenset(("messages", "tools", "documents"))
_ATTRIBUTES: Final = {"selectattr": 0, "rejectattr": 0, "sum": 0, "join": 1, "min": 1, "max": 1}
"""Where filters take the name of what they look up in each item; a number is an index."""
_NEIGHBOURS: Final = frozenset(("previtem", "nextitem", "cycle"))
"""What a loop's ``loop`` gives that may be another character, or not each of them."""


def is_foreseen(tree: nodes.Template) -> bool:
    """Whether a template does nothing else to texts."""
    return _Reader(tree).is_foreseen()


class _Reader:
    def __init__(self, tree: nodes.Template) -> None:
        self._tree = tree
        self._macros = {macro.name for macro in tree.find_all(nodes.Macro)}
        self._lists = set(_LISTS)
        """Names that stand for lists of dicts wherever they are set."""
        assigned: dict[str, list[nodes.Node]] = {}
        for each in tree.find_all(nodes.Assign):
            for target, value in _pairs(each):
                if isinstance(target, nodes.Name):
                    assigned.setdefault(target.name, []).append(value)
        for _ in range(2):  # one may be set to another
            for name, values in assigned.items():
                if all(self._is_list(value) for value in values):
                    self._lists.add(name)

    def is_foreseen(self) -> bool:
        return (
            all(self._is_filter_foreseen(each) for each in self._tree.find_all(nodes.Filter))
            and all(self._is_call_foreseen(each) for each in self._tree.find_all(nodes.Call))
            and all(_is_number(each) for each in self._tree.find_all(nodes.Mod))
            and all(self._is_loop_foreseen(each) for each in self._tree.find_all(nodes.For))
            and all(self._is_list(each.node) for each in self._slices())
            and all(_is_whole(each) for each in self._tree.find_all(nodes.Assign))
            and not any(map(self._may_show_character, self._tree.find_all(nodes.Node)))
        )

    def _is_filter_foreseen(self, each: nodes.Filter) -> bool:
        if not all(map(_is_name, _attributes(each))):
            return False
        if each.name in _TRIMS:
            return _trims_blanks(each.args, each.kwargs)
        if each.name == "replace":
            return _are_texts(each.args)
        if each.name == "map":
            return not each.args or (
                len(each.args) == 1
                and isinstance(each.args[0], nodes.Const)
                and each.args[0].value in _FILTERS | {"trim"}
            )
        if each.name in ("first", "last"):
            return each.node is not None and self._is_list_of_texts(each.node)
        return each.name in _FILTERS and each.dyn_args is None and each.dyn_kwargs is None

    def _is_call_foreseen(self, call: nodes.Call) -> bool:
        called = call.node
        if isinstance(called, nodes.Name):
            return called.name in self._macros | _GLOBALS
        if not isinstance(called, nodes.Getattr):
            return False
        if call.dyn_args is not None or call.dyn_kwargs is not None:
            return False
        if called.attr in _TRIMS:
            return _trims_blanks(call.args, call.kwargs)
        if called.attr == "split":
            return not call.args or _are_texts(call.args[:1])
        if called.attr == "replace":
            return _are_texts(call.args)
        return called.attr in _METHODS or (
            isinstance(called.node, nodes.Name) and called.node.name == "loop"
        )

    def _is_loop_foreseen(self, loop: nodes.For) -> bool:
        """A loop over a text shows its characters: all of them, in their order, or it may not."""
        target = loop.target
        if not isinstance(target, nodes.Name):
            return _is_of_pairs(loop.iter)
        if self._is_list(loop.iter) or _is_of_pairs(loop.iter):
            return True
        if any(map(_leaves_some_out, loop.find_all((nodes.Getattr, nodes.Break, nodes.Continue)))):
            return False
        chosen: list[nodes.Node] = [*loop.body] if loop.test is not None else []
        for statement in loop.body:
            for each in _itself_and(statement, (nodes.If, nodes.CondExpr)):
                if isinstance(each, nodes.If):
                    chosen += [*each.body, *each.elif_, *each.else_]
                elif isinstance(each, nodes.CondExpr):
                    chosen += [each.expr1, *([each.expr2] if each.expr2 is not None else [])]
        return not any(_shows(each, target.name) for each in chosen)

    def _slices(self) -> Iterator[nodes.Getitem]:
        for each in self._tree.find_all(nodes.Getitem):
            if isinstance(each.arg, nodes.Slice):
                yield each

    def _may_show_character(self, each: nodes.Node) -> bool:
        """Whether this uses what may be one character of a text, other than to look into it."""
        return not isinstance(each, _LOOKS) and any(
            isinstance(child, nodes.Getitem) and self._may_be_character(child)
            for child in each.iter_child_nodes()
        )

    def _may_be_character(self, each: nodes.Getitem) -> bool:
        is_key = isinstance(each.arg, nodes.Const) and isinstance(each.arg.value, str)
        return not (is_key or isinstance(each.arg, nodes.Slice)) and not self._is_list_of_texts(
            each.node
        )

    def _is_list_of_texts(self, each: nodes.Node) -> bool:
        if isinstance(each, nodes.Call) and isinstance(each.node, nodes.Getattr):
            is_cut = each.node.attr == "split" and len(each.args) > 0
            return is_cut or each.node.attr in ("keys", "values", "items")
        return isinstance(each, nodes.List | nodes.Tuple) or self._is_list(each)

    def _is_list(self, each: nodes.Node | None) -> bool:
        if isinstance(each, nodes.Name):
            return each.name in self._lists
        if isinstance(each, nodes.Getitem) and isinstance(each.arg, nodes.Slice):
            return self._is_list(each.node)
        if isinstance(each, nodes.Filter):
            return each.name in _OF_LISTS and self._is_list(each.node)
        if isinstance(each, nodes.CondExpr):
            return self._is_list(each.expr1) and self._is_list(each.expr2)
        if isinstance(each, nodes.Add):
            return self._is_list(each.left) and self._is_list(each.right)
        return isinstance(each, nodes.List)


def _pairs(each: nodes.Assign) -> Iterator[tuple[nodes.Node, nodes.Node]]:
    """What an assignment sets, and to what."""
    target, value = each.target, each.node
    if isinstance(target, nodes.Tuple) and isinstance(value, nodes.Tuple):
        yield from zip(target.items, value.items, strict=False)
    else:
        yield target, value


def _is_whole(each: nodes.Assign) -> bool:
    """Whether what is set is the whole value: a text may be taken apart into its characters."""
    return not isinstance(each.target, nodes.Tuple) or isinstance(each.node, nodes.Tuple)


def _is_of_pairs(each: nodes.Node) -> bool:
    """Whether this is a list of keys, values or both, or one that is written out."""
    if isinstance(each, nodes.Call) and isinstance(each.node, nodes.Getattr):
        return each.node.attr in ("items", "keys", "values")
    is_filter = isinstance(each, nodes.Filter) and each.name in ("items", "dictsort")
    return is_filter or isinstance(each, nodes.List | nodes.Tuple)


def _leaves_some_out(each: nodes.Node) -> bool:
    """Whether this, in a loop over a text, may show other characters than all in their order."""
    return not isinstance(each, nodes.Getattr) or each.attr in _NEIGHBOURS


def _attributes(each: nodes.Filter) -> Iterator[nodes.Node]:
    """What a filter looks up in each item."""
    if each.name in _ATTRIBUTES:
        yield from each.args[_ATTRIBUTES[each.name] :][:1]
    yield from (given.value for given in each.kwargs if given.key == "attribute")


def _is_name(each: nodes.Node) -> bool:
    if not isinstance(each, nodes.Const) or not isinstance(each.value, str):
        return False
    return not any(part.isdigit() for part in each.value.split("."))


def _itself_and(each: nodes.Node, kinds: tuple[type[nodes.Node], ...]) -> Iterator[nodes.Node]:
    if isinstance(each, kinds):
        yield each
    yield from each.find_all(kinds)


def _shows(each: nodes.Node, name: str) -> bool:
    """Whether it uses a name other than to look into what that is."""
    if isinstance(each, nodes.Name):
        return bool(each.name == name)
    return any(
        _shows(child, name)
        for child in each.iter_child_nodes()
        if not (isinstance(each, _LOOKS) and isinstance(child, nodes.Name))
    )


def _is_number(each: nodes.Mod) -> bool:
    """Whether this is arithmetic, and no text is formatted."""
    is_text = isinstance(each.left, nodes.Const) and isinstance(each.left.value, str)
    right = each.right
    return isinstance(right, nodes.Const) and isinstance(right.value, int) and not is_text


def _trims_blanks(args: Sequence[nodes.Node], kwargs: Sequence[nodes.Node]) -> bool:
    return not kwargs and all(
        isinstance(each, nodes.Const) and isinstance(each.value, str) and not each.value.strip()
        for each in args
    )


def _are_texts(args: Sequence[nodes.Node]) -> bool:
    """Whether they are constants, the first not empty: an empty one stands between all letters."""
    texts = [each for each in args if isinstance(each, nodes.Const)]
    return len(texts) == len(args) > 0 and isinstance(texts[0].value, str) and texts[0].value != ""
