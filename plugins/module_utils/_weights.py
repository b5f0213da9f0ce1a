# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes of weights that one rank loads: what is split, what is replicated, what is not loaded at all.

The rules are those of vLLM's layers, by the checkpoint's names (ColumnParallelLinear, RowParallelLinear,
QKVParallelLinear, VocabParallelEmbedding and ReplicatedLinear in vllm/model_executor/layers/linear.py and
vocab_parallel_embedding.py): matrices are split over tensor ranks, vectors and routers are not, KV heads are replicated
when there are fewer than ranks, the vocabulary is padded to a multiple of 64 and of the ranks.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._kv import stage_ranges
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_config import Model
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems
from ansible_collections.unimem.dgx_spark.plugins.module_utils._safetensors import Checkpoint, Tensor
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tensors import expected_tensors

TEXT: t.Final = "text"
VISION: t.Final = "vision"
MTP: t.Final = "mtp"
SKIPPED: t.Final = "skipped"

#: DEFAULT_VOCAB_PADDING_SIZE in vllm/model_executor/layers/vocab_parallel_embedding.py
_VOCAB_PADDING: t.Final = 64

# all patterns are ours and linear; names are bounded by the header's size
_LAYER: t.Final = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.([0-9]{1,6})\.")
_EXPERT: t.Final = re.compile(r"\.experts\.([0-9]{1,6})\.")
_VISION: t.Final = re.compile(
    r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_encoder|vit|image_encoder|audio_tower|audio_encoder"
    r"|multi_modal_projector|mm_projector|mlp1|embed_vision|embed_audio)\."
)
_MTP: t.Final = re.compile(r"^(?:model\.|language_model\.)*(?:mtp|mtp_block|mtp_layers|nextn)\.")
_SKIPPED: t.Final = re.compile(r"(?:rotary_emb\.inv_freq|attn\.masked_bias|attn\.bias)$")
#: Suffixes that belong to a weight: they follow its rule.
_SUFFIXES: t.Final = (
    ".weight_scale_inv",
    ".weight_scale_2",
    ".weight_scale",
    ".weight_packed",
    ".weight_shape",
    ".weight",
    ".qweight",
    ".qzeros",
    ".scales",
    ".g_idx",
    ".input_scale",
    ".bias",
    "_blocks",
    "_scales",
)
#: Modules that every tensor rank holds whole: ReplicatedLinear, routers, the latent projections of MLA, the sparse
#: indexer, and the vision tower's embeddings.
_REPLICATED: t.Final = frozenset(
    (
        "gate",
        "router",
        "shared_expert_gate",
        "q_a_proj",
        "kv_a_proj_with_mqa",
        "fused_qkv_a_proj",
        "wk",
        "wq_b",
        "weights_proj",
        "fc1_latent_proj",
        "fc2_latent_proj",
        "patch_embed",
        "pos_embed",
        "position_embedding",
        "patch_embedding",
        "class_embedding",
    )
)
_EMBEDDINGS: t.Final = frozenset(("embed_tokens", "embeddings", "word_embeddings", "wte", "tok_embeddings"))
_HEADS: t.Final = frozenset(("lm_head", "output", "embed_out"))


@dataclass(frozen=True)
class Split:
    """How the model is cut over ranks."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    speculative: bool = False
    language_model_only: bool = False


@dataclass
class Weights:
    """Bytes of one rank (of the largest pipeline stage)."""

    rank: int = 0
    replicated: int = 0
    loaded: int = 0
    by_part: dict[str, int] = field(default_factory=dict)
    source: str = ""


def module_of(name: str) -> str:
    """The module a tensor belongs to."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return name[: -len(suffix)]
    return name


def part_of(name: str, model: Model) -> str:
    """Text, vision, multi-token prediction, or nothing an engine loads."""
    if _SKIPPED.search(name):
        return SKIPPED
    if _MTP.match(name):
        return MTP
    if _VISION.search(name):
        return VISION
    layer = _LAYER.search(name)
    # DeepSeek and GLM append the multi-token prediction module as one more layer
    if layer and int(layer.group(1)) >= len(model.layers):
        return MTP
    return TEXT


def rank_bytes(tensor: Tensor, model: Model, split: Split) -> tuple[int, bool]:
    """Bytes of *tensor* (all its copies) on one tensor rank, and whether they are a replica."""
    tp = split.tensor_parallel
    size, name = tensor.size, module_of(tensor.name)
    last = name.rsplit(".", 1)[-1]
    experts = _expert_share(tensor, name, model, split)
    if experts is not None:
        return experts, False
    if len([value for value in tensor.shape if value != 1]) < 2 or last in _REPLICATED or ".indexer." in name or ".patch_embed" in name:
        return size * tensor.copies, True
    if tp == 1:
        return size * tensor.copies, False
    if last in _EMBEDDINGS or last in _HEADS:
        rows = tensor.shape[0]
        padded = -(-rows // _VOCAB_PADDING) * _VOCAB_PADDING
        return -(-size * -(-padded // tp) // rows), False
    if last in ("k_proj", "v_proj", "key", "value") and model.kv_heads:
        return _ceil(size * max(1, model.kv_heads // tp), model.kv_heads), model.kv_heads < tp
    if last in ("qkv_proj", "query_key_value", "Wqkv", "qkv") and part_of(tensor.name, model) == TEXT and model.heads and model.kv_heads:
        total = model.heads + 2 * model.kv_heads
        return _ceil(size * (_ceil(model.heads, tp) + 2 * max(1, model.kv_heads // tp)), total), False
    return _ceil(size, tp) * tensor.copies, False


def _expert_share(tensor: Tensor, name: str, model: Model, split: Split) -> int | None:
    """With expert parallelism a rank holds whole experts, ceil(experts / ranks) of them (determine_expert_map in
    vllm/model_executor/layers/fused_moe/layer.py); without, a slice of each."""
    if not split.expert_parallel or split.tensor_parallel == 1 or ".experts" not in name:
        return None
    experts = model.experts
    if not experts:
        return None
    local = _ceil(experts, split.tensor_parallel)
    if tensor.copies > 1:
        return tensor.size * min(local, tensor.copies)
    number = _EXPERT.search(tensor.name)
    if number:
        return tensor.size if int(number.group(1)) < local else 0
    return _ceil(tensor.size * local, experts)


def merge_experts(tensors: t.Iterable[Tensor]) -> t.Iterator[Tensor]:
    """Make one entry of the equal tensors of a layer's experts: a checkpoint has tens of thousands of them."""
    merged: dict[tuple[str, str, tuple[int, ...], int], int] = {}
    for tensor in tensors:
        before, found, after = tensor.name.partition(".experts.")
        number, _dot, rest = after.partition(".")
        if not found or not number.isdecimal():
            yield tensor
            continue
        key = (before, rest, tensor.shape, tensor.size)
        merged[key] = merged.get(key, 0) + tensor.copies
    for (before, rest, shape, size), copies in merged.items():
        yield Tensor(f"{before}.experts.0.{rest}", shape, size, "", copies)


def sum_weights(tensors: t.Iterable[Tensor], model: Model, split: Split) -> Weights:
    """Add up what the rank of the largest pipeline stage loads."""
    stages = stage_ranges(len(model.layers), split.pipeline_parallel)
    totals = [0] * len(stages)
    result = Weights()
    for tensor in merge_experts(tensors):
        part = part_of(tensor.name, model)
        whole = tensor.size * tensor.copies
        result.by_part[part] = result.by_part.get(part, 0) + whole
        if part == SKIPPED or (part == MTP and not split.speculative) or (part == VISION and split.language_model_only):
            continue
        last = module_of(tensor.name).rsplit(".", 1)[-1]
        if model.tied and last in _HEADS and part == TEXT:
            # the engine shares the embedding (tie_weights) and skips a second copy in the file
            continue
        share, replica = rank_bytes(tensor, model, split)
        result.loaded += whole
        stage = _stage(tensor.name, part, last, model, stages)
        totals[stage] += share
        if replica and split.tensor_parallel > 1:
            result.replicated += share
    result.rank = max(totals)
    return result


def _stage(name: str, part: str, last: str, model: Model, stages: list[tuple[int, int]]) -> int:
    if len(stages) == 1:
        return 0
    if part == MTP or last in _HEADS:
        return len(stages) - 1
    layer = _LAYER.search(name)
    if part == VISION or layer is None:
        return 0
    number = int(layer.group(1))
    return next((index for index, (first, end) in enumerate(stages) if first <= number < end), len(stages) - 1)


def weights_of(
    model: Model,
    checkpoint: Checkpoint | None,
    given: int | None,
    split: Split,
    problems: Problems,
    assumptions: list[str],
    listing: t.Callable[[], list[Tensor]] | None = None,
) -> Weights | None:
    """Weights of one rank, from the best source there is; None: they cannot be known.

    In this order: the headers of the files; a total in bytes (*given*, or of the index), of which the configuration tells
    what is replicated and what is not loaded.

    :param listing: gives expected_tensors(model), where it was made before.
    """
    if checkpoint is not None and checkpoint.complete and checkpoint.tensors:
        found = sum_weights(_cast(checkpoint.tensors, model, assumptions), model, split)
        found.source = "safetensors headers"
        return found
    total = given if given is not None else checkpoint.total_size if checkpoint is not None else None
    if total is None:
        problems.error("weights_unknown", "The size of the weights is unknown: give the model directory with its safetensors files or index, or weight_bytes.")
        return None
    found = _from_total(total, model, listing() if listing else expected_tensors(model), split, problems, assumptions)
    found.source = "weight_bytes" if given is not None else checkpoint.source if checkpoint is not None else ""
    return found


def _from_total(total: int, model: Model, expected: list[Tensor], split: Split, problems: Problems, assumptions: list[str]) -> Weights:
    parts = {TEXT: 0, VISION: 0, MTP: 0, SKIPPED: 0}
    for tensor in expected:
        parts[part_of(tensor.name, model)] += tensor.size * tensor.copies
    # which optional parts the checkpoint has is read off its size: the combination that comes nearest
    choices = [(vision, mtp) for vision in ({True, parts[VISION] > 0} if parts[VISION] else {False}) for mtp in ({True, False} if parts[MTP] else {False})]
    vision, mtp = min(choices, key=lambda choice: abs(total - parts[TEXT] - choice[0] * parts[VISION] - choice[1] * parts[MTP]))
    guess = parts[TEXT] + vision * parts[VISION] + mtp * parts[MTP]
    close = guess > 0 and abs(total - guess) <= guess // 50
    present = [tensor for tensor in expected if part_of(tensor.name, model) != MTP or mtp]
    reference = sum_weights(present, model, split)
    if not close:
        # another quantization than the config says, or layers we do not know: nothing is taken off, little is added
        assumptions.append(
            f"The checkpoint has {total} bytes, its config would make {guess}: all of it is counted as loaded, and what is replicated is taken from the config."
        )
        if guess and total < guess // 8:
            problems.error("weights_implausible", f"weight_bytes is {total}, but a model of this config has about {guess} bytes of weights.")
        elif guess and not guess // 4 <= total <= guess * 4:
            problems.add("weights_differ", f"weight_bytes is {total}, a model of this config has about {guess} bytes of weights: are both of one model?")
        unloaded = 0
    else:
        unloaded = guess - reference.loaded
        assumptions.append("The weights' total is split over ranks by the config's shapes; the files' headers were not read.")
    loaded = max(0, total - unloaded)
    if not reference.loaded:
        return Weights(rank=_ceil(loaded, split.tensor_parallel * split.pipeline_parallel), loaded=loaded)
    if split.tensor_parallel == 1 and split.pipeline_parallel == 1:
        return Weights(rank=loaded, loaded=loaded)
    if close:
        # same layout: the rank's share of the listing, scaled to the true total
        rank = _ceil(reference.rank * loaded, reference.loaded)
    else:
        # replicated modules (routers, norms, latents) are seldom quantized: their bytes are absolute
        replicated = min(reference.replicated, loaded)
        rank = _ceil(loaded - replicated, split.tensor_parallel * split.pipeline_parallel) + replicated
    return Weights(rank=rank, replicated=reference.replicated, loaded=loaded)


def _cast(tensors: list[Tensor], model: Model, assumptions: list[str]) -> list[Tensor]:
    """A float32 checkpoint is loaded in the model's dtype; single float32 tensors (scales, biases) stay."""
    wide = sum(tensor.size for tensor in tensors if tensor.dtype == "F32")
    if wide * 2 <= sum(tensor.size for tensor in tensors):
        return tensors
    assumptions.append(f"The checkpoint is float32; the engine loads it as {model.dtype}.")
    return [tensor._replace(size=tensor.size * model.dtype_bytes // 4) if tensor.dtype == "F32" else tensor for tensor in tensors]


def _ceil(value: int, parts: int) -> int:
    return -(-value // parts)
