"""Adapters that come and go under traffic: python -m benchmarks.adapter_cycles [--cycles 1000]

A live server of octavo/tiny in float32, with room for two of six adapters on the device. Several
clients at a time load an adapter, ask it twice and the model alone once, and unload it while an
answer may be under way. Each answer must be that of its adapter alone, to the letter. Exits with 1
if one was not, was missing, or if memory grew after the first tenth of the cycles.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.http_streaming import free_port, wait_for
from octavo.client import parse_address

OCTAVO: Final = "from octavo.cli import main; raise SystemExit(main())"
PIRATE: Final = Path(__file__).parents[1] / "plugins/octavo_plugins/sources/embedded/tiny_pirate"
NUM_ADAPTERS: Final = 6
PROMPTS: Final = ("The capital of France is", "Rivers of Japan:", "Tell me a story about")
MOST_GROWTH_MIB: Final = 48
"""Growth of the server's processes, from the first tenth of the cycles to the last."""


def write_adapters(folder: Path) -> list[Path]:
    """Random ones of several ranks, on what the pirate changes."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(PIRATE / "adapter_model.safetensors")
    config = json.loads((PIRATE / "adapter_config.json").read_text())
    made = []
    for number in range(NUM_ADAPTERS):
        generator = torch.Generator().manual_seed(number)
        rank = 4 * (number + 1)
        mine = {}
        for name, tensor in tensors.items():
            is_down = "lora_A" in name
            size = (rank, tensor.shape[1]) if is_down else (tensor.shape[0], rank)
            mine[name] = torch.randn(size, generator=generator) * (0.05 if is_down else 0.2)
        made.append(folder / f"adapter{number}")
        made[-1].mkdir()
        save_file(mine, made[-1] / "adapter_model.safetensors")
        text = json.dumps({**config, "r": rank, "lora_alpha": rank})
        (made[-1] / "adapter_config.json").write_text(text)
    return made


def host_mib(root: int) -> float:
    """Memory of a process and all below it."""
    parents, sizes = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = dict(line.split(":", 1) for line in lines)
        parents[int(folder.name)] = int(fields["PPid"])
        sizes[int(folder.name)] = int(fields.get("VmRSS", "0").split()[0]) / 1024
    family = {root}
    for _ in parents:
        family |= {pid for pid, parent in parents.items() if parent in family}
    return sum(sizes.get(pid, 0.0) for pid in family)


def device_mib() -> float:
    """Used on the GPU by all processes; 0 without one."""
    import torch

    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


class Cycles:
    """Clients of one server, and what has become of their requests."""

    def __init__(self, client: httpx.AsyncClient, folders: list[Path], pid: int) -> None:
        self._client, self._folders, self._pid = client, folders, pid
        self._expected: dict[tuple[int, str], str] = {}
        self.counts = Counter[str]()
        self.memory: list[tuple[float, float]] = []

    async def ask(self, model: str, prompt: str) -> str:
        """Its answer, whole."""
        body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0}
        answer = await self._client.post("/v1/completions", json=body)
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["text"])

    async def load(self, name: str, number: int) -> None:
        """One of the adapters, under a name."""
        body = {"lora_name": name, "lora_path": str(self._folders[number])}
        (await self._client.post("/v1/load_lora_adapter", json=body)).raise_for_status()

    async def unload(self, name: str) -> None:
        """Take it back."""
        body = {"lora_name": name}
        (await self._client.post("/v1/unload_lora_adapter", json=body)).raise_for_status()

    async def learn(self) -> None:
        """The answers of each adapter alone; number -1 is the model without."""
        for number in range(-1, len(self._folders)):
            if number >= 0:
                await self.load("alone", number)
            for prompt in PROMPTS:
                model = "alone" if number >= 0 else "octavo/tiny"
                self._expected[number, prompt] = await self.ask(model, prompt)
            if number >= 0:
                await self.unload("alone")
        assert len(set(self._expected.values())) > NUM_ADAPTERS, "adapters change nothing"

    async def cycle(self, name: str, turn: int) -> None:
        """Load, ask, unload."""
        number, prompt = turn % len(self._folders), PROMPTS[turn % len(PROMPTS)]
        await self.load(name, number)
        asked = [(number, prompt), (-1, prompt), (number, PROMPTS[0])]
        answers = [
            asyncio.create_task(self.ask(name if each >= 0 else "octavo/tiny", text))
            for each, text in asked
        ]
        await answers[0]
        await self.unload(name)
        for key, answer in zip(asked, await asyncio.gather(*answers), strict=True):
            self.counts["right" if answer == self._expected[key] else "wrong"] += 1

    async def run(self, num_cycles: int, num_clients: int) -> None:
        """All cycles, so many at a time; memory is looked at ten times."""
        turns = iter(range(num_cycles))

        async def client(place: int) -> None:
            for turn in turns:
                try:
                    await self.cycle(f"adapter-{place}", turn)
                except httpx.HTTPError as error:
                    self.counts[f"lost: {type(error).__name__}"] += 1
                if (turn + 1) % max(num_cycles // 10, 1) == 0:
                    self.memory.append((host_mib(self._pid), device_mib()))

        await asyncio.gather(*(client(place) for place in range(num_clients)))


async def measured(address: str, folders: list[Path], pid: int, args: Any) -> Cycles:
    """Run against a server that listens."""
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        cycles = Cycles(client, folders, pid)
        await cycles.learn()
        await cycles.run(args.cycles, args.clients)
        return cycles


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folders = write_adapters(Path(scratch))
        port = free_port()
        command = [sys.executable, "-c", OCTAVO, "serve", "octavo/tiny", f"--port={port}"]
        command += [f"--device={args.device}", "--dtype=float32", "--no-access-log"]
        command += ["--enable-lora", "--lora-pool-rank=48", "--max-cpu-loras=3"]
        command += ["--allow-runtime-lora", f"--allowed-lora-path={scratch}"]
        command += ["--kv-cache-memory-gib=0.1"]
        child = subprocess.Popen(command)
        address = f"http://127.0.0.1:{port}"
        try:
            wait_for(parse_address(address), child)
            began = time.perf_counter()
            cycles = asyncio.run(measured(address, folders, child.pid, args))
            seconds = time.perf_counter() - began
        finally:
            child.terminate()
            child.wait(60)
    counts, memory = cycles.counts, cycles.memory
    print(f"{args.cycles} cycles in {seconds:.0f} s; answers: {dict(counts)}")
    print("host MiB  ", " ".join(f"{host:.0f}" for host, _ in memory))
    print("device MiB", " ".join(f"{device:.0f}" for _, device in memory))
    grew = [last - first for first, last in zip(memory[0], memory[-1], strict=True)]
    held = set(counts) == {"right"} and counts["right"] == 3 * args.cycles
    return 0 if held and max(grew) <= MOST_GROWTH_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
