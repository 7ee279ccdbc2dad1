"""BERT, RoBERTa and XLM-RoBERTa, as embedders of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
ARCHITECTURES = {"BertModel": "Bert", "RobertaModel": "Roberta", "XLMRobertaModel": "Roberta"}

MASKED = {
    "BertForMaskedLM": "BertModel",
    "RobertaForMaskedLM": "RobertaModel",
    "XLMRobertaForMaskedLM": "XLMRobertaModel",
}
"""Embedders whose config.json names the class that they were trained from."""


@hookimpl
def select_model(architecture: str) -> str | None:
    """Leave out the head of a model of masked tokens, as sentence-transformers does."""
    return MASKED.get(architecture)


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add BertModel, RobertaModel and XLMRobertaModel."""
    for architecture, name in ARCHITECTURES.items():
        models.add(
            architecture,
            f"octavo_plugins.models.bert.model:{name}",
            capabilities=ModelCapabilities(
                tasks=("embed",),
                sees="all",
                quantizations=("*",),
                reference=f"transformers:{architecture}",
                conformance=f"octavo_plugins.models.bert.conformance:{name.upper()}",
            ),
        )
