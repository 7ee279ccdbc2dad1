import os
from pathlib import Path

import pytest
import torch

from octavo import LLM
from octavo.cache.groups import make_layout
from octavo.errors import CacheError
from octavo.execution.cache_memory import CacheMemory
from octavo.host_memory import host_memory
from octavo_registry.cache import CacheSpec

MIB = 1024**2
SPEC = CacheSpec.full(kv_heads=1, head_dim=64, dtype="float32")


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    write(tmp_path / "proc", meminfo="MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    return tmp_path / "proc"


def limit(group: Path, most: str, used: int, reclaimable: int = 0) -> None:
    stat = f"anon 5\ninactive_file {reclaimable}\n"
    write(group, memory__max=most, memory__current=f"{used}\n", memory__stat=stat)


def test_a_machine_without_control_groups_gives_what_it_has(proc: Path, tmp_path: Path) -> None:
    assert host_memory(proc, tmp_path / "none") == 8000 * 1024


@pytest.mark.parametrize("path", ["/", "/app/worker", "/a/path/of/the/host"])
def test_the_limit_of_a_container_counts_and_file_pages_can_be_had(
    proc: Path, tmp_path: Path, path: str
) -> None:
    write(proc / "self", cgroup=f"0::{path}\n")
    limit(tmp_path / "groups", "5000000\n", 2_000_000, 500_000)
    limit(tmp_path / "groups/app/worker", "max\n", 1_000)
    assert host_memory(proc, tmp_path / "groups") == 3_500_000


def test_the_narrowest_group_counts(proc: Path, tmp_path: Path) -> None:
    write(proc / "self", cgroup="0::/app/worker\n")
    limit(tmp_path / "groups/app", "5000000", 2_000_000)
    limit(tmp_path / "groups/app/worker", "1000000", 900_000)
    assert host_memory(proc, tmp_path / "groups") == 100_000
    limit(tmp_path / "groups/app/worker", "1000000", 1_900_000)
    assert host_memory(proc, tmp_path / "groups") == 0


def test_groups_of_the_first_version_count_by_their_own_names(proc: Path, tmp_path: Path) -> None:
    write(proc / "self", cgroup="8:cpu:/\n4:memory:/app\n0::/\n")
    write(
        tmp_path / "groups/memory/app",
        memory__limit_in_bytes="3000000\n",
        memory__usage_in_bytes="1000000\n",
        memory__stat="total_inactive_file 7\n",
    )
    assert host_memory(proc, tmp_path / "groups") == 2_000_007
    # As where there is no limit: more than the machine has.
    (tmp_path / "groups/memory/app/memory.limit_in_bytes").write_text(str(2**63 - 4096))
    assert host_memory(proc, tmp_path / "groups") == 8000 * 1024


def test_this_machine_has_some() -> None:
    assert 0 < host_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_pages_of_a_pool_take_memory_when_they_are_written() -> None:
    layout = make_layout({"0": SPEC}, lambda _: 8192, 16)
    before = resident_bytes()
    memory = CacheMemory(layout, 32 * 1024, 32 * 1024, torch.device("cpu"))
    assert resident_bytes() - before < 16 * MIB  # of 512
    assert not memory.pages[:, ::1024].any()
    memory.pages[0, : 8 * 1024] = 7
    assert resident_bytes() - before > 48 * MIB  # 64, less what others let go
    assert int(memory.pages[0, 8 * 1024 - 1, -1]) == 7


@pytest.mark.parametrize("num_blocks", [2**45, 2**60])
def test_what_cannot_be_addressed_is_a_cache_error(num_blocks: int) -> None:
    layout = make_layout({"0": SPEC}, lambda _: 8192, 16)
    with pytest.raises(CacheError, match="cannot be allocated"):
        CacheMemory(layout, num_blocks, 0, torch.device("cpu"))


def test_a_pool_that_is_given_larger_than_what_is_free_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("octavo.execution.worker.host_memory", lambda: 32 * MIB)
    with pytest.raises(CacheError, match=r"KV cache of 0\.0625 GiB is more than the 0\.0312 GiB"):
        LLM("octavo/tiny", num_blocks=1024, max_model_len=64)


def test_two_engines_of_a_short_context_take_little() -> None:
    options = {"max_model_len": 1024, "num_threads": 1}
    with LLM("octavo/tiny", **options):  # loads what all share
        pass
    before = resident_bytes()
    with LLM("octavo/tiny", **options) as one, LLM("octavo/tiny", **options) as other:
        assert one.ready.num_blocks == 1 + 1024 // 16 * one.ready.max_num_seqs
        other.generate("The capital of France is", use_tqdm=False)
        assert resident_bytes() - before < 300 * MIB  # a pool has 1,024
