# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The same job without Ray (vllm_mp): what differs is the engine's file and one variable. A failure after the eviction undoes everything."""

from __future__ import annotations

import json
from pathlib import Path

from harness import HOSTS, Run, on_host, ranks, run_playbook, unit

# Beside the embeddings service the native engine lacks too little to be sure of the eviction.
NATIVE = {"tp_launch_engine": "vllm_mp", "tp_launch_kv_cache_memory": "4000 MiB"}


def test_a_failed_launch_leaves_everything_as_it_was(undeployed: None, full_page_cache: None, tmp_path: Path) -> None:
    before = unit("spark-02", "vllm-embeddings.service")
    services = [{"selector": "unit:vllm-embeddings.service", "policy": "if_needed", "restore": "on_failure"}]
    run = run_playbook(
        "playbooks/deploy_qwen.yml",
        extra={**NATIVE, "service_eviction_services": services, "tp_launch_extra_args": ["--no-such-option"], "deploy_reports": str(tmp_path)},
    )
    assert run.rc != 0
    for host in HOSTS:
        assert ranks(host) == {}
    after = unit("spark-02", "vllm-embeddings.service")
    assert after["ActiveState"] == "active" and after["UnitFileState"] == before["UnitFileState"]
    kept = tmp_path / "default-failed"
    page = (kept / "00-cause.txt").read_text(encoding="utf-8")
    assert page.startswith("FAILED: settings: ") and "--no-such-option" in page
    assert json.loads((kept / "report.json").read_text(encoding="utf-8"))["class"] == "settings"
    # The rank whose engine ended first has the engine's message; the other may have been ended by that before its own engine said a word.
    logs = {rank: (kept / host / f"unimem-default-rank{rank}.log").read_text(encoding="utf-8") for rank, host in enumerate(HOSTS)}
    assert any("unrecognized arguments" in log for log in logs.values())
    assert all("engine ended with exit status 2" in log for log in logs.values()), logs
    for rank, host in enumerate(HOSTS):
        described = json.loads((kept / host / f"unimem-default-rank{rank}.json").read_text(encoding="utf-8"))
        assert "--no-such-option" in described["steps"][-1]["argv"] and described["environment"]["UNIMEM_GROUP_TOKEN"] == "********"
        assert (kept / host / "memory-at_launch.json").exists() and (kept / host / "memory-after.json").exists()
    assert "<svg" in (kept / "report.html").read_text(encoding="utf-8")
    listing = on_host("spark-02", "docker", "inspect", "--format", "{{.State.Running}} {{.HostConfig.RestartPolicy.Name}}", "vllm_embeddings").stdout.split()
    assert listing == ["true", "unless-stopped"]


#: The engine's version, which decides what is predicted, is what the image says.
ASKED = {"deploy_engine_version": "", "image_build_expect_packages": {"vllm": ""}}
VERSION = "0.32.0+cpu"


def versions(run: Run) -> list[str | None]:
    """With which version each prediction was made."""
    return [entry["invocation"]["module_args"]["engine_version"] for _host, _task, entry in run.results() if "budget" in entry]


def test_the_native_engine_deploys(undeployed: None, tmp_path: Path) -> None:
    run = run_playbook("playbooks/deploy_qwen.yml", extra={**NATIVE, **ASKED, "deploy_reports": str(tmp_path)})
    assert run.rc == 0, run.failures
    assert run.fact("image_build_result", "spark-02")["packages"] == {"vllm": VERSION}
    assert versions(run)[-1] == VERSION
    result = run.fact("tp_launch_result", "spark-01")
    assert result["engine"] == "vllm_mp"
    assert result["completion"]["text"].strip()
    predicted = [entry["budget"]["kv_tokens"] for _host, _task, entry in run.results() if "budget" in entry][-1]
    assert result["kv_pool"]["tokens"] == predicted
    assert unit("spark-02", "vllm-embeddings.service")["ActiveState"] == "inactive"
    page = (tmp_path / "default.html").read_text(encoding="utf-8")
    for words in ("Memory of spark-01", "Memory of spark-02", "stop unit vllm-embeddings.service", "rank 1 started", "rank 0 loads", "as predicted"):
        assert words in page
    assert page.count("<polyline") >= 6


def test_the_version_that_the_image_told_is_predicted_with_from_the_first_prediction_on() -> None:
    run = run_playbook("playbooks/deploy_qwen.yml", "--check", extra={**NATIVE, **ASKED})
    assert versions(run) and set(versions(run)) == {VERSION}, (versions(run), run.failures)


def test_what_can_never_fit_does_not_stop_what_serves(undeployed: None) -> None:
    """test_45_replace.py has more of that, with a stand-in."""
    old = {host: ranks(host) for host in HOSTS}
    run = run_playbook("playbooks/deploy_qwen.yml", extra={**NATIVE, "tp_launch_kv_cache_memory": "100 GiB"})
    assert run.rc != 0 and any("That is at best" in message for _host, _task, message in run.failures), run.failures
    assert {host: ranks(host) for host in HOSTS} == old and all(old.values())


def test_another_option_restarts_both_ranks_together(undeployed: None) -> None:
    old = {host: ranks(host) for host in HOSTS}
    run = run_playbook("playbooks/deploy_qwen.yml", extra={**NATIVE, "tp_launch_max_num_seqs": 8})
    assert run.rc == 0, run.failures
    launches = set()
    for host in HOSTS:
        (rank,) = ranks(host).values()
        launches.add(rank["labels"]["io.unimem.launch-id"])
        assert rank["id"] not in [entry["id"] for entry in old[host].values()]
    assert len(launches) == 1
