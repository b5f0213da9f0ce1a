# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The seed's failure happens by itself: launched without making room, the worker dies at its CUDA context, before any weight is loaded."""

from __future__ import annotations

from harness import HOSTS, on_host, ranks, run_playbook, unit


def test_launching_without_room_fails_as_in_the_seed(undeployed: None, wary_driver: None) -> None:
    run = run_playbook("tests/lab/e2e/playbooks/launch_without_room.yml")
    assert run.rc != 0
    said = "\n".join(message for host, _task, message in run.failures if host == "spark-02")
    assert "CUDA error: out of memory" in said, run.failures
    assert "Loading weights" not in said
    for host in HOSTS:
        assert ranks(host) == {}, "all ranks or none"
        assert on_host(host, "ls", "-A", "/dev/shm").stdout.split() == []
    assert unit("spark-02", "vllm-embeddings.service")["ActiveState"] == "active"
