"""The default tokenizer plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from packaging.version import Version
from transformers import AutoTokenizer

import sample_tokenizers
from octavo.errors import ModelError
from octavo_plugins.tokenizers.transformers.tokenizer import TransformersTokenizer
from octavo_registry import PluginHost, Tokenizer


@pytest.mark.parametrize("kind", sample_tokenizers.KINDS)
def test_text_and_ids_are_those_of_transformers(kind: str) -> None:
    tokenizer = sample_tokenizers.load(kind)
    assert isinstance(tokenizer, Tokenizer)
    text = "the lazy 😀 dog</s> <tool_call>"
    ids = tokenizer.encode(text)
    assert ids == tokenizer.hf.encode(text)
    for skip in (False, True):
        expected = tokenizer.hf.decode(
            ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
        )
        assert tokenizer.decode(ids, skip_special_tokens=skip) == expected
    assert tokenizer.convert_ids_to_tokens(ids) == tokenizer.hf.convert_ids_to_tokens(ids)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2", "phi3", "mistral", "", None])
@pytest.mark.parametrize(
    "named", ["PreTrainedTokenizerFast", "LlamaTokenizer", "Qwen2Tokenizer", "NoSuchClass", None]
)
def test_the_class_is_the_one_that_transformers_chooses(
    named: str | None, model_type: str | None, tmp_path: Path
) -> None:
    """It goes by the tokenizer's own file, by the model's config, and by lists of exceptions."""
    sample_tokenizers.save("byte_level", tmp_path)
    file = tmp_path / "tokenizer_config.json"
    config = {**json.loads(file.read_text()), "tokenizer_class": named}
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    if model_type is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    ours, theirs = TransformersTokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours.hf) is type(theirs)
    assert ours.encode("the lazy dog") == theirs.encode("the lazy dog")


@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.24"),
    reason="5.17 imports the model's class for its tokenizer's; those between are not known",
)
def test_a_tokenizer_that_names_its_class_needs_no_class_of_the_models(tmp_path: Path) -> None:
    """Their import takes longer than all the rest of loading one."""
    sample_tokenizers.save("byte_level", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    code = (
        "import sys; from octavo_plugins.tokenizers.transformers.tokenizer import *;"
        "TransformersTokenizer(sys.argv[1]);"
        "sys.exit(len({'transformers.models.llama', 'torch._dynamo'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == 0


def test_facts_about_the_vocabulary() -> None:
    tokenizer = sample_tokenizers.load("sentencepiece")
    added = tokenizer.encode("<tool_call>", add_special_tokens=False)[-1]
    assert tokenizer.vocab_size == added + 1
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    assert {0, 1, 2} <= tokenizer.special_ids
    assert added not in tokenizer.special_ids
    assert tokenizer.special_tokens["bos_token"] == "<s>"
    assert len(tokenizer.byte_fallback_ids) == 256
    assert sample_tokenizers.load("byte_level").byte_fallback_ids == frozenset()


def test_ids_beyond_the_vocabulary_give_no_text() -> None:
    tokenizer = sample_tokenizers.load("byte_level")
    assert tokenizer.decode([10**6, *tokenizer.encode("dog")]) == "dog"


def test_a_truncation_in_the_tokenizers_own_file_is_not_followed(tmp_path: Path) -> None:
    sample_tokenizers.save("byte_level", tmp_path)
    tokenizer = TransformersTokenizer(tmp_path)
    tokenizer.hf.backend_tokenizer.enable_truncation(4)
    tokenizer.hf.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert len(TransformersTokenizer(tmp_path).encode("the lazy dog " * 9)) > 4


def test_a_folder_without_a_tokenizer_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no tokenizer \(none of tokenizer\.json") as error:
        TransformersTokenizer(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_damaged_file_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    sample_tokenizers.save("byte_level", tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(ModelError, match="cannot be loaded") as error:
        TransformersTokenizer(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_the_plugin_is_found_and_its_import_loads_neither_torch_nor_transformers() -> None:
    host = PluginHost.discover()
    assert host.tokenizers.load("auto") is TransformersTokenizer
    code = (
        "import sys, octavo_plugins.tokenizers.transformers as p;"
        "sys.exit(len({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_setting_that_breaks_at_first_use_is_found_when_loading(tmp_path: Path) -> None:
    sample_tokenizers.save("byte_level", tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": "x"}))
    with pytest.raises(ModelError, match="cannot be loaded: TypeError"):
        TransformersTokenizer(tmp_path)
