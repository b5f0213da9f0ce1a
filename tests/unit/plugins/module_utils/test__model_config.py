# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy
import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_config import MAX_LAYERS, Model, parse_model
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import MAX_PROBLEMS, Problems
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import _configs as configs


def parse(config: t.Any, hf_quant: t.Any = None) -> tuple[Model | None, set[str]]:
    problems = Problems()
    model = parse_model(config, problems, hf_quant)
    return model, {entry["code"] for entry in problems.as_list()}


def test_nested_text_config() -> None:
    model, codes = parse(configs.qwen35_122b(quantized=True))
    assert model is not None
    assert not codes
    assert model.nested
    assert (model.text_type, model.hidden, model.vocab, model.max_positions) == ("qwen3_5_moe_text", 3072, 248320, 262144)
    assert [layer.attention is not None for layer in model.layers[:4]] == [False, False, False, True]
    assert len(model.mtp_layers) == 1
    assert model.quantization.method == "fp8"
    assert model.quantization.block == (128, 128)
    assert model.experts == 256


def test_doubly_nested_config() -> None:
    """Qwen Omni models: thinker_config.text_config."""
    inner = configs.dense("qwen3_moe", 48, 2048, 32, 4, 128)
    model, codes = parse({"model_type": "qwen3_omni_moe", "thinker_config": {"model_type": "thinker", "text_config": inner}})
    assert model is not None
    assert len(model.layers) == 48
    assert not codes


def test_null_head_dim_is_hidden_over_heads() -> None:
    model, _codes = parse(configs.dense("llama", 2, 4096, 32, 8, head_dim=None) | {"head_dim": None})
    assert model is not None
    assert model.head_dim == 128


def test_layers_without_a_count() -> None:
    model, codes = parse(configs.NEMOTRON_ULTRA)
    assert model is not None
    assert len(model.layers) == 108
    assert not codes
    kinds = [layer.mlp.kind for layer in model.layers[:9]]
    assert kinds == ["none", "moe", "none", "moe", "none", "moe", "none", "moe", "none"]
    assert model.layers[1].mlp.width == 2048
    assert not model.layers[1].mlp.gated


def test_experts_by_any_name() -> None:
    for name in ("num_experts", "n_routed_experts", "num_local_experts"):
        model, _codes = parse(configs.dense("llama", 4, 64, 4, 4, **{name: 8, "moe_intermediate_size": 32}))
        assert model is not None
        assert (model.experts, model.layers[0].mlp.intermediate) == (8, 32)


def test_dense_layers_among_experts() -> None:
    model, _codes = parse(configs.latent("deepseek_v3", 5, first_k_dense_replace=3, n_routed_experts=8, n_shared_experts=2, moe_intermediate_size=32))
    assert model is not None
    assert [layer.mlp.kind for layer in model.layers] == ["dense"] * 3 + ["moe"] * 2
    assert model.layers[4].mlp.shared == 64
    stepped, _codes = parse(configs.dense("qwen2_moe", 4, 64, 4, 4, num_experts=8, decoder_sparse_step=2, mlp_only_layers=[3]))
    assert stepped is not None
    assert [layer.mlp.kind for layer in stepped.layers] == ["dense", "moe", "dense", "dense"]


def test_unknown_architecture_is_said_and_counted_larger() -> None:
    config = configs.dense("tomorrow_v1", 10, 1024, 8, 4, 128, sliding_window=512, kv_lora_rank=64, qk_rope_head_dim=32, qk_nope_head_dim=96)
    model, codes = parse(config)
    assert model is not None
    assert codes == {"unknown_architecture"}
    # 4 heads x (96 + 32) x 2 is more than a latent of 96, and a window is not believed
    assert {layer.attention.kind for layer in model.layers if layer.attention} == {"full"}
    assert model.layers[0].attention is not None
    assert model.layers[0].attention.head_dim == 128


def test_a_model_with_latent_fields_that_runs_as_mha() -> None:
    """MiniCPM3 has kv_lora_rank but is not in vLLM's list of latent models."""
    model, codes = parse(configs.dense("minicpm3", 62, 2560, 40, 40, kv_lora_rank=256, qk_rope_head_dim=32, qk_nope_head_dim=64))
    assert codes == {"unknown_architecture"}
    assert model is not None
    assert model.layers[0].attention is not None
    assert (model.layers[0].attention.kind, model.layers[0].attention.head_dim) == ("full", 96)


def test_a_layout_that_is_not_modelled_is_said() -> None:
    _model, codes = parse(configs.dense("deepseek_v4", 43, 4096, 64, 1, 512, compress_ratios=[4] * 43))
    assert codes == {"layout_not_modelled"}


def test_unknown_layer_type_and_dtype() -> None:
    model, codes = parse(configs.dense("llama", 2, 64, 4, 4, layer_types=["full_attention", "quantum_attention"], torch_dtype="float7"))
    assert codes == {"unknown_layer_type", "unknown_dtype"}
    assert model is not None
    assert model.dtype_bytes == 2
    assert all(layer.attention for layer in model.layers)


def test_float32_models_are_served_in_two_bytes() -> None:
    model, _codes = parse(configs.dense("llama", 2, 64, 4, 4, torch_dtype="float32"))
    assert model is not None
    assert model.dtype_bytes == 2


@pytest.mark.parametrize("config", [None, [], {}, "text", 7, {"model_type": "llama"}])
def test_no_model(config: t.Any) -> None:
    model, codes = parse(config)
    assert model is None
    assert codes & {"config_missing", "config_no_layers"}


BAD_FIELDS: list[tuple[str, t.Any, str]] = [
    ("num_hidden_layers", "48", "config_bad_type"),
    ("num_hidden_layers", -1, "config_out_of_range"),
    ("num_hidden_layers", 10**9, "config_out_of_range"),
    ("num_hidden_layers", True, "config_bad_type"),
    ("num_attention_heads", 1e300, "config_out_of_range"),
    ("num_attention_heads", float("nan"), "config_bad_type"),
    ("num_key_value_heads", [8, "8"], "config_bad_type"),
    ("head_dim", -128, "config_out_of_range"),
    ("hidden_size", 10**400, "config_out_of_range"),
    ("layer_types", "full_attention", "config_bad_type"),
    ("layer_types", ["full_attention"] * (MAX_LAYERS + 1), "config_out_of_range"),
    ("layer_types", [1, 2, 3], "config_bad_type"),
    ("layer_types", ["full_attention"], "config_inconsistent"),
    ("hybrid_override_pattern", "M" * 10**6, "config_out_of_range"),
    ("linear_attn_config", [], "config_bad_type"),
    ("quantization_config", "fp8", "config_bad_type"),
    ("quantization_config", {"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "config_bad_type"),
    ("quantization_config", {"quant_method": "tomorrow"}, "unknown_quantization"),
    ("block_configs", [{}] * (MAX_LAYERS + 1), "config_out_of_range"),
    ("vocab_size", -5, "config_out_of_range"),
]


@pytest.mark.parametrize(("name", "value", "code"), BAD_FIELDS, ids=[f"{name}-{index}" for index, (name, _value, _code) in enumerate(BAD_FIELDS)])
def test_bad_fields_are_problems(name: str, value: t.Any, code: str) -> None:
    _model, codes = parse(configs.variant(configs.dense("llama", 4, 64, 4, 4, 16), **{name: value}))
    assert code in codes


def test_any_field_of_any_type_is_survived() -> None:
    """Every field of several real configs is replaced by values of every kind: problems, no exceptions."""
    values: list[t.Any] = [None, True, -1, 0, 10**30, 1.5, float("inf"), "", "x" * 10000, [], [None], [[]], {}, {"a": {"b": []}}, [1] * 5000]
    count = 0
    for source in (configs.qwen35_122b(quantized=True), configs.NEMOTRON_NANO, configs.latent("deepseek_v32", 4, index_head_dim=128, index_n_heads=2)):
        names = list(source) + ["layer_types", "block_configs", "linear_attn_config", "no_rope_layers", "moe_layer_freq", "attention_other_setting"]
        for name in names:
            for value in values:
                config = copy.copy(source)
                config[name] = value
                parse(config)
                count += 1
    for name in configs.qwen35_122b()["text_config"]:
        for value in values:
            config = configs.qwen35_122b()
            config["text_config"][name] = value
            parse(config)
            count += 1
    assert count > 900


def test_problems_are_bounded() -> None:
    config = configs.dense("llama", 1000, 64, 4, 4, 16, layer_types=[f"kind-{index}" for index in range(1000)])
    problems = Problems()
    parse_model(config, problems)
    listed = problems.as_list()
    assert len(listed) == MAX_PROBLEMS + 1
    assert listed[-1]["code"] == "more_problems"
