# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""A group that serves, and another one in its place: stopped only for one that can be, and what it held is waited for. With the stand-in engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness import HOSTS, Run, on_host, ranks, run_playbook
from standin import Group, deploy, launched

# test_40_deploy_native.py has the first of it in `make test`.
pytestmark = pytest.mark.soak

#: Longer than any reading takes, and much longer than a stop.
LATE = 12
UNITS = "unimem-e2e-taken"


@pytest.fixture(scope="module")
def group(undeployed: None) -> Iterator[Group]:
    """One that runs for the whole module."""
    with launched() as found:
        yield found
        run_playbook("playbooks/undeploy_qwen.yml", extra=found.settings)


def ids() -> dict[str, str]:
    """The containers that run now."""
    found = {}
    for host in HOSTS:
        ((_name, rank),) = ranks(host).items()
        assert rank["status"] == "running", rank
        found[host] = rank["id"]
    return found


def said(run: Run) -> str:
    return "\n".join(message for _host, _task, message in run.failures)


def replace(group: Group, *arguments: str, **changes: Any) -> Run:
    """The deployment again, with something changed."""
    return run_playbook("playbooks/deploy_qwen.yml", *arguments, extra={**group.settings, **changes})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tp_launch_kv_cache_memory": "100 GiB"}, "That is at best, once the group that runs now has ended"),
        ({"tp_launch_context_length": 9_000_000}, "context_beyond_model"),
        ({"tp_launch_port": 8099}, "port 8099 (the endpoint) is taken: LISTEN on 127.0.0.1:8099"),
    ],
    ids=["cannot fit", "is wrong in itself", "its port is taken"],
)
def test_a_group_that_serves_stays_when_the_other_one_cannot_be(group: Group, changes: dict[str, Any], why: str) -> None:
    before = ids()
    listen = "import socket,time;s=socket.create_server(('127.0.0.1',8099));time.sleep(300)"
    on_host("spark-01", "systemd-run", "--quiet", "--collect", f"--unit={UNITS}", "python3", "-c", listen)
    try:
        run = replace(group, **changes)
    finally:
        on_host("spark-01", "systemctl", "stop", UNITS)
    assert run.rc != 0 and why in said(run), run.failures
    assert ids() == before, "it was stopped for nothing"
    again = replace(group)
    assert again.rc == 0 and not again.changed, "it still answers as it did"


def test_check_tells_of_a_group_that_runs(group: Group) -> None:
    before = ids()
    unchanged = replace(group, "--check")
    assert unchanged.rc == 0 and not unchanged.changed, unchanged.failures or unchanged.changed
    other = replace(group, "--check", tp_launch_max_num_seqs=7)
    assert other.rc == 0 and other.changed, other.failures
    told = [str(result.get("msg", "")) for _host, task, result in other.results() if "At best" in task or "Verdict" in task]
    assert any("at best" in text for text in told), told
    assert ids() == before


def test_what_it_held_is_waited_for(group: Group) -> None:
    """The last one with this group: it runs with another option from here on. Both ranks were made anew for it, together."""
    before = ids()
    for host in HOSTS:
        on_host(host, "gb10-sim-ctl", "set", f"retain={LATE}")
    try:
        run = replace(group, tp_launch_max_num_seqs=9)
        assert run.rc == 0, run.failures
        assert all(ids()[host] != before[host] for host in HOSTS)
        assert len({rank["labels"]["io.unimem.launch-id"] for host in HOSTS for rank in ranks(host).values()}) == 1
        waits = [result["attempts"] for _host, task, result in run.results() if "Wait until nobody holds" in task and "attempts" in result]
        assert waits and max(waits) > 1, waits
    finally:
        for host in HOSTS:
            on_host(host, "gb10-sim-ctl", "reset")


def test_memory_that_never_comes_back_is_not_called_undone(undeployed: None) -> None:
    with launched() as found:
        for host in HOSTS:
            on_host(host, "gb10-sim-ctl", "set", "retain=forever")
        try:
            run = run_playbook("playbooks/undeploy_qwen.yml", extra={**found.settings, "deploy_memory_timeout": 6})
            assert run.rc != 0 and "belong to no process any more" in said(run), run.failures
            assert not any(ranks(host) for host in HOSTS)
        finally:
            for host in HOSTS:
                on_host(host, "gb10-sim-ctl", "reset")
    assert run_playbook("playbooks/undeploy_qwen.yml", extra=found.settings).rc == 0


def test_a_failure_without_a_place_for_its_diagnosis_keeps_one(undeployed: None) -> None:
    run = deploy(fault="0:kv:raise")
    assert run.rc != 0
    shown = [str(result.get("msg", "")) for _host, task, result in run.results() if task.endswith("Show the diagnosis")]
    assert any("/unimem-reports/default-failed-" in text for text in shown), shown
