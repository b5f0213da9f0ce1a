# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""`--check` before the first deployment reaches both hosts, changes nothing and says the verdict."""

from __future__ import annotations

from harness import HOSTS, run_playbook, state_of


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
