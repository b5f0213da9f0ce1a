# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engines' own start-up checks, simulated: what they ask, what they see, by which rule.

vLLM (gpu_worker.init_device and request_memory in vllm/v1/worker/utils.py): before any weight is loaded each rank compares
C(ceil(total * gpu_memory_utilization)) with the free memory it sees. On integrated GPUs that is MemAvailable (psutil) since
0.11.2 by a list of capabilities, by the device's C(is_integrated) since vllm-project/vllm#35356; builds differ
(vllm-project/vllm#48140 still saw MemFree), so both figures are judged. After the load it needs KV cache for one request.

SGLang (init_torch_distributed in sglang/srt/model_executor): refuses when the least free memory of all ranks is below 0.9
of the local one, then sizes its pools as C(free before load * mem_fraction_static - what the weights took).
"""

from __future__ import annotations

import math
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size

_VERSION: t.Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?")
#: From here on vLLM treats GB10 (compute capability 12.1) as integrated.
_UMA_AWARE: t.Final = (0, 11, 2)
#: Default of --gpu-memory-utilization: 0.9 up to 0.18.1, 0.92 in 0.20.2 and later (vllm/config/cache.py).
_NEW_DEFAULT: t.Final = (0, 20, 2)
#: kv_cache_size_tokens is max_concurrency * max_model_len from here on; before, num_blocks // groups * block_size.
_NEW_TOKENS: t.Final = (0, 20, 1)
#: The KV check holds back the null block from here on (get_kv_cache_configs); earlier releases compared the whole pool.
SGLANG_BALANCE: t.Final = 0.9


@dataclass(frozen=True)
class Version:
    """An engine's version, as far as it can be read."""

    text: str
    number: tuple[int, int, int] | None
    cpu: bool

    def at_least(self, wanted: tuple[int, int, int], default: bool = True) -> bool:
        """Whether this is *wanted* or later; *default* where the version is unknown."""
        return default if self.number is None else self.number >= wanted


def parse_version(text: str | None) -> Version:
    """Read C(0.32.0+cpu), C(v0.20.1.dev0); a container's date version (C(26.04)) or a development C(0.1.dev1) is unknown."""
    shown = (text or "").strip()[:80]
    match = _VERSION.match(shown)
    number = None
    if match:
        number = (int(match.group(1)), int(match.group(2)), int(match.group(3) or 0))
        if number[0] >= 20 or number < (0, 2, 0):
            number = None
    return Version(shown, number, "cpu" in shown.lower().partition("+")[2])


@dataclass(frozen=True)
class Check:
    """One check: passes where *seen* is at least *asked*."""

    name: str
    asked: int
    #: What the engine sees now, and after the page cache was evicted.
    seen: int
    seen_evicted: int
    rule: str
    remedy: str

    @property
    def passes_now(self) -> bool:
        return self.seen >= self.asked

    @property
    def passes_after_cache_eviction(self) -> bool:
        return self.seen_evicted >= self.asked

    def as_dict(self) -> dict[str, t.Any]:
        return {
            "name": self.name,
            "asked": self.asked,
            "seen": self.seen,
            "seen_after_cache_eviction": self.seen_evicted,
            "passes_now": self.passes_now,
            "passes_after_cache_eviction": self.passes_after_cache_eviction,
            "rule": self.rule,
            "remedy": "" if self.passes_now else self.remedy,
        }


def default_utilization(version: Version) -> float:
    """vLLM's --gpu-memory-utilization when nobody sets it."""
    return 0.92 if version.at_least(_NEW_DEFAULT) else 0.9


def tokens_are_concurrency(version: Version) -> bool:
    """Whether the log's token count is concurrency times context (else blocks per group)."""
    return version.at_least(_NEW_TOKENS)


def asked_by_utilization(total: int, utilization: float) -> int:
    """request_memory: ceil(total * utilization)."""
    return math.ceil(total * utilization)


def context_check(needed: int, mem_free: int, allocatable: int) -> Check:
    """Making a CUDA context (set_device) allocates from MemFree: no page cache is given back for it."""
    return Check(
        "cuda_context",
        needed,
        mem_free,
        allocatable,
        "set_device makes the CUDA context from MemFree before any weight is loaded; a full page cache makes it fail",
        "evict the page cache",
    )


def utilization_check(total: int, utilization: float, available: int, mem_free: int, outside: int, version: Version) -> list[Check]:
    """vLLM's check of free memory, as builds see it that read MemAvailable and as those that read MemFree.

    :param outside: bytes that the engine's own processes take before they look.
    """
    asked = asked_by_utilization(total, utilization)
    says = f"ceil({format_size(total)} x gpu_memory_utilization {utilization:g}) <= free memory"
    most = max(0.0, math.floor((available - outside) / total * 100) / 100) if total else 0.0
    remedy = f"gpu_memory_utilization of at most {most:.2f}, or stop what holds the memory"
    seen = Check("free_memory", asked, available, available, f"{says}, which is MemAvailable on an integrated GPU", remedy)
    literal = Check("free_memory_by_mem_free", asked, mem_free, available, f"{says}, which some builds read as MemFree", "evict the page cache; then as above")
    return [literal, seen] if not version.at_least(_UMA_AWARE) else [seen, literal]


def kv_check(needed: int, pool: int, length: int) -> Check:
    """After the load: the KV cache must hold one request of the longest context."""
    return Check(
        "kv_cache",
        needed,
        pool,
        pool,
        f"KV cache for one request of {length} tokens <= what is left of the engine's share",
        "a shorter context, a smaller KV dtype, or more memory for the KV cache",
    )


def sglang_static_check(fraction: float, available: int, weights: int, cache: int) -> Check:
    """mem_fraction_static of the memory free before the load must cover weights and cache."""
    static = int(available * fraction)
    return Check(
        "mem_fraction_static",
        weights + cache,
        static,
        static,
        f"weights and KV cache <= mem_fraction_static {fraction:g} x memory free before the load ({format_size(available)})",
        "a larger mem_fraction_static, a shorter context, or free more memory",
    )


def sglang_balance_check(local: int, others: t.Sequence[int]) -> Check:
    """The least free memory of all ranks must be 0.9 of the local rank's, on every rank."""
    figures = [local, *others]
    asked = math.ceil(max(figures) * SGLANG_BALANCE)
    return Check(
        "balance",
        asked,
        min(figures),
        min(figures),
        "least free memory of all ranks >= 0.9 x the most (SGLang: 'The memory capacity is unbalanced')",
        "free memory on the node that has least, or set SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0",
    )
