# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine sglang with a stand-in (sglang_image), named as such: its commands, its health and how it dies. SGLang itself wants a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import HOSTS, on_host, ranks, run_playbook
from standin import SGLANG, Group, deploy_failing, kill, launched

pytestmark = pytest.mark.soak


@pytest.fixture
def group(undeployed: None) -> Iterator[Group]:
    with launched(**SGLANG) as found:
        yield found
        run_playbook("playbooks/undeploy_qwen.yml", extra=found.settings)


def test_it_is_accepted_by_its_tokens_and_left_alone(group: Group) -> None:
    again = run_playbook("playbooks/deploy_qwen.yml", extra=group.settings)
    assert again.rc == 0 and not again.changed, again.failures or again.changed
    result = again.fact("tp_launch_result", "spark-01")
    assert result["completion"]["text"] == "Paris." and result["kv_pool"]["tokens"] == 61440 and result["engine"] == "sglang"
    environment = json.loads(on_host("spark-02", "docker", "inspect", "--format", "{{json .Config.Env}}", "unimem-default-rank1").stdout)
    assert "GLOO_SOCKET_IFNAME=enp1s0f1np1" in environment
    command = on_host("spark-02", "pgrep", "-af", "sglang.launch_server --model-path").stdout
    assert "--nnodes 2 --node-rank 1 --dist-init-addr 192.168.200.12:29501 --host 127.0.0.1" in command


@pytest.mark.parametrize(("host", "rank"), [("spark-01", 0), ("spark-02", 1)])
def test_a_scheduler_that_dies_takes_the_group_with_it(group: Group, host: str, rank: int) -> None:
    """The other rank would wait for it for ever, and the worker's server says that it is well."""
    kill(host, rank, "sglang.launch_server --standin=scheduler")
    group.wait_ended()


def test_a_worker_that_says_200_is_not_a_group_that_is_ready(undeployed: None, tmp_path: Path) -> None:
    failed = deploy_failing(tmp_path, fault="0:load:stay", **SGLANG, tp_launch_start_timeout=20)
    assert failed.verdict == ("timeout", "spark-01")
    assert "rank 0 loads the weights" in failed.report["diagnosis"]["remedy"]
    assert not any(ranks(host) for host in HOSTS)
