"""Imports by the paths of vLLM's documents, with ``octavo`` in place of ``vllm``.

What is here can be imported so; of other names an ImportError says what stands in their place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

PACKAGE: Final = "octavo"

PATHS: Final[Mapping[str, str]] = {
    "engine.arg_utils.AsyncEngineArgs": "octavo.cli.engine_args:AsyncEngineArgs",
    "engine.arg_utils.EngineArgs": "octavo.cli.engine_args:EngineArgs",
    "engine.async_llm_engine.AsyncLLMEngine": "octavo.frontend.async_llm_engine:AsyncLLMEngine",
    "engine.llm_engine.LLMEngine": "octavo.frontend.llm_engine:LLMEngine",
    "entrypoints.llm.LLM": "octavo.frontend.llm:LLM",
    "inputs.data.PromptType": "octavo.inputs:PromptType",
    "inputs.data.TextPrompt": "octavo.inputs:TextPrompt",
    "inputs.data.TokensPrompt": "octavo.inputs:TokensPrompt",
    "logprobs.Logprob": "octavo.outputs:Logprob",
    "lora.request.LoRARequest": "octavo.params:LoRARequest",
    "pooling_params.PoolingParams": "octavo.params:PoolingParams",
    "sampling_params.BeamSearchParams": "octavo.params:BeamSearchParams",
    "sampling_params.RequestOutputKind": "octavo.params:RequestOutputKind",
    "sampling_params.SamplingParams": "octavo.params:SamplingParams",
    "sequence.Logprob": "octavo.outputs:Logprob",
    "utils.FlexibleArgumentParser": "octavo.cli.script_parser:ScriptParser",
    "utils.argparse_utils.FlexibleArgumentParser": "octavo.cli.script_parser:ScriptParser",
    "v1.engine.async_llm.AsyncLLM": "octavo.frontend.async_llm_engine:AsyncLLMEngine",
    "v1.engine.exceptions.EngineDeadError": "octavo.errors:EngineDeadError",
    "v1.engine.llm_engine.LLMEngine": "octavo.frontend.llm_engine:LLMEngine",
}
"""What can be imported as vLLM's documents do, by the path inside the package, and its home."""

_GUIDED = "octavo.GuidedParams, as SamplingParams(guided=GuidedParams(...))"
_MULTIMODAL = "INPUT_REGISTRY and MULTIMODAL_REGISTRY of octavo_registry, docs/hooks.md"
_DEVICES = "the option tensor_parallel_size for a machine's CPU, and nothing for several GPUs yet"
_NO_POOLING = "nothing yet: this version embeds texts alone, docs/python.md"
_HOOKS = "a plugin's hooks, docs/hooks.md"
_MEDIA = "media of a prompt are pictures, arrays, bytes or addresses, docs/media.md"
_MODELS = "a model is a plugin, made of octavo.layers, docs/model_plugin.md"
_PARSERS = "octavo.tools, and a plugin's hooks for parsers, docs/plugins.md"
_SERVER = "the command octavo serve, docs/server.md"

INSTEAD: Final[Mapping[str, str]] = {
    "ModelRegistry": "the hook register_models of a plugin, docs/model_plugin.md",
    "assets": _MEDIA,
    "attention": "the hook register_attention_backends of a plugin, docs/hooks.md",
    "benchmarks": "the command octavo bench, docs/bench.md",
    "collect_env": "the command octavo doctor",
    "config.VllmConfig": "octavo.config.EngineConfig",
    "distributed": _DEVICES,
    "entrypoints": _SERVER,
    "entrypoints.chat_utils": "messages of octavo.LLM.chat, docs/server.md",
    "entrypoints.openai.reasoning_parsers": _PARSERS,
    "entrypoints.openai.tool_parsers": _PARSERS,
    "entrypoints.score_utils": _NO_POOLING,
    "envs": "variables that begin with OCTAVO_, docs/environment.md",
    "initialize_ray_cluster": _DEVICES,
    "engine.protocol": "octavo.AsyncLLM",
    "inputs.InputContext": _MULTIMODAL,
    "inputs.InputRegistry": _MULTIMODAL,
    "inputs.engine": _HOOKS,
    "inputs.registry": _MULTIMODAL,
    "logger": "logging.getLogger of Python",
    "logits_process": "the hook register_logits_processors of a plugin, docs/hooks.md",
    "lora": "octavo.LoRARequest, docs/adapters.md",
    "model_executor": _MODELS,
    "model_executor.layers.quantization": "the hook register_quantizations, docs/hooks.md",
    "multimodal.audio": _MEDIA,
    "multimodal.image": _MEDIA,
    "multimodal.inputs": _MULTIMODAL,
    "multimodal.parse": _MULTIMODAL,
    "multimodal.processing": _MULTIMODAL,
    "multimodal.profiling": _MULTIMODAL,
    "multimodal.MultiModalRegistry": _MULTIMODAL,
    "multimodal.registry": _MULTIMODAL,
    "multimodal.utils": _MEDIA,
    "multimodal.video": _MEDIA,
    "platforms": "torch.cuda, and the option device",
    "plugins": "modules of the entry-point group octavo, docs/plugins.md",
    "reasoning": _PARSERS,
    "sampling_params.GuidedDecodingParams": _GUIDED,
    "sampling_params.StructuredOutputsParams": _GUIDED,
    "spec_decode": "nothing yet",
    "tokenizers": "get_tokenizer() of octavo.LLM",
    "tool_parsers": _PARSERS,
    "transformers_utils": "get_tokenizer() of octavo.LLM",
    "usage": "docs/environment.md",
    "utils": "nothing, as these are vLLM's own helpers",
    "v1": "octavo.LLM, octavo.AsyncLLM and a plugin's hooks, docs/hooks.md",
    "v1.attention": "the hook register_attention_backends of a plugin, docs/hooks.md",
    "v1.metrics": "octavo.AsyncLLM.metrics(), docs/metrics.md",
    "v1.sample": "the hook register_logits_processors of a plugin, docs/hooks.md",
    "v1.spec_decode": "nothing yet",
} | {
    f"{place}{kind}{what}": _NO_POOLING
    for place in ("", "outputs.")
    for kind in ("Classification", "Scoring")
    for what in ("Output", "RequestOutput")
}
"""What there is in the place of other paths of vLLM's, modules or names."""


def find_vllm_paths() -> None:
    """Make the paths importable, once in a process; modules that are here are found before."""
    if not any(isinstance(finder, _VllmPaths) for finder in sys.meta_path):
        sys.meta_path.append(_VllmPaths())


def names_of_vllm(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module of that name, for what it does not have itself."""
    return partial(_name_of, module, missing_name)


def missing_name(module: str, name: str) -> ImportError | AttributeError:
    """The error for a name that the module does not have; an ImportError if vLLM's has it.

    An AttributeError within ``from ... import ...`` would lose its text.
    """
    return _missing(module, name, INSTEAD.get(f"{_inside(module)}.{name}".lstrip(".")))


class _VllmPaths:
    """A finder and loader of modules, as ``sys.meta_path`` has them."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Find what is a module only at vLLM's."""
        if not fullname.startswith(f"{PACKAGE}."):
            return None
        inside = _inside(fullname)
        if any(each.startswith(f"{inside}.") for each in (*PATHS, *INSTEAD)):
            return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]
        text = _instead(inside)
        if text is None:
            return None
        raise ModuleNotFoundError(
            f"there is no {fullname}, a module of vLLM's; here: {text}", name=fullname
        )

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Let names be looked up when they are used."""
        vars(module)["__getattr__"] = partial(_name_of, module.__name__, _missing_in_vllms)


def _name_of(
    module: str, missing: Callable[[str, str], ImportError | AttributeError], name: str
) -> Any:
    home = PATHS.get(f"{_inside(module)}.{name}")
    if home is None:
        raise missing(module, name)
    target, _, attribute = home.partition(":")
    return getattr(import_module(target), attribute)


def _missing_in_vllms(module: str, name: str) -> ImportError | AttributeError:
    """The error of a module that is vLLM's alone."""
    is_pythons = name.startswith("__")  # which it asks every module for
    text = None if is_pythons else _instead(f"{_inside(module)}.{name}")
    return _missing(module, name, text)


def _missing(module: str, name: str, text: str | None) -> ImportError | AttributeError:
    if text is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return ImportError(f"{module} has no {name}, which is vLLM's; here: {text}", name=module)


def _inside(module: str) -> str:
    return module.removeprefix(PACKAGE).removeprefix(".")


def _instead(path: str) -> str | None:
    """What stands in the place of a path, or of the module that it is in."""
    while path:
        if path in INSTEAD:
            return INSTEAD[path]
        path = path.rpartition(".")[0]
    return None
