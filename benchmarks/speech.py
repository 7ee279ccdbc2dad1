"""Sounds turned into text, by second of sound: a Whisper of large-v3's shape with made-up weights.

    python -m benchmarks.speech --engines octavo,vllm --vllm-path FOLDER     # on a GPU
    python -m benchmarks.speech --shape tiny --device cpu --clips 4          # a try
    python -m benchmarks.speech --http      # as WAV files, all at once

Every engine is a process of its own and gets the same clips of 30 seconds, each another one, so
that spectra, encoder and the copies of both count. The engines' defaults hold otherwise. RTFx is
seconds of sound by second of time.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.engine_process import measured
from benchmarks.http_streaming import free_port, wait_for
from octavo.client import parse_address

RATE = 16_000
SECONDS = 30
TEXT_TOKENS = 50257
END, START, ENGLISH, TRANSLATE, TRANSCRIBE, NO_TIMES = 50257, 50258, 50259, 50359, 50360, 50364
VOCAB = 51866
SPEECH = "/v1/audio/transcriptions"
EDGE = "octavo-benchmark-edge"
"""Between the parts of a form."""
HEAD = (START, ENGLISH, TRANSCRIBE, NO_TIMES)
SHAPES: dict[str, dict[str, int]] = {
    "large-v3": {"d_model": 1280, "heads": 20, "ffn": 5120, "encoder": 32, "decoder": 32},
    "turbo": {"d_model": 1280, "heads": 20, "ffn": 5120, "encoder": 32, "decoder": 4},
    "tiny": {"d_model": 384, "heads": 6, "ffn": 1536, "encoder": 4, "decoder": 4},
}


def write_folder(folder: Path, shape: str, *, http: bool = False) -> None:
    """A model folder without weights."""
    sizes = SHAPES[shape]
    config = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "dtype": "bfloat16",
        "vocab_size": VOCAB,
        "num_mel_bins": 128,
        "d_model": sizes["d_model"],
        "encoder_layers": sizes["encoder"],
        "decoder_layers": sizes["decoder"],
        "encoder_attention_heads": sizes["heads"],
        "decoder_attention_heads": sizes["heads"],
        "encoder_ffn_dim": sizes["ffn"],
        "decoder_ffn_dim": sizes["ffn"],
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "activation_function": "gelu",
        "scale_embedding": False,
        "is_encoder_decoder": True,
        "decoder_start_token_id": START,
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
    }
    processor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": 128,
        "sampling_rate": RATE,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": SECONDS,
        "n_samples": SECONDS * RATE,
        "nb_max_frames": SECONDS * 100,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    if http:  # whose transcripts follow its rules
        rules = {
            "no_timestamps_token_id": NO_TIMES,
            "is_multilingual": True,
            "lang_to_id": {"<|en|>": ENGLISH},
            "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
            "eos_token_id": END,
            "decoder_start_token_id": START,
        }
        (folder / "generation_config.json").write_text(json.dumps(rules))
    _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"unused{number}" for number in range(TEXT_TOKENS - len(letters)))]
    vocab = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = {END: "endoftext", START: "startoftranscript", ENGLISH: "en", TRANSLATE: "translate"}
    names |= {TRANSCRIBE: "transcribe", 50362: "startofprev", 50363: "nospeech"}
    names |= {NO_TIMES: "notimestamps"}
    names |= {NO_TIMES + 1 + i: f"{i * 0.02:.2f}" for i in range(VOCAB - NO_TIMES - 1)}
    tokens = [f"<|{names.get(i, f'special{i}')}|>" for i in range(TEXT_TOKENS, VOCAB)]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    settings = {
        "tokenizer_class": "WhisperTokenizer",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def clip(number: int) -> Any:
    """A sound of its own for each number."""
    import numpy as np

    rng = np.random.default_rng(number)
    tone = np.sin(np.arange(SECONDS * RATE, dtype=np.float32) * (0.02 + 0.001 * (number % 50)))
    return (0.3 * tone + rng.normal(0, 0.1, SECONDS * RATE)).astype(np.float32)


def prompt_of(engine: str, sound: Any) -> dict[str, Any]:
    """Prompt of one clip; vLLM wants the encoder's and the decoder's apart."""
    media = {"multi_modal_data": {"audio": sound}}
    if engine == "vllm":
        decoder = {"prompt_token_ids": list(HEAD)}
        return {"encoder_prompt": {"prompt": "", **media}, "decoder_prompt": decoder}
    return {"prompt_token_ids": list(HEAD), **media}


def command_of(job: dict[str, Any], port: int) -> list[str]:
    """The server of one engine."""
    if job["engine"] == "vllm":
        start = ["-m", "vllm.entrypoints.openai.api_server", "--model", job["folder"]]
    else:
        start = ["-m", "octavo", "serve", job["folder"], "--device", job["device"]]
    options = ["--load-format", "dummy", "--max-model-len", "448", "--port", str(port)]
    return [sys.executable, *start, *options, "--host", "127.0.0.1"]


def form_of(job: dict[str, Any], sound: Any) -> bytes:
    """A transcription's form with one clip as a WAV file of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(RATE)
        wav.writeframes((sound * 32767).clip(-32768, 32767).astype("<i2").tobytes())
    fields = {"model": job["folder"], "language": "en", "temperature": "0"}
    fields["max_completion_tokens"] = str(job["tokens"])
    head = 'Content-Disposition: form-data; name="'
    parts = [f'--{EDGE}\r\n{head}{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    parts.append(f'--{EDGE}\r\n{head}file"; filename="clip.wav"\r\n\r\n')
    return "".join(parts).encode() + file.getvalue() + f"\r\n--{EDGE}--\r\n".encode()


def transcribe(port: int, body: bytes) -> bytes:
    """Post one form; returns the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request(
        "POST", SPEECH, body, {"content-type": f"multipart/form-data; boundary={EDGE}"}
    )
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{SPEECH}: {answer.status} {data[:300]!r}")
    return data


def measure_http(job: dict[str, Any]) -> None:
    """A server and as many clients as clips; prints a line of JSON for each pass."""
    port, clips = free_port(), job["clips"]
    server = subprocess.Popen(command_of(job, port), stdout=sys.stderr)
    try:
        wait_for(parse_address(f"http://127.0.0.1:{port}"), server)
        with ThreadPoolExecutor(clips) as clients:
            for number in range(1 + job["rounds"]):
                forms = [form_of(job, clip(number * clips + i)) for i in range(clips)]
                began = time.perf_counter()
                answers = list(clients.map(partial(transcribe, port), forms))
                seconds = time.perf_counter() - began
                letters = [len(json.loads(answer)["text"]) for answer in answers]
                if number:  # the first warms up
                    line = {"rtfx": clips * SECONDS / seconds, "letters": sum(letters) / clips}
                    print(json.dumps(line), flush=True)
    finally:
        server.terminate()
        server.wait()


def measure(job: dict[str, Any]) -> None:
    """The process of one engine; prints a line of JSON for each pass."""
    if job["http"]:
        measure_http(job)
        return
    if job["engine"] == "vllm":
        from vllm import LLM, SamplingParams

        options: dict[str, Any] = {"limit_mm_per_prompt": {"audio": 1}}
    else:
        from octavo import LLM, SamplingParams

        options = {name: job[name] for name in ("device", "engine_process")}
    llm = LLM(job["folder"], load_format="dummy", max_model_len=448, **options)
    params = SamplingParams(temperature=0.0, max_tokens=job["tokens"], ignore_eos=True)
    clips = job["clips"]
    for number in range(1 + job["rounds"]):
        sounds = [(clip(number * clips + i), RATE) for i in range(clips)]
        prompts = [prompt_of(job["engine"], sound) for sound in sounds]
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        count = sum(len(output.outputs[0].token_ids) for output in outputs)
        assert count == clips * job["tokens"], count
        if number:  # the first warms up
            print(json.dumps({"rtfx": clips * SECONDS / seconds}), flush=True)


def main() -> int:
    if sys.argv[1:2] == ["measure"]:
        measure(json.loads(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="octavo", help="of octavo, vllm")
    parser.add_argument("--shape", default="large-v3", choices=sorted(SHAPES))
    parser.add_argument("--device", default="auto", help="octavo's")
    parser.add_argument(
        "--engine-process", action=argparse.BooleanOptionalAction, help="octavo's, as LLM takes it"
    )
    parser.add_argument("--http", action="store_true", help="over HTTP")
    parser.add_argument("--clips", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=96, help="of text, for each clip")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm-path", help="folder to import vLLM from")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write_folder(Path(scratch), args.shape, http=args.http)
        for engine in args.engines.split(","):
            job = {**vars(args), "engine": engine, "folder": scratch}
            found = [each["rtfx"] for each in measured("benchmarks.speech", job, args.vllm_path)]
            raw = " ".join(f"{each:.0f}" for each in found)
            median = statistics.median(found)
            print(f"{engine:7} RTFx {median:8.0f}, {median / SECONDS:.1f} clips a second ({raw})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
