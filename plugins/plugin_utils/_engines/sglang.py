# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""SGLang (0.5.3 to 0.5.23; options as its ServerArgs names them)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json

from ._base import PROGRAMS, Node, Settings, cache_environment, common_environment, local_address, option, service, url_host

NAMES = ("sglang",)
API_KEY = "UNIMEM_API_KEY"  # SGLang has no variable of its own for it; run_module.py hands it over
GROUP_SECRETS: tuple[str, ...] = ()
STRUCTURAL = (
    "--api-key",
    "--admin-api-key",
    "--dist-init-addr",
    "--host",
    "--model",
    "--model-path",
    "--nccl-init-addr",
    "--nnodes",
    "--node-rank",
    "--port",
    "--pp-size",
    "--pipeline-parallel-size",
    "--served-model-name",
    "--tensor-parallel-size",
    "--tp",
    "--tp-size",
)
#: The texts of SGLang 0.5.3 to 0.5.23.
STAGES = (
    (r"Init torch distributed begin", "meets the other ranks"),
    (r"Load weight begin", "loads the weights"),
    (r"Loading \S{1,20} checkpoint shards: {1,6}(?P<percent>[0-9]{1,3})% Completed", "loads the weights"),
    (r"Load weight end", "has loaded the weights"),
    (r"KV Cache is allocated|Memory pool end", "has its KV cache"),
    (r"Capture cuda graph begin", "captures CUDA graphs"),
    (r"Capturing batches[^|%]{0,120} {1,6}(?P<percent>[0-9]{1,3})%", "captures CUDA graphs"),
    (r"Capture cuda graph end", "has captured CUDA graphs"),
    (r"Application startup complete", "warms up"),
    (r"The server is fired up and ready to roll", "serves"),
)
_DTYPES = {"fp8": "fp8_e4m3", "bf16": "bfloat16"}


def check(settings: Settings, nodes: Sequence[Node]) -> list[str]:
    """What SGLang cannot serve."""
    problems = []
    if settings.kv_cache_memory is not None:
        problems.append("SGLang has no option for the KV cache in bytes; give mem_fraction_static instead of kv_cache_memory")
    if settings.gpu_memory_utilization is not None:
        problems.append("gpu_memory_utilization is vLLM's; SGLang takes mem_fraction_static, a share of what is available before the load")
    if settings.kv_cache_dtype in ("fp16", "float16"):
        problems.append(f"SGLang has no KV cache of type {settings.kv_cache_dtype}; give auto, bf16 or fp8")
    return problems


def steps(settings: Settings, nodes: Sequence[Node], node: Node) -> list[dict[str, Any]]:
    """The same program on every node; rank 0 serves, the others only look as if (their /health says 200 whatever happens)."""
    argv = ["--model-path", settings.model_path, "--served-model-name", settings.served_model_name]
    argv += ["--tp-size", str(settings.tensor_parallel)]
    if settings.pipeline_parallel > 1:
        argv += ["--pp-size", str(settings.pipeline_parallel)]
    if settings.expert_parallel:
        argv += ["--ep-size", str(settings.tensor_parallel)]
    if len(nodes) > 1:
        argv += ["--nnodes", str(len(nodes)), "--node-rank", str(node.rank)]
        argv += ["--dist-init-addr", f"{url_host(nodes[0].address)}:{settings.rendezvous_port}"]
    # Only rank 0 is meant to be reached; a worker's dummy server has no business on other networks.
    argv += ["--host", settings.bind if node.rank == 0 else "127.0.0.1", "--port", str(settings.port)]
    argv += option("--context-length", settings.context_length)
    argv += option("--mem-fraction-static", settings.mem_fraction_static)
    if settings.kv_cache_dtype != "auto":
        # bfloat16 since 0.5.4; auto instead of it may be another type, and the budget counts this one.
        argv += ["--kv-cache-dtype", _DTYPES.get(settings.kv_cache_dtype, settings.kv_cache_dtype)]
    argv += option("--max-running-requests", settings.max_num_seqs)
    argv += option("--chunked-prefill-size", settings.max_num_batched_tokens)
    if settings.prefix_caching is False:
        argv.append("--disable-radix-cache")
    if settings.language_model_only:
        argv.append("--language-model-only")  # since 0.5.18; left out before, the vision part would be loaded and not be counted
    if settings.eager:
        argv.append("--disable-cuda-graph")
    if settings.speculative_tokens > 0:
        argv += ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", str(settings.speculative_tokens)]
        argv += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(settings.speculative_tokens + 1)]
    argv += settings.extra_args
    if settings.has_api_key and node.rank == 0:
        return [service("engine", ["python3", f"{PROGRAMS}/run_module.py", "--api-key", API_KEY, "sglang.launch_server", *argv])]
    return [service("engine", ["python3", "-m", "sglang.launch_server", *argv])]


def environment(settings: Settings, nodes: Sequence[Node], node: Node) -> dict[str, str]:
    """SGLANG_HOST_IP: without it the engine's message queues wait on the wrong address for ever."""
    return {**common_environment(nodes, node), **cache_environment(settings), "SGLANG_HOST_IP": node.address}


def ready_url(settings: Settings) -> str:
    """Rank 0's health, which generates a token; 503 while it starts."""
    return f"http://{local_address(settings.bind)}:{settings.port}/health"


def ports(settings: Settings, nodes: Sequence[Node], node: Node) -> dict[int, str]:
    """The worker's dummy server takes the port too."""
    if node.rank > 0:
        return {settings.port: "the engine's server"}
    return {settings.port: "the endpoint", settings.rendezvous_port: "the rendezvous", settings.control_port: "the group's control"}


def pool_path() -> str:
    """Where the KV pool is told."""
    return "/get_server_info"


def pool(text: str) -> dict[str, Any]:
    """The KV pool: SGLang counts it in tokens."""
    try:
        info = parse_json(text)
    except ValueError:
        info = {}
    tokens = info.get("max_total_num_tokens") if isinstance(info, dict) else None
    return {"tokens": tokens if isinstance(tokens, int) else None, "max_concurrency": None, "blocks": None, "block_size": None}
