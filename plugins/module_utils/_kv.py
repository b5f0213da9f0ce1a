# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV cache and recurrent state of one rank, by the engines' own arithmetic.

vLLM keeps one pool of equal blocks for all layers (vllm/v1/core/kv_cache_utils.py and vllm/v1/kv_cache_interface.py):
layers of one kind form groups of equal size, every group has a block table of its own, and a block holds one page of each
layer of a group. For models with recurrent state the attention block is raised until an attention page is as large as a
state's page (_align_hybrid_block_size in vllm/platforms/interface.py), and the state's page is padded to it. The numbers
of the engine's log ("Setting attention block size to N tokens", "GPU KV cache size: N tokens, Maximum concurrency ...")
follow from that; they were compared with public logs, see the unit tests.

SGLang keeps a pool of tokens and one of states (sglang/srt/model_executor/model_runner.py).
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_config import CHUNKED, FULL, MLA, SLIDING, Attention, Layer, Model, State

STATE: t.Final = "state"

#: fp8_ds_mla of vLLM: 512 fp8 values, 4 float32 scales and 64 bfloat16 rope values a token (flashmla_sparse.py).
_DS_MLA_BYTES: t.Final = 656
#: mamba_full_memory_ratio of SGLang: state pool over KV pool, with the radix cache on (server_args.py).
SGLANG_STATE_RATIO: t.Final = 0.9


@dataclass(frozen=True)
class KvSettings:
    """What decides the cache besides the model."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    #: Bytes of one cached element.
    kv_bytes: int = 2
    speculative_tokens: int = 0
    prefix_caching: bool = False
    max_batched_tokens: int = 8192
    #: Batches in flight at once: 2 with asynchronous scheduling (max_concurrent_batches in vllm/config/vllm.py).
    batches_in_flight: int = 1
    #: Bytes of an element of the recurrent state, in place of the model's (--mamba-ssm-cache-dtype); None: the model's.
    recurrent_bytes: int | None = None
    #: vLLM's CPU backend: attention blocks start at 128 tokens (vllm/platforms/cpu.py), on a GPU at 16.
    cpu: bool = False


@dataclass(frozen=True)
class _Spec:
    kind: str
    #: Bytes a token for attention, bytes a sequence for a state.
    size: int
    window: int = 0


@dataclass(frozen=True)
class Group:
    """Layers that share a block table."""

    kind: str
    layers: int
    block_size: int
    window: int = 0


@dataclass(frozen=True)
class Plan:
    """How vLLM lays out the pool of one rank."""

    block_size: int
    #: Bytes of one page (one layer, one block) before and after padding to the common size.
    state_page: int
    page: int
    #: Bytes that one block takes of the pool.
    block_bytes: int
    group_size: int
    groups: tuple[Group, ...]
    settings: KvSettings

    def blocks_per_request(self, length: int) -> int:
        """Blocks that one request of *length* tokens may hold at most."""
        return sum(self.group_blocks(group, length) for group in self.groups)

    def state_blocks(self) -> int:
        """Blocks of a request that hold recurrent state."""
        return sum(self.group_blocks(group, 1) for group in self.groups if group.kind == STATE)

    def group_blocks(self, group: Group, length: int) -> int:
        """max_memory_usage_bytes of the group's KVCacheSpec, in pages."""
        settings = self.settings
        in_flight = settings.max_batched_tokens * settings.batches_in_flight
        if group.kind == STATE:
            return 1 + settings.speculative_tokens + (1 if settings.prefix_caching else 0)
        if group.kind == SLIDING:
            return -(-min(group.window - 1 + in_flight, length) // group.block_size) + 1
        if group.kind == CHUNKED:
            return -(-min(group.window + in_flight, length) // group.block_size)
        return -(-length // group.block_size)

    def num_blocks(self, pool: int) -> int:
        """Whole blocks in *pool* bytes."""
        return pool // self.block_bytes if self.block_bytes else 0

    def max_concurrency(self, pool: int, length: int) -> float:
        """get_max_concurrency_for_kv_cache_config: requests of *length* tokens that the pool holds at once."""
        needed = self.blocks_per_request(length)
        return self.num_blocks(pool) / needed if needed else 0.0

    def request_bytes(self, length: int, requests: int) -> int:
        """Pool that *requests* of *length* tokens need, with the null block that the engine holds back."""
        return (self.blocks_per_request(length) * requests + 1) * self.block_bytes

    def max_length(self, pool: int, requests: int, limit: int) -> int:
        """The longest context at which *requests* fit into *pool* (_estimate_max_model_len_from_groups); 0: none."""
        low, high, best = 1, limit, 0
        while low <= high:
            middle = (low + high) // 2
            if self.request_bytes(middle, requests) <= pool:
                best, low = middle, middle + 1
            else:
                high = middle - 1
        return best


def attention_bytes(attention: Attention, tp: int, kv_bytes: int) -> int:
    """Bytes a token of one layer on one rank.

    MHA and GQA: key and value of the rank's KV heads, which are replicated when there are fewer than ranks
    (get_num_kv_heads in vllm/config/model.py). MLA: the latent vector, whole on every rank
    (MLAAttentionSpec, num_kv_heads=1).
    """
    if attention.kind == MLA:
        latent = _DS_MLA_BYTES if attention.index_bytes and kv_bytes == 1 else attention.latent * kv_bytes
        return latent + attention.index_bytes
    heads = max(1, -(-attention.kv_heads // tp)) if attention.kv_heads else 0
    return heads * (attention.head_dim + attention.value_dim) * kv_bytes


def state_bytes(state: State, tp: int, dtype_bytes: int, speculative_tokens: int = 0, recurrent_bytes: int | None = None) -> int:
    """Bytes a sequence of one layer on one rank: MambaStateShapeCalculator in
    vllm/model_executor/layers/mamba/mamba_utils.py. The convolution's window is in the model's dtype and grows by the
    speculative tokens; the recurrent part has its own dtype.
    """
    recurrent = recurrent_bytes or state.recurrent_bytes or dtype_bytes
    window = state.conv_kernel - 1 + speculative_tokens
    if state.kind == "mamba2":
        # groups are replicated where a rank would otherwise have none (extra_groups_for_head_shards)
        groups = state.groups if state.groups % tp == 0 else tp
        channels = state.conv_channels + 2 * groups * state.state_dim
        return _split(channels, tp) * window * dtype_bytes + _split(state.heads, tp) * state.head_dim * state.state_dim * recurrent
    if state.kind == "mamba1":
        inner = _split(state.conv_channels, tp)
        return inner * (state.conv_kernel - 1) * dtype_bytes + inner * state.state_dim * recurrent
    conv = _split(state.conv_channels, tp) * window * dtype_bytes
    return conv + _split(state.heads, tp) * state.head_dim * state.state_dim * recurrent


def stage_ranges(layers: int, stages: int) -> list[tuple[int, int]]:
    """First and last+1 layer of each pipeline stage: get_pp_indices in vllm/distributed/utils.py."""
    sizes = [layers // stages] * stages
    for index in range(2, layers % stages + 2):
        sizes[-index] += 1
    ranges, start = [], 0
    for size in sizes:
        ranges.append((start, start + size))
        start += size
    return ranges


def cached_layers(model: Model, speculative: bool) -> list[Layer]:
    """The layers that keep a cache; a drafter's (MTP) join when speculative decoding is on."""
    return [*model.layers, *(model.mtp_layers if speculative else ())]


def bytes_per_token(model: Model, settings: KvSettings) -> int:
    """KV bytes of one token on the rank of the stage that has most of them."""
    tp, size = settings.tensor_parallel, settings.kv_bytes
    return max(sum(attention_bytes(layer.attention, tp, size) for layer in stage if layer.attention) for stage in _stages(model, settings))


def state_per_sequence(model: Model, settings: KvSettings) -> int:
    """State bytes of one sequence on the rank of the stage that has most of them, before any padding."""
    tp, spec, recurrent = settings.tensor_parallel, settings.speculative_tokens, settings.recurrent_bytes
    return max(sum(state_bytes(layer.state, tp, model.dtype_bytes, spec, recurrent) for layer in stage if layer.state) for stage in _stages(model, settings))


def _stages(model: Model, settings: KvSettings) -> list[list[Layer]]:
    ranges = stage_ranges(len(model.layers), settings.pipeline_parallel)
    stages = [list(model.layers[first:last]) for first, last in ranges]
    if settings.speculative_tokens:
        stages[-1].extend(model.mtp_layers)
    return stages


def vllm_plan(model: Model, settings: KvSettings) -> Plan:
    """Lay out the pool as get_kv_cache_groups and get_kv_cache_config_from_groups do."""
    layers = cached_layers(model, settings.speculative_tokens > 0)
    specs = _specs(layers, model, settings)
    every = [spec for layer in specs for spec in layer]
    attention = [spec for spec in every if spec.kind != STATE]
    states = [spec for spec in every if spec.kind == STATE]
    state_page = max((spec.size for spec in states), default=0)
    block = _block_size(attention, state_page, any(spec.kind == MLA for spec in attention), settings)
    page_of = {spec: (state_page if spec.kind == STATE else spec.size * block) for spec in set(every)}
    if not every:
        return Plan(block, 0, 0, 0, 0, (), settings)
    page = max(page_of.values())
    if _is_uniform(every):
        # one group; its pages lie side by side, whatever their sizes
        per_stage = [sum(page_of[spec] for layer in stage for spec in layer) for stage in _cut(specs, settings)]
        first = every[0]
        group = Group(first.kind, len(every), block, first.window)
        return Plan(block, state_page, page, max(per_stage), len(every), (group,), settings)
    return _grouped(specs, every, page_of, page, block, state_page, settings)


def _grouped(specs: list[list[_Spec]], every: list[_Spec], page_of: dict[_Spec, int], page: int, block: int, state_page: int, settings: KvSettings) -> Plan:
    """_get_kv_cache_groups_uniform_page_size: groups of equal layer counts over one page size."""
    buckets: dict[_Spec, int] = {}
    for spec in every:
        buckets[spec] = buckets.get(spec, 0) + 1
    smallest, largest = min(buckets.values()), max(buckets.values())
    size = largest if largest < smallest * 1.5 else smallest
    groups: list[Group] = []
    counts = {spec: -(-count // size) for spec, count in buckets.items()}
    for spec, number in counts.items():
        own = page_of[spec]
        # a smaller page takes more tokens a block where that divides, else it is padded (unify_kv_cache_spec_page_size)
        tokens = block * (page // own) if spec.kind != STATE and own and page % own == 0 else block
        groups.extend(Group(spec.kind, len(range(index, buckets[spec], number)), tokens, spec.window) for index in range(number))
    # with pipeline stages a block holds the pages of the layers that the stage has of a group
    seen: dict[_Spec, int] = {}
    widest = 0
    for stage in _cut(specs, settings):
        held: dict[tuple[_Spec, int], int] = {}
        for layer in stage:
            for spec in layer:
                position = seen.get(spec, 0)
                seen[spec] = position + 1
                key = (spec, position % counts[spec])
                held[key] = held.get(key, 0) + 1
        widest = max([widest, *held.values()])
    return Plan(block, state_page, page, page * widest, size, tuple(groups), settings)


def _cut(specs: list[list[_Spec]], settings: KvSettings) -> list[list[list[_Spec]]]:
    return [specs[first:last] for first, last in stage_ranges(len(specs), settings.pipeline_parallel)]


def _specs(layers: list[Layer], model: Model, settings: KvSettings) -> list[list[_Spec]]:
    tp = settings.tensor_parallel
    found: list[list[_Spec]] = []
    for layer in layers:
        own: list[_Spec] = []
        attention = layer.attention
        if attention is not None:
            total = attention_bytes(attention, tp, settings.kv_bytes)
            # the indexer of sparse attention is a layer of its own to the allocator (DeepseekV32IndexerCache)
            if total - attention.index_bytes:
                own.append(_Spec(attention.kind, total - attention.index_bytes, attention.window))
            if attention.index_bytes:
                own.append(_Spec(attention.kind, attention.index_bytes))
        if layer.state is not None:
            size = state_bytes(layer.state, tp, model.dtype_bytes, settings.speculative_tokens, settings.recurrent_bytes)
            if size:
                own.append(_Spec(STATE, size))
        found.append(own)
    return found


def _block_size(attention: list[_Spec], state_page: int, mla: bool, settings: KvSettings) -> int:
    """Tokens a block: the platform's default, raised for models with state to cover a state's page."""
    base = 16 if mla or not settings.cpu else 128
    if not attention or not state_page:
        return base
    align = max(base, 128) if mla else base
    per_token = max(spec.size for spec in attention)
    return max(base, align * -(-state_page // (align * per_token)))


def _is_uniform(specs: list[_Spec]) -> bool:
    """UniformTypeKVCacheSpecs.is_uniform_type: all attend to everything, or all to the same window, or all are one state."""
    kinds = {spec.kind for spec in specs}
    if kinds <= {FULL, MLA}:
        return True
    return len(kinds) == 1 and len({(spec.window, spec.size if spec.kind == STATE else 0) for spec in specs}) == 1


def _split(value: int, parts: int) -> int:
    return -(-value // parts)
