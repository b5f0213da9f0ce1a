# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""Before the first deployment: `--check` changes nothing and says the verdict, and what takes long is done ahead without stopping anything."""

from __future__ import annotations

from harness import HOSTS, on_host, ranks, run_playbook, state_of, unit


def test_check_before_the_first_deployment(undeployed: None, full_page_cache: None) -> None:
    before = {host: state_of(host) for host in HOSTS}
    run = run_playbook("playbooks/deploy_qwen.yml", "--check", "--diff")
    after = {host: state_of(host) for host in HOSTS}
    assert run.rc == 0, run.failures
    assert not run.unreachable
    for host in HOSTS:
        assert run.recap("ok", host) > 0
        assert after[host] == before[host]
    verdicts = {result["budget"]["verdict"] for _host, _task, result in run.results() if "budget" in result}
    assert "fits_after_stopping" in verdicts


def test_the_model_and_the_image_come_ahead_and_nothing_is_stopped(undeployed: None) -> None:
    run = run_playbook("playbooks/deploy_qwen.yml", "--tags", "model_sync,image_build")
    assert run.rc == 0, run.failures
    for host in HOSTS:
        on_host(host, "test", "-f", f"{run.fact('model_sync_result', host)['model_path']}/config.json")
        assert on_host(host, "docker", "image", "ls", "--quiet", run.fact("image_build_result", host)["image"]).stdout.strip()
        assert ranks(host) == {}
    service = unit("spark-02", "vllm-embeddings.service")
    assert (service["ActiveState"], service["UnitFileState"]) == ("active", "enabled")
    again = run_playbook("playbooks/deploy_qwen.yml", "--skip-tags", "launch")
    assert again.rc == 0 and again.changed == [], again.failures or again.changed
    assert "fits_after_stopping" in {result["budget"]["verdict"] for _host, _task, result in again.results() if "budget" in result}
    assert unit("spark-02", "vllm-embeddings.service") == service
