"""Media of prompts: fetched, checked, decoded and named by their content, under limits."""

from octavo.vllm_paths import names_of_vllm
from octavo_registry.registering import MULTIMODAL_REGISTRY

__getattr__ = names_of_vllm(__name__)

__all__ = ["MULTIMODAL_REGISTRY"]
