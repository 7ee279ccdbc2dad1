"""Structured output: a backend compiles a constraint into a guide, which masks tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FORMERLY = {"ByteMachine": "ByteAutomaton", "MachineBackend": "AutomatonBackend"}
ConstraintKind = Literal["json", "regex", "choice", "grammar", "structure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What the text must match, from its first character to its last; made of JSON types alone.

    ``value`` of "json" is a core schema, of the few shapes that docs/structured-output.md lists,
    so that a backend need not know what users may write; of "regex" a pattern; of "choice" a list
    of texts; of "grammar" Lark; of "structure" what ``octavo_registry.structure.plain`` gives.
    """

    kind: ConstraintKind
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideVocabulary:
    """The tokens as bytes: ``token_bytes[id]``, None for special tokens, which match no text."""

    token_bytes: Sequence[bytes | None]
    special_ids: Mapping[str, int]
    """Special tokens by their text; a structure's literal that has it means the token."""
    stop_token_ids: tuple[int, ...]
    """Allowed where the text is complete."""
    vocab_size: int
    """Width of the logits; ids at or above ``len(token_bytes)`` are never allowed."""
    encode: Callable[[str], list[int]]
    """The tokens that the model itself would write for a text, special ones not among them."""


class GuideState(Protocol):
    """Where one sequence stands in its guide. All methods run on the host, off the device."""

    def allowed(self, token: int) -> bool:
        """Whether the token may come next."""
        ...

    def accept(self, token: int) -> bool:
        """Advance by a token; False, and no change, when it is not allowed."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last so many accepted tokens."""
        ...

    def fork(self) -> GuideState:
        """Return an independent copy."""
        ...

    def forced(self) -> list[int]:
        """Return the tokens that must come next because no others can; mostly empty.

        Asked in the engine's process where the mask has one token alone; in a child before each
        mask.
        """
        ...

    def fill_bitmask(self, row: NDArray[np.int32]) -> None:
        """Set bit ``id % 32`` of word ``id // 32`` for each allowed token and clear all others."""
        ...

    def is_complete(self) -> bool:
        """Whether the text so far satisfies the constraint."""
        ...

    def is_finished(self) -> bool:
        """Whether it satisfies the constraint and nothing may follow."""
        ...


@runtime_checkable
class FillsTogether(Protocol):
    """A state whose kind fills the masks of many in one call, most of it without the interpreter.

    Worth having where a mask takes less than handing the interpreter's lock from thread to thread.
    """

    def fill_bitmasks(
        self, states: Sequence[Any], rows_MW: NDArray[np.int32]
    ) -> Sequence[Exception | None]:
        """``fill_bitmask`` of each of these states; returns what it would have raised.

        The states are of one class, and may be of different guides. This one need not be one of
        them.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ByteAutomaton:
    """A constraint as a table of states, between which a text's bytes lead, with a stack.

    A device can walk it, so that a step's masks are made where its logits are. It begins in state
    0 with an empty stack. Axis suffixes: B bytes, Q states, C classes of bytes, K calls.

    What a state makes of a byte of a class stands in ``table_QC``; the last column is the end of
    the text. Below 0, the byte may not come. Otherwise it is ``4 * number + operation``:
    ``GO`` takes the byte and leads to the state of that number (at the end: the text is complete);
    ``CALL`` pushes the second state of that call, and its first looks at the same byte;
    ``RETURN`` pops a state, which looks at the same byte; with an empty stack it may not come.

    A stack holds ``MOST_DEPTH`` states; a call beyond may not come, and neither may a byte that
    takes more than ``MOST_HOPS`` calls and returns.
    """

    classes_B: NDArray[np.uint8]
    table_QC: NDArray[np.int32]
    calls_K2: NDArray[np.int32]


GO, CALL, RETURN = 0, 1, 2
MOST_DEPTH = 64
MOST_HOPS = 128


class Guide(Protocol):
    """A compiled constraint; immutable, shared by all requests that use it."""

    def start(self) -> GuideState:
        """Return a new state at the beginning."""
        ...


@runtime_checkable
class GuidedBackend(Protocol):
    """Compiles constraints. Made once a process: ``Backend(vocabulary: GuideVocabulary)``."""

    def compile(self, constraint: Constraint) -> Guide:
        """Return the guide, within the limits on size that the framework checked before.

        Called off the step loop, from several threads. A keyword that the backend cannot enforce
        must raise an OctavoError that names it; silence would break the promise to the user.
        """
        ...


@runtime_checkable
class AutomatonBackend(Protocol):
    """A backend whose guides are byte automata; registered with ``automata=True``.

    ``automaton`` needs no vocabulary: it is called where a constraint is checked, and its result
    goes to the engine with the request. It raises ``UnsupportedConstraint`` like ``compile``.
    """

    @staticmethod
    def automaton(constraint: Constraint) -> ByteAutomaton:
        """Compile."""
        ...


def __getattr__(name: str) -> Any:
    """Say of what was here under another name how it is called."""
    if name in _FORMERLY:
        raise ImportError(f"octavo_registry.guided: {name} is now {_FORMERLY[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
