"""What a model must equal, and the folder with random weights from which both are made.

Axis suffixes: B sequences, T tokens, V vocabulary.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from octavo.config import EngineConfig
from octavo.errors import ConfigError, ModelError
from octavo.layers.embedding import VocabParallelEmbedding
from octavo.layers.loading import LoadsWeights
from octavo.testing.engine_run import EnginePrompt, EngineRun, ItemPrompt, Logprobs, tokens_of
from octavo.testing.sharp_weights import sharp_weights
from octavo.testing.variants import EPSILON, TINY, TINY_WINDOW, Variant, is_epsilon
from octavo_registry import ModelSpec, PluginHost
from octavo_registry.lazy import load_target


class Reference(Protocol):
    """Says what a model's distributions are."""

    name: str
    """As reports show it."""

    def logprobs(self, sequences: Sequence[EnginePrompt]) -> list[Logprobs]:
        """What follows each token but the last: [T - 1, V] for each sequence."""
        ...


class ModuleReference:
    """A plain module: token ids [B, T] to logits [B, T, V], as themselves or as ``.logits``.

    Where every prompt has one item, the module takes those of all sequences behind the token ids.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module

    def weight_names(self) -> set[str]:
        """Names of its parameters, without the ".weight" behind them; tied ones have several."""
        named = self.module.named_parameters(remove_duplicate=False)
        return {name.removesuffix(".weight") for name, _ in named}

    def linears_of(self, prompt: EnginePrompt) -> list[str]:
        """Linears by name that a prompt goes through: of a text not those of towers for media."""
        used: list[str] = []
        hooks = [
            module.register_forward_hook(lambda *_, name=name: used.append(name))
            for name, module in self.module.named_modules()
            if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
        ]
        self.logprobs([prompt])
        for hook in hooks:
            hook.remove()
        return sorted(set(used))

    def logprobs(self, sequences: Sequence[EnginePrompt]) -> list[Logprobs]:
        """One forward over all; the padding behind a sequence cannot be seen from within it."""
        rows = [tokens_of(each) for each in sequences]
        items = [each.item for each in sequences if isinstance(each, ItemPrompt)]
        tokens_BT = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
        for row_T, tokens in zip(tokens_BT, rows, strict=True):
            row_T[: len(tokens)] = torch.tensor(tokens)
        with torch.inference_mode():
            found = self.module(tokens_BT, items) if items else self.module(tokens_BT)
            logits_BTV: Tensor = getattr(found, "logits", found)
            logprobs_BTV = logits_BTV.float().log_softmax(-1)
        lengths = [len(tokens) - 1 for tokens in rows]
        return [row[:length].numpy() for row, length in zip(logprobs_BTV, lengths, strict=True)]


class EngineReference:
    """The engine itself, each sequence as a prompt, alone and in one chunk."""

    name = "those of the engine itself"

    def __init__(self, config: EngineConfig, host: PluginHost) -> None:
        self._config, self._host = config, host

    def logprobs(self, sequences: Sequence[EnginePrompt]) -> list[Logprobs]:
        """What the engine gives for a prompt."""
        with EngineRun(self._config, self._host) as engine:
            return [scored for each in sequences for scored in engine.score([each])]


def write_with_reference(
    folder: Path, architecture: str, target: str, variant: Variant
) -> ModuleReference:
    """Make the reference that ``target`` names, and the folder that the engine loads from it.

    ``target`` is a Transformers class, or a function of config.json's entries that returns a plain
    module with parameters named as in checkpoints.
    """
    build = load_target(target)
    if hasattr(build, "config_class"):
        module = _write_transformers(folder, build, variant)
        settings = json.loads((folder / "config.json").read_bytes())
    else:
        settings = _settings(variant)
        module = build(settings).float().eval()
        _randomise(module, settings["vocab_size"])
        parameters = {name: tensor.data for name, tensor in module.named_parameters()}
        save_file(parameters, folder / "model.safetensors")
    _write_config(folder, settings, architecture, variant)
    return ModuleReference(target, module)


def write_without_reference(
    folder: Path, architecture: str, host: PluginHost, variant: Variant
) -> None:
    """Make a folder from what the model's own layers want to load."""
    settings = _settings(variant)
    spec = ModelSpec(
        architecture=architecture,
        config=settings,
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_model_len=settings["max_position_embeddings"],
    )
    shapes: dict[str, tuple[int, ...]] = {}
    embeddings: set[str] = set()
    model: Any = host.models.load(architecture)(spec)
    for module in model.modules():
        if isinstance(module, LoadsWeights):
            wanted = {source.name: source.shape for source in module.sources()}
            shapes |= wanted
            if isinstance(module, VocabParallelEmbedding):
                embeddings |= wanted.keys()
    if not shapes:
        raise ModelError(
            f"{architecture} has no layer with sources() (octavo.layers.loading.LoadsWeights), so "
            "the kit cannot make weights for it; name a reference in its ModelCapabilities"
        )
    weights = sharp_weights(shapes, embeddings=embeddings, vocab_size=settings["vocab_size"])
    save_file(weights, folder / "model.safetensors")
    _write_config(folder, settings, architecture, variant)


def _settings(variant: Variant) -> dict[str, Any]:
    return {**TINY, **variant.config}


def _write_config(
    folder: Path, settings: Mapping[str, Any], architecture: str, variant: Variant
) -> None:
    for name, content in variant.files.items():
        (folder / name).write_text(json.dumps(content))
    entries = {**settings, "architectures": [architecture], "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(entries, indent=2) + "\n")


def _write_transformers(folder: Path, model_class: Any, variant: Variant) -> nn.Module:
    """Save as Transformers does: tied and fused weights as in real checkpoints."""
    config_class = model_class.config_class
    if config_class is None:
        raise ConfigError(f"reference {model_class.__name__} has no config_class; name another")
    defaults = config_class().to_dict()
    known = {*defaults, *config_class.attribute_map}
    tiny = {name: value for name, value in TINY.items() if name in known}
    epsilons = {name for name, value in defaults.items() if is_epsilon(name, value)}
    tiny |= dict.fromkeys(epsilons, EPSILON)
    if defaults.get("sliding_window") is not None:
        tiny["sliding_window"] = TINY_WINDOW
    # Plain torch: sdpa is faster and leaves things out, such as the soft caps of Gemma 2 (5.17).
    # A copy: Transformers completes nested entries in place.
    given = copy.deepcopy({**tiny, **variant.config})
    config = config_class(**given, attn_implementation="eager")
    module: Any = model_class(config).float().eval()
    _randomise(module, config.get_text_config().vocab_size)
    with redirect_stderr(StringIO()):  # a progress bar
        module.save_pretrained(folder)
    plain: nn.Module = module
    return plain


@torch.no_grad()
def _randomise(module: nn.Module, vocab_size: int) -> None:
    """Fill what checkpoints hold; parameters that are tied have one name here."""
    saved = module.state_dict().keys()
    buffers = {name: buffer for name, buffer in module.named_buffers() if name in saved}
    parameters = {**dict(module.named_parameters()), **buffers}
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    weights = sharp_weights(
        {name: tuple(parameter.shape) for name, parameter in parameters.items()},
        embeddings={name for name, parameter in parameters.items() if id(parameter) in tables},
        vocab_size=vocab_size,
    )
    for name, parameter in parameters.items():
        parameter.copy_(weights[name])
