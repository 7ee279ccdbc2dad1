"""A LLaVA with random weights, a tokenizer and a chat template, for tests of media."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from tokenizers import AddedToken, Tokenizer
from transformers import LlavaConfig, LlavaForConditionalGeneration

from media_equality import randomize
from octavo.testing.tiny_tokenizer import make_tiny_tokenizer

ROWS = 16
"""Of each picture."""
SIZES = ((28, 28), (64, 40), (33, 90))


def picture(number: int) -> Image.Image:
    """Another one for each number."""
    rng = np.random.default_rng(number)
    return Image.fromarray(rng.integers(0, 255, (*SIZES[number % 3], 3), dtype=np.uint8))


def make_tiny_llava(folder: Path) -> None:
    """Write the model; ``<image>`` stands for a picture."""
    make_tiny_tokenizer(folder, vocab_size=300, max_length=512)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<image>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = LlavaConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 7,
        },
        text_config={
            "vocab_size": 320,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
        },
        image_token_index=tokenizer.token_to_id("<image>"),
    )
    model = LlavaForConditionalGeneration(config)
    randomize(model)
    model.save_pretrained(folder)
