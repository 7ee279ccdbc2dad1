"""Pixtral and Mistral 3 against Transformers: images of any size, their rows apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
)
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, greedy, randomize, run, which_keep
from media_pictures import TEXT, levels, picture, shuffled
from octavo.inputs.media import read_settings
from octavo.layers.vision import normalised
from octavo_plugins.models.pixtral.inputs import pixels
from octavo_plugins.models.pixtral.vision import DEFAULTS, AxialAngles, PixtralEncoder
from octavo_registry import OctavoError
from octavo_registry.modalities import MediaItem
from octavo_registry.model import ModelSpec

BREAK, END, IMAGE = 148, 149, 150
PATCH, LONGEST = 4, 40
PICTURES = [picture(*size) for size in ((16, 16), (23, 38), (90, 31), (200, 8), (30, 24), (24, 30))]
PROMPTS = (
    ([5, IMAGE, 9, 11], [1]),
    ([IMAGE, 7, 8, IMAGE, 3, IMAGE], [0, 2, 3]),
    ([4, 5, 6, 7], []),
    ([3, IMAGE, IMAGE, 9], [4, 5]),
)
PROCESS: dict[str, Any] = {"size": {"longest_edge": LONGEST}, "image_std": [0.3, 0.25, 0.2]}
TOKENS = {
    "added_tokens_decoder": {
        str(BREAK): {"content": "[IMG_BREAK]"},
        str(END): {"content": "[IMG_END]"},
        str(IMAGE): {"content": "[IMG]"},
    }
}
VISION = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": LONGEST,
    "patch_size": PATCH,
}


def rows_of_tokens(height: int, width: int, step: int) -> list[int]:
    tokens = ([IMAGE] * (width // step) + [BREAK]) * (height // step)
    return [*tokens[:-1], END]


@pytest.fixture(scope="module", params=["pixtral", "mistral3"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[MediaCase], int]:
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(1)
    text = {**TEXT, "model_type": "mistral", "sliding_window": None, "head_dim": 16}
    given: dict[str, Any] = {"vision_config": VISION, "text_config": text}
    step, model = PATCH, None
    if request.param == "pixtral":
        config = LlavaConfig(
            **given,
            image_token_index=IMAGE,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        )
        model = LlavaForConditionalGeneration(config).eval()
    else:
        step = 2 * PATCH
        config = Mistral3Config(**given, image_token_index=IMAGE, tie_word_embeddings=False)
        model = Mistral3ForConditionalGeneration(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESS))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENS))
    process = PixtralImageProcessorPil(**PROCESS, patch_size={"height": step, "width": step})
    cases = []
    for ids, which in PROMPTS:
        chosen = [PICTURES[i] for i in which]
        inputs: dict[str, Any] = dict(process(chosen, return_tensors="pt")) if chosen else {}
        sizes = iter(inputs.get("image_sizes", torch.empty(0)).tolist())
        tokens = [
            each
            for token in ids
            for each in (rows_of_tokens(*next(sizes), step) if token == IMAGE else [token])
        ]
        media = {"image": chosen} if chosen else {}
        expected = greedy(model, tokens, **inputs)
        cases.append(MediaCase(token_ids=ids, media=media, expected=expected))
    return folder, cases, step


def test_tokens_are_those_of_transformers_in_every_way_of_running(made, device) -> None:
    folder, cases, _ = made
    check_equal(folder, cases, most_rows=100, device=device)


def test_swapped_images_and_shuffled_patches_are_noticed(made) -> None:
    folder, cases, step = made
    first, second = cases[3].media["image"]
    pairs = ([first, second], [second, first], [shuffled(first, step), second])
    changed = [(cases[3], {"image": pair}) for pair in pairs]
    assert which_keep(folder, changed) == [True, False, False]


def test_pixels_are_those_of_the_processor_within_a_grey_level(made) -> None:
    folder, _, step = made
    settings = read_settings(folder, json.loads((folder / "config.json").read_text()))
    process = PixtralImageProcessorPil(**PROCESS, patch_size={"height": step, "width": step})
    for image in PICTURES:
        item = MediaItem(modality="image", value=image, content_hash="")
        found = pixels("image", item, settings)
        whole = normalised(found["pixels"], *found["scale"], torch.float32)
        expected = process(image, return_tensors="pt")["pixel_values"]
        assert whole.shape == expected.shape
        assert levels(whole, expected, PROCESS["image_std"]) <= 1


def test_swapped_axes_of_the_encoder_are_noticed(made, monkeypatch) -> None:
    folder, cases, _ = made
    turned = AxialAngles._of

    def swapped(self: AxialAngles, grid: tuple[int, int]) -> torch.Tensor:
        rows, columns = turned(self, grid).chunk(2, dim=-1)
        return torch.cat([columns, rows], dim=-1)

    monkeypatch.setattr(AxialAngles, "_of", swapped)
    (output,) = run(folder, [cases[3]])
    assert list(output.outputs[0].token_ids) != cases[3].expected


@torch.inference_mode()
def test_states_of_several_layers_stand_side_by_side() -> None:
    spec = ModelSpec(
        architecture="Test",
        config={**DEFAULTS, **VISION, "rope_parameters": {"rope_theta": 10000.0}},
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_model_len=64,
    )
    deep = PixtralEncoder("tower", spec, [0, 1, 2])
    for parameter in deep.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    images = [torch.randn(1, 3, 8, 12), torch.randn(1, 3, 16, 8)]
    alone = []
    for layer in range(1, 3):
        tower = PixtralEncoder("tower", spec, [layer])
        tower.load_state_dict({name: deep.state_dict()[name] for name in tower.state_dict()})
        alone.append(tower(images))
    first_PD, *others = deep(images).chunk(3, dim=-1)
    torch.testing.assert_close(others, alone)
    assert not torch.equal(first_PD, others[0])


def test_tokens_of_images_are_found_in_files_old_and_new(tmp_path) -> None:
    added = [{"id": BREAK, "content": "[IMG_BREAK]"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    settings = read_settings(tmp_path, {})
    assert settings.token_id("[IMG_BREAK]") == BREAK
    with pytest.raises(OctavoError, match=r"no token '\[IMG_END\]'"):
        settings.token_id("[IMG_END]")


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(made, tmp_path) -> None:
    check_adapted(*made[:2], tmp_path)
