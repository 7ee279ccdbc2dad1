"""The plugin of octavo/tiny-omni against the plain model that it is trained with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from examples.train_tiny.chat import Chat, Piece, Turn, render
from examples.train_tiny_omni.batches import Line
from examples.train_tiny_omni.clips import Clip, draw_clip
from examples.train_tiny_omni.corpus import AUDIO, IMAGE, VIDEO, Document, Drawn, held_out
from examples.train_tiny_omni.evaluate import items, messages
from examples.train_tiny_omni.features import RATE
from examples.train_tiny_omni.files import CLIPS, PICTURES, SOUNDS
from examples.train_tiny_omni.model import EncoderConfig, Omni, OmniConfig
from examples.train_tiny_omni.pictures import Figure, Picture, draw_picture
from examples.train_tiny_omni.sounds import Sound, draw_sound
from examples.train_tiny_omni.train import save, save_tokenizer
from PIL import Image
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from media_equality import NUM_TOKENS, MediaCase, check_equal, randomize, which_keep
from octavo import LLM, SamplingParams
from octavo.errors import PromptError
from octavo.execution.worker import Worker
from octavo.model_folder import open_model
from octavo_plugins.models.tiny_omni.inputs import tensors
from octavo_plugins.models.tiny_omni.model import Eye
from octavo_registry import PluginHost
from octavo_registry.modalities import AudioClip, MediaItem, MediaSettings, VideoClip
from octavo_registry.model import ModelSpec
from plan_equality import config_of

SMALL = EncoderConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2
)
CONFIG = OmniConfig(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    head_dim=16,
    vision=SMALL,
    audio=SMALL,
)
LONGEST = 8 * 9
"""Rows of a clip of all frames."""


def drawn() -> dict[str, Drawn]:
    rng = np.random.default_rng(5)
    red, blue = Figure("star", "red"), Figure("ring", "blue")
    short, long = (draw_clip(rng, red, False, whole=True) for _ in range(2))
    return {
        "picture": draw_picture(rng, red, False),
        "thin picture": Picture(blue, Image.new("RGB", (3, 900), "green"), (0.0, 0.0)),
        "other picture": draw_picture(rng, blue, False),
        "clip": replace(short, pictures=short.pictures[:3]),
        "long clip": replace(long, pictures=(long.pictures * 8)[:19]),
        "sound": sound(rng),
        "other sound": sound(rng),
    }


def sound(rng: np.random.Generator) -> Sound:
    """One that 16 bits hold, as training keeps it."""
    drawn = draw_sound(rng, False, RATE)
    return replace(drawn, samples_S=np.rint(drawn.samples_S * 32767).astype(np.float32) / 32767)


PROMPTS = (
    (f"a{IMAGE}b", ["picture"]),
    (f"{IMAGE}c{IMAGE}", ["thin picture", "other picture"]),
    (f"{AUDIO}{VIDEO} d {IMAGE}", ["sound", "clip", "picture"]),
    (f"{VIDEO}e", ["long clip"]),
    (f"{AUDIO}f{AUDIO}", ["other sound", "sound"]),
    ("words alone", []),
)


def given(item: Drawn) -> tuple[str, object]:
    """An item as a user gives it, by modality."""
    if isinstance(item, Clip):
        return "video", item.frames
    if isinstance(item, Sound):
        return "audio", (item.samples_S, item.rate)
    return "image", item.image


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[MediaCase]]:
    folder = tmp_path_factory.mktemp("omni")
    tokenizer = save_tokenizer(folder)
    torch.manual_seed(0)
    model = Omni(CONFIG)
    randomize(model)
    for part in (model.vision, model.audio, model.frames):
        randomize(part, scale=0.4)  # so that what is seen and heard decides
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    save(model, folder)
    known, found = drawn(), []
    for text, names in PROMPTS:
        media: dict[str, list[object]] = {}
        for name in names:
            modality, value = given(known[name])
            media.setdefault(modality, []).append(value)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        expected = greedy(model, tokenizer, text, [known[name] for name in names])
        found.append(MediaCase(token_ids=ids, media=media, expected=expected))
    return folder, found


@torch.no_grad()
def greedy(model: Omni, tokenizer: Tokenizer, text: str, seen: list[Drawn]) -> list[int]:
    line = Line(tokenizer, 1024)
    assert line.add(Document([Piece(text, learn=False)], seen))
    batch, tokens = line.batch(), list(line.ids)
    for _ in range(NUM_TOKENS):
        size = len(tokens)
        step = replace(
            batch,
            ids_T=torch.tensor(tokens),
            positions_T=torch.arange(size),
            borders=torch.tensor([0, size]),
        )
        tokens.append(int(model(step).logits_TV[-1].argmax()))
    return tokens[-NUM_TOKENS:]


def test_tokens_are_those_of_the_training_model_in_every_way_of_running(cases, device) -> None:
    folder, found = cases
    check_equal(folder, found, most_rows=LONGEST, device=device)


def test_the_rows_are_those_of_the_training_model(cases) -> None:
    folder, _ = cases
    host = PluginHost.discover()
    config = config_of(folder, dtype="float32", kv_cache_memory_gib=0.01)
    worker = Worker(config, open_model(config.model, host), host)
    worker.start()
    encoder = worker.runner.model
    settings = MediaSettings(config=json.loads((folder / "config.json").read_text()), processors={})
    line = Line(Tokenizer.from_file(str(folder / "tokenizer.json")), 1024)
    seen = [drawn()[name] for name in ("sound", "clip", "picture", "other sound", "long clip")]
    places = {Clip: VIDEO, Sound: AUDIO, Picture: IMAGE}
    line.add(Document([Piece("".join(places[type(item)] for item in seen), False)], seen))
    with torch.no_grad():
        expected = trained(folder)(line.batch())
    rows = encoder.encode([taken(item, settings) for item in seen])
    sounds, pictures = [rows[0], rows[3]], [rows[1], rows[2], rows[4]]
    torch.testing.assert_close(torch.stack(sounds), expected.heard_NRD, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(
        torch.cat(pictures), expected.seen_NRD.flatten(0, 1), atol=1e-3, rtol=1e-3
    )


def trained(folder: Path) -> Omni:
    """The training model with the weights that were saved."""
    model = Omni(CONFIG)
    model.load_state_dict(
        {name: each.float() for name, each in load_file(folder / "model.safetensors").items()}
    )
    return model


def taken(item: Drawn, settings: MediaSettings) -> Mapping[str, Tensor]:
    """What the plugin makes of an item."""
    modality, value = given(item)
    if isinstance(item, Clip):
        value = VideoClip(frames=np.stack([np.asarray(frame) for frame in item.frames]))
    elif isinstance(item, Sound):
        value = AudioClip(samples=item.samples_S, rate=item.rate)
    return tensors(modality, MediaItem(modality=modality, value=value, content_hash=""), settings)


def test_what_stands_where_decides_the_tokens(cases) -> None:
    folder, found = cases
    picture, pair, mixed, clip, sounds, _ = found
    samples, rate = sounds.media["audio"][0]
    changed = [
        (picture, {"image": [picture.media["image"][0].transpose(Image.Transpose.ROTATE_180)]}),
        (pair, {"image": pair.media["image"][::-1]}),
        (mixed, {**mixed.media, "video": clip.media["video"]}),
        (clip, {"video": mixed.media["video"]}),
        (sounds, {"audio": sounds.media["audio"][::-1]}),
        (sounds, {"audio": [(samples[::2], rate), sounds.media["audio"][1]]}),
    ]
    assert which_keep(folder, changed) == [False] * len(changed)


@pytest.fixture(scope="module")
def llm(cases) -> Iterator[LLM]:
    with LLM(str(cases[0]), dtype="float32", num_threads=1, kv_cache_memory_gib=0.05) as llm:
        yield llm


def test_files_of_all_formats_have_as_many_rows_as_in_training(cases, llm: LLM) -> None:
    tokenizer = Tokenizer.from_file(str(cases[0] / "tokenizer.json"))
    counts = {"picture": 4, "pictures": 1, "clip": 4, "sound": 4, "about": 1}
    asked, expected = list(items(counts)), []
    for media, question in held_out(counts):
        text = "".join(media.places if media else []) + question.text
        line = Line(tokenizer, 1024)
        line.add(
            Document(
                render(Chat([Turn("user", text), Turn("assistant", "")])),
                media.items if media else (),
            )
        )
        expected.append(len(line.ids) - 1)  # without the end of the answer
    files = {kind for item in asked for kind, _ in item.files}
    assert files == {*PICTURES, *CLIPS, *SOUNDS}
    params = SamplingParams(temperature=0.0, max_tokens=1)
    outputs = llm.chat([messages(item) for item in asked], params, use_tqdm=False)
    assert [len(output.prompt_token_ids) for output in outputs] == expected


def test_a_sound_that_is_too_long_is_refused(llm: LLM) -> None:
    short, long = (
        {"type": "audio", "audio": (np.zeros(seconds * 8000, np.float32), 8000)}
        for seconds in (1, 7)
    )
    problem = r"content\[1\] \(audio\): .* 7.00 seconds; this model hears 6.4: send it in parts"
    with pytest.raises(PromptError, match=problem):
        llm.chat([{"role": "user", "content": [short, long]}], use_tqdm=False)


def test_the_config_names_all_that_the_plugin_goes_by(cases) -> None:
    config = json.loads((cases[0] / "config.json").read_text())
    assert config["architectures"] == ["OctavoOmniForConditionalGeneration"]
    assert len({config[f"{name}_token_id"] for name in ("image", "video", "audio")}) == 3


@torch.inference_mode()
def test_pictures_of_four_places_are_seen_together_as_alone() -> None:
    config = {
        **{"image_size": 8, "channels": [4], "hidden_size": 8, "num_attention_heads": 2},
        **{"intermediate_size": 12, "num_hidden_layers": 2, "layer_norm_eps": 1e-5},
    }
    spec = ModelSpec(
        architecture="Test",
        config=config,
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_model_len=64,
    )
    eye = Eye("vision", spec, 16)
    for parameter in eye.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    pictures_NCHW = torch.randn(3, 3, 8, 8)
    together_NRD, alone_NRD = eye(pictures_NCHW), torch.cat([eye(p[None]) for p in pictures_NCHW])
    torch.testing.assert_close(together_NRD, alone_NRD)
