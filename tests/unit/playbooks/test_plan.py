# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan.yml as a user runs it, on recorded nodes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._plan_table import lines
from ansible_collections.unimem.dgx_spark.tests.unit.playbooks.running import play, said
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.plugin_utils.plotting import REQUIRED


def plan(directory: Path, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run plan.yml from *directory* with extra *variables*."""
    return play("plan", directory, *arguments, **variables)


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The plan of the seed at 0.90, in check mode and strict, with both files; their names relative to where it was started."""
    directory = tmp_path_factory.mktemp("plan")
    files = {"plan_output": "plan.json", "plan_picture": "plan.html"}
    return directory, plan(directory, "--check", plan_strict="yes", tp_launch_gpu_memory_utilization=0.9, **files)


def test_it_ends_well_and_changes_nothing(seed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    directory, done = seed
    assert done.returncode == 0, said(done)
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
    assert says in said(done)
    assert "Read who holds the memory" not in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("strict", [True, False])
def test_a_model_that_does_not_fit_is_an_error_where_that_is_asked_for(strict: bool, tmp_path: Path) -> None:
    done = plan(tmp_path, plan_strict=strict, plan_output="plan.json", tp_launch_kv_cache_memory="60 GiB")
    assert json.loads((tmp_path / "plan.json").read_text())["verdict"] == "does_not_fit"
    assert (done.returncode != 0) == strict, said(done)
    assert ("spark-02: does_not_fit. A rank needs" in said(done)) == strict


@pytest.mark.parametrize(("floor", "verdict"), [("2 GiB", "fits_after_stopping"), ("6 GiB", "does_not_fit"), (0, "fits_after_stopping")])
def test_a_utilization_that_leaves_less_than_the_floor_is_refused(floor: Any, verdict: str, tmp_path: Path) -> None:
    """Where the utilization decides what remains: a KV cache of a size of its own leaves the reserve."""
    share = {"tp_launch_gpu_memory_utilization": 0.9, "tp_launch_kv_cache_memory": None}
    done = plan(tmp_path, plan_strict=True, plan_output="plan.json", deploy_memory_floor=floor, **share)
    assert json.loads((tmp_path / "plan.json").read_text())["nodes"]["spark-02"]["budget"]["verdict"] == verdict
    assert (done.returncode != 0) == (verdict == "does_not_fit"), said(done)
    assert ("below the memory floor of 6.0 GiB" in said(done)) == (verdict == "does_not_fit")
    assert "little_left_for_system" in said(done) or verdict == "does_not_fit", "what is doubtful is said with a verdict that stands"


def test_what_the_launch_would_refuse_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    """By the deployment too: its first play, which needs no node, is the same."""
    refused = {"tp_launch_extra_args": ["--tensor_parallel_size=4"], "tp_launch_env": {"VLLM_API_KEY": "hidden"}}
    for playbook in ("plan", "deploy_qwen"):
        done = play(playbook, tmp_path, **refused)
        assert done.returncode != 0, said(done)
        assert "tp_launch_extra_args has --tensor-parallel-size, which the role sets itself" in said(done)
        assert "tp_launch_env has VLLM_API_KEY, which the role sets itself" in said(done) and "hidden" not in said(done)
        assert "Read who holds the memory" not in done.stdout and "PLAY [Deploy]" not in done.stdout


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tp_launch_engine": "sglang"}, "SGLang has no option for the KV cache in bytes; give mem_fraction_static instead of kv_cache_memory; "),
        ({"tp_launch_bind": "spark-01"}, "tp_launch_bind is 'spark-01', not an address of the head"),
        ({"tp_launch_port": 6379, "tp_launch_control_port": 7000}, "must be four different ones, not 6379, 6379, 29501, 7000"),
    ],
)
def test_settings_that_no_engine_takes_end_a_deployment_before_anything_is_read(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    done = play("deploy_qwen", tmp_path, **settings)
    assert done.returncode != 0, said(done)
    assert "The group could not be launched: " in said(done) and says in said(done)
    assert "PLAY [Deploy]" not in done.stdout


def test_a_profile_for_sglang_can_be_planned_and_launched(tmp_path: Path) -> None:
    done = plan(tmp_path, deploy_model="qwen3.5-122b-a10b-fp8-sglang", plan_output="plan.json")
    assert done.returncode == 0, said(done)
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["engine"] == "sglang" and written["verdict"] in ("fits_after_cache_eviction", "fits_after_stopping")
    # As deploy_qwen.yml looks at the group.
    whole = {"deploy_group_planned": False, "deploy_other_variables": ["deploy_group_planned"]}
    done = plan(tmp_path, deploy_model="qwen3.5-122b-a10b-fp8-sglang", **whole)
    assert done.returncode == 0, said(done)
    assert "could not be launched" in said(plan(tmp_path, tp_launch_engine="sglang", **whole))
