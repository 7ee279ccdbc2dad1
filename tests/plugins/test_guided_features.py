"""What each backend's allow-list claims, tried: a document that is wrong must be refused."""

from __future__ import annotations

import pytest

from guided_features import CASES, Case
from octavo.guided.schema import FEATURES
from octavo_plugins.guided.llguidance.backend import Backend
from octavo_plugins.guided.llguidance.keywords import KEYWORDS
from octavo_registry.guided import Constraint, GuideVocabulary

STOP = 256
KINDS = {"json", "regex", "choice", "grammar", "structure"}


@pytest.fixture(scope="module")
def backend() -> Backend:
    """On a vocabulary of single bytes, so that every text can be asked for."""
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    return Backend(
        GuideVocabulary(
            token_bytes=[*tokens, None],
            special_ids={"<end>": STOP},
            stop_token_ids=(STOP,),
            vocab_size=257,
            encode=lambda text: list(text.encode()),
        )
    )


def accepts(backend: Backend, case: Case, text: str) -> bool:
    state = backend.compile(Constraint(kind="json", value=case.schema)).start()
    return all(state.accept(byte) for byte in text.encode()) and state.is_complete()


def test_the_allow_list_names_features_that_there_are_and_that_are_tried() -> None:
    assert set(KEYWORDS) >= KINDS
    features = set(KEYWORDS) - KINDS
    assert features <= set(FEATURES)
    assert features <= {case.feature for case in CASES}


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.feature in KEYWORDS], ids=lambda case: case.name
)
def test_what_a_feature_admits_is_accepted_and_nothing_else(backend, case) -> None:
    assert [text for text in case.valid if not accepts(backend, case, text)] == []
    assert [text for text in case.invalid if accepts(backend, case, text)] == []
