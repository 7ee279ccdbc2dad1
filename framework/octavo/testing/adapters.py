"""A model with several adapters at once, against one model for each with merged weights.

Axis suffixes: R rank, I inputs, O outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any, Final

import torch
from torch import nn

from octavo.adapters.check import matching_names
from octavo.adapters.tensors import content_hash
from octavo.errors import AdapterError
from octavo.messages import LinearSize
from octavo.testing.engine_run import EnginePrompt, Logprobs, Tokens, tokens_of
from octavo.testing.modes import Trial
from octavo.testing.reference import ModuleReference, Reference
from octavo.wording import listed
from octavo_registry import Adapter

RANKS: Final = (4, 33, 256)
STRENGTH: Final = 0.5
"""Size of what an adapter adds, as a part of the weight that it is added to."""


def random_adapter(
    reference: ModuleReference, linears: Mapping[str, LinearSize], *, rank: int, seed: int
) -> Adapter:
    """Change all linears, each by as much as the next, with scalings of their own."""
    generator = torch.Generator().manual_seed(seed)
    weights = weights_of(reference.module, linears)
    down, up, scaling = {}, {}, {}
    for index, (name, size) in enumerate(linears.items()):
        std = float(weights[name].detach().std())
        scaling[name] = 0.5 + index % 3
        down[name] = torch.randn(rank, size.inputs, generator=generator)
        up[name] = torch.randn(size.outputs, rank, generator=generator)
        up[name] *= STRENGTH * std / (scaling[name] * rank**0.5)
    return Adapter(
        rank=rank,
        scaling=scaling,
        down=down,
        up=up,
        content_hash=content_hash(down, up, scaling),
    )


def merged(
    reference: ModuleReference, linears: Mapping[str, LinearSize], adapter: Adapter
) -> ModuleReference:
    """The reference with W + scaling * B A in the place of each W, added in float64."""
    module = untied(copy.deepcopy(reference.module))
    weights = weights_of(module, linears)
    with torch.no_grad():
        for name, down_RI in adapter.down.items():
            weight, num_experts = weights[name], linears[name].experts
            down_XRI = down_RI.double().unflatten(1, (num_experts, -1)).transpose(0, 1)
            up_XOR = adapter.up[name].double().unflatten(0, (num_experts, -1))
            product = (up_XOR @ down_XRI).mul_(adapter.scaling[name])
            added = product.mT if linears[name].transposed else product
            weight.copy_(weight.double() + added.view_as(weight))
    return ModuleReference(f"{reference.name} with {adapter.content_hash[:8]}", module)


def weights_of(module: nn.Module, linears: Iterable[str]) -> dict[str, nn.Parameter]:
    """The parameters of a reference, which may have other names, by those of ours."""
    parameters = module.named_parameters(remove_duplicate=False)
    stored = {name.removesuffix(".weight"): parameter for name, parameter in parameters}
    try:
        names = matching_names(linears, stored)
    except AdapterError as error:
        raise AdapterError(
            f"the reference lacks weights of linears that adapters change, {listed([*linears])}: "
            f"docs/model_plugin.md says what it needs ({error})"
        ) from error
    return {ours: stored[name] for ours, name in names.items()}


def untied(module: nn.Module) -> nn.Module:
    """Give each name its own weight: an adapter of one end of the vocabulary is not of both."""
    seen: set[int] = set()
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        owner, _, leaf = name.rpartition(".")
        if id(parameter) in seen:
            own = nn.Parameter(parameter.detach().clone(), requires_grad=False)
            setattr(module.get_submodule(owner), leaf, own)
        seen.add(id(parameter))
    return module


class AdaptedReference:
    """For each sequence that of the adapter which its prompt has."""

    name = "those of merged weights"

    def __init__(
        self, references: Mapping[str, Reference], prompts: Sequence[EnginePrompt]
    ) -> None:
        """``references`` are by content hash; prompts take turns with them."""
        self.references = references
        turns = zip(map(tokens_of, prompts), cycle(references), strict=False)
        self._hashes = dict(turns)
        self._prompts = sorted(self._hashes, key=len, reverse=True)

    def adapter_of(self, tokens: Tokens) -> str:
        """The adapter of a prompt, or of what continues one."""
        return next(
            self._hashes[prompt] for prompt in self._prompts if tokens[: len(prompt)] == prompt
        )

    def logprobs(self, sequences: Sequence[EnginePrompt]) -> list[Logprobs]:
        """See ``Reference``."""
        adapters = [self.adapter_of(tokens_of(each)) for each in sequences]
        found: dict[int, Logprobs] = {}
        for adapter, reference in self.references.items():
            places = [i for i, its in enumerate(adapters) if its == adapter]
            if places:
                found |= zip(
                    places, reference.logprobs([sequences[i] for i in places]), strict=True
                )
        return [found[i] for i in range(len(sequences))]


def with_adapters(trial: Trial, ranks: Sequence[int], *, num_rank_rows: int) -> Trial:
    """A trial with random adapters of these ranks; prompts take turns with them and none."""
    base = trial.reference
    assert isinstance(base, ModuleReference)
    options = {
        **trial.options,
        "enable_lora": True,
        "lora_experts": True,
        "lora_pool_rank": num_rank_rows,
    }
    with replace(trial, options=options).engine() as engine:
        linears = engine.linears
    adapters = [
        random_adapter(base, linears, rank=rank, seed=seed) for seed, rank in enumerate(ranks)
    ]
    references: dict[str, Reference] = {"": base}
    references |= {it.content_hash: merged(base, linears, it) for it in adapters}
    reference = AdaptedReference(references, trial.prompts)
    return replace(
        trial,
        options=options,
        reference=reference,
        adapters=adapters,
        adapter_of=reference.adapter_of,
    )


def swapped(trial: Trial) -> Trial:
    """Requests of the first two adapters get one another's."""
    first, second = (adapter.content_hash for adapter in trial.adapters[:2])
    others, adapter_of = {first: second, second: first}, trial.adapter_of

    def other_of(tokens: Tokens) -> str:
        return others.get(adapter_of(tokens), adapter_of(tokens))

    return replace(trial, adapter_of=other_of)


def wrongly_scaled(trial: Trial) -> Trial:
    """The last linear of the first adapter, the head, counts half as much again."""
    first, *others = trial.adapters
    *_, name = first.scaling
    scaling = {**first.scaling, name: 1.5 * first.scaling[name]}
    return replace(trial, adapters=[replace(first, scaling=scaling), *others])


def without_a_target(trial: Trial, place: float = 0.5) -> Trial:
    """One linear of the first adapter, at this part of all, is left as it is."""
    first, *others = trial.adapters
    name = [*first.down][int(place * len(first.down))]

    def rest(entries: Mapping[str, Any]) -> dict[str, Any]:
        return {other: value for other, value in entries.items() if other != name}

    less = replace(first, down=rest(first.down), up=rest(first.up), scaling=rest(first.scaling))
    return replace(trial, adapters=[less, *others])


MISTAKES: Final[Mapping[str, Callable[[Trial], Trial]]] = {
    "swapped adapters": swapped,
    "a wrong scaling": wrongly_scaled,
    "a dropped target": without_a_target,
    "a dropped embedding": partial(without_a_target, place=0),
}
"""What the comparison of a batch with adapters must notice."""
