"""The sequences of a request, of which the first leads: it runs the prompt, and others wait."""

from __future__ import annotations

from typing import Final

from octavo.cache.prefix import chain_seed
from octavo.errors import UnsupportedConstraint
from octavo.guided.byte_automaton import ByteAutomatonGuide
from octavo.guided.sequence import CompiledGuide, GuidedSequence, as_error
from octavo.messages import EngineRequest
from octavo.residency.places import Spans
from octavo.residency.pool import DevicePool, Need, Resident
from octavo.scheduling.sequence import Sequence
from octavo.steps.loads import Span

AutomatonPool = DevicePool[ByteAutomatonGuide, Span]
LINE_WORDS: Final = 4
"""An automaton begins at a multiple of these words, and none in the first line: 0 is none."""


def automaton_pool(num_words: int) -> AutomatonPool:
    """A pool of so many words, the first line among them."""
    return DevicePool("automaton", Spans(num_words, first=LINE_WORDS))


def family_of(
    request: EngineRequest, arrival: int, model_identity: str, needs: tuple[Need, ...]
) -> list[Sequence]:
    """Return a request's sequences, the leader first; ``needs`` are those of each."""
    # All that its tokens' keys and values are made of goes into the seed.
    across = [item.content_hash for item in request.media if item.cross_rows]
    seed = chain_seed(model_identity, request.adapter, request.cache_salt, *across)
    leader, *followers = (
        Sequence(request, index, arrival, seed, needs) for index in range(len(request.sequences))
    )
    leader.followers = followers
    for follower in followers:
        follower.leader = leader
    return [leader, *followers]


def guide_family(
    family: list[Sequence], guide: CompiledGuide, vocab_size: int, automata: AutomatonPool
) -> Exception | None:
    """Lead a family through a guide; returns why that cannot be, or None."""
    request = family[0].request
    prompt = request.prompt_token_ids
    taken = prompt[len(prompt) - request.num_guided_tokens :]
    try:
        for sequence in family:
            sequence.guide = GuidedSequence(guide, vocab_size, taken)
    except BaseException as error:  # a plugin's, or a panic: this request's failure only
        return as_error(error)
    automaton = family[0].automaton
    if automaton is None:
        return None
    num_words = len(automaton.words)
    size = -(-num_words // LINE_WORDS) * LINE_WORDS
    if size > automata.num_places:
        return UnsupportedConstraint(
            f"the constraint makes an automaton of {num_words} words; the engine has room for "
            f"{automata.num_places}"
        )
    need = Need(automata, Resident(automaton.digest, size, automaton))
    for sequence in family:
        sequence.needs += (need,)
    return None
