# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What unified_mem_budget takes for the real model, from its config and from the headers of 39 files, beside an idle interpreter and a JSON parser.

Each is a process of its own, start to end: the interpreter, the imports, the reading, the decision. "parsed as JSON" reads the very same
headers, 76,000 tensors, and does nothing with them.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from tools import timing
from tools.environments import Environment

NEEDS_LAB = False

_TESTS = "ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils"
_PREPARE = f"""
import pathlib, sys
from {_TESTS} import _configs
from {_TESTS}._checkpoints import qwen35_122b_fp8, write_checkpoint
write_checkpoint(pathlib.Path(sys.argv[1]), qwen35_122b_fp8(), 39, _configs.qwen35_122b(quantized=True))
"""
_PARSED = """
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.safetensors")):
    with open(path, "rb") as handle:
        json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
"""
_BUDGET = """
import json, pathlib, sys
from ansible_collections.unimem.dgx_spark.plugins.module_utils import _budget_module
from ansible_collections.unimem.dgx_spark.plugins.modules.unified_mem_budget import ARGUMENTS
class Module:
    def __init__(self, params):
        self.params = {**{name: option.get("default") for name, option in ARGUMENTS.items()}, **params}
    def exit_json(self, **result):
        assert result["budget"]["fits"] and abs(result["budget"]["terms"]["weights"] / 2**30 - 58.07) < 0.02, result
    fail_json = exit_json
memory = {"class": "unified", "memory": {"total": 120 << 30, "free": 110 << 30, "available": 115 << 30}}
params = {"tensor_parallel": 2, "context_length": 262144, "gpu_memory": memory}
if sys.argv[2] == "headers":
    params["model"] = sys.argv[1]
else:
    params |= {"config": json.loads(pathlib.Path(sys.argv[1], "config.json").read_bytes()), "weight_bytes": "118.42 GiB"}
_budget_module.run(Module(params))
"""


def measure(environment: Environment, rounds: int) -> None:
    """Print the table. The ratios are to an interpreter that does nothing."""
    with tempfile.TemporaryDirectory(prefix="unimem-bench-") as place:
        directory = Path(place) / "model"
        timing.seconds(environment, ["python", "-c", _PREPARE, directory])

        def run(program: str, *words: str) -> float:
            # compiled once, so that the table is about the work and not about Python's compiler
            compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{place}/compiled"}
            return timing.seconds(environment, ["python", "-c", program, directory, *words], compiled)

        contestants = {
            "python": functools.partial(run, "pass"),
            "headers parsed as JSON": functools.partial(run, _PARSED),
            "budget, config and size": functools.partial(run, _BUDGET, "config"),
            "budget, headers": functools.partial(run, _BUDGET, "headers"),
        }
        timing.table("Qwen3.5-122B-A10B-FP8 on two ranks", timing.in_turns(contestants, rounds), "python")
