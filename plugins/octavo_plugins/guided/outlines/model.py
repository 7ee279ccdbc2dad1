"""An ``LLM`` as a model of Outlines, for its ``Generator``, templates and applications."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from octavo import LLM, GuidedParams, SamplingParams
from octavo.guided.schema.output_types import importing_outlines

with importing_outlines():
    from outlines.models.vllm_offline import VLLMOffline


class OutlinesModel(VLLMOffline):  # its Generator knows models by their class, and ours by that one
    """Takes text, or a Chat, which a text becomes where the model has a chat template.

    ``sampling_params`` go with a call; constraints are those of ``GuidedParams.of``.
    """

    def __init__(self, llm: LLM) -> None:
        super().__init__(llm)

    def generate(
        self, model_input: Any, output_type: Any = None, **inference_kwargs: Any
    ) -> str | list[str]:
        """Return the text, or with ``n`` all of them."""
        answers = self.generate_batch([model_input], output_type, **inference_kwargs)
        answer: str | list[str] = answers[0]
        return answer

    def generate_batch(
        self,
        model_input: list[Any],
        output_type: Any = None,
        *,
        sampling_params: SamplingParams | None = None,
        **inference_kwargs: Any,
    ) -> list[Any]:
        """Return the same for each input; all run together."""
        params = sampling_params or SamplingParams()
        if output_type is not None:
            params = replace(params, guided=GuidedParams.of(output_type))
        prompts = [self.type_adapter.format_input(each) for each in model_input]
        are_chats = bool(prompts) and isinstance(prompts[0], list)
        ask = self.model.chat if are_chats else self.model.generate
        answers = [
            [answer.text for answer in output.outputs]
            for output in ask(prompts, params, **inference_kwargs)
        ]
        return [texts[0] if len(texts) == 1 else texts for texts in answers]

    def generate_stream(
        self, model_input: Any, output_type: Any = None, **inference_kwargs: Any
    ) -> Iterator[str]:
        """Refuse, as an LLM answers when all is there."""
        raise NotImplementedError(
            "an LLM does not stream; serve the model and use outlines.from_vllm, or AsyncLLM"
        )
