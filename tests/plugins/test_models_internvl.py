"""InternVL against Transformers: images in tiles between tokens of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import InternVLConfig, InternVLForConditionalGeneration
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, greedy, randomize, which_keep
from media_pictures import TEXT, clip, levels, picture, shuffled
from octavo.inputs.media import read_settings
from octavo.layers.vision import normalised
from octavo_plugins.models.internvl.inputs import pixels, tiling
from octavo_registry.modalities import MediaItem, VideoClip
from video_processors import frames_resized

START, END, IMAGE, VIDEO = 148, 149, 150, 151
LETTERS = {letter: 20 + place for place, letter in enumerate("Frame: \n0123456789")}
CLIPS = [clip(3, 30, 50), clip(1, 16, 16), clip(2, 40, 20)]
PICTURES = [picture(*size) for size in ((16, 16), (23, 38), (40, 31), (120, 14), (30, 60))]
PROMPTS = (
    ([5, IMAGE, 9, 11], [1]),
    ([IMAGE, 7, 8, IMAGE, 3, IMAGE], [0, 2, 3]),
    ([4, 5, 6, 7], []),
    ([3, IMAGE, IMAGE, 9], [1, 4]),
)
SIZE, PATCH, MOST = 16, 4, 4
PROCESS: dict[str, Any] = {
    "size": {"height": SIZE, "width": SIZE},
    "max_patches": MOST,
    "image_mean": [0.48, 0.45, 0.4],
    "image_std": [0.3, 0.25, 0.2],
}
TOKENS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "added_tokens_decoder": {
        str(START): {"content": "<img>"},
        str(END): {"content": "</img>"},
        str(IMAGE): {"content": "<IMG_CONTEXT>"},
        str(VIDEO): {"content": "<video>"},
    },
}
VARIANTS: dict[str, dict[str, Any]] = {
    "small": {"attention_bias": True},
    "large": {"norm_type": "rms_norm", "use_qk_norm": True, "use_mean_pooling": False},
}


@pytest.fixture(scope="module", params=VARIANTS)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[MediaCase]]:
    folder = tmp_path_factory.mktemp("internvl")
    torch.manual_seed(1)
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": [SIZE, SIZE],
        "patch_size": [PATCH, PATCH],
        "layer_scale_init_value": 0.7,
        **VARIANTS[request.param],
    }
    config = InternVLConfig(
        vision_config=vision,
        text_config={**TEXT, "model_type": "qwen2"},
        image_token_id=IMAGE,
        image_seq_length=4,
        tie_word_embeddings=request.param == "large",
    )
    model = InternVLForConditionalGeneration(config).eval()
    randomize(model, 0.2)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESS))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENS))
    letters = Tokenizer(models.BPE(vocab=LETTERS, merges=[]))
    letters.save(str(folder / "tokenizer.json"))
    process = GotOcr2ImageProcessorPil(**PROCESS, crop_to_patches=True)
    cases = [case_of_clips(model, ids, *which) for ids, *which in OF_CLIPS]
    for ids, which in PROMPTS:
        chosen = [PICTURES[i] for i in which]
        inputs: dict[str, Any] = dict(process(chosen, return_tensors="pt")) if chosen else {}
        counts = iter(inputs.pop("num_patches", torch.empty(0)).tolist())
        tokens = [
            each
            for token in ids
            for each in ([START, *[IMAGE] * 4 * next(counts), END] if token == IMAGE else [token])
        ]
        media = {"image": chosen} if chosen else {}
        expected = greedy(model, tokens, **inputs)
        cases.append(MediaCase(token_ids=ids, media=media, expected=expected))
    return folder, cases


OF_CLIPS: tuple[tuple[list[int], list[int], list[int]], ...] = (
    ([5, VIDEO, 9], [], [0]),
    ([VIDEO, 4, IMAGE, 9, VIDEO], [3], [1, 2]),
)


def case_of_clips(model: Any, ids: list[int], images: list[int], clips: list[int]) -> MediaCase:
    """Each frame is one tile, behind its number as text; the model takes all tiles as images."""
    tiles = GotOcr2ImageProcessorPil(**PROCESS, crop_to_patches=True)
    whole = GotOcr2ImageProcessorPil(**PROCESS, crop_to_patches=False)
    waiting = {IMAGE: iter(images), VIDEO: iter(clips)}
    tokens, pixels = [], []
    for token in ids:
        if token not in waiting:
            tokens.append(token)
            continue
        number = next(waiting[token])
        if token == IMAGE:
            pixels.append(tiles(PICTURES[number], return_tensors="pt")["pixel_values"])
            tokens += [START, *[IMAGE] * 4 * len(pixels[-1]), END]
            continue
        for place, frame in enumerate(frames_resized(CLIPS[number], SIZE, SIZE)):
            text = ("\n" if place else "") + f"Frame{place + 1}: "
            tokens += [*(LETTERS[letter] for letter in text), START, *[IMAGE] * 4, END]
            pixels.append(whole(frame, return_tensors="pt")["pixel_values"])
    media = {"image": [PICTURES[i] for i in images], "video": [CLIPS[i] for i in clips]}
    expected = greedy(model, tokens, pixel_values=torch.cat(pixels))
    given = {name: items for name, items in media.items() if items}
    return MediaCase(token_ids=ids, media=given, expected=expected)


def test_tokens_are_those_of_transformers_in_every_way_of_running(made, device) -> None:
    check_equal(*made, most_rows=20, skip_tokenizer_init=False, device=device)


def test_frames_in_another_order_are_another_prompt(made) -> None:
    folder, cases = made
    video = cases[0].media["video"][0]
    turned = VideoClip(frames=video.frames[::-1].copy(), timestamps=video.timestamps)
    changed = [(cases[0], {"video": [each]}) for each in (video, turned)]
    assert which_keep(folder, changed, skip_tokenizer_init=False) == [True, False]


def test_swapped_images_and_shuffled_patches_are_noticed(made) -> None:
    folder, cases = made
    case = cases[len(OF_CLIPS) + 3]
    first, second = case.media["image"]
    pairs = ([first, second], [second, first], [first, shuffled(second, 16)])
    changed = [(case, {"image": pair}) for pair in pairs]
    assert which_keep(folder, changed) == [True, False, False]


def test_tiles_are_those_of_the_processor_within_a_grey_level(made) -> None:
    folder, _ = made
    settings = read_settings(folder, json.loads((folder / "config.json").read_text()))
    for image in PICTURES:
        item = MediaItem(modality="image", value=image, content_hash="")
        found = pixels("image", item, settings)
        tiles = normalised(found["pixels"], *found["scale"], torch.float32)
        process = GotOcr2ImageProcessorPil(**PROCESS, crop_to_patches=True)
        expected = process(image, return_tensors="pt")["pixel_values"]
        assert tiles.shape == expected.shape
        assert levels(tiles, expected, PROCESS["image_std"]) <= 1


def test_of_two_tilings_of_one_shape_the_larger_is_for_larger_images() -> None:
    assert tiling(100, 200, (448, 448), 1, 12) == (1, 2)
    assert tiling(1000, 2000, (448, 448), 1, 12) == (2, 4)
    assert tiling(448, 4480, (448, 448), 1, 12) == (1, 10)
    assert tiling(448, 448, (448, 448), 2, 12) == (2, 2)


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(made, tmp_path) -> None:
    check_adapted(*made, tmp_path, skip_tokenizer_init=False)
