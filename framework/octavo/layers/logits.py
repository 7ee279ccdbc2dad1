"""Hidden states to logits. Axis suffixes: R rows, D hidden, V vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from octavo.layers.embedding import VocabParallelEmbedding, VocabRows
from octavo.layers.loading import Source
from octavo.layers.sharding import collectives_of
from octavo.layers.stored import Axes, check_invariance, made, method_at, sources, zero_biases
from octavo.layers.unquantized import UnquantizedLinear
from octavo_registry.linear import QuantizationMethod
from octavo_registry.model import ModelSpec
from octavo_registry.sites import Part, Shard, Site


class LMHead(nn.Module):
    """The product with the output embedding, split by vocabulary among tensor parallel ranks.

    A model that ties its embeddings passes ``tied_to``, its input embedding where that lives in
    this process, and ``checkpoint_name``, under which the weights stand in the checkpoint: such a
    head is never quantized, as it shares the embedding's rows. A ``softcap`` bounds the logits.
    """

    weight: nn.Parameter
    """Plain weights; a quantization's method has parameters of its own."""

    def __init__(
        self,
        name: str,
        vocab_size: int,
        hidden_size: int,
        *,
        spec: ModelSpec,
        checkpoint_name: str | None = None,
        tied_to: VocabParallelEmbedding | None = None,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.hidden_size = hidden_size
        self.like = spec.dtype, spec.device
        self.rows = VocabRows(vocab_size, spec)
        self.tied_to = None if tied_to is None else tied_to.name
        rows = Shard(total=vocab_size, first=self.rows.first, size=self.rows.padded_size)
        self.site = Site(
            name=name, kind="head", inputs=Shard.whole(hidden_size), parts=(Part(name, rows),)
        )
        is_tied = tied_to is not None or checkpoint_name is not None
        stored = None if is_tied else method_at(self.site, spec.quantization)
        self._axes: dict[str, Axes] | None = None
        if stored is not None:
            check_invariance(name, stored, spec)
            self._axes = made(self, stored, self.site, spec)
        else:
            self.weight = (
                self.rows.empty_weight(hidden_size, spec) if tied_to is None else tied_to.weight
            )
        self.method: QuantizationMethod = stored or UnquantizedLinear(
            batch_invariant=spec.batch_invariant
        )
        if spec.adapters is not None:
            self.method = spec.adapters.of_head(self, self.method)
        self._checkpoint_name = checkpoint_name or name
        self._softcap = softcap
        self._collectives = collectives_of(spec)

    def forward(self, hidden_RD: Tensor) -> Tensor:
        """Logits [R, V] of the whole vocabulary, on every rank."""
        logits_RV = self.method.apply(self, hidden_RD, None)
        if self._softcap is not None:
            logits_RV.div_(self._softcap).tanh_().mul_(self._softcap)
        if self._collectives is None:
            return logits_RV
        return self._collectives.all_gather(logits_RV)[:, : self.rows.vocab_size]

    def finish_weights(self) -> None:
        """See ``FinishesWeights``."""
        self.method.finish(self)

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``; a tied weight is filled by its embedding."""
        if self._axes is not None:
            yield from sources(self, self.site, self._axes)
            yield from zero_biases(getattr(self.method, "inner", self.method), self.site.parts)
        elif self.tied_to is None:
            yield self.rows.source(f"{self._checkpoint_name}.weight", self.weight)
