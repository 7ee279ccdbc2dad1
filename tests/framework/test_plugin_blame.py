"""Whatever a plugin returns or raises wrongly names it, and is never the client's mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.cli import main
from octavo.errors import BadRequestError, OctavoError, PluginError
from octavo.guided.choose import choose_guide
from octavo.params import GuidedParams
from octavo.server.http.errors import reply_to
from octavo.testing.kit import run
from octavo.testing.random_model import make_random_model
from octavo.tools.checked import CheckedToolParser
from octavo_registry import PluginHost
from server_faults import until

REGISTER = """
from octavo_registry import hookimpl

OCTAVO_API = "1"
FAILURES = []


@hookimpl
def plugin_failed(failure):
    FAILURES.append((failure.plugin, failure.call))


{hooks}
"""
LLAMA = """
@hookimpl
def register_models(models):
    models.add("LlamaForCausalLM", "{module}_target:Mine", replace=True)
"""
OF_LLAMA = """
from octavo_plugins.models.llama.model import Llama

class Mine(Llama):
    {method}
"""
TOKENIZER = """
@hookimpl
def register_tokenizers(tokenizers):
    tokenizers.add("mine", "{module}_target:Mine")
"""
OF_TOKENIZER = """
from octavo_plugins.tokenizers.transformers.tokenizer import TransformersTokenizer

class Mine(TransformersTokenizer):
    {method}
"""
PARSER = """
@hookimpl
def register_tool_parsers(parsers):
    parsers.add("mine", "{module}_target:Mine")
"""
OF_PARSER = """
from octavo_plugins.tool_parsers.hermes.parser import HermesParser

class Mine(HermesParser):
    {method}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    return make_random_model(folder, vocab_size=320, num_layers=1, max_position_embeddings=128)


@pytest.fixture
def plugin(site) -> Iterator:
    def write(module: str, hooks: str, targets: str, method: str) -> str:
        (site.root / f"{module}.py").write_text(REGISTER.format(hooks=hooks.format(module=module)))
        (site.root / f"{module}_target.py").write_text(targets.format(method=method))
        return module

    return write


BESIDE = (
    "octavo_plugins.executors.local",
    "octavo_plugins.attention.torch",
    "octavo_plugins.tokenizers.transformers",
    "octavo_plugins.models.llama",
    "octavo_plugins.sources.local",
)


def engine(folder: Path, *plugins: str, **options: object) -> LLM:
    given = {"dtype": "float32", "num_threads": 1, "max_num_seqs": 2, **options}
    return LLM(str(folder), plugins=[*BESIDE, *plugins], **given)


def failures(module: str) -> list[tuple[str, str]]:
    return __import__(module).FAILURES


@pytest.mark.parametrize(
    ("method", "shown"),
    [
        ("def forward(self, x, step): raise KeyError('mine')", "KeyError: 'mine'"),
        ("def forward(self, x, step): return x.no_such_thing", "AttributeError"),
        ("def forward(self, x, step): raise SystemExit(3)", "SystemExit: 3"),
        ("def logits(self, hidden): return super().logits(hidden)[:, :100]", "not 1 rows of 320"),
    ],
)
def test_a_model_that_fails_in_a_step_is_named(folder, plugin, method, shown) -> None:
    module = plugin("stepping", LLAMA, OF_LLAMA, method)
    with engine(folder, module) as llm:
        (output,) = llm.generate([[5, 6]], SamplingParams(max_tokens=2), use_tqdm=False)
    assert shown in output.error
    assert output.error_type == "PluginError"
    if "logits" not in method:
        assert "plugin 'stepping' failed in a step" in output.error
        until(lambda: ("stepping", "a step") in failures(module))


@pytest.mark.parametrize(
    "method",
    ["def cache_specs(self): return ['layer']", "def cache_specs(self): return {{'layer': 5}}"],
)
def test_a_model_without_cache_specs_is_named(folder, plugin, method) -> None:
    module = plugin("caching", LLAMA, OF_LLAMA, method.replace("{{", "{").replace("}}", "}"))
    with pytest.raises(PluginError, match="'caching' failed in cache_specs of LlamaForCausalLM"):
        engine(folder, module)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("{}['mine']", "'mine'"),
        ("None", "NoneType"),
        ("['a']", "'a'"),
        ("[10**6]", "1000000"),
        ("(_ for _ in ()).throw(SystemExit(3))", "SystemExit: 3"),
    ],
)
def test_a_tokenizer_that_encodes_wrongly_is_no_mistake_of_the_client(
    folder, plugin, answer, shown
) -> None:
    method = (
        "def encode(self, text, add_special_tokens=True):\n"
        f"        return {answer} if text == 'Hello' else super().encode(text, add_special_tokens)"
    )
    module = plugin("spelling", TOKENIZER, OF_TOKENIZER, method)
    with (
        engine(folder, module, tokenizer_mode="mine") as llm,
        pytest.raises(PluginError, match="plugin 'spelling' failed in tokenizer 'mine'") as failed,
    ):
        llm.generate("Hello", use_tqdm=False)
    assert shown in str(failed.value)
    assert not isinstance(failed.value, BadRequestError)
    assert reply_to(failed.value).status == 500
    until(lambda: ("spelling", "tokenizer 'mine', encode") in failures(module))


def test_a_tokenizer_that_fails_at_the_start_is_named(folder, plugin) -> None:
    module = plugin("starting", TOKENIZER, OF_TOKENIZER, "decode = None")
    with pytest.raises(PluginError, match="'starting' failed in tokenizer 'mine', decode"):
        engine(folder, module, tokenizer_mode="mine")


def test_a_tokenizer_that_cannot_decode_is_named(folder, plugin) -> None:
    method = (
        "def decode(self, ids, *args, **kwargs):\n"
        "        return {}['mine'] if 77 in ids else super().decode(ids, *args, **kwargs)"
    )
    module = plugin("reading", TOKENIZER, OF_TOKENIZER, method)
    with engine(folder, module, tokenizer_mode="mine") as llm:
        params = SamplingParams(max_tokens=2, allowed_token_ids=[77])
        (output,) = llm.generate([[5, 6]], params, use_tqdm=False)
    assert "plugin 'reading' failed in tokenizer 'mine', decode: KeyError: 'mine'" in output.error
    assert output.error_type == "PluginError"


@pytest.mark.parametrize("method", ["stream(self, tools)", "form(self, tools, parallel)"])
def test_a_parser_that_ends_the_process_is_named(plugin, method) -> None:
    module = plugin("ending", PARSER, OF_PARSER, f"def {method}: raise SystemExit(3)")
    host = PluginHost.discover(plugins=[module])
    parser = CheckedToolParser(host.tool_parsers, "mine", None)
    shown = f"'ending' failed in tool parser 'mine', {method.split('(')[0]}: SystemExit: 3"
    with pytest.raises(PluginError, match=shown):
        parser.stream([]) if "stream" in method else parser.form([], parallel=True)
    told = ("ending", f"tool parser 'mine', {method.split('(')[0]}")
    until(lambda: told in failures(module))  # plugins hear of it in a thread


def test_deltas_that_come_from_a_generator_are_all_there(plugin) -> None:
    method = (
        "def stream(self, tools): return self\n"
        "    def feed(self, text): return (Delta(content=each) for each in text)\n"
        "    def finish(self): raise SystemExit(3)"
    )
    module = plugin("yielding", PARSER, f"from octavo_registry import Delta\n{OF_PARSER}", method)
    host = PluginHost.discover(plugins=[module])
    stream = CheckedToolParser(host.tool_parsers, "mine", None).stream([])
    assert [delta.content for delta in stream.feed("abc")] == ["a", "b", "c"]
    with pytest.raises(PluginError, match="'yielding' failed in tool parser 'mine', finish"):
        stream.finish()


TARGETS = [
    ("tokenizers", "lambda folder, trust_remote_code: 7", "which lacks"),
    ("attention_backends", "lambda: 'text'", "gave str, which lacks"),
    ("executors", "lambda config, folder, host: None", "gave NoneType, which lacks"),
    ("sources", "lambda: None", "gave NoneType, which lacks find"),
    ("logits_processors", "lambda vocab_size, device: 1 / 0", "ZeroDivisionError"),
    ("tool_parsers", "lambda tokenizer: object()", "gave object, which lacks form, markers"),
    ("reasoning_parsers", "lambda tokenizer: object()", "gave object, which lacks before_answer"),
    ("guided_backends", "lambda vocabulary: 5", "gave int, which lacks compile"),
    ("quantizations", "lambda config, model: None", "gave NoneType, which lacks method_of"),
    ("modalities", "lambda: None", "gave NoneType, which lacks"),
    ("adapters", "lambda: None", "gave NoneType, which lacks"),
    ("routes", "lambda server: None", "gave NoneType, which lacks endpoints"),
    ("commands", "lambda: None", "gave NoneType, which lacks configure, run"),
]


@pytest.mark.parametrize(("registry", "target", "shown"), TARGETS)
def test_what_is_made_has_what_its_kind_asks_for(site, registry, target, shown) -> None:
    site.write("making", f"""
        @hookimpl
        def register_{registry}(registry):
            registry.add("mine", "making_target:make")
        """.replace("(registry)", f"({_argument(registry)})").replace(
        "registry.add", f"{_argument(registry)}.add"
    ))  # fmt: skip
    (site.root / "making_target.py").write_text(f"make = {target}\n")
    host = PluginHost.discover(plugins=["making"])
    arguments = {"tokenizers": {"trust_remote_code": False}}.get(registry, {})
    count = target.partition(":")[0].replace("lambda", "").replace("trust_remote_code", "")
    places = [None for name in count.split(",") if name.strip()]
    with pytest.raises(PluginError, match="plugin 'making' failed in making") as failed:
        getattr(host, registry).make("mine", *places, **arguments)
    assert shown in str(failed.value)
    assert sum(host.faults.counts.values()) == 1
    assert host.faults.quarantined == {}


def test_a_quantization_of_the_old_form_hears_what_took_its_place(site) -> None:
    site.write(
        "former",
        """
        @hookimpl
        def register_quantizations(quantizations):
            quantizations.add("mine", "former_target:Method")
        """,
    )
    (site.root / "former_target.py").write_text(
        "class Method:\n"
        "    def __init__(self, *configs): pass\n"
        "    def create(self, layer, *, name, in_features, out_features, dtype, device): pass\n"
        "    def finish(self, layer): pass\n"
        "    def apply(self, layer, x, bias): pass\n"
    )
    host = PluginHost.discover(plugins=["former"])
    told = r"lacks method_of; apply is now that of the QuantizationMethod which method_of\(site\)"
    with pytest.raises(PluginError, match=told):
        host.quantizations.make("mine", {}, {})
    (kept,) = [check for check in run(host, "former").checks if "protocol" in check.name]
    assert "method_of is missing; apply is now that of" in kept.detail


def test_an_attention_backend_of_the_old_form_hears_the_new_names(site) -> None:
    site.write(
        "former",
        """
        @hookimpl
        def register_attention_backends(backends):
            backends.add("mine", "former_target:Backend")
        """,
    )
    (site.root / "former_target.py").write_text(
        "from octavo_plugins.attention.torch.backend import TorchAttention\n"
        "class Backend:\n"
        "    recordable = batch_invariant = False\n"
        "    plan = supports = page_bytes = views = attend = TorchAttention.attend\n"
    )
    host = PluginHost.discover(plugins=["former"])
    told = (
        "lacks most_recorded_queries, prepare; plan is now prepare; "
        "recordable is now most_recorded_queries"
    )
    with pytest.raises(PluginError, match=told):
        host.attention_backends.make("mine")
    (kept,) = [check for check in run(host, "former").checks if "protocol" in check.name]
    assert "prepare is missing; plan is now prepare" in kept.detail


def test_a_guided_backend_of_the_old_form_hears_the_new_names(site) -> None:
    form = """
        @hookimpl
        def register_guided_backends(backends):
            backends.add("mine", "former_target:Backend", keywords=("choice",), {}=True)
        """
    site.write("former", form.format("machines"))
    site.write("half", form.format("automata"))
    (site.root / "former_target.py").write_text(
        "class Backend:\n"
        "    def __init__(self, vocabulary): pass\n"
        "    def compile(self, constraint): pass\n"
        "    machine = compile\n"
    )
    with pytest.raises(PluginError, match="with machines=; that is now automata="):
        PluginHost.discover(plugins=["former"])
    host = PluginHost.discover(plugins=["half"])
    params = GuidedParams(choice=["yes"], backend="mine")
    with pytest.raises(PluginError, match=r"lacks automaton\(\); machine is now automaton"):
        choose_guide(params, host, on_device=True)
    with pytest.raises(ImportError, match="ByteMachine is now ByteAutomaton"):
        from octavo_registry.guided import ByteMachine  # noqa: F401


def _argument(registry: str) -> str:
    """As the hook calls its registry."""
    return {"tool_parsers": "parsers", "reasoning_parsers": "parsers",
            "attention_backends": "backends", "guided_backends": "backends",
            "logits_processors": "processors"}.get(registry, registry)  # fmt: skip


CHOICES = [
    ("return 5", "TypeError: it returned int, not a text or None"),
    ("return 'hermees'", "it chose the tool parser 'hermees', which nobody has; close: ['hermes']"),
    ("raise OctavoError('mine')", "OctavoError: mine"),
]


@pytest.mark.parametrize(("answer", "shown"), CHOICES)
def test_a_choice_that_is_none_names_plugin_and_hook(site, answer, shown) -> None:
    site.write("choosing", f"""
        from octavo_registry import OctavoError

        @hookimpl
        def select_tool_parser(architecture):
            {answer}
        """)  # fmt: skip
    host = PluginHost.discover(plugins=["octavo_plugins.tool_parsers.hermes", "choosing"])
    with pytest.raises(PluginError, match="'choosing' failed in select_tool_parser") as failed:
        host.hook.select_tool_parser(architecture="A", config={}, chat_template=None)
    assert shown in str(failed.value)


def test_a_hook_that_nothing_waits_for_is_refused(site) -> None:
    site.write("waiting", """
        @hookimpl
        async def request_finished(outcome): pass
        """)  # fmt: skip
    with pytest.raises(PluginError, match=r"'waiting' .*: request_finished must not be async"):
        PluginHost.discover(plugins=["waiting"])


@pytest.mark.parametrize(
    ("body", "shown"),
    [("return None", "it returned None, not an exit code"), ("raise KeyError('x')", "KeyError")],
)
def test_a_command_that_fails_names_its_plugin(site, capsys, body, shown) -> None:
    site.write("commanding", """
        @hookimpl
        def register_commands(commands):
            commands.add("mine", "commanding_target:Mine", help="fail")
        """)  # fmt: skip
    (site.root / "commanding_target.py").write_text(
        "class Mine:\n"
        "    def configure(self, parser): pass\n"
        f"    def run(self, args, host): {body}\n"
    )
    assert main(["mine", "--plugin", "commanding"]) != 0
    told = capsys.readouterr().err
    assert "plugin 'commanding' failed in command 'mine'" in told
    assert shown in told


@pytest.mark.parametrize("answer", ["'/nowhere'", "7"])
def test_a_source_that_finds_no_path_is_named(site, answer) -> None:
    from octavo.model_folder.sources import find_model

    site.write("finding", """
        @hookimpl
        def register_sources(sources):
            sources.add("mine", "finding_target:Mine")
        """)  # fmt: skip
    (site.root / "finding_target.py").write_text(
        "from pathlib import Path\n"
        "class Mine:\n"
        "    uses_network = False\n"
        f"    def find(self, name, *, revision): return {answer}\n"
    )
    host = PluginHost.discover(plugins=["finding"])
    with pytest.raises(OctavoError, match="plugin 'finding' failed in finding model 'any'"):
        find_model(host, "any")
