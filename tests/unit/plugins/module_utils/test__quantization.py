# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import time
import typing as t
from fractions import Fraction

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems
from ansible_collections.unimem.dgx_spark.plugins.module_utils._quantization import Quantization, glob_matches, parse_quantization


def parse(source: t.Any, hf_quant: t.Any = None) -> tuple[Quantization, set[str]]:
    problems = Problems()
    config = {} if source is None else {"quantization_config": source}
    found = parse_quantization(config, {}, hf_quant, problems)
    return found, {entry["code"] for entry in problems.as_list()}


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ({"quant_method": "fp8"}, Fraction(1)),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + Fraction(2, 16384)),
        ({"quant_method": "mxfp4"}, Fraction(17, 32)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, Fraction(1, 2) + Fraction(2, 128) + Fraction(4, 1024)),
        ({"quant_method": "awq", "bits": 4, "group_size": -1}, Fraction(1, 2) + Fraction(2, 128) + Fraction(4, 1024)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, Fraction(9, 16)),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Fraction(1)),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}},
            Fraction(9, 16),
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}}}, Fraction(1)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, Fraction(9, 16)),
        (None, Fraction(0)),
    ],
)
def test_bytes_per_weight(source: t.Any, size: Fraction) -> None:
    found, codes = parse(source)
    assert found.bytes_per_weight == size
    assert not codes


def test_modelopt_beside_the_config() -> None:
    """hf_quant_config.json of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4."""
    hf_quant = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}}
    found, codes = parse(None, hf_quant)
    assert not codes
    assert (found.bytes_per_weight, found.kv_cache) == (Fraction(9, 16), "fp8")
    assert not found.applies("lm_head")
    assert found.applies("backbone.layers.3.mixer.up_proj")


def test_what_stays_unquantized() -> None:
    found, _codes = parse(
        {
            "quant_method": "fp8",
            "modules_to_not_convert": ["lm_head", "gate", "model.language_model.layers.0.linear_attn.in_proj_a", "model.layers.7", "re:.*shared_expert_gate$"],
            "ignore": ["model.layers.*.self_attn*", "model.language_model.layers.1.linear_attn*"],
        }
    )
    assert not found.applies("lm_head")
    assert not found.applies("model.language_model.layers.0.linear_attn.in_proj_a")
    assert found.applies("model.language_model.layers.0.linear_attn.in_proj_b")
    assert not found.applies("model.layers.3.mlp.gate")
    assert found.applies("model.layers.3.mlp.gate_proj")
    assert not found.applies("model.layers.7.mlp.down_proj")
    assert found.applies("model.layers.70.mlp.down_proj")
    assert not found.applies("model.layers.70.self_attn.q_proj")
    assert not found.applies("model.layers.1.linear_attn.out_proj")
    assert found.applies("model.layers.10.linear_attn.out_proj")
    assert not found.applies("model.layers.5.mlp.shared_expert_gate")


def test_mxfp4_is_for_experts() -> None:
    found, _codes = parse({"quant_method": "mxfp4"})
    assert found.applies("model.layers.0.mlp.experts.0.up_proj")
    assert not found.applies("model.layers.0.self_attn.q_proj")


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("fp8", "config_bad_type"),
        ([], "config_bad_type"),
        ({"quant_method": "tomorrow"}, "unknown_quantization"),
        ({}, "unknown_quantization"),
        ({"quant_method": 7}, "unknown_quantization"),
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, "unknown_quantization"),
        ({"quant_method": "fp8", "ignore": {"a": 1}}, "config_bad_type"),
        ({"quant_method": "fp8", "ignore": ["x"] * 20001}, "config_out_of_range"),
        ({"quant_method": "fp8", "ignore": [f"*.a{index}*" for index in range(100)]}, "config_out_of_range"),
    ],
)
def test_bad_input(source: t.Any, code: str) -> None:
    found, codes = parse(source)
    assert code in codes
    if code == "unknown_quantization":
        # the larger figure: nothing is counted as quantized
        assert not found.applies("model.layers.0.mlp.up_proj")


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*", "anything", True),
        ("a*c", "abc", True),
        ("a*c", "ac", True),
        ("a*c", "abd", False),
        ("a*b*a", "aba", True),
        ("aa*aa", "aaa", False),
        ("ab", "ab", True),
    ],
)
def test_globs(pattern: str, name: str, expected: bool) -> None:
    assert glob_matches(pattern, name) is expected


def test_globs_take_no_time() -> None:
    started = time.process_time()
    assert not glob_matches("*a" * 200 + "b", "a" * 10000)
    assert time.process_time() - started < 20  # backtracking never ends
