"""Adapters on all linears of every architecture that takes some, against merged weights."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from octavo.adapters.library import AdapterLibrary
from octavo.adapters.packed import pack
from octavo.config.engine import ModelConfig
from octavo.errors import AdapterError, ConfigError
from octavo.layers.adapted import AdapterRows, AdapterSpans
from octavo.model_folder import open_model
from octavo.steps.loads import AdapterLoad, Span
from octavo.testing.adapters import RANKS, AdaptedReference, merged, random_adapter, with_adapters
from octavo.testing.engine_run import EngineRun
from octavo.testing.model import make_trial
from octavo.testing.modes import engine_config, in_a_batch
from octavo.testing.reference import ModuleReference, Reference
from octavo.testing.variants import TINY
from octavo.weights.load import build_model
from octavo_registry import AdapterFolders
from peft_adapters import edit_config, edit_tensors, save_adapter
from small_models import (
    GPU,
    HOST,
    TEXT_MODELS,
    TOKENS,
    Case,
    Checkpoint,
    cases_of,
    run_ranks,
    run_stages,
)

TAKES = {name: HOST.models.info(name).metadata["capabilities"].lora for name in HOST.models.names()}
TAKING = [name for name in TEXT_MODELS if TAKES[name]]
TAKING_MEDIA = [name for name in TAKES if TAKES[name] and name not in TEXT_MODELS]
TAKING_NONE = [name for name in TAKES if not TAKES[name] and name != "transformers"]
VARIANTS = cases_of(*TAKING)
FIRST = {case[0]: case for case in reversed(VARIANTS)}
PARAMETER = re.compile(r"(experts\.\w+|(?<=\.)gate|router)$")
"""What PEFT takes by ``target_parameters``."""
ENDS = ("embed_tokens", "wte", "lm_head")
LANGUAGE = re.compile(r"(model\.)?(layers\.\d+\..+|embed_tokens|lm_head)")
SPAN = Span(5, 7)
"""Not at the beginning of the pool, nor at its end."""


@pytest.mark.slow
@pytest.mark.parametrize("case", VARIANTS, ids=", ".join)
def test_several_ranks_and_none_in_a_batch_equal_merged_weights(case: Case, tmp_path: Path) -> None:
    plain = make_trial(HOST, case[0], VARIANTS[case], tmp_path)
    trial = with_adapters(plain, RANKS, num_rank_rows=sum(RANKS))
    for adapter in trial.adapters:
        assert {name.rpartition(".")[2] for name in adapter.down} >= LINEARS.get(case[0], set())
    comparison = in_a_batch(trial)
    assert comparison.passed, comparison.as_text()


@pytest.mark.slow
@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_what_peft_saves_of_all_linears_gives_what_peft_computes(
    case: Case, tmp_path: Path
) -> None:
    trial = make_trial(HOST, case[0], VARIANTS[case], tmp_path / "model")
    base = trial.reference
    assert isinstance(base, ModuleReference)
    references: dict[str, Reference] = {"": base}
    adapters = []
    options = {
        **trial.options,
        "enable_lora": True,
        "lora_experts": True,
        "lora_pool_rank": 512,
    }
    with replace(trial, options=options).engine() as engine:
        everything = list(engine.linears)
    ends = [name for name in everything if name.endswith(ENDS)]
    assert len(ends) == 2
    modules = [name for name in everything if not PARAMETER.search(name)]
    parameters = sorted({found[0] for name in everything if (found := PARAMETER.search(name))})
    everywhere: dict[str, Any] = {"target_modules": modules}
    if parameters:
        everywhere["target_parameters"] = [
            name if "experts" in name else f"{name}.weight" for name in parameters
        ]
    wanted: dict[int, dict[str, Any]] = {
        4: {"target_modules": ends},
        33: {"target_modules": "all-linear"},
        256: everywhere,
    }
    for rank, targets in wanted.items():
        folder = tmp_path / str(rank)
        module = save_adapter(base.module, folder, r=rank, **targets)
        adapters.append(AdapterLibrary(HOST, AdapterFolders(allowed=None)).read(folder))
        references[adapters[-1].content_hash] = ModuleReference("PEFT", module)
    reference = AdaptedReference(references, trial.prompts)
    comparison = in_a_batch(
        replace(
            trial,
            options=options,
            reference=reference,
            adapters=adapters,
            adapter_of=reference.adapter_of,
        )
    )
    assert comparison.passed, comparison.as_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("architecture", "linear", "children"),
    [
        ("MixtralForCausalLM", "block_sparse_moe.experts.{}.{}", ("w1", "w3", "w2")),
        ("Qwen3MoeForCausalLM", "mlp.experts.{}.{}", ("gate_proj", "up_proj", "down_proj")),
    ],
)
def test_experts_that_were_adapted_one_by_one_are_what_peft_makes_of_them(
    architecture: str, linear: str, children: tuple[str, str, str], tmp_path: Path
) -> None:
    case = FIRST[architecture]
    trial = make_trial(HOST, case[0], VARIANTS[case], tmp_path / "model")
    base = trial.reference
    assert isinstance(base, ModuleReference)
    folder = tmp_path / "old"
    save_adapter(base.module, folder, r=4, lora_alpha=6, target_modules=["q_proj"])
    edit_config(folder, target_modules=["q_proj", *children])
    torch.manual_seed(0)
    experts = {
        name.removesuffix("mlp.experts.down_proj"): parameter.shape
        for name, parameter in base.module.named_parameters()
        if name.endswith("experts.down_proj")
    }

    def with_experts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for layer, (num_experts, hidden, inner) in experts.items():
            for expert, child in itertools.product(range(num_experts), children):
                name = f"base_model.model.{layer}{linear.format(expert, child)}"
                inputs, outputs = (inner, hidden) if child == children[2] else (hidden, inner)
                tensors[f"{name}.lora_A.weight"] = torch.randn(4, inputs) / 8
                tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, 4) / 8
        return tensors

    edit_tensors(folder, with_experts)
    adapter = AdapterLibrary(HOST, AdapterFolders(allowed=None)).read(folder)
    peft: Any = PeftModel.from_pretrained(copy.deepcopy(base.module), folder).eval()
    references: dict[str, Reference] = {"": base}
    references[adapter.content_hash] = ModuleReference("PEFT", peft)
    reference = AdaptedReference(references, trial.prompts)
    comparison = in_a_batch(
        replace(
            trial,
            options={**trial.options, "enable_lora": True, "lora_experts": True},
            reference=reference,
            adapters=[adapter],
            adapter_of=reference.adapter_of,
        )
    )
    assert comparison.passed, comparison.as_text()


@pytest.mark.gpu
@pytest.mark.parametrize("case", VARIANTS, ids=", ".join)
def test_so_they_do_in_recorded_steps_on_a_device(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "octavo.execution.decode_graphs")
    plain = make_trial(HOST, case[0], VARIANTS[case], tmp_path)
    trial = with_adapters(
        replace(plain, options={**plain.options, **GPU}), RANKS, num_rank_rows=sum(RANKS)
    )
    comparison = in_a_batch(trial)
    assert comparison.passed, comparison.as_text()
    # DeepSeek's attention is PyTorch's, whose steps are not recorded.
    recorded = any("with adapters" in message for message in caplog.messages)
    assert recorded is not case[0].startswith("Deepseek")


LINEARS = {
    "GPT2LMHeadModel": {"c_attn", "c_proj", "c_fc"},
    "Phi3ForCausalLM": {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"},
    "OPTForCausalLM": {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"},
    "LlamaForCausalLM": {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    },
}  # fmt: skip
"""As PEFT addresses them: what the checkpoint has fused is one."""


def adapted(checkpoint: Checkpoint, base: ModuleReference, **changes: Any) -> Any:
    """The model with one adapter for all tokens; the checkpoint then expects merged weights."""
    rows = AdapterRows(SPAN.first + SPAN.length + 2, SPAN.length, experts=True)
    model = checkpoint.loaded(adapters=rows, **changes)
    linears = checkpoint.linears()
    adapter = random_adapter(base, linears, rank=SPAN.length, seed=0)
    rows.load(AdapterLoad(SPAN, pack(adapter, "float32")))
    first, rank = (torch.full((len(TOKENS),), it, dtype=torch.int32) for it in SPAN)
    runs = AdapterSpans(first, rank, rows.sites)
    rows.begin(runs)
    rows.begin_logits(runs)
    checkpoint.reference = merged(base, linears, adapter)
    return model


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_tensor_parallel_ranks_and_pipeline_stages_cut_the_matrices(
    case: Case, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(case, VARIANTS[case], tmp_path)
    base = checkpoint.reference
    stages = [{"last_layer": 1}, {"first_layer": 1}]
    checkpoint.check(run_stages([adapted(checkpoint, base, **stage) for stage in stages]))

    def run(ranks: Any) -> Tensor:
        changes = {"tp_rank": ranks.rank, "tp_size": 2, "collectives": ranks}
        return run_stages([adapted(checkpoint, base, **changes)])

    for logits_TV in run_ranks(2, run):
        checkpoint.check(logits_TV)


def test_places_that_no_adapter_in_the_pool_touches_cost_a_step_nothing(tmp_path: Path) -> None:
    case = FIRST["MixtralForCausalLM"]
    rows = AdapterRows(32, 8, experts=True)
    checkpoint = Checkpoint(case, VARIANTS[case], tmp_path)
    checkpoint.loaded(adapters=rows)
    whole = random_adapter(checkpoint.reference, rows.linears, rank=4, seed=0)
    firsts, ranks = (torch.tensor(it, dtype=torch.int32) for it in ([8, 0, 16], [4, 0, 4]))

    def load(first: int, *ends: str) -> None:
        some = {name: size for name, size in rows.linears.items() if name.endswith(ends)}
        part = {
            name: {n: getattr(whole, name)[n] for n in some} for name in ("down", "up", "scaling")
        }
        rows.load(AdapterLoad(Span(first, 4), pack(replace(whole, **part), "float32")))
        runs = AdapterSpans(firsts, ranks, rows.sites)
        rows.begin(runs)
        rows.begin_logits(runs)

    load(8, "q_proj", "gate")
    assert rows.sites == {*rows.groups} == {"linear"}
    load(16, "q_proj", "lm_head")
    assert rows.sites == {*rows.groups} == {"linear", "head"}
    assert [run.first for run in rows.groups["linear"].runs] == [8, 16]
    assert [run.first for run in rows.groups["head"].runs] == [16]
    load(8, "embed_tokens", "experts.down_proj")
    assert rows.sites == {"linear", "embedding", "experts", "head"}
    assert [run.first for run in rows.groups["embedding"].runs] == [8]
    load(16, "q_proj")
    assert rows.sites == {"linear", "embedding", "experts"}
    load(9, "q_proj")
    assert rows.sites == {*rows.groups} == {"linear"}
    before = rows.sites
    load(16, "lm_head")
    assert "head" in rows.groups
    # What is recorded now of a kind that was met before does what it did.
    rows.begin(AdapterSpans(firsts, ranks, before))
    rows.begin_logits(rows.spans)
    assert {*rows.groups} == {"linear"}
    rows.begin_logits(rows.spans._replace(sites=rows.sites))
    assert "head" in rows.groups
    rows.begin_logits(None)
    assert "head" not in rows.groups
    rows.end()
    assert rows.groups == {}


def test_experts_have_rows_only_where_they_are_asked_for(tmp_path: Path) -> None:
    case, variant = next(iter(cases_of("MixtralForCausalLM").items()))
    trial = make_trial(HOST, case[0], variant, tmp_path)
    assert isinstance(trial.reference, ModuleReference)
    save_adapter(
        trial.reference.module, tmp_path / "adapter", target_parameters=["experts.down_proj"]
    )
    adapter = AdapterLibrary(HOST, AdapterFolders(allowed=None)).read(tmp_path / "adapter")
    with (
        EngineRun(engine_config(tmp_path, enable_lora=True), HOST) as engine,
        pytest.raises(AdapterError, match=r"need lora_experts.*: .*0\.mlp\.experts\.down_proj"),
    ):
        engine.add_adapter(adapter)
    options = {"enable_lora": True, "lora_experts": True, "batch_invariant": True}
    with pytest.raises(ConfigError, match=r"lora_experts: .* leave out batch_invariant"):
        EngineRun(engine_config(tmp_path, **options), HOST)


@pytest.mark.parametrize("architecture", TAKING_MEDIA)
def test_only_language_models_have_rows(architecture: str, tmp_path: Path) -> None:
    """What encodes media runs before the step's adapters are known, and for all of them."""
    variant = next(iter(cases_of(architecture).values()))
    settings = {**TINY, **variant.config, "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    rows = AdapterRows(1, 1, experts=True)
    config = ModelConfig(model=str(tmp_path), load_format="dummy")
    folder, device = open_model(config, HOST), torch.device("meta")
    build_model(folder, HOST, config=config, device=device, adapters=rows)
    assert {name for name in rows.linears if not LANGUAGE.fullmatch(name)} == set()
    assert len([name for name in rows.linears if name.endswith(ENDS)]) == 2


@pytest.mark.parametrize("architecture", TAKING_NONE)
def test_an_architecture_that_takes_no_adapters_says_so(architecture: str, tmp_path: Path) -> None:
    variant = next(iter(cases_of(architecture).values()))
    settings = {**TINY, **variant.config, "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config = engine_config(tmp_path, enable_lora=True, load_format="dummy")
    with pytest.raises(ConfigError, match=f"{architecture} takes no adapters; enable_lora is"):
        EngineRun(config, HOST)
