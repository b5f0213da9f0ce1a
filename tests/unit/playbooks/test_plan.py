# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan.yml as a user runs it, on recorded nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._plan_table import lines
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.plugin_utils.plotting import REQUIRED

ROOT = Path(__file__).resolve().parents[3]


def plan(directory: Path, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run plan.yml from *directory* with extra *variables*."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(ROOT / "inventory" / "recorded.yml"), str(ROOT / "playbooks" / "plan.yml")]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    command += ["-e", json.dumps(variables), *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The plan of the seed at 0.90, in check mode, with both files; their names relative to where it was started."""
    directory = tmp_path_factory.mktemp("plan")
    return directory, plan(directory, "--check", plan_output="plan.json", plan_picture="plan.html", tp_launch_gpu_memory_utilization=0.9)


def test_it_ends_well_and_changes_nothing(seed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    directory, done = seed
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split("changed=")[1].split()[0] for line in done.stdout.splitlines() if "changed=" in line] == ["0", "0"]
    assert sorted(path.name for path in directory.iterdir()) == ["plan.html", "plan.json"]
    assert all(path.stat().st_mode & 0o777 == 0o640 for path in directory.iterdir())


def test_the_worst_node_decides(seed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    written = json.loads((seed[0] / "plan.json").read_text())
    assert (written["worst_node"], written["verdict"]) == ("spark-02", "fits_after_stopping")
    assert {name: node["budget"]["verdict"] for name, node in written["nodes"].items()} == {
        "spark-01": "fits_after_cache_eviction",
        "spark-02": "fits_after_stopping",
    }
    assert [entry["unit"] for entry in written["nodes"]["spark-02"]["budget"]["stop"]] == ["vllm-embeddings.service"]


def test_what_is_shown_is_what_is_written(seed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    written = json.loads((seed[0] / "plan.json").read_text())
    for line in lines(written):
        assert json.dumps(line)[1:-1] in seed[1].stdout, line


def test_the_page_is_drawn_where_the_library_is(seed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    page = (seed[0] / "plan.html").read_text()
    if REQUIRED:
        assert "<svg" in page and "The pools are not drawn" not in seed[1].stdout
    elif "<svg" not in page:
        assert "The pools are not drawn" in page and "The pools are not drawn" in seed[1].stdout


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"plan_output": "nowhere/plan.json"}, "plan_output is 'nowhere/plan.json'; give a file on the controller, in a directory that is there."),
        ({"plan_picture": "."}, "plan_picture is '.'; give a file"),
    ],
)
def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_read(variables: dict[str, str], says: str, tmp_path: Path) -> None:
    done = plan(tmp_path, **variables)
    assert done.returncode != 0
    assert says in done.stdout + done.stderr
    assert "Read who holds the memory" not in done.stdout
    assert not list(tmp_path.iterdir())
