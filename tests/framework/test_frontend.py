"""Where an engine runs when nobody says so: beside its caller's process, or in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.benchmarking import startup
from octavo.cli import main
from octavo.engine.process_client import ProcessClient
from octavo.errors import ConfigError
from octavo.frontend import frontend
from octavo.frontend.frontend import has_own_process
from octavo.testing.random_model import make_random_model
from octavo_registry.manifest import PluginRecord
from tiny_llava import make_tiny_llava, picture

SMALL: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "kv_cache_memory_gib": 0.05}
INSTALLED = PluginRecord(name="llava", module="octavo_plugins.models.llava", distribution="octavo")
BY_PATH = PluginRecord(name="mine", module="mine.plugin")
OF_MAIN = PluginRecord(name="__main__", module="__main__")
OBJECT = PluginRecord(name="Plugin", module=None)


class Plugin:
    OCTAVO_API = "1"


class StartedError(Exception):
    """Says where an engine was to start."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llava")
    make_tiny_llava(path)
    return path


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device as far as the choice goes; the engine has what its config names."""
    monkeypatch.setattr(frontend, "_find_device", lambda name: "cuda")


def place(monkeypatch: pytest.MonkeyPatch, model: Path, **options: Any) -> str:
    """Where the engine would start."""

    def stop_at(place: str) -> Any:
        def start(*_: object) -> None:
            raise StartedError(place)

        return start

    monkeypatch.setattr(frontend, "_start_process", stop_at("apart"))
    monkeypatch.setattr(frontend, "start_in_process", stop_at("here"))
    with pytest.raises(StartedError) as stopped:
        LLM(model, **options)
    return str(stopped.value)


@pytest.mark.parametrize(
    ("modalities", "plugins", "device", "is_apart"),
    [
        (["image"], [INSTALLED], "cuda", True),
        (["audio", "video"], [INSTALLED, BY_PATH], "cuda", True),
        (["image"], [INSTALLED], "cpu", False),
        ([], [INSTALLED], "cuda", False),
        (["image"], [INSTALLED, OBJECT], "cuda", False),
        (["image"], [OF_MAIN], "cuda", False),
    ],
)
def test_by_itself_an_engine_is_apart_where_media_meet_cuda_and_all_plugins_can_cross(
    modalities: list[str], plugins: list[PluginRecord], device: str, is_apart: bool
) -> None:
    found = has_own_process(
        None, modalities=modalities, plugins=plugins, find_device=lambda: device
    )
    assert found is is_apart


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("plugins", [[INSTALLED], [OBJECT]])
@pytest.mark.parametrize("modalities", [["image"], []])
def test_what_is_given_holds_and_the_device_is_not_looked_for(
    given: bool, plugins: list[PluginRecord], modalities: list[str]
) -> None:
    found = has_own_process(
        given,
        modalities=modalities,
        plugins=plugins,
        find_device=lambda: pytest.fail("the device was looked for"),
    )
    assert found is given


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "apart"),
        ({"plugins": ["octavo_plugins.models.llava"]}, "apart"),
        ({"plugins": [Plugin()]}, "here"),
        ({"engine_process": False}, "here"),
        ({"limit_mm_per_prompt": {"image": 0}}, "here"),
        ({"limit_mm_per_prompt": {"image": 1}}, "apart"),
        ({"max_media_items": 0}, "here"),
    ],
)
def test_llm_asks_its_model_its_limits_and_its_plugins(
    monkeypatch: pytest.MonkeyPatch, cuda: None, folder: Path, options: Any, expected: str
) -> None:
    assert place(monkeypatch, folder, **options) == expected


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"limit_mm_per_prompt": {"images": 1}},
            "has 'images', which .* known: audio, image, video",
        ),
        ({"mm_processor_kwargs": {"max_pixles": 5}}, "has no entry 'max_pixles'; known: none"),
        ({"mm_processor_kwargs": {"size": {"longest_edge": 9}}}, "no entry 'size'"),  # a Pixtral's
    ],
)
def test_media_options_that_would_mean_nothing_are_refused_before_an_engine_starts(
    monkeypatch: pytest.MonkeyPatch, folder: Path, options: Any, problem: str
) -> None:
    monkeypatch.setattr(frontend, "start_in_process", lambda *_: pytest.fail("it was started"))
    with pytest.raises(ConfigError, match=problem):
        LLM(folder, engine_process=False, **options)


def test_a_limit_of_what_the_model_does_not_take_is_no_error(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    limits = {"image": 1, "video": 0, "audio": 0}
    assert place(monkeypatch, folder, limit_mm_per_prompt=limits, engine_process=False) == "here"


def test_a_model_of_text_is_in_the_process_that_made_it(
    monkeypatch: pytest.MonkeyPatch, cuda: None, tmp_path: Path
) -> None:
    assert place(monkeypatch, make_random_model(tmp_path)) == "here"
    assert place(monkeypatch, tmp_path, engine_process=True) == "apart"


def test_the_device_is_the_configs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert place(monkeypatch, folder, device="cpu") == "here"
    with pytest.raises(ConfigError, match="device='tpu'"):
        LLM(folder, device="tpu")


def test_an_engine_that_went_apart_by_itself_answers_as_one_here(cuda: None, folder: Path) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompts = [
        {"prompt": "<image>What is this?", "multi_modal_data": {"image": picture(number)}}
        for number in range(3)
    ]
    found = []
    for options in ({}, {"engine_process": False}):
        with LLM(folder, device="cpu", **SMALL, **options) as llm:
            assert isinstance(llm._front.client, ProcessClient) is not bool(options)
            outputs = llm.generate(prompts, greedy, use_tqdm=False)
        found.append([list(output.outputs[0].token_ids) for output in outputs])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "MODEL", "a", "b"],
        ["bench", "throughput", "MODEL", "--input-len", "4", "--output-len", "4"],
        ["bench", "latency", "MODEL", "--input-len", "4", "--output-len", "4"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_commands_whose_prompts_are_texts_have_the_engine_here(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, folder: Path, arguments: list[str]
) -> None:
    monkeypatch.setattr(LLM, "__init__", tell_place)
    assert main([str(folder) if each == "MODEL" else each for each in arguments]) != 0
    assert "StartedError: here" in capsys.readouterr().err


def test_a_start_that_is_measured_has_the_engine_here(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(LLM, "__init__", tell_place)
    monkeypatch.setattr(sys, "argv", ["startup", json.dumps({"model": str(folder)})])
    with pytest.raises(StartedError, match="here"):
        startup.main()


def tell_place(self: LLM, model: str, *, engine_process: bool | None = None, **_: object) -> None:
    """In the place of ``LLM.__init__``."""
    places = {None: "anywhere", True: "apart", False: "here"}
    raise StartedError(places[engine_process])


@pytest.mark.gpu
def test_on_cuda_the_caller_of_an_engine_apart_has_no_context(folder: Path) -> None:
    code = f"""
import torch
from octavo import LLM
from octavo.engine.process_client import ProcessClient
with LLM({str(folder)!r}, **{SMALL!r}) as llm:
    assert isinstance(llm._front.client, ProcessClient)
    assert llm.generate("a", use_tqdm=False)[0].error is None
    assert not torch.cuda.is_initialized()
"""
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=paths, check=True)
