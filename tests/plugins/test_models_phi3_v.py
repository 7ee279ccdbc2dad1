"""Phi 3.5 vision against the published architecture, in plain torch around a CLIP and a Phi 3."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
)

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, greedy_from_rows, randomize, which_keep
from media_pictures import TEXT, VISION, picture, shuffled
from octavo import LLM, SamplingParams
from octavo.errors import PromptError
from octavo.inputs.media import read_settings
from octavo_plugins.models.phi3_v.inputs import pixels
from octavo_registry.modalities import MediaItem

IMAGE, TILE, MOST = 150, 28, 4
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
PICTURES = [picture(*size) for size in ((28, 28), (23, 38), (90, 31), (14, 110), (60, 45))]
PROMPTS = (
    ([5, IMAGE, 9, 11], [1]),
    ([IMAGE, 7, 8, IMAGE, 3, IMAGE], [0, 2, 3]),
    ([4, 5, 6, 7], []),
    ([3, IMAGE, IMAGE, 9], [4, 1]),
)
WIDTH = VISION["hidden_size"]


class Reference(nn.Module):
    """Its parts, and how images become embeddings; one at a time."""

    def __init__(self) -> None:
        super().__init__()
        settings = {**TEXT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        self.language = Phi3ForCausalLM(Phi3Config(**settings, tie_word_embeddings=False)).eval()
        self.clip = CLIPVisionModel(CLIPVisionConfig(**VISION)).eval()
        self.projection = nn.Sequential(
            nn.Linear(4 * WIDTH, TEXT["hidden_size"]),
            nn.GELU(),
            nn.Linear(TEXT["hidden_size"], TEXT["hidden_size"]),
        )
        self.separator = nn.Parameter(torch.randn(1, 1, 4 * WIDTH))
        self.newline = nn.Parameter(torch.randn(1, 1, 1, 4 * WIDTH))

    def lines(self, tiles: Tensor, down: int, across: int) -> list[Tensor]:
        rows = []
        for row in range(4 * down // 2):
            for column in range(4 * across // 2):
                tile = tiles[(row // 2) * across + column // 2].view(4, 4, WIDTH)
                top, left = 2 * (row % 2), 2 * (column % 2)
                rows.append(tile[top : top + 2, left : left + 2].flatten())
            rows.append(self.newline.flatten())
        return rows

    def embeddings(self, image: Image.Image) -> Tensor:
        canvas = torch.from_numpy(np.asarray(on_canvas(image)) / 255.0).float()
        canvas = ((canvas - torch.tensor(MEAN)) / torch.tensor(STD)).permute(2, 0, 1)
        down, across = canvas.shape[1] // TILE, canvas.shape[2] // TILE
        whole = F.interpolate(canvas[None], (TILE, TILE), mode="bicubic", align_corners=False)
        tiles = [
            canvas[:, TILE * row : TILE * (row + 1), TILE * column : TILE * (column + 1)]
            for row in range(down)
            for column in range(across)
        ]
        states = self.clip(torch.stack([whole[0], *tiles]), output_hidden_states=True)
        features = states.hidden_states[-2][:, 1:]
        rows = self.lines(features[1:], down, across)
        rows += [self.separator.flatten(), *self.lines(features[:1], 1, 1)]
        result: Tensor = self.projection(torch.stack(rows))
        return result

    @torch.no_grad()
    def greedy(self, ids: list[int], images: list[Image.Image]) -> list[int]:
        return greedy_from_rows(self.language, ids, IMAGE, map(self.embeddings, images))

    def save(self, folder: Path) -> None:
        name = "model.vision_embed_tokens"
        tensors = {**self.language.state_dict()}
        for key, tensor in self.clip.state_dict().items():
            key = key.removeprefix("vision_model.")
            tensors[f"{name}.img_processor.vision_model.{key}"] = tensor
        for key, tensor in self.projection.state_dict().items():
            tensors[f"{name}.img_projection.{key}"] = tensor
        tensors[f"{name}.glb_GN"] = self.separator.data
        tensors[f"{name}.sub_GN"] = self.newline.data
        save_file(
            {key: tensor.contiguous().clone() for key, tensor in tensors.items()},
            folder / "model.safetensors",
            {"format": "pt"},
        )
        config = self.language.config.to_dict()
        config |= {"architectures": ["Phi3VForCausalLM"], "model_type": "phi3_v"}
        config |= {"img_processor": VISION, "image_token_id": IMAGE}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "preprocessor_config.json").write_text(json.dumps({"num_crops": MOST}))


def on_canvas(image: Image.Image) -> Image.Image:
    """The image over as many tiles as there may be, white above and below, or beside it."""
    turns = image.width < image.height
    lying = image.transpose(Image.Transpose.TRANSPOSE) if turns else image
    ratio = lying.width / lying.height
    across = max(n for n in range(1, MOST + 1) if n * math.ceil(n / ratio) <= MOST)
    height = int(across * TILE / ratio)
    resized = np.asarray(lying.resize((across * TILE, height), Image.Resampling.BILINEAR))
    missing = -height % TILE
    padding = ((missing // 2, missing - missing // 2), (0, 0), (0, 0))
    canvas = Image.fromarray(np.pad(resized, padding, constant_values=255))
    return canvas.transpose(Image.Transpose.TRANSPOSE) if turns else canvas


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[MediaCase]]:
    folder = tmp_path_factory.mktemp("phi3_v")
    torch.manual_seed(1)
    model = Reference()
    randomize(model, 0.25)
    model.save(folder)
    cases = []
    for ids, which in PROMPTS:
        chosen = [PICTURES[i] for i in which]
        media: dict[str, list[Any]] = {"image": chosen} if chosen else {}
        expected = model.greedy(ids, chosen)
        cases.append(MediaCase(token_ids=ids, media=media, expected=expected))
    return folder, cases


def test_tokens_are_those_of_the_reference_in_every_way_of_running(made, device) -> None:
    check_equal(*made, most_rows=4 * 5 + 1 + 6, device=device)


def test_swapped_images_and_shuffled_patches_are_noticed(made) -> None:
    folder, cases = made
    first, second = cases[3].media["image"]
    pairs = ([first, second], [second, first], [shuffled(first, 14), second])
    changed = [(cases[3], {"image": pair}) for pair in pairs]
    assert which_keep(folder, changed) == [True, False, False]


def test_numbers_in_a_prompt_say_which_image_stands_there(made, tmp_path) -> None:
    folder = shutil.copytree(made[0], tmp_path / "model")
    letters = Tokenizer(models.BPE(vocab={"a": 5, "b": 6}, merges=[]))
    PreTrainedTokenizerFast(tokenizer_object=letters).save_pretrained(folder)
    images = [PICTURES[1], PICTURES[4]]
    turned = {"image": images[::-1]}
    given = {"image": images}
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    settings = {"dtype": "float32", "num_threads": 1, "kv_cache_memory_gib": 0.01}
    with LLM(str(folder), **settings) as llm:
        by_number, by_order, other = llm.generate(
            [
                {"prompt": "a<|image_2|>b<|image_1|>a", "multi_modal_data": given},
                {"prompt_token_ids": [5, IMAGE, 6, IMAGE, 5], "multi_modal_data": turned},
                {"prompt": "a<|image_1|>b<|image_2|>a", "multi_modal_data": given},
            ],
            params,
            use_tqdm=False,
        )
        for prompt, problem in (
            ("a<|image_3|>", r"has <\|image_3\|> for 2 images; name each once, from 1"),
            ("<|image_1|><|image_1|>", "name each once"),
            ("<|image_1|>", "name each once"),
        ):
            with pytest.raises(PromptError, match=problem):
                llm.generate({"prompt": prompt, "multi_modal_data": given}, params, use_tqdm=False)
        with pytest.raises(PromptError, match=r"has <\|image_1\|> for 0 images"):
            llm.generate("a<|image_1|>", params, use_tqdm=False)
    assert by_number.prompt_token_ids == by_order.prompt_token_ids
    assert by_number.outputs[0].token_ids == by_order.outputs[0].token_ids
    assert by_number.outputs[0].token_ids != other.outputs[0].token_ids


@pytest.mark.parametrize("image", PICTURES, ids=lambda each: f"{each.height}x{each.width}")
def test_the_canvas_is_that_of_the_published_transformation(made, image) -> None:
    folder, _ = made
    settings = read_settings(folder, json.loads((folder / "config.json").read_text()))
    item = MediaItem(modality="image", value=image, content_hash="")
    found = pixels("image", item, settings)["pixels"][0].permute(1, 2, 0)
    assert np.array_equal(found, np.asarray(on_canvas(image)))


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(made, tmp_path) -> None:
    def load(folder: Path) -> Phi3ForCausalLM:
        language = Reference().language
        tensors = load_file(folder / "model.safetensors")
        language.load_state_dict({name: tensors[name] for name in language.state_dict()})
        return language

    def save(language: Phi3ForCausalLM, folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors") | language.state_dict()
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    check_adapted(*made, tmp_path, load, save)
