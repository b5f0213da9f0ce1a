# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever a config, a quantization file, or the facts of a node say: a verdict comes out, and never a traceback."""

from __future__ import annotations

import copy
import json
import typing as t

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.unimem.dgx_spark.plugins.module_utils._budget import Request, compute
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import parse_selectors
from ansible_collections.unimem.dgx_spark.plugins.module_utils._verdicts import VERDICTS
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import _configs as configs
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.test__budget import SEED
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.test__weights import NEMOTRON_NVFP4

CONFIGS = [
    *(config for config, _one, _two, _why in configs.ARCHITECTURES.values()),
    configs.qwen35_122b(quantized=True),
    configs.variant(configs.NEMOTRON_NANO, quantization_config=NEMOTRON_NVFP4),
]


def nested(levels: int) -> t.Any:
    value: t.Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"text_config": value}
    return value


#: Values that nobody expects where a number, a text, a list or a dictionary should be.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([1 << 20, 1 << 40, 10**30, 10**400, -(10**9), 0.5, 1e308, float("inf"), float("-inf"), float("nan")]),
    st.text(max_size=8),
    st.sampled_from(["full_attention", "MMMM*", "fp8", "\x00\x1b[2J", "a" * 100000, "{{ 7 * 7 }}"]),
    st.lists(st.one_of(st.integers(-2, 1 << 30), st.text(max_size=3), st.none(), st.booleans()), max_size=4),
    st.sampled_from([[], {}, [[]], {"a": {}}, ["mamba"] * 2000, [1] * 2000, [10**30] * 3, nested(500)]),
)
#: Names that the readers look for, put where they do not belong.
NAMES = sorted({name for config in CONFIGS for name in [*config, *config.get("text_config", {})]} | {"hybrid_override_pattern", "block_configs"})


def paths(config: t.Any, at: tuple[t.Any, ...] = ()) -> t.Iterator[tuple[t.Any, ...]]:
    """Every place of a config that can be replaced, to a depth of four."""
    items = config.items() if isinstance(config, dict) else enumerate(config[:3]) if isinstance(config, list) else ()
    for key, value in items:
        yield (*at, key)
        if len(at) < 3:
            yield from paths(value, (*at, key))


@st.composite
def broken_configs(draw: st.DrawFn) -> t.Any:
    """A published config with some of its values replaced, left out or added."""
    config = copy.deepcopy(draw(st.sampled_from(CONFIGS)))
    for _change in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            target = config.get("text_config") if draw(st.booleans()) else config
            if isinstance(target, dict):
                target[draw(st.sampled_from(NAMES))] = draw(ODD)
            continue
        *parents, last = draw(st.sampled_from([("model_type",), *paths(config)]))
        place = config
        for key in parents:
            place = place[key]
        if draw(st.booleans()) or isinstance(place, list):
            place[last] = draw(ODD)
        else:
            place.pop(last, None)
    return config


REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "engine": st.sampled_from(["vllm_ray", "vllm_mp", "sglang"]),
        "engine_version": st.sampled_from(["0.32.0", "0.32.0+cpu", "0.11.2", "26.04", "", "x" * 200, "v0.20.1rc1.dev0"]),
        "tensor_parallel": st.sampled_from([1, 2, 3, 8, 1024]),
        "pipeline_parallel": st.sampled_from([1, 2, 7, 1024]),
        "expert_parallel": st.booleans(),
        "node_role": st.sampled_from(["head", "worker"]),
        "context_length": st.sampled_from([1, 15, 4096, 262144, 1 << 30]),
        "concurrency": st.sampled_from([1, 4, 1 << 20]),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8", "float16"]),
        "mamba_ssm_cache_dtype": st.sampled_from(["auto", "float32", "bfloat16"]),
        "gpu_memory_utilization": st.sampled_from([1e-9, 0.5, 0.9, 1.0]),
        "mem_fraction_static": st.sampled_from([1e-9, 0.5, 1.0]),
        "kv_cache_memory": st.sampled_from([0, 1, 1 << 30, 1 << 60]),
        "max_num_seqs": st.sampled_from([1, 16, 1 << 20]),
        "max_num_batched_tokens": st.sampled_from([1, 8192, 1 << 30]),
        "speculative_tokens": st.sampled_from([0, 1, 256]),
        "prefix_caching": st.booleans(),
        "language_model_only": st.booleans(),
        "eager": st.booleans(),
        "reserve": st.sampled_from([0, 8 << 30, 1 << 60]),
        "weight_bytes": st.sampled_from([1, 10**9, 127 * 10**9, 1 << 60]),
    },
)


def check(**request: t.Any) -> dict[str, t.Any]:
    wanted: dict[str, t.Any] = {"weight_bytes": 60 * 10**9, "gpu_memory": SEED, "stoppable": parse_selectors(["container:*"]), **request}
    found = compute(Request(**wanted))
    assert found["verdict"] in VERDICTS
    text = json.dumps(found, allow_nan=False)
    assert len(text) < 200_000, "a hostile input must not be multiplied into the result"
    assert all(value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0) for value in found["terms"].values())
    assert found["need"] is None or found["need"] == sum(value for value in found["terms"].values() if value is not None)
    if found["fits"]:
        assert not [problem for problem in found["problems"] if problem["severity"] == "error"]
    if found["verdict"] == "fits_after_stopping":
        assert found["stop"]
    else:
        assert not found["stop"]
    return found


_HEALTH = [HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large]
SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=_HEALTH)


@given(config=broken_configs())
@SETTINGS
def test_broken_configs(config: t.Any) -> None:
    check(config=config)


@given(config=st.sampled_from(CONFIGS), request=REQUESTS)
@SETTINGS
def test_any_request(config: dict[str, t.Any], request: dict[str, t.Any]) -> None:
    check(config=config, **request)


@given(config=ODD, hf_quant=ODD)
@SETTINGS
def test_what_is_no_config(config: t.Any, hf_quant: t.Any) -> None:
    assert check(config=config, hf_quant=hf_quant)["verdict"] == "unknown"


QUANTIZATION = st.dictionaries(
    st.sampled_from(
        ["quant_method", "quant_algo", "bits", "group_size", "weight_block_size", "ignore", "exclude_modules", "config_groups", "kv_cache_scheme"],
    ),
    st.one_of(ODD, st.sampled_from(["fp8", "modelopt", "NVFP4", "awq", "compressed-tensors", [128, 128], ["*", "re:.*", "**", "a*b*c"]])),
)


@given(quantization=QUANTIZATION, beside=st.booleans())
@SETTINGS
def test_broken_quantization(quantization: dict[str, t.Any], beside: bool) -> None:
    config = configs.qwen35_122b()
    if beside:
        check(config=config, hf_quant={"quantization": quantization}, tensor_parallel=2)
    else:
        check(config={**config, "quantization_config": quantization}, tensor_parallel=2)


SIZES = st.one_of(ODD, st.integers(0, 1 << 37))
OWNERS = st.dictionaries(st.sampled_from(["kind", "name", "id", "unit"]), st.one_of(ODD, st.sampled_from(["container", "unit"])))
PROCESSES = st.dictionaries(st.sampled_from(["pid", "name", "memory", "owner", "protected", "command", "user", "exe"]), st.one_of(ODD, OWNERS))
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "class": st.one_of(ODD, st.sampled_from(["unified", "discrete", "coherent", "none", "unresponsive"])),
        "memory": st.one_of(ODD, st.dictionaries(st.sampled_from(["total", "free", "available", "cuda_free", "allocatable"]), SIZES, max_size=5)),
        "gpus": st.one_of(ODD, st.lists(st.dictionaries(st.sampled_from(["memory_free", "memory_total"]), SIZES), max_size=3)),
        "processes": st.one_of(ODD, st.lists(st.one_of(ODD, PROCESSES), max_size=4)),
    },
)


@given(facts=st.one_of(ODD, FACTS), peers=st.lists(st.one_of(ODD, FACTS), max_size=2), engine=st.sampled_from(["vllm_mp", "sglang"]))
@SETTINGS
def test_broken_facts(facts: t.Any, peers: list[t.Any], engine: str) -> None:
    check(config=configs.qwen35_122b(quantized=True), gpu_memory=facts, peers=peers, engine=engine, tensor_parallel=2, weight_bytes=127 * 10**9)
