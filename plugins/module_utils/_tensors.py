# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tensors a checkpoint of a configuration would hold, for where its own headers cannot be read.

Only the total in bytes is given then (an index, or C(weight_bytes)); this listing tells which part of it is replicated on
every rank and which is not loaded (vision, multi-token prediction). Shapes follow the modules of transformers and vLLM
named in each function; experts are one entry with C(copies).
"""

from __future__ import annotations

import math

from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_config import MLA, Attention, Layer, Mlp, Model, Reader, State
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems
from ansible_collections.unimem.dgx_spark.plugins.module_utils._safetensors import Tensor


def expected_tensors(model: Model) -> list[Tensor]:
    """Tensors of the whole checkpoint of *model*: text, vision and multi-token prediction."""
    return _Listing(model).tensors()


class _Listing:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.found: list[Tensor] = []
        # the fields were checked when the model was parsed; a second complaint would say nothing new
        self.text = Reader(model.text, Problems())

    def tensors(self) -> list[Tensor]:
        model = self.model
        prefix = "model.language_model" if model.nested else "backbone" if model.text_type == "nemotron_h" else "model"
        self.weight(f"{prefix}.embed_tokens", model.vocab, model.hidden)
        if not model.tied:
            self.weight("lm_head", model.vocab, model.hidden)
        for index, layer in enumerate(model.layers):
            self.layer(f"{prefix}.layers.{index}", layer)
        for index, layer in enumerate(model.mtp_layers):
            self.layer(f"mtp.layers.{index}", layer)
        if model.mtp_layers:
            self.weight("mtp.fc", model.hidden, 2 * model.hidden)
        self.vision()
        return self.found

    def weight(self, module: str, rows: int, columns: int, copies: int = 1) -> None:
        if rows <= 0 or columns <= 0 or copies <= 0:
            return
        quantization = self.model.quantization
        elements = rows * columns
        # quantizers work on linear layers; an embedding is none, whether or not it is among the excluded modules
        if quantization.applies(module) and not module.endswith(".embed_tokens"):
            size = math.ceil(elements * quantization.bytes_per_weight)
        else:
            size = elements * self.model.dtype_bytes
        self.found.append(Tensor(f"{module}.weight", (rows, columns), size, "", copies))

    def vector(self, module: str, length: int) -> None:
        if length > 0:
            self.found.append(Tensor(f"{module}.weight", (length,), length * self.model.dtype_bytes))

    def layer(self, name: str, layer: Layer) -> None:
        mixer = "mixer" if self.model.text_type == "nemotron_h" else "self_attn"
        self.vector(f"{name}.input_layernorm", self.model.hidden)
        self.vector(f"{name}.post_attention_layernorm", self.model.hidden)
        if layer.attention is not None:
            if layer.attention.kind == MLA:
                self.latent_attention(f"{name}.{mixer}", layer)
            else:
                self.attention(f"{name}.{mixer}", layer, layer.attention)
        if layer.state is not None:
            self.state(f"{name}.{'mixer' if mixer == 'mixer' else 'linear_attn'}", layer.state)
        self.mlp(f"{name}.{'mixer' if mixer == 'mixer' else 'mlp'}", layer.mlp)

    def attention(self, name: str, layer: Layer, attention: Attention) -> None:
        """q/k/v/o projections (Qwen3MoeAttention, Qwen3NextAttention: attn_output_gate doubles the query)."""
        hidden, heads = self.model.hidden, layer.heads
        gated = self.text.flag("attn_output_gate") or self.model.text_type == "qwen3_next"
        self.weight(f"{name}.q_proj", heads * attention.head_dim * (2 if gated else 1), hidden)
        self.weight(f"{name}.k_proj", attention.kv_heads * attention.head_dim, hidden)
        self.weight(f"{name}.v_proj", attention.kv_heads * attention.value_dim, hidden)
        self.weight(f"{name}.o_proj", hidden, heads * attention.value_dim)

    def latent_attention(self, name: str, layer: Layer) -> None:
        """Multi-head latent attention and the indexer of sparse attention (DeepseekV2MLAAttention)."""
        text, hidden, heads = self.text, self.model.hidden, layer.heads
        rank, query = text.integer("kv_lora_rank"), text.integer("q_lora_rank")
        nope, rope = text.integer("qk_nope_head_dim"), text.integer("qk_rope_head_dim")
        value = text.integer("v_head_dim", default=nope)
        if query:
            self.weight(f"{name}.q_a_proj", query, hidden)
            self.weight(f"{name}.q_b_proj", heads * (nope + rope), query)
        else:
            self.weight(f"{name}.q_proj", heads * (nope + rope), hidden)
        self.weight(f"{name}.kv_a_proj_with_mqa", rank + rope, hidden)
        self.weight(f"{name}.kv_b_proj", heads * (nope + value), rank)
        self.weight(f"{name}.o_proj", hidden, heads * value)
        index_heads, index_dim = text.integer("index_n_heads"), text.integer("index_head_dim")
        if index_heads and index_dim:
            self.weight(f"{name}.indexer.wq_b", index_heads * index_dim, query)
            self.weight(f"{name}.indexer.wk", index_dim, hidden)
            self.weight(f"{name}.indexer.weights_proj", index_heads, hidden)

    def state(self, name: str, state: State) -> None:
        hidden = self.model.hidden
        if state.kind == "gated_delta_net":
            value = state.heads * state.head_dim
            self.weight(f"{name}.in_proj_qkv", state.conv_channels, hidden)
            self.weight(f"{name}.in_proj_z", value, hidden)
            self.weight(f"{name}.in_proj_a", state.heads, hidden)
            self.weight(f"{name}.in_proj_b", state.heads, hidden)
            self.weight(f"{name}.conv1d", state.conv_channels, state.conv_kernel)
            self.weight(f"{name}.out_proj", hidden, value)
        elif state.kind == "mamba2":
            inner = state.heads * state.head_dim
            channels = inner + 2 * state.groups * state.state_dim
            self.weight(f"{name}.in_proj", inner + channels + state.heads, hidden)
            self.weight(f"{name}.conv1d", channels, state.conv_kernel)
            self.weight(f"{name}.out_proj", hidden, inner)
        elif state.kind == "mamba1":
            inner = state.conv_channels
            rank = self.text.integer("mamba_dt_rank", "time_step_rank", default=-(-hidden // 16))
            self.weight(f"{name}.in_proj", 2 * inner, hidden)
            self.weight(f"{name}.x_proj", rank + 2 * state.state_dim, inner)
            self.weight(f"{name}.dt_proj", inner, rank)
            self.weight(f"{name}.out_proj", hidden, inner)
        elif state.kind == "short_conv":
            self.weight(f"{name}.in_proj", 3 * state.conv_channels, hidden)
            self.weight(f"{name}.out_proj", hidden, state.conv_channels)
        else:
            # lightning attention and KDA: query, key, value, gate and output of all heads
            self.weight(f"{name}.qkv_proj", 3 * state.heads * state.head_dim, hidden)
            self.weight(f"{name}.g_proj", state.heads * state.head_dim, hidden)
            self.weight(f"{name}.o_proj", hidden, state.heads * state.head_dim)

    def mlp(self, name: str, mlp: Mlp) -> None:
        """Gated feed-forward parts have three matrices, others two (Nemotron-H's relu2)."""
        hidden = self.model.hidden
        if mlp.kind == "dense":
            self.expert(name, mlp.intermediate, hidden, mlp.gated, 1)
        elif mlp.kind == "moe":
            self.weight(f"{name}.gate", mlp.experts, hidden)
            width = mlp.width or hidden
            if mlp.width:
                self.weight(f"{name}.fc1_latent_proj", width, hidden)
                self.weight(f"{name}.fc2_latent_proj", hidden, width)
            self.expert(f"{name}.experts.0", mlp.intermediate, width, mlp.gated, mlp.experts)
            if mlp.shared:
                self.expert(f"{name}.shared_expert", mlp.shared, hidden, mlp.gated, 1)
                if "shared_expert_intermediate_size" in self.model.text:
                    self.weight(f"{name}.shared_expert_gate", 1, hidden)

    def expert(self, name: str, inner: int, width: int, gated: bool, copies: int) -> None:
        if gated:
            self.weight(f"{name}.gate_proj", inner, width, copies)
        self.weight(f"{name}.up_proj", inner, width, copies)
        self.weight(f"{name}.down_proj", width, inner, copies)

    def vision(self) -> None:
        """A vision transformer: attention 4 x h^2, feed-forward 2 x h x i, the merger to the text's width
        (Qwen3_VisionTransformer in vllm/model_executor/models/qwen3_vl.py; others are close)."""
        vision = Reader(self.model.vision, Problems())
        depth = vision.integer("depth", "num_hidden_layers", high=1024)
        hidden = vision.integer("hidden_size", "embed_dim")
        if not depth or not hidden:
            return
        inner = vision.integer("intermediate_size", default=4 * hidden) or 4 * hidden
        for index in range(depth):
            name = f"model.visual.blocks.{index}"
            self.weight(f"{name}.attn.qkv", 3 * hidden, hidden)
            self.weight(f"{name}.attn.proj", hidden, hidden)
            self.weight(f"{name}.mlp.linear_fc1", inner, hidden)
            self.weight(f"{name}.mlp.linear_fc2", hidden, inner)
        patch = vision.integer("patch_size", default=14, high=256)
        channels = vision.integer("in_channels", "in_chans", "num_channels", default=3, high=64)
        temporal = vision.integer("temporal_patch_size", default=1, low=1, high=16)
        self.weight("model.visual.patch_embed.proj", hidden, channels * temporal * patch * patch)
        self.weight("model.visual.pos_embed", vision.integer("num_position_embeddings"), hidden)
        merge = vision.integer("spatial_merge_size", default=1, low=1, high=16) ** 2
        out = vision.integer("out_hidden_size", default=self.model.hidden) or self.model.hidden
        mergers = ["model.visual.merger"]
        mergers += [f"model.visual.deepstack_merger_list.{index}" for index in range(len(vision.integers("deepstack_visual_indexes")))]
        for name in mergers:
            self.weight(f"{name}.linear_fc1", hidden * merge, hidden * merge)
            self.weight(f"{name}.linear_fc2", out, hidden * merge)
