# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a checkpoint is quantized: bytes a weight, which modules stay in the model's dtype, the KV cache it asks for.

Read from C(quantization_config) of config.json, or from hf_quant_config.json beside it (modelopt). Used only where the
checkpoint's own headers cannot be read, to tell apart what is split over ranks and what is not.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field
from fractions import Fraction

from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems, shown

#: Qwen3.5-122B-A10B-FP8 lists 321 modules; the largest published list has some thousands.
MAX_PATTERNS: t.Final = 20000
#: Patterns with a star are tried one by one; they are kept by the layer they name, so that the work stays bounded.
_MAX_GLOBS_A_LAYER: t.Final = 32
_ANY_LAYER: t.Final = ""
_PREFIXES: t.Final = ("model.", "language_model.", "backbone.", "thinker.")


@dataclass(frozen=True)
class Quantization:
    """Bytes of one quantized weight with its scales, and what is left out of it."""

    method: str = ""
    bytes_per_weight: Fraction = Fraction(0)
    #: Rows and columns that must stay together (block-wise scales); 0: none.
    block: tuple[int, int] = (0, 0)
    #: Elements that share one scale along the input dimension; 0: none.
    group: int = 0
    exact: frozenset[str] = frozenset()
    globs: t.Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: True where only experts are quantized (mxfp4).
    experts_only: bool = False
    kv_cache: str = ""

    def applies(self, module: str) -> bool:
        """Whether the weight of *module* (a dotted name without C(.weight)) is stored quantized."""
        if not self.method or not self.bytes_per_weight:
            return False
        if self.experts_only and ".experts" not in module:
            return False
        name = normalise(module)
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            if ".".join(parts[:length]) in self.exact:
                return False
        # short entries like "gate" or "lm_head" are matched as a whole component (is_layer_skipped in vLLM)
        if any(part in self.exact for part in parts):
            return False
        patterns = (*self.globs.get(_layer_key(name), ()), *self.globs.get(_ANY_LAYER, ()))
        return not any(glob_matches(pattern, name) for pattern in patterns)


def _layer_key(name: str) -> str:
    """The literal beginning C(layers.N.) of a name or pattern, else nothing."""
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "layers" and parts[1].isascii() and parts[1].isdigit():
        return f"layers.{parts[1]}."
    return _ANY_LAYER


def normalise(module: str) -> str:
    """Drop the wrappers that differ between a checkpoint's names and a config's."""
    changed = True
    while changed:
        changed = False
        for prefix in _PREFIXES:
            if module.startswith(prefix):
                module = module[len(prefix) :]
                changed = True
    return module


def glob_matches(pattern: str, name: str) -> bool:
    """Match C(*) only, in linear time: patterns are untrusted, so no regular expression is built from them."""
    pieces = pattern.split("*")
    if len(pieces) == 1:
        return pattern == name
    if not name.startswith(pieces[0]):
        return False
    position = len(pieces[0])
    for piece in pieces[1:-1]:
        found = name.find(piece, position)
        if found < 0:
            return False
        position = found + len(piece)
    return len(name) - position >= len(pieces[-1]) and name.endswith(pieces[-1])


def parse_quantization(config: t.Mapping[str, t.Any], text: t.Mapping[str, t.Any], hf_quant: t.Any, problems: Problems) -> Quantization:
    """Return the quantization of a checkpoint; an unknown method is said, and counted unquantized (the larger figure)."""
    source = config.get("quantization_config")
    if source is None:
        source = text.get("quantization_config")
    if source is None and isinstance(hf_quant, dict):
        inner = hf_quant.get("quantization")
        source = dict(inner, quant_method="modelopt") if isinstance(inner, dict) else None
    if source is None:
        return Quantization()
    if not isinstance(source, dict):
        problems.error("config_bad_type", f"quantization_config is {shown(source)}; a dictionary was expected.")
        return Quantization()
    method = str(source.get("quant_method") or "").lower()[:60]
    exact, globs = _excluded(source, problems)
    block, group, size, experts_only = (0, 0), 0, Fraction(0), False
    if method in ("fp8", "fbgemm_fp8"):
        block = _block(source)
        size = Fraction(1) + (Fraction(2, block[0] * block[1]) if block[0] else 0)
    elif method == "mxfp4":
        size, group, experts_only = Fraction(1, 2) + Fraction(1, 32), 32, True
    elif method in ("gptq", "awq", "auto-round", "gptq_marlin", "awq_marlin", "auto_round", "intel/auto-round"):
        bits, group = _int(source.get("bits"), 4, 1, 16), _int(source.get("group_size"), 128, 0, 1 << 16)
        # fp16 scales and packed zero points for each group
        size = Fraction(bits, 8) + (Fraction(2, group) + Fraction(bits, 8 * group) if group else 0)
    elif method in ("modelopt", "modelopt_fp4", "nvfp4"):
        algorithm = str(source.get("quant_algo") or "").upper()
        group = _int(source.get("group_size"), 16, 0, 1 << 16)
        if algorithm in ("NVFP4", "W4A16_NVFP4") or method == "nvfp4":
            # one fp8 scale for each group
            size, group = Fraction(1, 2) + Fraction(1, group or 16), group or 16
        elif algorithm.startswith("FP8") or algorithm == "W8A8_FP8":
            size, group = Fraction(1), 0
    elif method == "compressed-tensors":
        size, group, block = _compressed(source)
    elif method == "bitsandbytes":
        four = source.get("load_in_4bit") is True or source.get("_load_in_4bit") is True
        size = Fraction(1, 2) + Fraction(4, 64) if four else Fraction(1)
    if not size:
        problems.add(
            "unknown_quantization",
            f"quantization {shown(method or source.get('quant_algo'))} is unknown; its weights count as unquantized where their bytes are not known.",
        )
    return Quantization(method, size, block, group, exact, globs, experts_only, _kv_algorithm(source, hf_quant))


def _int(value: t.Any, default: int, low: int, high: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    return default


def _block(source: t.Mapping[str, t.Any]) -> tuple[int, int]:
    block = source.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and not isinstance(n, bool) and 0 < n <= 1 << 16 for n in block):
        return block[0], block[1]
    return 0, 0


def _compressed(source: t.Mapping[str, t.Any]) -> tuple[Fraction, int, tuple[int, int]]:
    """Compressed-tensors: the first group's weights speak for all (mixed schemes keep the larger)."""
    groups = source.get("config_groups")
    best: tuple[Fraction, int, tuple[int, int]] = (Fraction(0), 0, (0, 0))
    if not isinstance(groups, dict):
        return best
    for entry in list(groups.values())[:32]:
        weights = entry.get("weights") if isinstance(entry, dict) else None
        if not isinstance(weights, dict):
            continue
        bits = _int(weights.get("num_bits"), 0, 1, 16)
        group = _int(weights.get("group_size"), 0, 0, 1 << 16)
        structure = weights.get("block_structure")
        block = _block({"weight_block_size": structure})
        scale = 1 if weights.get("type") == "float" and bits == 4 else 2
        size = Fraction(bits, 8) + (Fraction(scale, group) if group else 0)
        if size > best[0]:
            best = (size, group, block)
    return best


def _excluded(source: t.Mapping[str, t.Any], problems: Problems) -> tuple[frozenset[str], dict[str, tuple[str, ...]]]:
    exact: set[str] = set()
    globs: dict[str, tuple[str, ...]] = {}
    for key in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "modules_to_not_quantize"):
        listed = source.get(key)
        if listed is None:
            continue
        if not isinstance(listed, list):
            problems.error("config_bad_type", f"quantization_config.{key} is {shown(listed)}; a list was expected.")
            continue
        if len(listed) > MAX_PATTERNS:
            problems.add("config_out_of_range", f"quantization_config.{key} has {len(listed)} entries; the first {MAX_PATTERNS} are read.")
        for entry in listed[:MAX_PATTERNS]:
            if not isinstance(entry, str) or len(entry) > 400:
                continue
            if entry.startswith("re:"):
                # the usual form is re:.*name$; anything cleverer is matched on its literal pieces only
                entry = entry[3:].strip("^$").replace(".*", "*").replace("\\.", ".")
                if not entry.startswith("*"):
                    entry = "*" + entry
            if "*" not in entry:
                exact.add(normalise(entry))
                continue
            pattern = normalise(entry)
            known = globs.get(_layer_key(pattern), ())
            if len(known) < _MAX_GLOBS_A_LAYER:
                globs[_layer_key(pattern)] = (*known, pattern)
            else:
                problems.add(
                    "config_out_of_range", f"quantization_config.{key} has more than {_MAX_GLOBS_A_LAYER} patterns for one layer; the rest is ignored."
                )
    return frozenset(exact), globs


def _kv_algorithm(source: t.Mapping[str, t.Any], hf_quant: t.Any) -> str:
    """The KV dtype a checkpoint asks for: 'fp8' or ''. vLLM follows it when the dtype is auto
    (resolve_kv_cache_dtype_string in vllm/utils/torch_utils.py)."""
    scheme = source.get("kv_cache_scheme")
    if isinstance(scheme, dict) and scheme.get("num_bits") == 8 and scheme.get("type") == "float":
        return "fp8"
    names = [source.get("kv_cache_quant_algo")]
    if isinstance(hf_quant, dict) and isinstance(hf_quant.get("quantization"), dict):
        names.append(hf_quant["quantization"].get("kv_cache_quant_algo"))
    return "fp8" if any(isinstance(name, str) and name.upper() == "FP8" for name in names) else ""
