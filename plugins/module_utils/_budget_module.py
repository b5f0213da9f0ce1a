# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the options of unified_mem_budget to a request, and from its budget to the module's end."""

from __future__ import annotations

import math
import os
import re
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._budget import Request, compute
from ansible_collections.unimem.dgx_spark.plugins.module_utils._engine_check import parse_version
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_config import MAX_CONTEXT
from ansible_collections.unimem.dgx_spark.plugins.module_utils._overheads import OVERRIDABLE
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems
from ansible_collections.unimem.dgx_spark.plugins.module_utils._safetensors import read_checkpoint, read_config, read_hf_quant
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import parse_selectors
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size, parse_size
from ansible_collections.unimem.dgx_spark.plugins.module_utils._verdicts import UNKNOWN

_LIMITS: t.Final = {
    "tensor_parallel": (1, 1024),
    "pipeline_parallel": (1, 1024),
    "concurrency": (1, 1 << 20),
    "context_length": (1, MAX_CONTEXT),
    "max_num_seqs": (1, 1 << 20),
    "max_num_batched_tokens": (1, MAX_CONTEXT),
    "speculative_tokens": (0, 256),
}
#: A release, a development version or a container's date version; not C(latest).
_VERSION: t.Final = re.compile(r"v?[0-9]{1,4}\.[0-9]{1,4}")
_FRACTIONS: t.Final = ("gpu_memory_utilization", "mem_fraction_static")


class Module(t.Protocol):
    """What is used of AnsibleModule."""

    params: dict[str, t.Any]

    def exit_json(self, **kwargs: t.Any) -> t.Any: ...

    def fail_json(self, msg: str, **kwargs: t.Any) -> t.Any: ...


def run(module: Module) -> None:
    """Compute the budget and end the module: success, or failure with the whole result where the verdict is no fit."""
    problems = Problems()
    try:
        request = build_request(module.params, problems)
    except ValueError as exc:
        module.fail_json(msg=str(exc))
        return
    if request.gpu_memory is None:
        request.gpu_memory = _read_facts()
    budget = compute(request)
    # what was found while reading the files comes first
    budget["problems"] = [*problems.as_list(), *budget["problems"]]
    if problems.errors():
        budget["verdict"], budget["fits"] = UNKNOWN, False
        budget["stop"] = []
    if module.params["fail"] and not budget["fits"]:
        module.fail_json(msg=summary(budget), changed=False, budget=budget)
        return
    module.exit_json(changed=False, budget=budget)


def build_request(params: t.Mapping[str, t.Any], problems: Problems) -> Request:
    """Check the options and read the model's files.

    :raises ValueError: for an option that cannot be used, with a sentence.
    """
    for name, (low, high) in _LIMITS.items():
        value = params[name]
        if value is not None and not low <= value <= high:
            raise ValueError(f"{name} is {value}; it must be between {low} and {high}.")
    for name in _FRACTIONS:
        value = params[name]
        if value is not None and not (math.isfinite(value) and 0 < value <= 1):
            raise ValueError(f"{name} is {value}; it must be more than 0 and at most 1.")
    version = params["engine_version"]
    if version and not _VERSION.match(version.strip()):
        raise ValueError(f"engine_version is {version[:80]!r}; give the engine's own version, such as 0.32.0, or leave it out where it is not known.")
    request = Request(
        config=params["config"],
        weight_bytes=_size(params, "weight_bytes"),
        gpu_memory=params["gpu_memory"],
        peers=params["peers"] or (),
        tensor_parallel=params["tensor_parallel"],
        pipeline_parallel=params["pipeline_parallel"],
        expert_parallel=params["expert_parallel"],
        engine="vllm_mp" if params["engine"] == "vllm" else params["engine"],
        engine_version=params["engine_version"],
        node_role=params["node_role"],
        context_length=params["context_length"],
        concurrency=params["concurrency"],
        kv_cache_dtype=params["kv_cache_dtype"],
        mamba_ssm_cache_dtype=params["mamba_ssm_cache_dtype"],
        gpu_memory_utilization=params["gpu_memory_utilization"],
        mem_fraction_static=params["mem_fraction_static"],
        kv_cache_memory=_size(params, "kv_cache_memory"),
        max_num_seqs=params["max_num_seqs"],
        max_num_batched_tokens=params["max_num_batched_tokens"],
        speculative_tokens=params["speculative_tokens"],
        prefix_caching=params["prefix_caching"],
        language_model_only=params["language_model_only"],
        eager=params["eager"],
        reserve=_size(params, "reserve") or 0,
        floor=_size(params, "floor") or 0,
        shm_size=_size(params, "shm_size"),
        ray_object_store_memory=_size(params, "ray_object_store_memory") or 0,
        overheads=_overheads(params["overheads"] or {}),
        stoppable=parse_selectors(params["stoppable"] or []),
    )
    if request.weight_bytes == 0:
        raise ValueError("weight_bytes is 0; give the size of the whole checkpoint, or leave it out.")
    if parse_version(request.engine_version).cpu:
        request.avx512_bf16 = _has_avx512_bf16()
    model = params["model"]
    if model is not None:
        if not os.path.isdir(model):
            raise ValueError(f"model {model} is not a directory on this machine.")
        if request.config is None:
            request.config = read_config(model, problems)
        request.hf_quant = read_hf_quant(model, problems)
        if request.weight_bytes is None:
            request.checkpoint = read_checkpoint(model, problems)
    return request


def summary(budget: t.Mapping[str, t.Any]) -> str:
    """One sentence for a failed gate: the verdict, the numbers, the reason, the first remedy."""
    errors = [problem["message"] for problem in budget["problems"] if problem["severity"] == "error"]
    verdict = budget["verdict"]
    if verdict == UNKNOWN:
        return f"Whether the model fits cannot be known. {errors[0] if errors else ''}".strip()
    text = f"The model does not fit: it needs {format_size(budget['need'])}, this node can give {format_size(budget['have'])}"
    text += f" ({format_size(budget['shortfall'])} too little)." if budget["shortfall"] else "."
    if errors:
        text += f" {errors[0]}"
    elif not budget["shortfall"]:
        check = budget["engine_check"]
        text += f" The engine itself would refuse: it asks {format_size(check['asked'])} and sees {format_size(check['seen'])} ({check['rule']})."
    # in a sentence only what helps enough by itself; the rest is in the result
    remedies = [
        remedy["message"]
        for remedy in budget["remedies"]
        if remedy["action"] != "evict_page_cache" and (remedy["frees"] is None or remedy["frees"] >= max(1, budget["shortfall"]))
    ]
    return f"{text} {' '.join(remedies[:2])}".strip()


def _size(params: t.Mapping[str, t.Any], name: str) -> int | None:
    value = params[name]
    return None if value is None else parse_size(value, name)


def _overheads(given: t.Mapping[str, t.Any]) -> dict[str, int]:
    unknown = sorted(str(name) for name in given if name not in OVERRIDABLE)
    if unknown:
        raise ValueError(f"overheads has {', '.join(unknown)}; the terms are {', '.join(OVERRIDABLE)}.")
    return {name: parse_size(value, f"overheads.{name}") for name, value in given.items() if value is not None}


def _has_avx512_bf16() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as handle:
            return " avx512_bf16" in handle.read(1 << 16)
    except OSError:
        return False


def _read_facts() -> dict[str, t.Any]:
    # only here, so that planning from given facts does not load the readers of the GPU driver
    from ansible_collections.unimem.dgx_spark.plugins.module_utils._facts import gather
    from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld

    return gather(LiveWorld())
