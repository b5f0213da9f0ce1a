# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints on disk for tests: real safetensors headers, holes where the data would be."""

from __future__ import annotations

import json
import os
import pathlib
import typing as t

#: Bytes of an element.
SIZES = {"F8_E4M3": 1, "BF16": 2, "F32": 4, "U8": 1}

Listing = list[tuple[str, str, tuple[int, ...]]]


def write_shard(path: pathlib.Path, tensors: Listing, extra: dict[str, t.Any] | None = None) -> int:
    """Write one file of *tensors* (name, dtype, shape), sparse; return the bytes of its data."""
    header: dict[str, t.Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape in tensors:
        size = SIZES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    header.update(extra or {})
    # as safetensors writes it: no spaces, but some at the end so that the data begin at a multiple of 8
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    path.write_bytes(len(raw).to_bytes(8, "little") + raw)
    os.truncate(path, 8 + len(raw) + offset)
    return offset


def write_checkpoint(directory: pathlib.Path, tensors: Listing, shards: int, config: dict[str, t.Any]) -> int:
    """Write config.json, the index and *shards* sparse files; return the bytes of all tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    total = 0
    names: dict[str, str] = {}
    step = -(-len(tensors) // shards)
    for number in range(shards):
        part = tensors[number * step : (number + 1) * step]
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        total += write_shard(directory / file, part)
        names.update((name, file) for name, _dtype, _shape in part)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": names}))
    (directory / "config.json").write_text(json.dumps(config))
    return total


def qwen35_122b_fp8() -> Listing:
    """The tensors of Qwen/Qwen3.5-122B-A10B-FP8, written out from its modules (Qwen3_5MoeForConditionalGeneration of
    transformers): experts, attention and most projections in fp8 with one bfloat16 scale for each 128 x 128 block."""
    hidden, listing = 3072, t.cast(Listing, [])

    def fp8(name: str, rows: int, columns: int) -> None:
        listing.append((f"{name}.weight", "F8_E4M3", (rows, columns)))
        listing.append((f"{name}.weight_scale_inv", "BF16", (-(-rows // 128), -(-columns // 128))))

    def bf16(name: str, *shape: int) -> None:
        listing.append((name, "BF16", shape))

    def experts(name: str) -> None:
        bf16(f"{name}.gate.weight", 256, hidden)
        bf16(f"{name}.shared_expert_gate.weight", 1, hidden)
        for expert in [f"experts.{number}" for number in range(256)] + ["shared_expert"]:
            fp8(f"{name}.{expert}.gate_proj", 1024, hidden)
            fp8(f"{name}.{expert}.up_proj", 1024, hidden)
            fp8(f"{name}.{expert}.down_proj", hidden, 1024)

    def attention(name: str) -> None:
        # attn_output_gate: the query projection is twice as wide
        fp8(f"{name}.q_proj", 2 * 32 * 256, hidden)
        fp8(f"{name}.k_proj", 2 * 256, hidden)
        fp8(f"{name}.v_proj", 2 * 256, hidden)
        fp8(f"{name}.o_proj", hidden, 32 * 256)
        bf16(f"{name}.q_norm.weight", 256)
        bf16(f"{name}.k_norm.weight", 256)

    def norms(name: str) -> None:
        bf16(f"{name}.input_layernorm.weight", hidden)
        bf16(f"{name}.post_attention_layernorm.weight", hidden)

    bf16("model.language_model.embed_tokens.weight", 248320, hidden)
    for index in range(48):
        name = f"model.language_model.layers.{index}"
        norms(name)
        experts(f"{name}.mlp")
        if (index + 1) % 4 == 0:
            attention(f"{name}.self_attn")
            continue
        linear = f"{name}.linear_attn"
        fp8(f"{linear}.in_proj_qkv", 2 * 16 * 128 + 64 * 128, hidden)
        fp8(f"{linear}.in_proj_z", 64 * 128, hidden)
        fp8(f"{linear}.out_proj", hidden, 64 * 128)
        bf16(f"{linear}.in_proj_a.weight", 64, hidden)
        bf16(f"{linear}.in_proj_b.weight", 64, hidden)
        bf16(f"{linear}.conv1d.weight", 12288, 1, 4)
        bf16(f"{linear}.A_log", 64)
        bf16(f"{linear}.dt_bias", 64)
        bf16(f"{linear}.norm.weight", 128)
    bf16("model.language_model.norm.weight", hidden)
    bf16("lm_head.weight", 248320, hidden)
    for index in range(27):
        name = f"model.visual.blocks.{index}"
        for part, rows, columns in (("attn.qkv", 3456, 1152), ("attn.proj", 1152, 1152), ("mlp.linear_fc1", 4304, 1152), ("mlp.linear_fc2", 1152, 4304)):
            bf16(f"{name}.{part}.weight", rows, columns)
            bf16(f"{name}.{part}.bias", rows)
        for norm in ("norm1", "norm2"):
            bf16(f"{name}.{norm}.weight", 1152)
            bf16(f"{name}.{norm}.bias", 1152)
    bf16("model.visual.patch_embed.proj.weight", 1152, 3, 2, 16, 16)
    bf16("model.visual.pos_embed.weight", 2304, 1152)
    bf16("model.visual.merger.linear_fc1.weight", 4608, 4608)
    bf16("model.visual.merger.linear_fc2.weight", hidden, 4608)
    bf16("mtp.fc.weight", hidden, 2 * hidden)
    norms("mtp.layers.0")
    attention("mtp.layers.0.self_attn")
    experts("mtp.layers.0.mlp")
    return listing
