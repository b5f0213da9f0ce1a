# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._divisibility import check_split
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_config import parse_model
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import _configs as configs


def check(config: dict[str, t.Any], tensor_parallel: int, pipeline_parallel: int = 1, expert_parallel: bool = False, sglang: bool = False) -> dict[str, str]:
    model = parse_model(config, Problems())
    assert model is not None
    problems = Problems()
    check_split(model, tensor_parallel, pipeline_parallel, expert_parallel, sglang, problems)
    return {entry["code"]: f"{entry['severity']}: {entry['message']}" for entry in problems.as_list()}


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_the_mission_model_divides(tensor_parallel: int) -> None:
    assert not check(configs.qwen35_122b(quantized=True), tensor_parallel)


def test_heads() -> None:
    """vllm-project/vllm#2652: 64 heads over 3 ranks; the sizes that work are named."""
    found = check(configs.dense("llama", 80, 8192, 64, 8), 3)
    assert list(found) == ["heads_not_divisible"]
    assert found["heads_not_divisible"].startswith("error: 64 attention heads")
    assert "tensor_parallel 1, 2, 4, 8, 16, 32, 64" in found["heads_not_divisible"]
    assert "pipeline_parallel" in found["heads_not_divisible"]


def test_kv_heads() -> None:
    assert "kv_heads_not_divisible" in check(configs.dense("llama", 4, 768, 12, 6), 4)
    found = check(configs.dense("llama", 4, 1024, 16, 2), 8)
    assert found["kv_heads_replicated"].startswith("warning: 2 KV heads over 8 ranks")


def test_latent_cache_is_not_split() -> None:
    assert list(check(configs.latent("deepseek_v3", 4), 2)) == ["latent_replicated"]


def test_linear_attention_heads() -> None:
    config = configs.variant(configs.QWEN3_NEXT, num_attention_heads=48, num_key_value_heads=48)
    found = check(config, 3)
    assert "state_heads_not_divisible" in found


def test_quantization_blocks() -> None:
    """vllm-project/vllm#17604: heads fit, but a slice of the experts cuts a block of 128."""
    found = check(configs.qwen35_122b(quantized=True), 16)
    assert "quant_block_not_divisible" in found
    assert "64" in found["quant_block_not_divisible"]
    assert "tensor_parallel 1, 2, 4, 8" in found["quant_block_not_divisible"]


def test_experts_kept_whole_need_no_division() -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = configs.dense("qwen3_moe", 4, 1024, 32, 4, 128, num_experts=128, moe_intermediate_size=768, quantization_config=fp8)
    assert "quant_block_not_divisible" in check(config, 4)
    assert "quant_block_not_divisible" not in check(config, 4, expert_parallel=True)


def test_intermediate_size() -> None:
    assert "intermediate_not_divisible" in check(configs.dense("llama", 4, 1024, 16, 16, intermediate_size=1001), 2)


def test_stages() -> None:
    assert list(check(configs.dense("llama", 4, 1024, 16, 16), 1, pipeline_parallel=5)) == ["too_many_stages"]


def test_slices_of_attention_hold_whole_blocks() -> None:
    """Two KV heads of 64 over two ranks: validate_fp8_block_shape wants a multiple of 128 of each of query, key and value."""
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = configs.dense("llama", 4, 1024, 16, 2, 64, quantization_config=fp8)
    assert not check(config, 1)
    assert "width of all KV heads" in check(config, 2)["quant_block_not_divisible"]
    kept = {**fp8, "modules_to_not_convert": [f"model.layers.{layer}.self_attn" for layer in range(4)]}
    assert not check(configs.variant(config, quantization_config=kept), 2)


def test_experts() -> None:
    """vLLM spreads a rest over the ranks, SGLang does not."""
    config = configs.dense("qwen3_moe", 4, 1024, 24, 24, 64, num_experts=160, moe_intermediate_size=768)
    assert list(check(config, 3, expert_parallel=True)) == ["experts_uneven"]
    assert check(config, 3, expert_parallel=True)["experts_uneven"].startswith("warning: 160 experts over 3 ranks: the first ranks hold 54")
    found = check(config, 3, expert_parallel=True, sglang=True)
    assert list(found) == ["experts_not_divisible"]
    assert "tensor_parallel 1, 2, 4, 8" in found["experts_not_divisible"]
    assert not check(config, 4, expert_parallel=True, sglang=True)


def test_groups_of_scales() -> None:
    """AWQ: 128 inputs share a scale; 1536 over 8 ranks is 192."""
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    config = configs.variant(configs.MINIMAX_M27, quantization_config=awq)
    found = check(config, 8)
    assert "moe_intermediate_size 1536 over 8 ranks is 192, which cuts a quantization group of 128" in found["quant_block_not_divisible"]
    assert "tensor_parallel 1, 2, 4" in found["quant_block_not_divisible"]
