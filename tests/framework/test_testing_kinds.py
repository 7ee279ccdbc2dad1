"""The kit proves what plugins do: a sound one of each kind passes, each fault in it is found."""

from __future__ import annotations

from textwrap import dedent

import pytest

from octavo.testing.kit import run
from octavo_registry import PluginHost

SOUND = {
    "attention": """
        @hookimpl
        def register_attention_backends(backends):
            backends.add("mine", "{module}_target:Mine")
        # TARGETS
        from octavo_plugins.attention.torch.backend import TorchAttention

        class Mine(TorchAttention):
            def attend(self, q, k, v, view, step, *, scale, causal=True, window=None, softcap=None,
                       sinks=None, alibi=None, transform=None):
                return super().attend(q, k, v, view, step, scale=scale, causal=causal,
                                      window=window, softcap=softcap, sinks=sinks, alibi=alibi,
                                      transform=transform)
        """,
    "quantization": """
        @hookimpl
        def register_quantizations(quantizations):
            quantizations.add("mine", "{module}_target:Mine", samples="{module}_target:samples")
        # TARGETS
        import torch
        from octavo.testing.quantization import QuantizationSamples
        from octavo.layers.unquantized_experts import sum_by
        from octavo_registry import Axis, ExpertsParameter
        OUT = Axis("out")

        def stored(weight_OI):
            scale_O = weight_OI.abs().amax(1) / 127
            codes_OI = (weight_OI / scale_O[:, None]).round().to(torch.int8)
            return {{"codes": codes_OI, "scale": scale_O}}, codes_OI * scale_O[:, None]

        def samples():
            return QuantizationSamples(config={{"bits": 8}}, store=stored)

        class Mine:
            batch_invariant = False
            def __init__(self, config, model_config): self.bits = config["bits"]
            def method_of(self, site):
                return Experts() if site.kind == "experts" else self
            def create(self, layer, site, *, dtype, device):
                axes = {{"codes": (Axis("out"), Axis("in")), "scale": (Axis("out"),)}}
                for key, kind in (("codes", torch.int8), ("scale", torch.float32)):
                    parameter = torch.empty(site.shape(*axes[key]), dtype=kind)
                    setattr(layer, key, torch.nn.Parameter(parameter, requires_grad=False))
                return axes
            def finish(self, layer): pass
            def apply(self, layer, x, bias):
                weight = self.dequantize(layer)
                return torch.nn.functional.linear(x, weight, bias)
            def dequantize(self, layer): return layer.codes * layer.scale[:, None]

        class Experts:
            batch_invariant, unit = True, 64
            def create(self, layer, site, *, dtype, device):
                filled = {{}}
                for name in ("gate_up", "down"):
                    for key, kind, axes in (
                        ("codes", torch.int8, (Axis("out"), Axis("in"))),
                        ("scale", torch.float32, (OUT,)),
                    ):
                        shape = getattr(site, name).shape(*axes)
                        parameter = torch.zeros(site.num_experts, *shape, dtype=kind)
                        setattr(layer, name + key, torch.nn.Parameter(parameter, False))
                        filled[name + key] = ExpertsParameter(name, key, axes)
                return filled
            def finish(self, layer): pass
            def dequantize(self, layer):
                gates_ups = layer.gate_upcodes * layer.gate_upscale[..., None]
                return gates_ups, layer.downcodes * layer.downscale[..., None]
            def sum_of(self, layer, x, ids, weights, residual):
                return sum_by(layer, *self.dequantize(layer), x, ids, weights, residual)
        """,
    "tokenizer": """
        @hookimpl
        def register_tokenizers(tokenizers):
            tokenizers.add("mine", "{module}_target:Mine", samples="{module}_target:samples")
        # TARGETS
        def samples(folder):
            (folder / "letters.txt").write_text("no merges")
            return ["the sea", "a ship at sea"]

        class Mine:
            def __init__(self, folder, *, trust_remote_code=False):
                (folder / "letters.txt").read_text()
                self.vocab_size, self.bos_token_id, self.eos_token_id = 257, None, 256
                self.special_ids, self.byte_fallback_ids = frozenset([256]), frozenset()
                self.special_tokens, self.chat_template = {{}}, None
            def encode(self, text, add_special_tokens=True):
                return list(text.encode()) + [256] * add_special_tokens
            def decode(self, ids, skip_special_tokens=True, spaces_between_special_tokens=True):
                return bytes(i for i in ids if i < 256).decode(errors="replace")
            def convert_ids_to_tokens(self, ids):
                return [chr(i) if i < 128 else "?" if i < 256 else "<end>" for i in ids]
        """,
    "source": """
        @hookimpl
        def register_sources(sources):
            sources.add("mine", "{module}_target:Mine", samples="{module}_target:samples")
        # TARGETS
        from pathlib import Path

        def samples(folder):
            (folder / "config.json").write_text("{{}}")
            return f"mine:{{folder}}"

        class Mine:
            uses_network = False
            def find(self, name, *, revision):
                return Path(name[5:]) if name.startswith("mine:") else None
        """,
    "adapter": """
        @hookimpl
        def register_adapters(adapters):
            adapters.add("mine", "{module}_target:Mine", samples="{module}_target:samples")
        # TARGETS
        import json
        import torch
        from octavo.errors import AdapterError
        from octavo_registry import Adapter

        def samples(folder):
            matrices = {{"a.b": [[[1.0, 2.0]], [[3.0], [4.0], [5.0]]]}}
            (folder / "mine.json").write_text(json.dumps(matrices))

        class Mine:
            def read(self, folder):
                path = folder / "mine.json"
                if not path.is_file():
                    return None
                text = path.read_text()
                try:
                    found = json.loads(text)
                except ValueError as error:
                    raise AdapterError(f"{{path}} is no JSON") from error
                down = {{name: torch.tensor(pair[0]) for name, pair in found.items()}}
                up = {{name: torch.tensor(pair[1]) for name, pair in found.items()}}
                return Adapter(rank=1, scaling=dict.fromkeys(down, 1.0), down=down, up=up,
                               content_hash=str(abs(hash(text))))
        """,
    "input": """
        @hookimpl
        def register_inputs(inputs):
            inputs.add("NobodysModel", "{module}_target:process")
        # TARGETS
        def process(prompt, settings):
            return prompt
        """,
    "logits": """
        @hookimpl
        def register_logits_processors(processors):
            processors.add("mine", "{module}_target:Mine", samples="{module}_target:samples")
        # TARGETS
        def samples(vocab_size):
            return [{{"after": 3, "token": 8}}, {{"after": 0, "token": 9}}]

        class Mine:
            def __init__(self, vocab_size, device):
                self.slots = {{}}
                self.left = {{}}
            def attach(self, slot, extra_args, prompt_token_ids, output_token_ids):
                self.slots[slot] = [extra_args or self.left, len(output_token_ids)]
            def detach(self, slot):
                del self.slots[slot]
            def apply(self, logits_RV, slots_R):
                for row, slot in enumerate(slots_R.tolist()):
                    args, count = self.slots[slot]
                    if args and count >= args["after"]:
                        logits_RV[row, args["token"]] += 1e4
                    self.slots[slot][1] += 1
                return logits_RV
        """,
    "route": """
        @hookimpl
        def register_routes(routes):
            routes.add("mine", "{module}_target:Mine", samples="{module}_target:samples")
        # TARGETS
        import time
        from octavo_registry import Endpoint

        def samples():
            return [("GET", "/mine/5", None)]

        class Mine:
            def __init__(self, server): self.server = server
            def endpoints(self):
                return [Endpoint(method="GET", path="/mine/{{number}}", app=self.answer)]
            async def answer(self, scope, receive, send):
                number = scope["path_params"]["number"].encode()
                await send({{"type": "http.response.start", "status": 200, "headers": []}})
                await send({{"type": "http.response.body", "body": number}})
        """,
    "command": """
        @hookimpl
        def register_commands(commands):
            target, samples = "{module}_target:Mine", "{module}_target:samples"
            commands.add("mine", target, help="say so", samples=samples)
        # TARGETS
        def samples(folder):
            return [["--times", "2"]]

        class Mine:
            def configure(self, parser):
                parser.add_argument("--times", type=int)
            def run(self, args, host):
                return 0 * args.times
        """,
    "executor": """
        @hookimpl
        def register_executors(executors):
            executors.add("mine", "{module}_target:Mine")
        # TARGETS
        from octavo_plugins.executors.local.executor import LocalExecutor

        class Mine(LocalExecutor):
            pass
        """,
}

FAULTS = [
    ("attention", "return super().attend(", "return 0 * super().attend(", "full cache equals"),
    ("attention", "window=window", "window=None", "window cache equals"),
    ("attention", "softcap=softcap, sinks", "sinks", "full cache with a soft cap"),
    ("attention", "sinks=sinks, ", "", "latent cache with sinks"),
    ("attention", "causal=causal", "causal=True", "full cache with all of a row seen"),
    ("attention", "transform=transform)", "transform=None)", "full cache with norms"),
    ("attention", "scale=scale", "scale=1.1 * scale", "cross cache equals"),
    ("quantization", "(x, weight, bias)", "(x, weight * 1.1, bias)", "equals the weights"),
    ("quantization", "(x, weight, bias)", "(x, weight, None)", "equals the weights"),
    ("quantization", '"scale": (Axis("out"),)', '"scale": (Axis(None),)', ""),
    ("quantization", "return layer.codes *", "return 1.001 * layer.codes *", "equals the weights"),
    ("quantization", "return torch.nn", "return None and torch.nn", "equals the weights"),
    ("quantization", "), x, ids, weights, res", "), x, ids, weights, None and res", "by their"),
    ("quantization", "), x, ids, weights", "), x, ids, weights.sqrt()", "multiplies experts"),
    ("quantization", "return gates_ups,", "return gates_ups.flip(1),", "multiplies experts"),
    ("quantization", "torch.zeros(site.num", "torch.zeros(1 + site.num", "can be checked"),
    ("quantization", "* layer.scale[:, None]", "* layer.scale[0]", "latent attention its weights"),
    ("tokenizer", "list(text.encode())", "[7] * len(text)", "gives texts back"),
    ("tokenizer", "return bytes(", "return 'x' + bytes(", "gives texts back"),
    ("tokenizer", "list(text.encode()) +", "tuple(text.encode()) and 'a' or", "gives texts back"),
    ("tokenizer", "if i < 256)", "if i < 300)", "decodes ids by themselves"),
    ("tokenizer", "* add_special_tokens", "", "tells special tokens from text"),
    ("tokenizer", "= 257, None, 256", "= 257, 300, 256", "says what it is"),
    ("source", 'if name.startswith("mine:") else None', "", "does not know what nobody has"),
    ("source", "else None", "else str(name)", "does not know what nobody has"),
    ("source", "Path(name[5:])", "Path('/nowhere')", "finds a model"),
    ("source", "Path(name[5:])", "name[5:]", "finds a model"),
    ("adapter", "return None", "return {{}}", "reads no folder of others"),
    ("adapter", "raise AdapterError", "raise ValueError", "refuses damaged files"),
    ("adapter", "str(abs(hash(text)))", "str(path)", "reads an adapter"),
    ("adapter", "pair[1]", "pair[0]", "reads an adapter"),
    ("adapter", "return Adapter(", "return dict(", "reads an adapter"),
    ("input", "return prompt", "return None", "leaves text without media as it is"),
    ("logits", "return logits_RV", "return 0 * logits_RV", "leaves rows as they are"),
    ("logits", "return logits_RV", "return None", "leaves rows as they are"),
    ("logits", "+= 1e4", "+= 0", "does what is asked"),
    ("logits", "len(output_token_ids)]", "0]", "goes on where it was when it is preempted"),
    ("logits", "logits_RV[row, args", "logits_RV[:, args", "gives a row the same in a batch"),
    ("logits", "del self.slots[slot]", "self.left = self.slots[slot][0]", "forgets a sequence"),
    ("route", "return [Endpoint", "return [None and Endpoint", "can be served"),
    ("route", "app=self.answer", "app=lambda *args: None", "answers"),
    ("route", '"status": 200', '"status": 500', "answers"),
    ("route", 'await send({{"type": "http.response.body"', '({{"type": "http.response.body"', ""),
    ("route", "number = scope", "time.sleep(1.3); number = scope", "answers"),
    ("route", '["number"]', '["other"]', "answers"),
    ("route", "/mine/5", "/mine", "does what its samples ask for"),
    ("command", "type=int", "type=int, bad=1", "declares its arguments"),
    ("command", "return 0 *", "return 1 *", "runs"),
    ("command", "return 0 *", "return str(1) *", "runs"),
    ("executor", "pass", "def submit(self, plan): raise KeyError('x')", "in a batch"),
    ("executor", "pass", "def start(self): raise KeyError('x')", "starts"),
]
"""Kind, what is replaced in the sound one, by what, and a part of the check that must fail."""


def checked(site, module: str, source: str):
    hooks, targets = dedent(source).format(module=module).split("# TARGETS\n")
    site.write(module, hooks)
    (site.root / f"{module}_target.py").write_text(targets)
    return run(
        PluginHost.discover(plugins=["octavo_plugins.executors.local", *BESIDE, module]), module
    )


BESIDE = (
    "octavo_plugins.executors.local",
    "octavo_plugins.attention.torch",
    "octavo_plugins.tokenizers.transformers",
    "octavo_plugins.models.llama",
    "octavo_plugins.sources.local",
    "octavo_plugins.guided.llguidance",
)


@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_plugin_of_each_kind_passes(site, kind) -> None:
    report = checked(site, f"sound_{kind}", SOUND[kind])
    assert report.passed, report.as_text()
    claimed = [check for check in report.checks if "not claimed" not in check.detail]
    assert len(claimed) >= 3, report.as_text()


@pytest.mark.parametrize(("kind", "sound", "broken", "check"), FAULTS)
def test_a_fault_of_each_kind_is_found(site, kind, sound, broken, check) -> None:
    source = SOUND[kind]
    assert sound in source
    report = checked(site, f"broken_{kind}", source.replace(sound, broken))
    failed = [each.name for each in report.checks if not each.passed]
    assert any(check in name for name in failed), report.as_text()
