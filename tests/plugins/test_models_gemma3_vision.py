"""Gemma 3 with images against Transformers: what is of one image sees all of it, never split."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, PreTrainedTokenizerFast
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, greedy, randomize, run
from octavo.scheduling.media import MediaScheduler
from octavo_plugins.models.gemma3_vision import inputs
from octavo_registry.modalities import MediaItem, MediaSettings

BEGIN, END, IMAGE = 148, 149, 150
ROWS = 9
SIDE = 48
SIZES = ((48, 48), (40, 77), (90, 31), (300, 28))
PROMPTS = (
    ([5, BEGIN, IMAGE, END, 9, 11], [0]),
    ([BEGIN, IMAGE, END, 7, 8, BEGIN, IMAGE, END, 3], [1, 2]),
    ([4, 5, 6, 7, 8, 9, 10, BEGIN, IMAGE], [3]),
    ([4, 5, 6, 7], []),
)
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": 8,
    "vision_use_head": False,
}
PLAIN = {"rope_type": "default"}
TEXT = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "max_position_embeddings": 512,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
        "sliding_attention": {**PLAIN, "rope_theta": 100.0},
    },
}
TOKENS = {"boi_token_index": BEGIN, "eoi_token_index": END, "image_token_index": IMAGE}
SETTINGS = MediaSettings(
    config={"vision_config": VISION, "mm_tokens_per_image": ROWS, **TOKENS}, processors={}
)


def picture(height: int, width: int) -> Image.Image:
    rng = np.random.default_rng((height, width))
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def process() -> Gemma3ImageProcessorPil:
    return Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE})


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, process) -> tuple[Path, list[MediaCase]]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("gemma3_vision")
    config = Gemma3Config(
        vision_config=VISION, text_config=TEXT, mm_tokens_per_image=ROWS, **TOKENS
    )
    model = Gemma3ForConditionalGeneration(config).eval()
    randomize(model)
    # Tied embeddings as large as what the layers add would say the last token again.
    model.get_input_embeddings().weight.data.mul_(0.1)
    model.save_pretrained(folder)
    found = []
    for ids, which in PROMPTS:
        chosen = [picture(*SIZES[i]) for i in which]
        expanded = [each for token in ids for each in [token] * (ROWS if token == IMAGE else 1)]
        given = {}
        if chosen:
            given["pixel_values"] = process(chosen, return_tensors="pt")["pixel_values"]
            given["token_type_ids"] = (torch.tensor([expanded]) == IMAGE).int()
        expected = greedy(model, expanded, **given)
        media = {"image": chosen} if chosen else {}
        found.append(MediaCase(token_ids=ids, media=media, expected=expected))
    return folder, found


def test_tokens_are_those_of_transformers_in_every_way_of_running(cases, device) -> None:
    folder, found = cases
    check_equal(folder, found, most_rows=ROWS, num_groups=3, device=device)


@pytest.mark.parametrize("budget", [1, 2, 3, 8, 9, 10, 13])
def test_an_image_is_never_split_however_few_tokens_a_step_may_have(cases, budget) -> None:
    folder, found = cases
    outputs = run(folder, found, passes=2, max_num_batched_tokens=budget, max_num_seqs=budget)
    assert [list(each.outputs[0].token_ids) for each in outputs] == [
        case.expected for case in found
    ]


def test_images_that_see_only_what_is_before_them_are_noticed(cases, monkeypatch) -> None:
    folder, found = cases
    monkeypatch.setattr(MediaScheduler, "cuts", lambda *_: None)
    outputs = run(folder, found[:3], passes=1)
    assert all(
        list(each.outputs[0].token_ids) != case.expected
        for each, case in zip(outputs, found[:3], strict=True)
    )


def test_the_first_checkpoints_have_other_names_and_leave_out_defaults(cases, tmp_path) -> None:
    folder, found = cases
    config = json.loads((folder / "config.json").read_text())
    del config["text_config"]["rms_norm_eps"], config["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    renamed = {
        name.replace("vision_tower.", "vision_tower.vision_model."): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    assert "language_model.model.embed_tokens.weight" in renamed
    assert "vision_tower.vision_model.post_layernorm.weight" in renamed
    save_file(renamed, tmp_path / "model.safetensors")
    (output,) = run(tmp_path, found[1:2], passes=1)
    assert list(output.outputs[0].token_ids) == found[1].expected


def test_swapped_images_are_another_prompt(cases) -> None:
    folder, found = cases
    swapped = replace(found[1], media={"image": found[1].media["image"][::-1]})
    (output,) = run(folder, [swapped], passes=1)
    assert list(output.outputs[0].token_ids) != found[1].expected


def test_a_backend_that_is_causal_only_is_refused_by_name(cases) -> None:
    folder, found = cases
    with pytest.raises(Exception, match=r"'paged'.*name 'torch'"):
        run(folder, found[:1], passes=1, attention_backend="paged", block_size=16)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_the_models_own_processor(process, size) -> None:
    image = picture(*size)
    made = inputs.pixels(
        "image", MediaItem(modality="image", value=image, content_hash=""), SETTINGS
    )
    (expected,) = process(image, return_tensors="pt")["pixel_values"]
    assert np.abs((expected.numpy() * 0.5 + 0.5) * 255 - made["pixels"].numpy()).max() <= 1


def test_colours_are_scaled_as_the_folder_says_or_around_grey() -> None:
    item = MediaItem(modality="image", value=picture(*SIZES[0]), content_hash="")
    usual = inputs.pixels("image", item, SETTINGS)["scale"]
    assert usual.flatten().tolist() == [0.5] * 6
    scale = {"image_mean": [0.25, 0.5, 0.75], "image_std": [0.5, 0.25, 0.125]}
    other = replace(SETTINGS, processors={"image": scale})
    found = inputs.pixels("image", item, other)["scale"]
    assert found.flatten().tolist() == [*scale["image_mean"], *scale["image_std"]]


def test_begin_tokens_become_whole_images_between_empty_lines() -> None:
    vocab = {"\n" * count: count for count in range(1, 8)} | {"a": 20, "b": 21}
    merges = [
        ("\n" * (total - second), "\n" * second)
        for total in range(2, 8)
        for second in range(1, total)
    ]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("a", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)

    def encode(text: str) -> list[int]:
        return list(fast.encode(text, add_special_tokens=False))

    settings = replace(SETTINGS, encode_text=encode)
    frame = [BEGIN, IMAGE, END]
    assert inputs.framed([20, BEGIN, 21], settings) == [20, 2, *frame, 2, 21]
    assert inputs.framed([1, BEGIN, 1, 20, 2], settings) == [3, *frame, 3, 20, 2]
    assert inputs.framed([BEGIN, BEGIN], settings) == [2, *frame, 4, *frame, 2]
    assert inputs.framed([20, 1, 21], settings) == [20, 1, 21]


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(cases, tmp_path) -> None:
    check_adapted(*cases, tmp_path)
