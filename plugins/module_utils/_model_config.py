# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model's config.json says, brought into one form: layers, their attention and state, sizes, quantization.

Configurations come from the internet and are untrusted: every field is checked for type and range, a bad one becomes a
problem with a code, and nothing here depends on their size without a bound.

Field names and their traps follow the model classes of vLLM (vllm/transformers_utils/model_arch_config_convertor.py
and vllm/model_executor/models/) and the published configurations of the models named beside each rule.
"""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems, shown
from ansible_collections.unimem.dgx_spark.plugins.module_utils._quantization import Quantization, parse_quantization

#: The deepest published model has 126 layers (Llama-3.1-405B); 1024 leaves room and bounds the work.
MAX_LAYERS: t.Final = 1024
_MAX_DIM: t.Final = 1 << 22
_MAX_HEADS: t.Final = 1 << 14
_MAX_EXPERTS: t.Final = 1 << 16
_MAX_VOCAB: t.Final = 1 << 26
MAX_CONTEXT: t.Final = 1 << 30

FULL: t.Final = "full"
SLIDING: t.Final = "sliding"
CHUNKED: t.Final = "chunked"
MLA: t.Final = "mla"

#: Text-model types whose KV cache vLLM keeps as one latent vector a token (is_deepseek_mla in
#: vllm/transformers_utils/model_arch_config_convertor.py), and kimi_k25/mistral4, which share the layout.
_MLA_TYPES: t.Final = frozenset(
    (
        "axk1",
        "bailing_hybrid",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "glm5_next",
        "glm5_next_text",
        "kimi_k2",
        "kimi_k25",
        "kimi_linear",
        "longcat_flash",
        "mistral4",
        "pangu_ultra_moe",
    )
)
#: Text-model types whose rules below were checked against the engine's source or a public log.
_KNOWN_TYPES: t.Final = _MLA_TYPES | frozenset(
    (
        "apertus",
        "arcee",
        "baichuan",
        "bailing_moe",
        "bailing_moe_v2",
        "bamba",
        "bloom",
        "chatglm",
        "cohere",
        "cohere2",
        "cohere2_text",
        "dbrx",
        "deci",
        "nemotron-nas",
        "dots1",
        "ernie4_5",
        "ernie4_5_moe",
        "ernie4_5_moe_vl",
        "ernie4_5_vl_moe_text",
        "exaone4",
        "falcon",
        "falcon_h1",
        "falcon_mamba",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma3n_text",
        "gemma4_text",
        "glm4",
        "glm4_moe",
        "glm4v_moe_text",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gpt_oss",
        "granite",
        "granitemoe",
        "granitemoehybrid",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "internlm2",
        "internlm3",
        "jamba",
        "lfm2",
        "lfm2_moe",
        "llama",
        "llama4_text",
        "mamba",
        "mamba2",
        "mimo_v2_flash",
        "minimax",
        "minimax_m1",
        "minimax_m2",
        "minimax_text_01",
        "ministral3",
        "mistral",
        "mistral3",
        "mixtral",
        "mpt",
        "nemotron",
        "nemotron_h",
        "olmo2",
        "olmo3",
        "olmoe",
        "opt",
        "phi",
        "phi3",
        "phi4mm",
        "phimoe",
        "qwen2",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
        "qwen2_moe",
        "qwen2_vl",
        "qwen2_vl_text",
        "qwen3",
        "qwen3_5",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_omni_moe_text",
        "qwen3_vl_text",
        "qwen3_vl_moe_text",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder2",
        "step3_text",
        "step3p5",
        "step3p7",
        "zamba2",
    )
)
#: Models whose feed-forward parts have two matrices and no gate.
_UNGATED_TYPES: t.Final = frozenset(("bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "mpt", "nemotron", "opt", "phi", "starcoder2"))
_TEXT_KEYS: t.Final = ("text_config", "llm_config", "language_config", "language_model_config")
_LAYER_COUNT: t.Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_DTYPES: t.Final = {"bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "half": 2, "float32": 4, "float": 4, "fp32": 4}
_ATTENTION_NAMES: t.Final = {
    "full_attention": FULL,
    "attention": FULL,
    "full": FULL,
    "sliding_attention": SLIDING,
    "sliding_window": SLIDING,
    "local_attention": SLIDING,
    "chunked_attention": CHUNKED,
}
_STATE_NAMES: t.Final = frozenset(("linear_attention", "mamba", "mamba2", "conv", "recurrent", "kda"))


@dataclass(frozen=True)
class Attention:
    """The key/value cache of one layer, before it is split over ranks; dimensions in elements."""

    kind: str
    kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    window: int = 0
    latent: int = 0
    #: Bytes a token of a sparse-attention indexer's cache, whatever the KV dtype.
    index_bytes: int = 0


@dataclass(frozen=True)
class State:
    """The fixed state one sequence holds in one layer (linear attention, Mamba, short convolution)."""

    kind: str
    conv_channels: int = 0
    conv_kernel: int = 1
    heads: int = 0
    head_dim: int = 0
    state_dim: int = 0
    groups: int = 0
    #: Bytes of an element of the recurrent part; None: as the model's dtype.
    recurrent_bytes: int | None = None


@dataclass(frozen=True)
class Mlp:
    """The feed-forward part of a layer."""

    kind: str = "none"  # none | dense | moe
    intermediate: int = 0
    experts: int = 0
    shared: int = 0
    gated: bool = True
    #: Width that experts read and write when it is not the hidden size (Nemotron-3-Ultra moe_latent_size).
    width: int = 0


@dataclass(frozen=True)
class Layer:
    """One decoder layer. Both attention and state are set where a layer has both (Falcon-H1)."""

    attention: Attention | None = None
    state: State | None = None
    mlp: Mlp = field(default_factory=Mlp)
    heads: int = 0


@dataclass(frozen=True)
class Model:
    """A model in our own words."""

    architecture: str
    text_type: str
    known: bool
    dtype: str
    dtype_bytes: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    max_positions: int
    layers: tuple[Layer, ...]
    mtp_layers: tuple[Layer, ...]
    quantization: Quantization
    text: t.Mapping[str, t.Any]
    vision: t.Mapping[str, t.Any]
    nested: bool

    @property
    def experts(self) -> int:
        """The largest number of experts in a layer."""
        return max((layer.mlp.experts for layer in self.layers), default=0)


class Reader:
    """Typed, bounded reading of one dict of a configuration."""

    def __init__(self, source: t.Mapping[str, t.Any], problems: Problems, where: str = "config") -> None:
        self.source = source
        self.problems = problems
        self.where = where

    def integer(self, *names: str, default: int = 0, low: int = 0, high: int = _MAX_DIM) -> int:
        """The first of *names* that is set, as a whole number in [low, high]; else *default*.

        Some configs list one number a layer (Gemma 3n, Hunyuan) or a kind of expert (Ernie-VL): the largest counts.
        """
        for name in names:
            value = self.source.get(name)
            if value is None:
                continue
            if isinstance(value, list) and value and all(isinstance(entry, int) for entry in value[: MAX_LAYERS + 1]) and len(value) <= MAX_LAYERS:
                value = max(value)
            if isinstance(value, float) and math.isfinite(value) and value == int(value):
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int):
                self.problems.error("config_bad_type", f"{self.where}.{name} is {shown(value)}; a whole number was expected.")
                return default
            if not low <= value <= high:
                self.problems.error("config_out_of_range", f"{self.where}.{name} is {shown(value)}; expected {low} to {high}.")
                return default
            return value
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        """*name* as a boolean; anything else counts as *default*."""
        value = self.source.get(name)
        return value if isinstance(value, bool) else default

    def text(self, *names: str) -> str:
        """The first of *names* that is text, cut to a usable length."""
        for name in names:
            value = self.source.get(name)
            if isinstance(value, str):
                return value[:200]
        return ""

    def mapping(self, name: str) -> t.Mapping[str, t.Any]:
        """*name* as a dict, or an empty one."""
        value = self.source.get(name)
        if value is not None and not isinstance(value, dict):
            self.problems.error("config_bad_type", f"{self.where}.{name} is {shown(value)}; a dictionary was expected.")
        return value if isinstance(value, dict) else {}

    def names(self, name: str) -> list[str]:
        """*name* as a list of texts, at most MAX_LAYERS of them."""
        value = self.source.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value[: MAX_LAYERS + 1]):
            self.problems.error("config_bad_type", f"{self.where}.{name} is {shown(value)}; a list of texts was expected.")
            return []
        if len(value) > MAX_LAYERS:
            self.problems.error("config_out_of_range", f"{self.where}.{name} has {len(value)} entries; at most {MAX_LAYERS} are read.")
            return []
        return value

    def integers(self, name: str) -> list[int]:
        """*name* as a list of whole numbers, at most MAX_LAYERS of them."""
        value = self.source.get(name)
        if not isinstance(value, list):
            return []
        found = value[:MAX_LAYERS]
        if not all(isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry <= _MAX_DIM for entry in found):
            self.problems.error("config_bad_type", f"{self.where}.{name} is {shown(value)}; a list of whole numbers was expected.")
            return []
        return found


def parse_model(config: t.Any, problems: Problems, hf_quant: t.Any = None) -> Model | None:
    """Return the model of a config.json (*config*), or None when it has no usable layers.

    :param hf_quant: the dict of hf_quant_config.json (written by modelopt), where there is one.
    """
    if not isinstance(config, dict) or not config:
        problems.error("config_missing", f"The model's config is {shown(config)}; the dictionary of its config.json is needed.")
        return None
    root = Reader(config, problems)
    text_map, nested = _text_part(config)
    text = Reader(text_map, problems, "config.text_config" if nested else "config")
    architectures = config.get("architectures")
    architecture = architectures[0][:200] if isinstance(architectures, list) and architectures and isinstance(architectures[0], str) else ""
    text_type = (text.text("model_type") or root.text("model_type")).lower()
    known = text_type in _KNOWN_TYPES
    quantization = parse_quantization(config, text_map, hf_quant, problems)

    heads = text.integer("num_attention_heads", "n_head", "n_heads", high=_MAX_HEADS)
    hidden = text.integer("hidden_size", "n_embd", "d_model")
    head_dim = text.integer("head_dim", "hidden_size_per_head", "attention_head_dim") or (hidden // heads if heads else 0)
    kv_heads = _kv_heads(text, heads)
    dtype, dtype_bytes = _dtype(text, root, problems)
    shape = _Shape(text, text_type, known, heads, kv_heads, head_dim, hidden, problems)
    layers = shape.layers()
    if not layers:
        problems.error(
            "config_no_layers",
            "The config names no decoder layers (num_hidden_layers, layer_types or hybrid_override_pattern); KV cache and state cannot be computed.",
        )
        return None
    if not known:
        problems.add(
            "unknown_architecture",
            f"model_type {shown(text_type)} ({shown(architecture)}) is not one whose memory layout was checked; where it is unclear the larger figure is used.",
        )
    return Model(
        architecture=architecture,
        text_type=text_type,
        known=known,
        dtype=dtype,
        dtype_bytes=dtype_bytes,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=text.integer("vocab_size", default=root.integer("vocab_size", high=_MAX_VOCAB), high=_MAX_VOCAB),
        tied=root.flag("tie_word_embeddings", text.flag("tie_word_embeddings")),
        max_positions=_max_positions(text),
        layers=tuple(layers),
        mtp_layers=tuple(shape.mtp_layers()),
        quantization=quantization,
        text=text_map,
        vision=_vision_part(config),
        nested=nested,
    )


def _text_part(config: dict[str, t.Any]) -> tuple[t.Mapping[str, t.Any], bool]:
    """The dict that describes the language model; configs of multimodal models nest it, some twice."""
    current: dict[str, t.Any] = config
    nested = False
    for _depth in range(3):
        if any(name in current for name in _LAYER_COUNT) and "text_config" not in current:
            break
        for key in ("thinker_config", *_TEXT_KEYS):
            inner = current.get(key)
            if isinstance(inner, dict) and inner:
                current, nested = inner, True
                break
        else:
            break
    return current, nested


def _vision_part(config: dict[str, t.Any]) -> t.Mapping[str, t.Any]:
    for source in (config, config.get("thinker_config")):
        if isinstance(source, dict):
            for key in ("vision_config", "visual", "vit_config"):
                inner = source.get(key)
                if isinstance(inner, dict):
                    return inner
    return {}


def _kv_heads(text: Reader, heads: int) -> int:
    """Names as in get_total_num_kv_heads of vLLM's ModelArchConfigConvertor; MHA when there is none."""
    if text.flag("multi_query") and not text.flag("new_decoder_architecture"):
        return 1
    names = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
    nested = text.source.get("attn_config")  # DBRX, MPT
    if isinstance(nested, dict):
        heads = Reader(nested, text.problems, f"{text.where}.attn_config").integer("kv_n_heads", default=heads, high=_MAX_HEADS) or heads
    return text.integer(*names, default=heads, high=_MAX_HEADS) or heads


def _dtype(text: Reader, root: Reader, problems: Problems) -> tuple[str, int]:
    name = (text.text("dtype", "torch_dtype") or root.text("dtype", "torch_dtype")).replace("torch.", "").lower()
    size = _DTYPES.get(name)
    if size is None:
        if name:
            problems.add("unknown_dtype", f"The config's dtype {shown(name)} is unknown; 2 bytes an element (bfloat16) are assumed.")
        return "bfloat16", 2
    # vLLM serves float32 checkpoints in a 2-byte dtype unless it is told otherwise (config/model.py, _resolve_auto_dtype)
    return ("bfloat16", 2) if size == 4 else (name, size)


def _max_positions(text: Reader) -> int:
    return text.integer("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "model_max_length", high=MAX_CONTEXT)


class _Shape:
    """Builds the layers of one model from its fields."""

    def __init__(self, text: Reader, text_type: str, known: bool, heads: int, kv_heads: int, head_dim: int, hidden: int, problems: Problems) -> None:
        self.text = text
        self.type = text_type
        self.known = known
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.hidden = hidden
        self.problems = problems
        # Nemotron-3-Ultra and Nemotron-H name every layer instead of counting them
        self.pattern = self._pattern()
        self.count = len(self.pattern) or text.integer(*_LAYER_COUNT, high=MAX_LAYERS)
        if text_type == "longcat_flash":
            # each layer attends twice, with a cache each (FlashDecoderLayer in vllm/model_executor/models/longcat_flash.py)
            self.count = min(2 * self.count, MAX_LAYERS)
        #: Nemotron-H counts feed-forward parts as layers of their own; Jamba and Bamba have one in every layer
        self.separate = any(kind in ("moe", "mlp") for kind in self.pattern)

    def layers(self) -> list[Layer]:
        if not self.count:
            return []
        if not self.heads and not self._stateful_only():
            self.problems.error("config_no_heads", "The config names no num_attention_heads; the KV cache cannot be computed.")
        blocks = self._nas_blocks()
        if blocks:
            return blocks
        kinds = self._kinds()
        shared_from = self.count - self.text.integer("num_kv_shared_layers", high=MAX_LAYERS)
        found = []
        for index, kind in enumerate(kinds):
            attention = self._attention(kind, index) if kind in (FULL, SLIDING, CHUNKED, MLA) else None
            if kind == "hybrid":
                # Zamba2: the shared attention block stands before a Mamba layer
                attention = self._attention(FULL, index)
            # Gemma 3n and Gemma 4: the last layers read an earlier layer's cache (kv_sharing_target_layer_name in vLLM)
            if attention is not None and index >= shared_from > 0:
                attention = None
            state = self._state() if kind in _STATE_NAMES or kind == "hybrid" or self.type == "falcon_h1" else None
            found.append(Layer(attention, state, self._mlp(kind, index), self.heads))
        return found

    def mtp_layers(self) -> list[Layer]:
        """The drafter's layers: one full decoder layer for each multi-token-prediction module."""
        text = self.text
        named = text.names("mtp_layers_block_type") or self._letters("mtp_hybrid_override_pattern")
        count = text.integer("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_modules", high=64)
        if named:
            return [self._mtp_layer(kind) for kind in named] * max(1, count)
        modules = text.integer("mtp_transformer_layers", default=1, low=1, high=8)
        return [self._mtp_layer("attention") for _index in range(count * modules if "num_mtp_modules" in text.source else count)]

    def _mtp_layer(self, kind: str) -> Layer:
        attention = self._attention(MLA if self._is_mla() else FULL, self.count) if _ATTENTION_NAMES.get(kind) else None
        return Layer(attention, None, self._mlp(kind if self.separate else FULL, self.count), self.heads)

    def _stateful_only(self) -> bool:
        return self.type in ("mamba", "mamba2", "falcon_mamba")

    # which layer is what ---------------------------------------------------------------------------------------

    def _pattern(self) -> list[str]:
        named = self.text.names("layers_block_type")
        if named:
            return named
        return self._letters("hybrid_override_pattern")

    def _letters(self, field_name: str) -> list[str]:
        """Nemotron-H: a letter a layer."""
        letters = self.text.source.get(field_name)
        if not isinstance(letters, str):
            return []
        letters = letters.replace("|", "")
        if len(letters) > MAX_LAYERS:
            self.problems.error("config_out_of_range", f"{field_name} has {len(letters)} layers; at most {MAX_LAYERS} are read.")
            return []
        meaning = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
        unknown = sorted(set(letters) - set(meaning))
        if unknown:
            self.problems.add("unknown_layer_type", f"{field_name} uses {shown(''.join(unknown))}, unknown; such layers count as attention.")
        return [meaning.get(letter, "attention") for letter in letters]

    def _kinds(self) -> list[str]:
        text, count = self.text, self.count
        if self._stateful_only():
            return ["mamba"] * count
        base = MLA if self._is_mla() else FULL
        if self.pattern:
            return [base if kind == "attention" else kind for kind in self.pattern]
        linear = text.mapping("linear_attn_config")
        if linear:
            # Kimi-Linear counts layers from 1
            kda = set(Reader(linear, self.problems, "config.linear_attn_config").integers("kda_layers"))
            return ["kda" if index + 1 in kda else base for index in range(count)]
        named = text.names("layer_types")
        if named:
            return self._named_kinds(named, base)
        attention_types = text.integers("attn_type_list")
        if attention_types:
            # MiniMax: 1 is softmax attention, 0 lightning (linear) attention
            return [base if index >= len(attention_types) or attention_types[index] else "linear_attention" for index in range(count)]
        hybrid = text.integers("hybrid_layer_pattern")
        if hybrid:
            return [SLIDING if index < len(hybrid) and hybrid[index] else base for index in range(count)]
        interval = text.integer("full_attention_interval", high=MAX_LAYERS)
        if interval and "linear_num_value_heads" in text.source:
            return [base if (index + 1) % interval == 0 else "linear_attention" for index in range(count)]
        indices = set(text.integers("attn_layer_indices"))
        if indices and "mamba_n_heads" in text.source:
            return [base if index in indices else "mamba" for index in range(count)]
        period = text.integer("attn_layer_period", high=MAX_LAYERS)
        if period and "mamba_d_state" in text.source:
            offset = text.integer("attn_layer_offset", high=MAX_LAYERS)
            return [base if index % period == offset else "mamba" for index in range(count)]
        if "full_attn_idxs" in text.source and "conv_L_cache" in text.source:
            full = set(text.integers("full_attn_idxs"))
            return [base if index in full else "conv" for index in range(count)]
        return self._window_kinds(base)

    def _named_kinds(self, named: list[str], base: str) -> list[str]:
        if len(named) < self.count:
            self.problems.error(
                "config_inconsistent", f"layer_types names {len(named)} layers, num_hidden_layers says {self.count}; the rest count as full attention."
            )
        kinds: list[str] = []
        for index in range(self.count):
            name = named[index] if index < len(named) else "full_attention"
            if name in _STATE_NAMES:
                kinds.append(name)
                continue
            kind = _ATTENTION_NAMES.get(name)
            if kind is None:
                self.problems.add("unknown_layer_type", f"layer type {shown(name)} is unknown; it counts as full attention, the larger figure.")
                kind = FULL
            kinds.append(base if kind == FULL else kind)
        return kinds

    def _window_kinds(self, base: str) -> list[str]:
        """Sliding windows of configs that name no layer types."""
        text, count = self.text, self.count
        window = text.integer("sliding_window", "window_size", high=MAX_CONTEXT)
        if text.integer("attention_chunk_size", high=MAX_CONTEXT):
            # Llama 4: no_rope_layers holds 0 for the layers without rope, which attend to everything
            rope = text.integers("no_rope_layers")
            every = text.integer("no_rope_layer_interval", default=4, low=1, high=MAX_LAYERS)
            return [CHUNKED if (rope[index] if index < len(rope) else (index + 1) % every) else base for index in range(count)]
        if not window or ("use_sliding_window" in text.source and not text.flag("use_sliding_window")):
            return [base] * count
        if not self.known:
            return [base] * count
        letters = text.text("sliding_window_pattern")
        if letters:
            # EXAONE 4: LLLG is three local layers and a global one
            return [SLIDING if letters[index % len(letters)] == "L" else base for index in range(count)]
        period = text.integer("sliding_window_pattern", high=MAX_LAYERS)
        if period > 1:
            return [base if (index + 1) % period == 0 else SLIDING for index in range(count)]
        if self.type == "gemma2":
            return [SLIDING if index % 2 == 0 else base for index in range(count)]
        if self.type == "gemma3_text":
            return [base if (index + 1) % 6 == 0 else SLIDING for index in range(count)]
        if self.type in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"):
            first = text.integer("max_window_layers", high=MAX_LAYERS)
            return [SLIDING if index >= first else base for index in range(count)]
        return [SLIDING] * count

    # one layer -------------------------------------------------------------------------------------------------

    def _is_mla(self) -> bool:
        if self.text.integer("kv_lora_rank") and self.text.integer("qk_rope_head_dim"):
            return self.type in _MLA_TYPES or (not self.known and not self._mha_is_larger())
        return self.type == "deepseek_v4"

    def _mha_is_larger(self) -> bool:
        """An unknown type with latent fields: keep whichever reading costs more."""
        text = self.text
        latent = text.integer("kv_lora_rank") + text.integer("qk_rope_head_dim")
        wide = text.integer("qk_nope_head_dim") + text.integer("qk_rope_head_dim")
        return self.kv_heads * 2 * (wide or self.head_dim) > latent

    def _attention(self, kind: str, index: int) -> Attention:
        text = self.text
        if kind == MLA:
            if self.type == "deepseek_v4":
                self.problems.add(
                    "layout_not_modelled",
                    "DeepSeek-V4 compresses its cache in a layout of its own, which is not modelled. One uncompressed latent vector a token and layer "
                    "is counted: too much for long requests, too little for many short ones, of which each holds whole windows.",
                )
                return Attention(MLA, latent=self.head_dim)
            index_dim = text.integer("index_head_dim") if text.integer("index_n_heads", high=_MAX_HEADS) else 0
            # the indexer keeps fp8 keys and one float32 scale for each 128 (DeepseekV32IndexerCache in vllm/model_executor/models/deepseek_v2.py)
            index_bytes = index_dim + -(-index_dim // 128) * 4 if index_dim else 0
            return Attention(MLA, latent=text.integer("kv_lora_rank") + text.integer("qk_rope_head_dim"), index_bytes=index_bytes)
        kv_heads, head_dim = self.kv_heads, self.head_dim
        value_dim = text.integer("v_head_dim") if self.type.startswith("mimo_v2") else 0
        wide = text.integer("qk_nope_head_dim") + text.integer("qk_rope_head_dim")
        if wide and "kv_lora_rank" in text.source:
            head_dim = wide
        if kind == SLIDING:
            kv_heads = text.integer("swa_num_key_value_heads", default=kv_heads, high=_MAX_HEADS)
            head_dim = text.integer("swa_head_dim", default=head_dim)
            value_dim = text.integer("swa_v_head_dim", default=value_dim) if value_dim else 0
            other = text.mapping("attention_other_setting")
            if other.get("attention_type") == "sliding_attention":
                reader = Reader(other, self.problems, "config.attention_other_setting")
                kv_heads = reader.integer("num_attention_groups", default=kv_heads, high=_MAX_HEADS)
                head_dim = reader.integer("head_dim", default=head_dim)
            window = text.integer("sliding_window", "window_size", "sliding_window_size", high=MAX_CONTEXT)
            if not window:
                self.problems.add(
                    "config_inconsistent", "layer_types names sliding attention but no sliding_window is given; such layers count as full attention."
                )
                return Attention(FULL, kv_heads, head_dim, value_dim or head_dim)
            return Attention(SLIDING, kv_heads, head_dim, value_dim or head_dim, window=window)
        if kind == CHUNKED:
            chunk = text.integer("attention_chunk_size", default=8192, low=1, high=MAX_CONTEXT)
            return Attention(CHUNKED, kv_heads, head_dim, value_dim or head_dim, window=chunk)
        if self.type == "gemma4_text":
            # full-attention layers of Gemma 4 have their own head size and count
            head_dim = text.integer("global_head_dim", default=head_dim)
            kv_heads = text.integer("num_global_key_value_heads", default=kv_heads, high=_MAX_HEADS)
        return Attention(FULL, kv_heads, head_dim, value_dim or head_dim)

    def _state(self) -> State:
        text = self.text
        ssm_name = text.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype").replace("torch.", "").lower()
        recurrent = _DTYPES.get(ssm_name)
        if "linear_num_value_heads" in text.source:
            key_heads = text.integer("linear_num_key_heads", high=_MAX_HEADS)
            value_heads = text.integer("linear_num_value_heads", high=_MAX_HEADS)
            key_dim = text.integer("linear_key_head_dim")
            value_dim = text.integer("linear_value_head_dim")
            return State(
                "gated_delta_net",
                conv_channels=2 * key_heads * key_dim + value_heads * value_dim,
                conv_kernel=text.integer("linear_conv_kernel_dim", default=4, low=1, high=64),
                heads=value_heads,
                head_dim=value_dim,
                state_dim=key_dim,
                recurrent_bytes=recurrent,
            )
        linear = text.mapping("linear_attn_config")
        if linear:
            reader = Reader(linear, self.problems, "config.linear_attn_config")
            heads = reader.integer("num_heads", default=self.heads, high=_MAX_HEADS)
            dim = reader.integer("head_dim", default=self.head_dim)
            kernel = reader.integer("short_conv_kernel_size", default=4, low=1, high=64)
            return State("kda", 3 * heads * dim, kernel, heads, dim, dim, recurrent_bytes=recurrent or 4)
        if "conv_L_cache" in text.source:
            width = text.integer("conv_dim", default=self.hidden) or self.hidden
            return State("short_conv", width, text.integer("conv_L_cache", default=3, low=1, high=64))
        if self.type.startswith("minimax"):
            # lightning attention keeps one head_dim x head_dim matrix a head (linear_attention_state_shape)
            return State("lightning", 0, 1, self.heads, self.head_dim, self.head_dim, recurrent_bytes=4)
        return self._mamba(recurrent)

    def _mamba(self, recurrent: int | None) -> State:
        text = self.text
        kernel = text.integer("conv_kernel", "mamba_d_conv", "d_conv", default=4, low=1, high=64)
        state_dim = text.integer("ssm_state_size", "mamba_d_state", "state_size")
        heads = text.integer("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads", high=_MAX_HEADS)
        if self.type in ("mamba", "jamba", "falcon_mamba") or not heads:
            expand = text.integer("expand", "mamba_expand", default=2, high=64)
            inner = text.integer("intermediate_size") if self.type in ("mamba", "falcon_mamba") else 0
            inner = inner or expand * self.hidden
            return State("mamba1", inner, kernel, 1, inner, state_dim, recurrent_bytes=recurrent)
        head_dim = text.integer("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim") or (text.integer("mamba_d_ssm") // heads)
        groups = text.integer("n_groups", "mamba_n_groups", "mamba_ngroups", default=1, high=_MAX_HEADS)
        if recurrent is None and self.type == "nemotron_h":
            # NemotronHForCausalLMConfig.DEFAULT_MAMBA_SSM_CACHE_DTYPE in vllm/model_executor/models/config.py
            recurrent = 4
        return State("mamba2", heads * head_dim, kernel, heads, head_dim, state_dim, groups, recurrent)

    def _mlp(self, kind: str, index: int) -> Mlp:
        text = self.text
        if self._stateful_only() or kind == "mamba" and self.type == "zamba2":
            return Mlp()
        experts = text.integer("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", high=_MAX_EXPERTS)
        dense = text.integer("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner") or 4 * self.hidden
        act = text.text("mlp_hidden_act", "hidden_act", "activation_function")
        gated = self.type not in _UNGATED_TYPES and (act not in ("relu2", "gelu_new", "gelu", "relu") or self.type.startswith("gemma"))
        nested = text.source.get("ffn_config")  # DBRX
        if isinstance(nested, dict):
            reader = Reader(nested, self.problems, f"{text.where}.ffn_config")
            experts = reader.integer("moe_num_experts", default=experts, high=_MAX_EXPERTS)
            dense = reader.integer("ffn_hidden_size", default=dense) or dense
        if self.separate:
            if kind == "mlp":
                return Mlp("dense", dense, gated=gated)
            if kind != "moe":
                return Mlp()
        elif not experts or not self._is_moe(index):
            return Mlp("dense", dense, gated=gated)
        if not experts:
            return Mlp()
        inner = text.integer("moe_intermediate_size", "expert_ffn_hidden_size", default=dense) or dense
        shared = text.integer("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size")
        count = text.integer("n_shared_experts", "num_shared_experts", high=256)
        if not shared and count:
            shared = count * inner
        return Mlp("moe", inner, experts, shared, gated, text.integer("moe_latent_size"))

    def _is_moe(self, index: int) -> bool:
        text = self.text
        if index >= self.count:
            return True
        if index < text.integer("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers", high=MAX_LAYERS):
            return False
        if self.type == "longcat_flash":
            return index % 2 == 0
        if index in text.integers("mlp_only_layers"):
            return False
        moe_layers = text.integers("moe_layers")
        if moe_layers:
            return index in moe_layers
        step = text.integer("decoder_sparse_step", "interleave_moe_layer_step", default=1, low=0, high=MAX_LAYERS)
        if step > 1:
            return (index + 1) % step == 0
        period = text.integer("expert_layer_period", high=MAX_LAYERS)
        if period > 1:
            return index % period == text.integer("expert_layer_offset", high=MAX_LAYERS)
        frequency = text.integers("moe_layer_freq")
        if frequency:
            return index < len(frequency) and bool(frequency[index])
        return True

    def _nas_blocks(self) -> list[Layer]:
        """Llama-Nemotron (NAS): block_configs names each layer's attention and feed-forward part."""
        blocks = self.text.source.get("block_configs")
        if not isinstance(blocks, list) or not blocks:
            return []
        if len(blocks) > MAX_LAYERS:
            self.problems.error("config_out_of_range", f"block_configs has {len(blocks)} layers; at most {MAX_LAYERS} are read.")
            return []
        found = []
        for entry in blocks:
            block = entry if isinstance(entry, dict) else {}
            reader = Reader(block, self.problems, "config.block_configs")
            attention_map = reader.mapping("attention")
            attention = None
            if attention_map and attention_map.get("no_op") is not True and attention_map.get("replace_with_linear") is not True:
                group = Reader(attention_map, self.problems, "config.block_configs.attention").integer("n_heads_in_group", default=1, low=1, high=_MAX_HEADS)
                attention = Attention(FULL, max(1, self.heads // group), self.head_dim, self.head_dim)
            ffn = reader.mapping("ffn")
            multiplier = ffn.get("ffn_mult")
            inner = 0
            if ffn.get("no_op") is not True and isinstance(multiplier, (int, float)) and 0 < multiplier < 64:
                # rounded up to a multiple of 256 as find_multiple() in the model's own code
                inner = -(-int(2 * multiplier * self.hidden / 3) // 256) * 256
            found.append(Layer(attention, None, Mlp("dense", inner) if inner else Mlp(), self.heads))
        return found
