"""LLaVA-NeXT against Transformers: tiles of images of all shapes, in every way of running."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, greedy, randomize, run, which_keep
from media_pictures import TEXT, VISION, expanded, levels, picture, shuffled
from octavo.inputs.media import read_settings
from octavo.layers.vision import normalised
from octavo_plugins.models.llava_next.canvas import best_canvas
from octavo_plugins.models.llava_next.inputs import pixels
from octavo_plugins.models.llava_next.model import LlavaNext
from octavo_registry.modalities import MediaItem

IMAGE = 150
CANVASES = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
PICTURES = [
    picture(*size) for size in ((28, 28), (40, 77), (90, 31), (200, 28), (20, 61), (57, 50))
]
PROMPTS = (
    ([5, IMAGE, 9, 11], [1]),
    ([IMAGE, 7, 8, IMAGE, 3, IMAGE], [0, 2, 3]),
    ([4, 5, 6, 7], []),
    ([3, IMAGE, IMAGE, 9], [4, 5]),
)
PROCESS: dict[str, Any] = {
    "size": {"shortest_edge": 28},
    "crop_size": {"height": 28, "width": 28},
    "image_grid_pinpoints": CANVASES,
    "image_std": [0.3, 0.25, 0.2],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[MediaCase]]:
    folder = tmp_path_factory.mktemp("llava_next")
    torch.manual_seed(1)
    config = LlavaNextConfig(
        vision_config={**VISION, "model_type": "clip_vision_model"},
        text_config={**TEXT, "model_type": "mistral", "sliding_window": None},
        image_token_index=IMAGE,
        image_grid_pinpoints=CANVASES,
    )
    model = LlavaNextForConditionalGeneration(config).eval()
    randomize(model)
    torch.nn.init.normal_(model.model.image_newline, std=0.5)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESS))
    process = LlavaNextImageProcessorPil(**PROCESS)
    cases = []
    for ids, which in PROMPTS:
        chosen = [PICTURES[i] for i in which]
        inputs: dict[str, Any] = dict(process(chosen, return_tensors="pt")) if chosen else {}
        counts = []
        if chosen:
            with torch.no_grad():
                features = model.model.get_image_features(**inputs).pooler_output
            counts = [len(each) for each in features]
        expected = greedy(model, expanded(ids, {IMAGE: counts}), **inputs)
        media = {"image": chosen} if chosen else {}
        cases.append(MediaCase(token_ids=ids, media=media, expected=expected))
    return folder, cases


def test_tokens_are_those_of_transformers_in_every_way_of_running(made, device) -> None:
    check_equal(*made, most_rows=16 + 8 * 9, device=device)


def test_swapped_images_and_shuffled_patches_are_noticed(made) -> None:
    folder, cases = made
    first, second = cases[3].media["image"]
    pairs = ([first, second], [second, first], [first, shuffled(second, 7)])
    changed = [(cases[3], {"image": pair}) for pair in pairs]
    assert which_keep(folder, changed) == [True, False, False]


def test_tiles_in_another_order_are_noticed(made, monkeypatch) -> None:
    folder, cases = made
    picture_of = LlavaNext.picture
    monkeypatch.setattr(
        LlavaNext, "picture", lambda self, item, rows: picture_of(self, item, rows.flip(0))
    )
    (output,) = run(folder, [cases[3]])
    assert list(output.outputs[0].token_ids) != cases[3].expected


@pytest.mark.parametrize("age", ["first", "newest"])
def test_checkpoints_of_all_ages_are_read(made, tmp_path, age) -> None:
    folder, cases = made
    names = {
        "language_model.model.": "model.language_model.",
        "language_model.lm_head.": "lm_head.",
        "vision_tower.vision_model.": "model.vision_tower.",
        "multi_modal_projector.": "model.multi_modal_projector.",
        "image_newline": "model.image_newline",
    }
    if age == "first":
        names = {new: old for old, new in names.items()}
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        known = next((old for old in names if name.startswith(old)), None)
        tensors[name if known is None else names[known] + name.removeprefix(known)] = tensor
    expected = "language_model.model." if age == "first" else "model.language_model."
    assert any(name.startswith(expected) for name in tensors)
    shutil.copytree(folder, tmp_path / "model")
    save_file(tensors, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    (output,) = run(tmp_path / "model", [cases[3]])
    assert list(output.outputs[0].token_ids) == cases[3].expected


@pytest.mark.parametrize("image", PICTURES, ids=lambda each: f"{each.height}x{each.width}")
def test_tiles_are_those_of_the_processor_within_a_grey_level(made, image) -> None:
    folder, _ = made
    config = json.loads((folder / "config.json").read_text())
    item = MediaItem(modality="image", value=image, content_hash="")
    found = pixels("image", item, read_settings(folder, config))
    tiles = normalised(found["pixels"], *found["scale"], torch.float32)
    expected = LlavaNextImageProcessorPil(**PROCESS)(image, return_tensors="pt")
    assert tiles.shape == expected["pixel_values"][0].shape
    assert levels(tiles, expected["pixel_values"][0], PROCESS["image_std"]) <= 1


def test_the_canvas_wastes_least_among_those_that_keep_most() -> None:
    canvases = [(100, 300), (300, 100), (200, 200), (100, 200)]
    assert best_canvas((50, 100), canvases) == (100, 200)
    assert best_canvas((400, 100), canvases) == (300, 100)
    assert best_canvas((150, 160), canvases) == (200, 200)


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(made, tmp_path) -> None:
    check_adapted(*made, tmp_path)
