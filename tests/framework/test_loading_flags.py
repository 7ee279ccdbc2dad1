"""Flags that say where a tokenizer comes from and what a model is not to see."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM
from octavo.config import EngineConfig, ModelConfig
from octavo.config.media import MediaConfig
from octavo.errors import BadRequestError, ConfigError, PromptError
from octavo.frontend.frontend import as_found, open_checked
from octavo.inputs.processor_kwargs import asked_by_request, asked_of_all, of_media_io
from octavo.model_folder import open_model
from octavo.model_folder.tokenizer import load_tokenizer
from octavo_registry import PluginHost

TINY = Path(__file__).parents[2] / "plugins/octavo_plugins/sources/embedded/tiny"
ASKED: list[tuple[str, str | None]] = []


class Recording:
    """A source that has every name, in any revision."""

    uses_network = False

    def find(self, name: str, *, revision: str | None) -> Path | None:
        ASKED.append((name, revision))
        return TINY


@pytest.fixture
def host() -> PluginHost:
    ASKED.clear()
    made = PluginHost.discover()
    made.sources.add("recording", f"{__name__}:Recording")
    return made


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, []),
        ({"tokenizer": "org/words"}, [("org/words", "r1")]),
        ({"tokenizer": "org/words", "tokenizer_revision": "t2"}, [("org/words", "t2")]),
        ({"tokenizer_revision": "t2"}, [("org/model", "t2")]),
    ],
)
def test_a_tokenizer_has_a_revision_of_its_own_in_every_process(host, given, asked) -> None:
    config = EngineConfig(model=ModelConfig(model="org/model", revision="r1", **given))
    folder = open_model(config.model, host)
    assert ASKED == [("org/model", "r1")]
    for each in (config, as_found(config, folder), as_found(as_found(config, folder), folder)):
        ASKED.clear()
        assert load_tokenizer(each.model, folder, host) is not None
        assert asked == ASKED


def test_vllms_name_of_how_videos_are_sampled() -> None:
    assert of_media_io({"video": {"num_frames": 8, "fps": -1}}) == {"num_frames": 8}
    for wrong, said in (
        ({"image": {"image_mode": "L"}}, r"media_io_kwargs\.image\.image_mode is not available"),
        ({"video": {"backend": "x"}}, r"media_io_kwargs\.video\.backend is not available"),
        ({"video": 3}, "a dict of dicts"),
        ([], "a dict of dicts"),
    ):
        with pytest.raises(PromptError, match=said):
            of_media_io(wrong)
    config = MediaConfig(
        media_io_kwargs={"video": {"num_frames": 8}}, mm_processor_kwargs={"num_frames": 4}
    )
    assert asked_of_all(config) == {"num_frames": 4}
    assert asked_by_request(None, None) is None
    assert asked_by_request({"a": 1}, {"video": {"fps": 2}}) == {"fps": 2, "a": 1}


def test_what_a_model_does_not_sample_is_known_at_the_start() -> None:
    media = MediaConfig(media_io_kwargs={"video": {"num_frames": 4}})
    config = EngineConfig(model=ModelConfig(model="octavo/tiny"), media=media)
    with pytest.raises(ConfigError, match="num_frames"):
        open_checked(config, PluginHost.discover(), caller="LLM")


def test_a_model_of_language_alone_takes_no_media() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [{"role": "user", "content": [picture, {"type": "text", "text": "What is it?"}]}]
    with LLM("octavo/tiny-omni", language_model_only=True, max_model_len=512) as llm:
        with pytest.raises(BadRequestError, match="at most 0 of image"):
            llm.chat(messages)
        (output,) = llm.chat([{"role": "user", "content": "Hello"}])
        assert output.outputs[0].text
