# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a budget is asked: the module's options in bytes and whole numbers."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._overheads import OBJECT_STORE, RESERVE
from ansible_collections.unimem.dgx_spark.plugins.module_utils._safetensors import Checkpoint
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import Selector


@dataclass
class Request:
    """What is to run, in bytes and whole numbers; the module's options after their sizes were parsed."""

    config: t.Any = None
    hf_quant: t.Any = None
    checkpoint: Checkpoint | None = None
    weight_bytes: int | None = None
    gpu_memory: t.Any = None
    peers: t.Sequence[t.Any] = ()
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    engine: str = "vllm_ray"
    engine_version: str | None = None
    node_role: str = "head"
    context_length: int | None = None
    concurrency: int = 1
    kv_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    #: Whether the node's CPU has AVX512_BF16, which decides the state's dtype of vLLM's CPU backend.
    avx512_bf16: bool = False
    gpu_memory_utilization: float | None = None
    mem_fraction_static: float | None = None
    kv_cache_memory: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    speculative_tokens: int = 0
    prefix_caching: bool = False
    language_model_only: bool = False
    eager: bool = False
    reserve: int = RESERVE
    #: What has to remain available where a utilization decides what remains; below it the node kills the ranks.
    floor: int = 0
    #: The limit of the container's /dev/shm, and of Ray's object store in it.
    shm_size: int | None = None
    ray_object_store_memory: int = OBJECT_STORE
    overheads: t.Mapping[str, int] = field(default_factory=dict)
    stoppable: t.Sequence[Selector] = ()
