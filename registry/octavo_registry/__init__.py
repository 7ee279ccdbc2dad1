"""The contract between Octavo and its plugins. Importing it loads neither torch nor a plugin."""

from octavo_registry.adapters import (
    Adapter,
    AdapterFolders,
    AdapterFormat,
    AdapterResolver,
    ListsAdapters,
)
from octavo_registry.attention import AttentionBackend, QKTransform, StoresRows
from octavo_registry.cache import CacheSpec
from octavo_registry.commands import Command
from octavo_registry.errors import (
    DuplicateNameError,
    ManifestMismatchError,
    OctavoError,
    PluginError,
    UnknownNameError,
)
from octavo_registry.events import EngineFacts, PluginFailure, RequestOutcome
from octavo_registry.faults import Faults
from octavo_registry.guided import (
    Constraint,
    Guide,
    GuidedBackend,
    GuideState,
    GuideVocabulary,
)
from octavo_registry.hooks import hookimpl
from octavo_registry.host import PluginHost
from octavo_registry.kv_store import KVStore, KVStoreKey, LoadTicket, StoreTicket, Ticket
from octavo_registry.layer_adapters import LayerAdapters
from octavo_registry.lazy import Entry, LazyRegistry
from octavo_registry.linear import (
    ExpertsMethod,
    ExpertsParameter,
    FusedProducts,
    Quantization,
    QuantizationMethod,
    ReordersOutputs,
    WritesBiases,
)
from octavo_registry.logits import LogitsProcessor, ValidatesArgs
from octavo_registry.manifest import API_VERSION, Manifest, PluginRecord
from octavo_registry.modalities import (
    AudioClip,
    InputRegistry,
    MediaError,
    MediaItem,
    MediaLimitError,
    MediaLimits,
    MediaPrompt,
    MediaSettings,
    ModalityDecoder,
    MultimodalRegistry,
    Placeholder,
    VideoClip,
)
from octavo_registry.model import (
    AttendsAcross,
    EncodesMedia,
    FinishesWeights,
    HasWorkspace,
    Modality,
    Model,
    ModelCapabilities,
    ModelPart,
    ModelSpec,
    RulesOutTokens,
    SamplesTokens,
    SequenceTokens,
    Task,
)
from octavo_registry.options import Option, OptionRegistry
from octavo_registry.registering import INPUT_REGISTRY, MULTIMODAL_REGISTRY
from octavo_registry.routes import Endpoint, RouteGroup
from octavo_registry.sites import Axis, ExpertsSite, Part, Shard, Site
from octavo_registry.sources import FindsSettings, ModelSource
from octavo_registry.step import AttentionStep, LayerCache, MediaRows, Step, StepBounds
from octavo_registry.tokenizer import Tokenizer
from octavo_registry.tools import (
    CallForm,
    Delta,
    ParsedMessage,
    ParserStream,
    ReasoningParser,
    ToolCall,
    ToolDefinition,
    ToolParser,
)
from octavo_registry.transcription import Passage, Transcriber, TranscriptionTask

__all__ = [
    "API_VERSION",
    "INPUT_REGISTRY",
    "MULTIMODAL_REGISTRY",
    "Adapter",
    "AdapterFolders",
    "AdapterFormat",
    "AdapterResolver",
    "AttendsAcross",
    "AttentionBackend",
    "AttentionStep",
    "AudioClip",
    "Axis",
    "CacheSpec",
    "CallForm",
    "Command",
    "Constraint",
    "Delta",
    "DuplicateNameError",
    "EncodesMedia",
    "Endpoint",
    "EngineFacts",
    "Entry",
    "ExpertsMethod",
    "ExpertsParameter",
    "ExpertsSite",
    "Faults",
    "FindsSettings",
    "FinishesWeights",
    "FusedProducts",
    "Guide",
    "GuideState",
    "GuideVocabulary",
    "GuidedBackend",
    "HasWorkspace",
    "InputRegistry",
    "KVStore",
    "KVStoreKey",
    "LayerAdapters",
    "LayerCache",
    "LazyRegistry",
    "ListsAdapters",
    "LoadTicket",
    "LogitsProcessor",
    "Manifest",
    "ManifestMismatchError",
    "MediaError",
    "MediaItem",
    "MediaLimitError",
    "MediaLimits",
    "MediaPrompt",
    "MediaRows",
    "MediaSettings",
    "Modality",
    "ModalityDecoder",
    "Model",
    "ModelCapabilities",
    "ModelPart",
    "ModelSource",
    "ModelSpec",
    "MultimodalRegistry",
    "OctavoError",
    "Option",
    "OptionRegistry",
    "ParsedMessage",
    "ParserStream",
    "Part",
    "Passage",
    "Placeholder",
    "PluginError",
    "PluginFailure",
    "PluginHost",
    "PluginRecord",
    "QKTransform",
    "Quantization",
    "QuantizationMethod",
    "ReasoningParser",
    "ReordersOutputs",
    "RequestOutcome",
    "RouteGroup",
    "RulesOutTokens",
    "SamplesTokens",
    "SequenceTokens",
    "Shard",
    "Site",
    "Step",
    "StepBounds",
    "StoreTicket",
    "StoresRows",
    "Task",
    "Ticket",
    "Tokenizer",
    "ToolCall",
    "ToolDefinition",
    "ToolParser",
    "Transcriber",
    "TranscriptionTask",
    "UnknownNameError",
    "ValidatesArgs",
    "VideoClip",
    "WritesBiases",
    "hookimpl",
]
