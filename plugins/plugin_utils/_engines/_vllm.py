# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What vLLM's two ways over several nodes have in common (vLLM 0.11.2 to 0.32; options as its own parser names them)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ._base import READY_TIMEOUT, Node, Settings, cache_environment, common_environment, local_address, option, prometheus, real, whole

API_KEY = "VLLM_API_KEY"
STRUCTURAL = (
    "--api-key",
    "--data-parallel-size",
    "-dp",
    "--distributed-executor-backend",
    "--headless",
    "--host",
    "--master-addr",
    "--master-port",
    "--model",
    "--nnodes",
    "-n",
    "--node-rank",
    "-r",
    "--pipeline-parallel-size",
    "-pp",
    "--port",
    "--served-model-name",
    "--tensor-parallel-size",
    "-tp",
)
#: The texts of vLLM 0.11.2 to 0.32, and of the libraries that load for it.
STAGES = (
    (r"Initializing a V1 LLM engine", "starts its engine"),
    (r"Starting to load model", "loads the weights"),
    (r"Loading \S{1,20} checkpoint shards: {1,6}(?P<percent>[0-9]{1,3})% Completed", "loads the weights"),
    (r"Loading weights took", "has loaded the weights"),
    (r"Dynamo bytecode transform|Compiling a graph for|torch\.compile takes", "compiles"),
    (r"KV cache size: [0-9,]{1,20} tokens", "has its KV cache"),
    (r"Capturing CUDA graphs?[^|%]{0,80} {1,6}(?P<percent>[0-9]{1,3})%", "captures CUDA graphs"),
    (r"Graph capturing finished", "has captured CUDA graphs"),
    (r"init engine \(profile, create kv cache, warmup model\) took", "has warmed up"),
    (r"Application startup complete", "serves"),
)
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def check(settings: Settings, nodes: Sequence[Node]) -> list[str]:
    """What vLLM cannot serve."""
    problems = []
    if settings.mem_fraction_static is not None:
        problems.append("mem_fraction_static is SGLang's; vLLM takes gpu_memory_utilization or kv_cache_memory")
    return problems


def arguments(settings: Settings) -> list[str]:
    """The command line of ``vllm serve`` as far as all ranks share it."""
    argv = ["vllm", "serve", settings.model_path]
    argv += ["--tensor-parallel-size", str(settings.tensor_parallel)]
    if settings.pipeline_parallel > 1:
        argv += ["--pipeline-parallel-size", str(settings.pipeline_parallel)]
    if settings.expert_parallel:
        argv.append("--enable-expert-parallel")
    argv += option("--max-model-len", settings.context_length)
    if settings.kv_cache_dtype != "auto":
        argv += ["--kv-cache-dtype", _DTYPES.get(settings.kv_cache_dtype, settings.kv_cache_dtype)]
    # The start check always asks for the utilization, also where the pool's size is given in bytes.
    argv += option("--gpu-memory-utilization", settings.gpu_memory_utilization)
    argv += option("--kv-cache-memory-bytes", settings.kv_cache_memory)
    argv += option("--max-num-seqs", settings.max_num_seqs)
    argv += option("--max-num-batched-tokens", settings.max_num_batched_tokens)
    if settings.prefix_caching is not None:
        argv.append("--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching")
    if settings.language_model_only:
        argv.append("--language-model-only")
    if settings.eager:
        argv.append("--enforce-eager")
    if settings.speculative_tokens > 0:
        argv += ["--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": settings.speculative_tokens})]
    return argv + list(settings.extra_args)


def server_arguments(settings: Settings) -> list[str]:
    """What only the rank with the API server gets."""
    return ["--served-model-name", settings.served_model_name, "--host", settings.bind, "--port", str(settings.port)]


def environment(settings: Settings, nodes: Sequence[Node], node: Node) -> dict[str, str]:
    """The environment of a rank's container."""
    own = {
        "VLLM_HOST_IP": node.address,
        "VLLM_NO_USAGE_STATS": "1",
        # vLLM's server gives its core 600 s, which a load from a slow disk or a cold cache of kernels exceeds; the rank's supervisor has the time.
        READY_TIMEOUT: str(settings.start_timeout),
    }
    return {**common_environment(nodes, node), **cache_environment(settings, {"VLLM_CACHE_ROOT": "vllm"}), **own}


def ready_url(settings: Settings) -> str:
    """Rank 0's health: 200 means that the engine is not marked dead, no more."""
    return f"http://{local_address(settings.bind)}:{settings.port}/health"


def pool_path() -> str:
    """Where the KV pool is told."""
    return "/metrics"


def pool(text: str) -> dict[str, Any]:
    """The KV pool out of ``vllm:cache_config_info``; values that this version does not tell are None."""
    labels = prometheus(text, "vllm:cache_config_info")
    blocks, size = whole(labels.get("num_gpu_blocks")), whole(labels.get("block_size"))
    concurrency = real(labels.get("kv_cache_max_concurrency"))
    return {
        "tokens": whole(labels.get("kv_cache_size_tokens")),
        "max_concurrency": concurrency,
        "blocks": blocks,
        "block_size": size,
    }
