# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a model can be cut into the ranks asked for, and the numbers of ranks that would work.

An engine asserts these one after the other, minutes into its start: attention heads (verify_with_parallel_config in
vllm/config/model.py), KV heads (QKVParallelLinear), linear-attention heads (divide in vllm/distributed/utils.py), and
quantization blocks (validate_fp8_block_shape; vllm-project/vllm#17604: heads fit, blocks do not).
"""

from __future__ import annotations

import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_config import MLA, Attention, Mlp, Model
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems

_CANDIDATES: t.Final = range(1, 65)


def check_split(model: Model, tensor_parallel: int, pipeline_parallel: int, expert_parallel: bool, sglang: bool, problems: Problems) -> None:
    """Add a problem for everything that does not divide, with the sizes that would."""
    tp = tensor_parallel
    found = _reason(model, tp, expert_parallel, sglang)
    if found is not None:
        code, text = found
        good = sizes_that_divide(model, expert_parallel, sglang)
        problems.error(code, f"{text} Sizes that divide: tensor_parallel {_listed(good)}; or use pipeline_parallel.")
    if pipeline_parallel > len(model.layers):
        problems.error("too_many_stages", f"pipeline_parallel is {pipeline_parallel}, the model has {len(model.layers)} layers.")
    heads = {layer.attention.kv_heads for layer in model.layers if layer.attention and layer.attention.kind != MLA and layer.attention.kv_heads < tp}
    if heads and found is None:
        problems.add("kv_heads_replicated", f"{min(heads)} KV heads over {tp} ranks: each rank holds one whole head, so the KV cache does not shrink further.")
    if tp > 1 and any(layer.attention and layer.attention.kind == MLA for layer in model.layers):
        problems.add("latent_replicated", "The latent KV cache (MLA) is whole on every rank; tensor parallel does not make it smaller.")
    if expert_parallel and model.experts % tp and found is None:
        most = -(-model.experts // tp)
        problems.add("experts_uneven", f"{model.experts} experts over {tp} ranks: the first ranks hold {most}, the others fewer; the largest is counted.")


def sizes_that_divide(model: Model, expert_parallel: bool, sglang: bool) -> list[int]:
    """Tensor-parallel sizes up to 64 that the engine would accept for *model*."""
    return [size for size in _CANDIDATES if _reason(model, size, expert_parallel, sglang) is None]


def _reason(model: Model, tp: int, expert_parallel: bool, sglang: bool) -> tuple[str, str] | None:
    """Why *tp* does not work, as (code, sentence); None: it does."""
    if model.heads and model.heads % tp:
        return "heads_not_divisible", f"{model.heads} attention heads do not divide over {tp} ranks."
    for attention, state in dict.fromkeys((layer.attention, layer.state) for layer in model.layers):
        if attention is not None and attention.kind != MLA and attention.kv_heads:
            rest = attention.kv_heads % tp if attention.kv_heads >= tp else tp % attention.kv_heads
            if rest:
                return "kv_heads_not_divisible", f"{attention.kv_heads} KV heads neither divide over {tp} ranks nor are they a divisor of {tp}."
        if state is not None and state.heads and state.kind != "mamba1" and state.heads % tp:
            return "state_heads_not_divisible", f"{state.heads} {state.kind.replace('_', ' ')} heads do not divide over {tp} ranks."
    if expert_parallel and sglang and model.experts % tp:
        # vLLM spreads a rest over the first ranks (determine_expert_map), SGLang asserts
        return "experts_not_divisible", f"{model.experts} experts do not divide over {tp} ranks."
    return _block_reason(model, tp, expert_parallel)


def _block_reason(model: Model, tp: int, expert_parallel: bool) -> tuple[str, str] | None:
    """A rank's slice of a weight must hold whole quantization blocks."""
    quantization = model.quantization
    step = quantization.block[0] or quantization.group
    what = "block" if quantization.block[0] else "group"
    for index, width, name, module in _widths(model, tp, expert_parallel):
        if width % tp:
            return "intermediate_not_divisible", f"{name} {width} does not divide over {tp} ranks."
        if step and tp > 1 and (width // tp) % step and quantization.applies(f"layers.{index}.{module}"):
            return "quant_block_not_divisible", f"{name} {width} over {tp} ranks is {width // tp}, which cuts a quantization {what} of {step}."
    return None


def _widths(model: Model, tp: int, expert_parallel: bool) -> t.Iterator[tuple[int, int, str, str]]:
    """What is cut over ranks, each kind of layer once: layer, width, what it is, and the module whose weight it belongs to."""
    seen: set[tuple[Mlp, Attention | None]] = set()
    for index, layer in enumerate(model.layers):
        kind = (layer.mlp, layer.attention)
        if kind in seen:
            continue
        seen.add(kind)
        mlp, attention = kind
        if mlp.kind == "dense":
            yield index, mlp.intermediate, "intermediate_size", "mlp.down_proj"
        elif mlp.kind == "moe":
            if not expert_parallel:
                yield index, mlp.intermediate, "moe_intermediate_size", "mlp.experts.0.down_proj"
            if mlp.shared:
                yield index, mlp.shared, "shared expert size", "mlp.shared_expert.down_proj"
        if attention is not None and attention.kind != MLA and layer.heads:
            # what is smaller than one head a rank is replicated, not cut
            yield index, layer.heads * attention.value_dim, "width of all attention heads", "self_attn.o_proj"
            if model.quantization.block[0] and attention.kv_heads:
                yield index, max(attention.kv_heads, tp) * attention.head_dim, "width of all KV heads", "self_attn.k_proj"


def _listed(sizes: t.Sequence[int]) -> str:
    return ", ".join(str(size) for size in sizes[:8]) or "none up to 64"
