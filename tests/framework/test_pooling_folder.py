"""What a model's folder says of how its texts become vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ModelError
from octavo.model_folder.context_length import resolve_max_model_len
from octavo.model_folder.pooling import resolve_pooling

TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
NORMALIZE = {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def write(folder: Path, modules: list[Any], pooling: Any = None, **files: Any) -> Path:
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling or MEAN))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("pooling", "collect"),
    [
        (MEAN, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_lasttoken": True, "word_embedding_dimension": 9}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["cls"]}, "first"),
    ],
)
def test_the_pooling_module_says_which_tokens_count(pooling, collect, tmp_path: Path) -> None:
    folder = write(tmp_path, [TRANSFORMER, POOLING], pooling)
    assert resolve_pooling(folder, "BertModel", "all").collect == collect


@pytest.mark.parametrize("is_there", [True, False])
def test_vectors_have_a_length_of_1_where_a_module_says_so(is_there, tmp_path: Path) -> None:
    folder = write(tmp_path, [TRANSFORMER, POOLING, NORMALIZE][: 2 + is_there])
    assert resolve_pooling(folder, "BertModel", "all").unit_length == is_there


def test_prompts_length_and_case_are_those_of_the_files(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        [TRANSFORMER, POOLING, NORMALIZE],
        {**MEAN, "include_prompt": False},
        config_sentence_transformers={
            "prompts": {"query": "query: ", "document": ""},
            "default_prompt_name": "query",
        },
        sentence_bert_config={"max_seq_length": 77, "do_lower_case": True},
    )
    setup = resolve_pooling(folder, "BertModel", "all")
    assert dict(setup.prompts) == {"query": "query: ", "document": ""}
    assert (setup.default_prompt, setup.include_prompt) == ("query", False)
    assert (setup.max_tokens, setup.lower_case) == (77, True)
    assert str(setup) == "embed: mean, unit length; from modules.json; prompts query"
    assert resolve_max_model_len(None, folder, {"max_position_embeddings": 512}, most=77) == 77


def test_without_the_files_it_is_the_mean_at_a_length_of_1(tmp_path: Path) -> None:
    setup = resolve_pooling(tmp_path, "BertModel", "all")
    assert (setup.collect, setup.unit_length, setup.sees) == ("mean", True, "all")
    assert str(setup) == "embed: mean, unit length; from the name BertModel"


@pytest.mark.parametrize(
    ("modules", "pooling", "reason"),
    [
        ([TRANSFORMER, POOLING, {"type": "models.Dense"}], MEAN, "module 'Dense' is not known"),
        ([POOLING, TRANSFORMER], MEAN, "modules Pooling, Transformer are not"),
        ([TRANSFORMER], MEAN, "modules Transformer are not"),
        ([TRANSFORMER, TRANSFORMER, POOLING], MEAN, "are not a Transformer"),
        ({"a": 1}, MEAN, "must be a list of modules"),
        ([{"type": 3}], MEAN, "must be a list of modules"),
        ([TRANSFORMER, POOLING], {"pooling_mode_max_tokens": True}, "'max_tokens' is not known"),
        (
            [TRANSFORMER, POOLING],
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            r"'cls_token\+mean_tokens' is not known",
        ),
        ([TRANSFORMER, POOLING], {"pooling_mode_cls_token": False}, "'none' is not known"),
        ([TRANSFORMER, POOLING], [1], "must be an object"),
        ([], MEAN, "modules none are not a Transformer"),
        ([{**TRANSFORMER, "path": None}, POOLING], MEAN, "must be a list of modules"),
        ([TRANSFORMER, POOLING], {"pooling_mode": 5}, "'5' is not known"),
        ([TRANSFORMER, POOLING], {"pooling_mode": [["mean"]]}, "is not known"),
        ([TRANSFORMER, POOLING], {**MEAN, "include_prompt": "no"}, "include_prompt='no' must be"),
    ],
)
def test_what_is_not_known_is_refused_by_name(modules, pooling, reason, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=reason):
        resolve_pooling(write(tmp_path, modules, pooling), "BertModel", "all")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config_sentence_transformers", [], "must be an object, not"),
        ("config_sentence_transformers", {"prompts": ["a"]}, "prompts=.* must be of type dict"),
        ("config_sentence_transformers", {"prompts": {"a": 3}}, "the prompt 'a' is 3, not text"),
        ("config_sentence_transformers", {"default_prompt_name": []}, "must be of type str"),
        ("sentence_bert_config", None, "must be an object, not None"),
        ("sentence_bert_config", {"max_seq_length": "512"}, "max_seq_length='512' must be of type"),
        ("sentence_bert_config", {"max_seq_length": 0}, "max_seq_length=0 must be at least 1"),
        ("sentence_bert_config", {"do_lower_case": 1}, "do_lower_case=1 must be of type bool"),
    ],
)
def test_an_entry_of_another_kind_is_named_with_its_file(name, content, reason, tmp_path) -> None:
    folder = write(tmp_path, [TRANSFORMER, POOLING], **{name: content})
    with pytest.raises(ModelError, match=rf"{name}\.json.*{reason}"):
        resolve_pooling(folder, "BertModel", "all")


def test_a_default_prompt_must_be_there_and_a_file_must_be_json(tmp_path: Path) -> None:
    settings = {"default_prompt_name": "query", "prompts": {"document": "d: "}}
    folder = write(tmp_path, [TRANSFORMER, POOLING], config_sentence_transformers=settings)
    with pytest.raises(ModelError, match="default_prompt_name='query' is none of its prompts: doc"):
        resolve_pooling(folder, "BertModel", "all")
    (folder / "config_sentence_transformers.json").write_text("{")
    with pytest.raises(ModelError, match="is no JSON"):
        resolve_pooling(folder, "BertModel", "all")


def test_positions_behind_that_of_the_padding_count_for_nothing(tmp_path: Path) -> None:
    text = {"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    assert resolve_max_model_len(None, tmp_path, text) == 512
