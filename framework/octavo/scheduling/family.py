"""The sequences of a request, of which the first leads: it runs the prompt, and others wait."""

from __future__ import annotations

from octavo.cache.prefix import chain_seed
from octavo.guided.sequence import CompiledGuide, GuidedSequence, as_error
from octavo.messages import EngineRequest
from octavo.residency.automata import AutomatonPool
from octavo.scheduling.sequence import Sequence


def family_of(request: EngineRequest, arrival: int, model_identity: str) -> list[Sequence]:
    """Return a request's sequences, the leader first."""
    # All that its tokens' keys and values are made of goes into the seed.
    across = [item.content_hash for item in request.media if item.cross_rows]
    seed = chain_seed(model_identity, request.adapter, request.cache_salt, *across)
    leader, *followers = (
        Sequence(request, index, arrival, seed) for index in range(len(request.sequences))
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
    return None if automaton is None else automata.refusal(automaton)
