from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.frontend.options import NOT_AVAILABLE, read_options


def read(**options: object) -> EngineConfig:
    return read_options({"model": "m", **options}, caller="LLM").config


def test_each_option_reaches_the_dataclass_that_declares_it() -> None:
    config = read(block_size=8, max_num_seqs=3, tensor_parallel_size=2)
    assert config.model.model == "m"
    assert config.cache.block_size == 8
    assert config.scheduler.max_num_seqs == 3
    assert config.parallel.tensor_parallel_size == 2


def test_no_two_dataclasses_share_an_option_name() -> None:
    config = read()
    groups = (config.model, config.cache, config.scheduler, config.parallel)
    names = [field.name for group in groups for field in fields(group)]
    assert len(names) == len(set(names))
    assert not set(names) & {field.name for field in fields(EngineConfig)} - {"model"}


def test_an_unknown_option_is_a_type_error_with_near_matches() -> None:
    with pytest.raises(TypeError, match=r"LLM\(\) got .* 'max_model_length'; close: max_model_len"):
        read(max_model_length=5)


def test_a_wrong_type_names_option_and_value() -> None:
    with pytest.raises(ConfigError, match=r"^block_size='many': expected int, got str$"):
        read(block_size="many")
    with pytest.raises(ConfigError, match=r"^enable_prefix_caching=1: expected bool, got int$"):
        read(enable_prefix_caching=1)
    with pytest.raises(ConfigError, match=r"logits_processors=.*expected str"):
        read(logits_processors=[1])


def test_a_bad_value_is_the_dataclasss_own_error() -> None:
    with pytest.raises(ConfigError, match=r"block_size=15 is not a power of two"):
        read(block_size=15)


def test_none_means_the_default_where_none_is_no_value() -> None:
    config = read(hf_overrides=None, block_size=None, max_model_len=None)
    assert config == read()


def test_paths_and_torch_dtypes_are_spelt_out() -> None:
    config = read(model=Path("a/b"), dtype=torch.bfloat16)
    assert config.model.model == "a/b"
    assert config.model.dtype == "bfloat16"


@pytest.mark.parametrize("name", sorted(NOT_AVAILABLE))
def test_an_option_that_nothing_implements_is_refused_by_name(name: str) -> None:
    read(**{name: NOT_AVAILABLE[name]})
    with pytest.raises(ConfigError, match=f"^{name}=.* is not available yet"):
        read(**{name: {"x": 1}})


def test_plugins_are_kept_apart_from_the_config() -> None:
    options = read_options(
        {"model": "m", "plugins": ["a.b"], "disable_plugins": ["c"]}, caller="LLM"
    )
    assert options.plugins == ("a.b",)
    assert options.disable_plugins == ("c",)
    with pytest.raises(ConfigError, match=r"plugins='a.b' must be a list"):
        read(plugins="a.b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": None}, "model=None must be a folder"),
        ({"num_threads": 10**6}, "num_threads=1000000 must be a number from 1 to 1024"),
        ({"async_depth": 10**9}, "async_depth=1000000000 must be a number from 1 to 16"),
        ({"num_blocks": 10**30}, "num_blocks=.* must be a number from 2 to 2147483647"),
        ({"swap_gib": float("inf")}, "swap_gib=inf must be a number from 0"),
        (
            {"seed": 2**70},
            "seed=.* must be a number from -9223372036854775807 to 9223372036854775807$",
        ),
        ({"disable_plugins": [5]}, r"disable_plugins=\[5\] must be names"),
        ({"hf_overrides": {"a": object()}}, "options must be text, numbers, and lists or dicts"),
    ],
)
def test_a_value_that_no_engine_could_start_with_is_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**options)
