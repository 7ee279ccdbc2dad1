"""vLLM, with its defaults."""

from __future__ import annotations

from vllm import LLM, SamplingParams

from benchmarks.compare.workloads import MAX_MODEL_LEN, MEMORY_UTILIZATION, Engine, Prompts


class Vllm:
    max_requests: int | None = None

    def __init__(self, folder: str) -> None:
        self._llm = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=MAX_MODEL_LEN,
            gpu_memory_utilization=MEMORY_UTILIZATION,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )

    def run(self, prompts: Prompts, num_tokens: int) -> Prompts:
        params = SamplingParams(
            temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        outputs = self._llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False
        )
        return [list(output.outputs[0].token_ids) for output in outputs]


def make(folder: str) -> Engine:
    return Vllm(folder)
