# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans for tests, computed as plan.yml computes them."""

from __future__ import annotations

from typing import Any

from ansible_collections.unimem.dgx_spark.plugins.module_utils._budget import Request, compute
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import parse_selectors
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._plan_table import rows
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import _configs as configs

GIB = 1 << 30


def facts(free: float, available: float, name: str = "vllm_embeddings", held: float = 11.7) -> dict[str, Any]:
    """A Spark whose pool a container shares."""
    owner = {"kind": "container", "name": name, "id": "1", "unit": None}
    memory = {
        "total": int(119.7 * GIB),
        "free": int(free * GIB),
        "available": int(available * GIB),
        "cuda_free": int(free * GIB),
        "allocatable": int(available * GIB),
    }
    process = {"pid": 10, "name": "python3", "memory": int(held * GIB), "protected": None, "owner": owner}
    return {"class": "unified", "memory": memory, "processes": [process] if held else []}


def plan(nodes: dict[str, dict[str, Any]], model: str = "Qwen3.5-122B", **request: Any) -> dict[str, Any]:
    """The plan for *nodes* (name: facts)."""
    wanted: dict[str, Any] = {
        "config": configs.qwen35_122b(quantized=True),
        "weight_bytes": int(118.42 * GIB),
        "tensor_parallel": 2,
        "context_length": 262144,
        "engine_version": "0.32.0",
        "stoppable": parse_selectors(["container:vllm_embeddings"]),
        **request,
    }
    found = {
        name: {"budget": compute(Request(gpu_memory=memory, **wanted)), "memory": memory["memory"], "processes": memory["processes"]}
        for name, memory in nodes.items()
    }
    worst = max(rows(found), key=lambda row: row["badness"])
    return {
        "model": model,
        "engine": "vllm_ray",
        "tensor_parallel": wanted["tensor_parallel"],
        "pipeline_parallel": 1,
        "verdict": worst["verdict"],
        "worst_node": worst["name"],
        "nodes": found,
    }
