"""LLaVA against Transformers: several images, odd sizes, text beside them, every way of running."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessor, LlavaConfig, LlavaForConditionalGeneration

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, check_every_cut, greedy, randomize, run
from media_pictures import TEXT, VISION
from octavo.config.media import MediaConfig
from octavo.errors import AdapterError, BadRequestError
from octavo.inputs.media import MediaInputs
from octavo.inputs.media_parts import take_media
from octavo_registry import PluginHost
from octavo_registry.modalities import MediaSettings
from peft_adapters import save_adapter

IMAGE = 150
SIZES = ((28, 28), (40, 77), (90, 31), (300, 28))
PROMPTS = (([5, IMAGE, 9, 11], [0]), ([IMAGE, 7, 8, IMAGE, 3], [1, 2]), ([4, 5, 6, 7], []))


def images() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [
        Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))
        for height, width in SIZES
    ]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[MediaCase]]:
    folder = tmp_path_factory.mktemp("llava")
    config = LlavaConfig(vision_config=VISION, text_config=TEXT, image_token_index=IMAGE)
    model = LlavaForConditionalGeneration(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    process = CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    pictures, found = images(), []
    for ids, which in PROMPTS:
        chosen = [pictures[i] for i in which]
        expanded = [each for token in ids for each in [token] * (16 if token == IMAGE else 1)]
        inputs: dict[str, Any] = {}
        if chosen:
            inputs["pixel_values"] = process(chosen, return_tensors="pt")["pixel_values"]
        media = {"image": chosen} if chosen else {}
        expected = greedy(model, expanded, **inputs)
        found.append(MediaCase(token_ids=ids, media=media, expected=expected))
    return folder, found


def test_tokens_are_those_of_transformers_in_every_way_of_running(cases, device) -> None:
    folder, found = cases
    check_equal(folder, found, most_rows=16, device=device)


def test_tokens_are_the_same_wherever_an_item_is_cut(cases) -> None:
    folder, found = cases
    check_every_cut(folder, found[0])


def test_rows_that_transformers_has_encoded_stand_in_for_their_pictures(cases) -> None:
    folder, found = cases
    model = LlavaForConditionalGeneration.from_pretrained(folder).eval()
    process = CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    given = []
    for case in found[:2]:
        pixels = process(case.media["image"], return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            rows = model.get_image_features(pixel_values=pixels).pooler_output
        given.append(replace(case, media={"image": rows}))  # of all items in one tensor
    other = replace(given[0], media={"image": given[0].media["image"][0].flip(0)})
    # Beside a picture that is encoded here.
    *outputs, picture, flipped = run(folder, [*given, found[1], other])
    assert list(picture.outputs[0].token_ids) == found[1].expected
    assert [list(each.outputs[0].token_ids) for each in outputs] == [
        case.expected for case in given
    ]
    assert list(flipped.outputs[0].token_ids) != other.expected


def test_a_model_that_takes_no_rows_refuses_them_by_name() -> None:
    name, settings = "LlavaNextForConditionalGeneration", MediaSettings(config={}, processors={})
    inputs = MediaInputs(name, settings, PluginHost.discover(), MediaConfig())
    part = {"type": "image_embeds", "image_embeds": torch.zeros(2, 64)}
    chat = [{"role": "user", "content": [part]}]
    _, media = take_media(chat, takes_embeds=True)
    with pytest.raises(BadRequestError, match=rf"{name} takes no rows .* give the image itself"):
        inputs.place([5], media)


def test_only_a_pixtral_s_pictures_may_have_a_size() -> None:
    registry = PluginHost.discover().multimodal
    kinds = {"clip_vision_model": {}, "pixtral": {"size": {"longest_edge": (1, 4096)}}}
    for kind, known in kinds.items():
        config = {"vision_config": {"model_type": kind}}
        assert registry.kwargs("LlavaForConditionalGeneration", config) == known


def test_another_picture_of_the_same_size_is_another_prompt(cases) -> None:
    folder, found = cases
    mirrored = found[0].media["image"][0].transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    other = MediaCase(
        token_ids=found[0].token_ids, media={"image": [mirrored]}, expected=found[0].expected
    )
    first, second = run(folder, [found[0], other])
    assert list(first.outputs[0].token_ids) == found[0].expected
    assert list(second.outputs[0].token_ids) != found[0].expected


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(cases, tmp_path) -> None:
    check_adapted(*cases, tmp_path)


def test_an_adapter_of_the_tower_is_refused_by_name(cases, tmp_path) -> None:
    folder, found = cases
    module = LlavaForConditionalGeneration.from_pretrained(folder)
    save_adapter(module, tmp_path, r=4, target_modules=["q_proj"])
    with pytest.raises(AdapterError, match=r"towers of media are not supported: .*vision_tower"):
        run(folder, [replace(found[0], adapter=str(tmp_path))], enable_lora=True)
