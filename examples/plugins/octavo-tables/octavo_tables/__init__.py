"""The modality "table", and a Llama that reads it."""

from octavo_registry import LazyRegistry, ModalityDecoder, Model, ModelCapabilities, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

OCTAVO_API = "1"
NAME = "TableLlamaForCausalLM"


@hookimpl
def register_modalities(modalities: LazyRegistry[ModalityDecoder]) -> None:
    """Add what makes a Table of a file or an object."""
    modalities.add(
        "table",
        "octavo_tables.decoder:TableDecoder",
        samples="octavo_tables.conformance:samples",
    )


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add the architecture, and that it takes tables."""
    models.add(
        NAME,
        "octavo_tables.model:TableLlama",
        capabilities=ModelCapabilities(
            modalities=("table",), conformance="octavo_tables.conformance:VARIANTS"
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add what puts a table's names and places into a prompt."""
    inputs.add(NAME, "octavo_tables.inputs:place_tables", texts={"table": "<table>"})


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add what makes tensors of a Table, and what a request may say of that."""
    mm.add(NAME, "octavo_tables.inputs:tensors_of", kwargs={"max_rows": (1, 4096)})
