# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest
import yaml

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _budget_module
from ansible_collections.unimem.dgx_spark.plugins.module_utils._verdicts import FIT_VERDICTS
from ansible_collections.unimem.dgx_spark.plugins.modules import unified_mem_budget
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import _configs as configs
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils._checkpoints import Listing, write_checkpoint

GIB = 1024**3
ROOMY: dict[str, t.Any] = {"class": "unified", "memory": {"total": 128 * GIB, "free": 120 * GIB, "available": 120 * GIB, "allocatable": 120 * GIB}}
SMALL: Listing = [("model.embed_tokens.weight", "BF16", (64, 16)), ("model.layers.0.mlp.up_proj.weight", "BF16", (64, 16))]


class Ended(Exception):
    """The module ended."""


class Module:
    """Stands in for AnsibleModule: defaults of the argument spec, and an end that is remembered."""

    def __init__(self, **params: t.Any) -> None:
        self.params: dict[str, t.Any] = {name: option.get("default") for name, option in unified_mem_budget.ARGUMENTS.items()}
        self.params.update(params)
        self.result: dict[str, t.Any] = {}

    def exit_json(self, **kwargs: t.Any) -> t.NoReturn:
        self.result = {"failed": False, **kwargs}
        raise Ended

    def fail_json(self, msg: str, **kwargs: t.Any) -> t.NoReturn:
        self.result = {"failed": True, "msg": msg, **kwargs}
        raise Ended


def run(**params: t.Any) -> dict[str, t.Any]:
    wanted: dict[str, t.Any] = {"config": configs.qwen35_122b(quantized=True), "weight_bytes": "118.42 GiB", "tensor_parallel": 2, "gpu_memory": ROOMY}
    if "model" in params:
        wanted.update(config=None, weight_bytes=None, tensor_parallel=1)
    wanted.update(params)
    module = Module(**wanted)
    with pytest.raises(Ended):
        _budget_module.run(module)
    return module.result


def codes(result: dict[str, t.Any]) -> set[str]:
    return {problem["code"] for problem in result["budget"]["problems"]}


# options --------------------------------------------------------------------------------------------------------


def test_documentation_matches_the_arguments() -> None:
    documented = yaml.safe_load(unified_mem_budget.DOCUMENTATION)["options"]
    assert set(documented) == set(unified_mem_budget.ARGUMENTS)
    for name, option in unified_mem_budget.ARGUMENTS.items():
        for key in ("type", "default", "choices", "elements"):
            assert documented[name].get(key) == option.get(key), f"{name}: {key}"


def test_documentation_matches_the_result() -> None:
    documented = yaml.safe_load(unified_mem_budget.RETURN)["budget"]["contains"]
    assert set(documented) == set(run()["budget"])


def test_examples_are_tasks_with_known_options() -> None:
    for task in yaml.safe_load(unified_mem_budget.EXAMPLES):
        assert set(task["unimem.dgx_spark.unified_mem_budget"]) <= set(unified_mem_budget.ARGUMENTS)


def test_sizes_may_be_text_or_numbers() -> None:
    text = run(weight_bytes="118.42 GiB", reserve="8 GiB", kv_cache_memory="10 GiB", overheads={"ray": "1 GiB"})
    number = run(weight_bytes=int(118.42 * GIB), reserve=8 * GIB, kv_cache_memory=str(10 * GIB), overheads={"ray": GIB})
    assert text["budget"] == number["budget"]


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        ({"class": "unresponsive"}, "driver_unresponsive", "reboot"),
        ({"sources": {"gpu": "none", "reasons": {"gpus": "version mismatch (NVML error 18)"}}}, "driver_unread", "NVML error 18"),
        ({"sources": {"gpu": "none"}}, "driver_unread", "no reason is given"),
    ],
)
def test_a_driver_that_cannot_be_asked_is_no_fit(facts: dict[str, t.Any], code: str, words: str) -> None:
    fine = run(fail=False)["budget"]
    assert fine["verdict"] in FIT_VERDICTS
    memory = {"class": "unified", "memory": {"total": 128 * GIB, "free": 120 * GIB, "available": 120 * GIB, "allocatable": 120 * GIB}, "processes": []}
    budget = run(fail=False, gpu_memory={**memory, **facts})["budget"]
    assert budget["verdict"] == "unknown" and not budget["fits"]
    assert [problem["severity"] for problem in budget["problems"] if problem["code"] == code and words in problem["message"]] == ["error"]


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"engine": "vllm_mp", "mem_fraction_static": 0.8}, "option_of_another_engine"),
        ({"engine": "sglang", "gpu_memory_utilization": 0.8}, "option_of_another_engine"),
        ({"engine_version": "26.04"}, "engine_version_unknown"),
    ],
)
def test_what_cannot_count_is_said(params: dict[str, t.Any], code: str) -> None:
    assert code in codes(run(fail=False, **params)) - codes(run(fail=False))


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"weight_bytes": "118G"}, "GiB (1024s) or GB (1000s)"),
        ({"weight_bytes": 0}, "weight_bytes is 0"),
        ({"kv_cache_memory": "10 Gigs"}, "kv_cache_memory"),
        ({"reserve": -1}, "reserve is negative"),
        ({"overheads": {"activations": "1G"}}, "overheads.activations"),
        ({"overheads": {"activation": "1 GiB"}}, "overheads has activation; the terms are activations"),
        ({"tensor_parallel": 0}, "tensor_parallel is 0; it must be between 1"),
        ({"pipeline_parallel": -2}, "pipeline_parallel"),
        ({"context_length": 0}, "context_length"),
        ({"concurrency": 0}, "concurrency"),
        ({"speculative_tokens": -1}, "speculative_tokens"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization is 0.0; it must be more than 0"),
        ({"gpu_memory_utilization": 90.0}, "at most 1"),
        ({"mem_fraction_static": float("nan")}, "mem_fraction_static"),
        ({"stoppable": ["vllm"]}, "selector 'vllm' does not begin with a known kind"),
        ({"model": "/nonexistent/model"}, "is not a directory"),
        ({"engine_version": "latest"}, "engine_version is 'latest'; give the engine's own version"),
        ({"engine_version": "abc"}, "or leave it out"),
    ],
)
def test_bad_options_are_sentences(params: dict[str, t.Any], says: str) -> None:
    result = run(**params)
    assert result["failed"]
    assert says in result["msg"]
    assert "budget" not in result


def test_vllm_is_an_alias() -> None:
    assert run(engine="vllm")["budget"] == run(engine="vllm_mp")["budget"]
    assert run(engine="vllm")["budget"]["need"] < run(engine="vllm_ray")["budget"]["need"]


def test_memory_is_read_now_when_it_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_budget_module, "_read_facts", lambda: {"class": "unified", "memory": {"total": 128 * GIB, "free": GIB, "available": 99 * GIB}})
    assert run(gpu_memory=None)["budget"]["have"] == 99 * GIB


# the gate -------------------------------------------------------------------------------------------------------


def test_fits_pass_the_gate() -> None:
    result = run()
    assert not result["failed"]
    assert result["changed"] is False
    assert result["budget"]["verdict"] == "fits"


def test_fits_after_stopping_passes_the_gate() -> None:
    """Only what the caller listed in stoppable can be in the set, so the gate lets it through."""
    owner = {"kind": "container", "name": "other", "id": "1", "unit": None, "restarted_by": None}
    memory = {"total": 128 * GIB, "free": 60 * GIB, "available": 60 * GIB}
    facts = {"class": "unified", "memory": memory, "processes": [{"pid": 5, "name": "x", "memory": 60 * GIB, "protected": None, "owner": owner}]}
    result = run(gpu_memory=facts, stoppable=["container:other"])
    assert (result["failed"], result["budget"]["verdict"]) == (False, "fits_after_stopping")
    refused = run(gpu_memory=facts)
    assert (refused["failed"], refused["budget"]["verdict"]) == (True, "does_not_fit")


def test_a_gate_that_closes_returns_everything() -> None:
    result = run(tensor_parallel=1)
    assert result["failed"]
    assert result["budget"]["verdict"] == "does_not_fit"
    assert "The model does not fit: it needs" in result["msg"]
    assert "this node can give 120.0 GiB" in result["msg"]
    assert result["budget"]["kv_bytes_per_token"] == 24576


def test_an_open_gate_returns_the_same() -> None:
    closed, opened = run(tensor_parallel=1), run(tensor_parallel=1, fail=False)
    assert not opened["failed"]
    assert closed["budget"] == opened["budget"]


@pytest.mark.parametrize("params", [{"tensor_parallel": 3}, {"gpu_memory_utilization": 0.5}, {"gpu_memory_utilization": 0.99}, {"weight_bytes": None}])
def test_the_message_gives_a_reason(params: dict[str, t.Any]) -> None:
    result = run(**params)
    assert result["failed"]
    assert len(result["msg"]) > 60
    assert result["budget"]["verdict"] not in FIT_VERDICTS


# files ----------------------------------------------------------------------------------------------------------


def test_model_directory(tmp_path: pathlib.Path) -> None:
    config = configs.dense("llama", 1, 16, 2, 2, vocab_size=64, intermediate_size=64)
    write_checkpoint(tmp_path, SMALL, 2, config)
    result = run(model=str(tmp_path), context_length=128)
    assert not result["failed"]
    assert result["budget"]["weights_source"] == "safetensors headers"
    assert result["budget"]["terms"]["weights"] == 64 * 16 * 2 * 2


def test_weight_bytes_before_files_and_config_before_config_json(tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, SMALL, 1, {"model_type": "nonsense"})
    config = configs.dense("llama", 1, 16, 2, 2, vocab_size=64, intermediate_size=64)
    result = run(model=str(tmp_path), config=config, weight_bytes="1 GiB", context_length=128, fail=False)
    assert result["budget"]["terms"]["weights"] == GIB
    assert result["budget"]["weights_source"] == "weight_bytes"


def test_quantization_beside_the_config(tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, SMALL, 1, configs.dense("llama", 1, 16, 2, 2))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}))
    result = run(model=str(tmp_path), context_length=128, engine_version="0.32.0", fail=False)
    assert result["budget"]["kv_bytes_per_token"] == 2 * 2 * 8


def test_damaged_files_are_unknown(tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, SMALL, 1, configs.dense("llama", 1, 16, 2, 2))
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(b"\xff" * 100)
    result = run(model=str(tmp_path), context_length=128)
    assert result["failed"]
    assert result["budget"]["verdict"] == "unknown"
    assert "safetensors_bad_header" in codes(result)
    assert "cannot be known" in result["msg"]


def test_directory_without_a_model(tmp_path: pathlib.Path) -> None:
    result = run(model=str(tmp_path))
    assert result["budget"]["verdict"] == "unknown"
    assert {"config_unreadable", "config_missing"} <= codes(result)


# hostile input, measured from outside -----------------------------------------------------------------------------

_PROGRAM = """
import json, sys, time
from ansible_collections.unimem.dgx_spark.plugins.module_utils import _budget_module
from ansible_collections.unimem.dgx_spark.plugins.modules.unified_mem_budget import ARGUMENTS
class Module:
    def __init__(self, params):
        self.params = {name: option.get("default") for name, option in ARGUMENTS.items()}
        self.params.update(params)
    def exit_json(self, **kwargs):
        self.result = kwargs
    def fail_json(self, msg, **kwargs):
        self.result = dict(kwargs, msg=msg)
module = Module(json.loads(sys.argv[1]))
started = time.process_time()
_budget_module.run(module)
seconds = time.process_time() - started
# Not ru_maxrss: that still counts the pytest process which this one was forked from.
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
print(json.dumps([seconds, peak, module.result["budget"]["verdict"]]))
"""


def _many_shards(directory: pathlib.Path) -> None:
    """3000 files, each with a header of 16 MiB of spaces: only the first few are read."""
    header = b"{" + b" " * ((1 << 24) - 2) + b"}"
    first = directory / "model-0.safetensors"
    first.write_bytes(len(header).to_bytes(8, "little") + header)
    for index in range(1, 3000):
        os.link(first, directory / f"model-{index}.safetensors")
    (directory / "config.json").write_text(json.dumps(configs.dense("llama", 1, 16, 2, 2)))


def _wide_header(directory: pathlib.Path) -> None:
    """The most tensors that one header may hold, all of them of no bytes."""
    entries = ",".join(f'"model.layers.0.mlp.experts.{index}.up_proj.weight":{{"dtype":"BF16","shape":[0],"data_offsets":[0,0]}}' for index in range(140000))
    header = ("{" + entries + "}").encode()
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (directory / "config.json").write_text(json.dumps(configs.dense("llama", 1, 16, 2, 2)))


def _unfolding_index(directory: pathlib.Path) -> None:
    """A text of small lists that would unfold to twenty times its size."""
    (directory / "model.safetensors.index.json").write_bytes(b'{"weight_map":[' + b"[]," * 7_000_000 + b"[]]}")
    (directory / "config.json").write_text(json.dumps(configs.dense("llama", 1, 16, 2, 2)))


def _deep_config(directory: pathlib.Path) -> None:
    """The deepest model with the most experts and the longest list of exclusions."""
    patterns = [f"model.layers.{index % 1024}.mlp.{'a' * 100}{index}*b*c*d" for index in range(20000)]
    config = configs.dense(
        "qwen3_moe",
        1024,
        16384,
        128,
        8,
        128,
        num_experts=65536,
        moe_intermediate_size=1024,
        mlp_only_layers=list(range(0, 1024, 2)),
        quantization_config={"quant_method": "fp8", "ignore": patterns},
        vision_config={"depth": 1024, "hidden_size": 4096},
    )
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 10**13}, "weight_map": {"a": "model.safetensors"}}))


def _long_pattern(directory: pathlib.Path) -> None:
    (directory / "config.json").write_text(json.dumps({"model_type": "nemotron_h", "hybrid_override_pattern": "M*" * 3_000_000}))


HOSTILE: dict[str, t.Callable[[pathlib.Path], None]] = {
    "many shards": _many_shards,
    "wide header": _wide_header,
    "unfolding index": _unfolding_index,
    "deep config": _deep_config,
    "long pattern": _long_pattern,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_models_cost_neither_time_nor_memory(case: str, tmp_path: pathlib.Path) -> None:
    """At most 2 s of processor time and 200 MB of memory, the interpreter's own included; no traceback."""
    HOSTILE[case](tmp_path)
    params = {"model": str(tmp_path), "gpu_memory": ROOMY, "context_length": 4096}
    done = subprocess.run([sys.executable, "-c", _PROGRAM, json.dumps(params)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    seconds, kilobytes, verdict = json.loads(done.stdout)
    assert seconds < 2, f"{seconds} s"
    assert kilobytes < 200 * 1000, f"{kilobytes} kB"
    assert verdict in ("unknown", "does_not_fit", "fits")
