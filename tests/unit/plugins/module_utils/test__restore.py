# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._journal import Journal, JournalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._reclaim_run import run
from ansible_collections.unimem.dgx_spark.plugins.module_utils._restore import _dependencies
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_node import (
    GIB,
    Proc,
    SimulatedNode,
    container,
    unit,
)

DEFAULTS: dict[str, t.Any] = {
    "state": "restored",
    "stop": [],
    "always": [],
    "protect": [],
    "need": 0,
    "kill_leftovers": False,
    "drop_page_cache": False,
    "cache_paths": [],
    "grace": 30,
    "timeout": 60,
    "rounds": 3,
    "restore": {},
    "reason": "any",
}


def go(node: SimulatedNode, tmp_path: Path, check: bool = False, **changes: t.Any) -> dict[str, t.Any]:
    parameters = {**DEFAULTS, "journal": str(tmp_path / "state" / "journal.json"), **changes}
    result, failure = run(node, parameters, check, str(tmp_path / "locks"))
    return {**result, "msg": failure or ""}


def evict(node: SimulatedNode, tmp_path: Path, *stop: str, **changes: t.Any) -> None:
    result = go(node, tmp_path, state="freed", stop=list(stop), **changes)
    assert result["verdict"] == "freed", result["msg"]


def two_services() -> SimulatedNode:
    node = SimulatedNode()
    node.add_unit(unit("a.service"), Proc(10, "a", gpu=GIB))
    node.add_unit(unit("b.service"), Proc(11, "b", gpu=GIB))
    return node


@pytest.mark.parametrize(
    ("policy", "reason", "restored"),
    [
        ("on_failure", "failure", True),
        ("on_failure", "undeploy", True),
        ("on_undeploy", "failure", False),
        ("on_undeploy", "undeploy", True),
        ("on_undeploy", "any", True),
        ("never", "failure", False),
        ("never", "undeploy", False),
        ("never", "any", False),
    ],
)
def test_policies(tmp_path: Path, policy: str, reason: str, restored: bool) -> None:
    node = two_services()
    evict(node, tmp_path, "unit:a", "unit:b", restore={"unit:a": policy})
    result = go(node, tmp_path, reason=reason)
    assert result["verdict"] == "restored"
    assert node.units["unit:a.service"].running is restored and node.units["unit:b.service"].running
    assert bool(result["notes"]) is not restored
    still_open = [row["name"] for row in result["evicted"]]
    assert still_open == (["a.service"] if (policy, reason) == ("on_undeploy", "failure") else [])


def test_a_policy_given_now_wins_over_the_journal(tmp_path: Path) -> None:
    node = two_services()
    evict(node, tmp_path, "unit:a", "unit:b")
    go(node, tmp_path, restore={"unit:a": "never"})
    assert not node.units["unit:a.service"].running and node.units["unit:b.service"].running
    assert go(node, tmp_path)["evicted"] == []


def test_only_what_is_named_is_restored(tmp_path: Path) -> None:
    node = two_services()
    evict(node, tmp_path, "unit:a", "unit:b")
    go(node, tmp_path, stop=["unit:b"])
    assert not node.units["unit:a.service"].running and node.units["unit:b.service"].running
    go(node, tmp_path)
    assert node.units["unit:a.service"].running


def test_a_name_that_nothing_evicted_has_is_answered_with_what_is(tmp_path: Path) -> None:
    node = two_services()
    evict(node, tmp_path, "unit:a")
    result = go(node, tmp_path, stop=["unit:aa"])
    assert (result["verdict"], result["changed"]) == ("restored", False) and not node.units["unit:a.service"].running
    assert result["message"] == "nothing was evicted that this concerns; evicted still: a.service"


@pytest.mark.parametrize("named", ["container:embeddings", "unit:embeddings"])
def test_a_unit_and_its_container_come_back_together(tmp_path: Path, named: str) -> None:
    node = SimulatedNode()
    wrapper = node.add_unit(unit("embeddings.service", commands=(("/usr/bin/docker", "start", "--attach", "embeddings"),)))
    node.add_container(container("embeddings", 1, policy="always"), Proc(10, "engine", gpu=GIB), wrapper=wrapper.key)
    before = node.state()
    evict(node, tmp_path, "unit:embeddings")
    result = go(node, tmp_path, stop=[named])
    assert result["verdict"] == "restored" and node.state() == before, result["msg"]
    assert result["evicted"] == []


def test_check_mode_says_what_it_would_do_and_does_nothing(tmp_path: Path) -> None:
    node = two_services()
    evict(node, tmp_path, "unit:a")
    log, text = list(node.log), (tmp_path / "state" / "journal.json").read_text()
    result = go(node, tmp_path, check=True)
    assert result["changed"] and [row["action"] for row in result["actions"]] == ["enable", "start"]
    assert {row["result"] for row in result["actions"]} == {"planned"}
    assert node.log == log and (tmp_path / "state" / "journal.json").read_text() == text


def test_what_was_not_running_is_not_started(tmp_path: Path) -> None:
    node = two_services()
    node.units["unit:b.service"] = node.units["unit:b.service"]._replace(active_state="inactive")
    node.kill_proc(11)
    evict(node, tmp_path, "unit:a", "unit:b")
    go(node, tmp_path)
    assert not node.units["unit:b.service"].running and "start b.service" not in node.log


def test_unit_that_was_disabled_stays_disabled(tmp_path: Path) -> None:
    node = SimulatedNode()
    node.add_unit(unit("a.service", file_state="disabled"), Proc(10, "a", gpu=GIB))
    before = node.state()
    evict(node, tmp_path, "unit:a")
    go(node, tmp_path)
    assert node.state() == before and not any("able" in line for line in node.log)


def test_links_come_back_exactly(tmp_path: Path) -> None:
    """The administrator has enabled it for another target, with a relative link."""
    node = two_services()
    wanted = {"/etc/systemd/system/gpu.target.wants/a.service": "../a.service"}
    node.links["a.service"] = dict(wanted)
    evict(node, tmp_path, "unit:a")
    go(node, tmp_path)
    assert node.links["a.service"] == wanted
    assert not go(node, tmp_path)["changed"]


def test_restored_after_a_reboot(tmp_path: Path) -> None:
    node = two_services()
    before = node.state()
    evict(node, tmp_path, "unit:a")
    # After a boot: what is enabled runs, the evicted one does not, its invocation id is empty.
    node.units["unit:a.service"] = node.units["unit:a.service"]._replace(invocation="")
    go(node, tmp_path)
    assert node.state() == before


@pytest.mark.parametrize("kind", ["unit", "container"])
def test_an_ollama_is_stopped_as_a_service_and_what_it_had_loaded_is_in_the_record(tmp_path: Path, kind: str) -> None:
    """Its keep-alive decides what it holds at a moment, so that its memory says nothing about it; and it is in no file."""
    node = SimulatedNode()
    loaded = [{"model": "qwen3:8b", "until": "2318-01-01T00:00:00Z"}, {"model": "phi4", "until": "2026-01-01T00:05:00Z"}]
    node.models = {11434: loaded, 7777: [{"model": "of another program", "until": ""}]}
    node.ports = {11434, 7777}
    node.add_unit(unit("other.service"), Proc(20, "other", gpu=GIB))
    if kind == "unit":
        node.add_unit(unit("ollama.service"), Proc(10, "ollama"), Proc(11, "ollama", gpu=8 * GIB, parent=10))
        node.unit_ports = {"unit:ollama.service": 11434, "unit:other.service": 7777}
    else:
        node.add_container(container("ollama", 5, ports=(11434,)), Proc(10, "ollama"), Proc(11, "ollama", gpu=8 * GIB, parent=10))
    go(node, tmp_path, state="freed", stop=["process:ollama", "unit:other"])
    assert node.signals == [], "its runner is not ended behind its back"
    journal = Journal(str(tmp_path / "state" / "journal.json")).load()
    assert [entry["before"]["loaded"] for entry in journal.open_entries] == [loaded, []]
    result = go(node, tmp_path)
    assert result["verdict"] == "restored" and node.state()["units"]["unit:other.service"] == ("active", "enabled")
    assert (
        f"{kind} ollama{'.service' if kind == 'unit' else ''} had loaded: qwen3:8b (kept for good), phi4 (kept until 2026-01-01T00:05:00Z)"
        in result["notes"][0]
    )
    assert len(result["notes"]) == 1 and len([line for line in node.log if line.startswith("start ")]) == 2, "it is started, and nothing else"


def test_an_idle_ollama_is_stopped_where_it_always_is(tmp_path: Path) -> None:
    """It holds nothing now, since its keep-alive is over, and would again with the next request."""
    node = SimulatedNode()
    node.add_unit(unit("ollama.service"), Proc(10, "ollama"))
    evict(node, tmp_path, "unit:ollama", always=["unit:ollama"], need=GIB)
    assert not node.units["unit:ollama.service"].running


def test_unit_that_has_been_removed_is_said_and_the_others_come_back(tmp_path: Path) -> None:
    node = two_services()
    evict(node, tmp_path, "unit:a", "unit:b")
    removed = node.units.pop("unit:a.service")
    result = go(node, tmp_path)
    assert result["verdict"] == "not_restored" and "a.service" in result["msg"]
    assert node.units["unit:b.service"].running
    assert [row["name"] for row in result["evicted"]] == ["a.service"]
    node.units[removed.key] = removed
    assert go(node, tmp_path)["verdict"] == "restored"


def woken() -> SimulatedNode:
    """A service with a socket, a timer and a path that starts it as soon as it is started itself."""
    node = SimulatedNode()
    companions = ("a.path", "a.socket", "a.timer")
    node.add_unit(unit("a.service", triggered_by=companions), Proc(10, "a", gpu=GIB))
    for name in companions:
        node.others[f"unit:{name}"] = unit(name, triggers=("a.service",))
    return node


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"load_state": "masked"}, "a.service cannot be started: it is masked; 'systemctl unmask a.service', and restore once more"),
        ({"refuses_start": True}, "RefuseManualStart=yes"),
    ],
)
def test_what_cannot_be_started_is_said_and_nothing_is_changed(tmp_path: Path, check: bool, changes: dict[str, t.Any], says: str) -> None:
    node = two_services()
    evict(node, tmp_path, "unit:a.service")
    before = node.units["unit:a.service"]
    go(node, tmp_path)
    evict(node, tmp_path, "unit:a.service")
    node.units["unit:a.service"] = node.units["unit:a.service"]._replace(**changes, file_state=before.file_state)
    first = go(node, tmp_path, check=check)
    assert first["verdict"] == "not_restored" and says in first["msg"]
    again = go(node, tmp_path, check=check)
    assert again["verdict"] == "not_restored" and (check or not again["changed"])
    assert not [row for row in again["actions"] if row["action"] == "start"]


def test_a_start_whose_conditions_are_not_met_is_none_and_is_not_waited_for(tmp_path: Path) -> None:
    node = two_services()
    evict(node, tmp_path, "unit:a.service")
    node.units["unit:a.service"] = node.units["unit:a.service"]._replace(conditions_met=False)
    begun = node.clock
    result = go(node, tmp_path)
    assert result["verdict"] == "not_restored" and "its Condition...= lines are not met" in result["msg"]
    assert "state: restored, restore: {'unit:a.service': never}" in result["msg"]
    (row,) = [row for row in result["actions"] if row["action"] == "start"]
    assert row["result"].startswith("failed") and node.clock - begun < 5
    assert not go(node, tmp_path)["changed"], "what fails changes nothing"
    given_up = go(node, tmp_path, restore={"unit:*": "on_failure", "unit:a.service": "never"})
    assert given_up["verdict"] == "restored" and not given_up["evicted"]


def test_where_there_is_nothing_to_restore_from_the_journal_is_named(tmp_path: Path) -> None:
    node = two_services()
    assert str(tmp_path / "state" / "journal.json") in go(node, tmp_path)["message"]


def test_sockets_first_and_what_starts_the_service_at_once_last(tmp_path: Path) -> None:
    node = woken()
    before = node.state()
    evict(node, tmp_path, "unit:a")
    assert go(node, tmp_path)["verdict"] == "restored" and node.state() == before
    starts = [line for line in node.log if line.startswith("start ")]
    assert starts[0] == "start a.socket" and starts[1] == "start a.service"


def test_service_that_runs_without_its_socket_is_stopped_for_a_moment(tmp_path: Path) -> None:
    """The eviction was killed after it had stopped the socket, and before it stopped the service."""
    node = woken()
    before = node.state()
    evict(node, tmp_path, "unit:a")
    node.systemd.start("a.service", None, 1)
    result = go(node, tmp_path)
    assert result["verdict"] == "restored" and node.state() == before, result["msg"]
    assert [row["action"] for row in result["actions"] if row["target"] == "a.service"] == ["enable", "stop", "start"]
    assert not go(node, tmp_path)["changed"]


def test_how_often_a_unit_was_started_is_forgotten_before_anything_is_started(tmp_path: Path) -> None:
    node = two_services()
    evict(node, tmp_path, "unit:a")
    node.log.clear()
    go(node, tmp_path, check=True)
    assert node.log == []
    go(node, tmp_path)
    assert node.log.index("forget starts of a.service") < node.log.index("start a.service")
    node.log.clear()
    go(node, tmp_path)
    assert not any("forget" in what for what in node.log)


def test_it_waits_until_the_service_answers(tmp_path: Path) -> None:
    node = two_services()
    node.ports, node.unit_ports = {8001}, {"unit:a.service": 8001}
    evict(node, tmp_path, "unit:a")
    node.ports = set()
    pause = node.pause

    def answering_later(seconds: float) -> None:
        pause(seconds)
        if node.clock > 5:
            node.ports.add(8001)

    del node.unit_ports["unit:a.service"]  # the port opens some time after the start
    node.pause = answering_later  # type: ignore[method-assign]
    assert go(node, tmp_path)["verdict"] == "restored" and node.clock > 5


def test_a_service_that_never_answers_is_not_restored(tmp_path: Path) -> None:
    node = two_services()
    node.ports, node.unit_ports = {8001}, {"unit:a.service": 8001}
    evict(node, tmp_path, "unit:a")
    node.ports, node.unit_ports = set(), {}
    result = go(node, tmp_path, timeout=10)
    assert result["verdict"] == "not_restored" and "port 8001" in result["msg"] and 10 <= node.clock < 20


def test_a_container_is_waited_for_until_its_own_server_listens(tmp_path: Path) -> None:
    """The engine's proxy listens on a published port as soon as the container is started."""
    node = SimulatedNode()
    node.add_container(container("web", 1, pid=77, ports=(8001,)), Proc(77, "web", gpu=GIB))
    node.ports, node.inside = {8001}, {77: {8000}}
    evict(node, tmp_path, "container:web")
    node.inside = {}
    pause = node.pause

    def answering_later(seconds: float) -> None:
        pause(seconds)
        if node.clock > 5:
            node.inside = {77: {8000, 9000}}

    node.pause = answering_later  # type: ignore[method-assign]
    assert go(node, tmp_path)["verdict"] == "restored" and node.clock > 5


def test_a_container_whose_server_never_listens_is_not_restored(tmp_path: Path) -> None:
    node = SimulatedNode()
    node.add_container(container("web", 1, pid=77), Proc(77, "web", gpu=GIB))
    node.inside = {77: {8000}}
    evict(node, tmp_path, "container:web")
    node.inside = {}
    result = go(node, tmp_path, timeout=10)
    assert result["verdict"] == "not_restored" and "nothing in it listens on port 8000" in result["msg"]


def test_journal_that_cannot_be_marked_afterwards_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = two_services()
    evict(node, tmp_path, "unit:a")
    write = Journal.write

    def full(journal: Journal) -> None:
        raise JournalError("journal cannot be written: No space left on device")

    monkeypatch.setattr(Journal, "write", full)
    result = go(node, tmp_path)
    assert result["verdict"] == "not_restored" and "still counts it as evicted" in result["msg"] and node.units["unit:a.service"].running
    monkeypatch.setattr(Journal, "write", write)
    assert go(node, tmp_path)["verdict"] == "restored"


# Containers


def stack() -> SimulatedNode:
    node = SimulatedNode()
    labels = {"com.docker.compose.project": "rag", "com.docker.compose.service": "web", "com.docker.compose.depends_on": "db:service_started:false"}
    node.add_container(container("rag-web-1", 1, labels=labels), Proc(10, "web", gpu=GIB))
    node.add_container(container("rag-db-1", 2, labels={**labels, "com.docker.compose.service": "db", "com.docker.compose.depends_on": ""}))
    return node


def test_compose_project_starts_in_the_order_of_its_dependencies(tmp_path: Path) -> None:
    node = stack()
    before = node.state()
    evict(node, tmp_path, "container:rag-*")
    go(node, tmp_path)
    assert node.log.index("start rag-db-1") < node.log.index("start rag-web-1")
    assert node.state() == before


def test_container_that_others_share_a_network_with_starts_first(tmp_path: Path) -> None:
    node = SimulatedNode()
    first = container("gateway", 9)
    node.add_container(container("sidecar", 1, shares=(first.id,)), Proc(10, "side", gpu=GIB))
    node.add_container(first)
    evict(node, tmp_path, "container:sidecar", "container:gateway")
    go(node, tmp_path)
    assert node.log.index("start gateway") < node.log.index("start sidecar")


def test_container_that_is_gone_names_its_project(tmp_path: Path) -> None:
    node = stack()
    evict(node, tmp_path, "container:rag-web-1")
    node.containers = {key: each for key, each in node.containers.items() if each.name != "rag-web-1"}
    result = go(node, tmp_path)
    assert result["verdict"] == "not_restored" and "docker compose --project-name rag up -d web" in result["msg"]


def test_container_that_was_made_anew_under_its_name_is_as_good(tmp_path: Path) -> None:
    node = stack()
    evict(node, tmp_path, "container:rag-web-1")
    node.containers = {key: each for key, each in node.containers.items() if each.name != "rag-web-1"}
    node.add_container(container("rag-web-1", 77, policy="always"))
    result = go(node, tmp_path)
    assert result["verdict"] == "restored" and not result["changed"]


def test_retries_of_a_policy_come_back(tmp_path: Path) -> None:
    node = SimulatedNode()
    made = node.add_container(container("c", 1, policy="on-failure", policy_retries=5), Proc(10, "c", gpu=GIB))
    evict(node, tmp_path, "container:c")
    assert node.containers[made.key].policy == "no"
    go(node, tmp_path)
    assert (node.containers[made.key].policy, node.containers[made.key].policy_retries) == ("on-failure", 5)


def test_engine_that_is_down_is_said_and_tried_again(tmp_path: Path) -> None:
    node = stack()
    evict(node, tmp_path, "container:rag-*")
    engines, node.engines = node.engines, {}
    result = go(node, tmp_path)
    assert result["verdict"] == "not_restored" and "no container engine answers" in result["msg"]
    node.engines = engines
    assert go(node, tmp_path)["verdict"] == "restored"


def test_one_failure_does_not_keep_the_others_from_coming_back(tmp_path: Path) -> None:
    node = stack()
    evict(node, tmp_path, "container:rag-*")
    engine = next(iter(node.engines.values()))
    start = engine.start

    def failing(container_id: str) -> None:
        if container_id == f"{2:064x}":
            raise EngineError("failed", "driver failed programming external connectivity")
        start(container_id)

    engine.start = failing  # type: ignore[method-assign]
    result = go(node, tmp_path)
    assert result["verdict"] == "not_restored" and "external connectivity" in result["msg"]
    assert next(each for each in node.containers.values() if each.name == "rag-web-1").running


def test_processes_are_never_promised(tmp_path: Path) -> None:
    node = SimulatedNode()
    node.add_process(Proc(10, "llama-server", gpu=GIB, argv=("/opt/llama-server", "-m", "x")))
    evict(node, tmp_path, "process:llama-server")
    entries = json.loads((tmp_path / "state" / "journal.json").read_text())["entries"]
    assert entries[0]["state"] == "settled" and entries[0]["before"]["command"] == "/opt/llama-server -m x"
    assert not go(node, tmp_path)["changed"]


@pytest.mark.parametrize(
    ("label", "names"),
    [("", []), ("db:service_started:false,cache:service_healthy:true", ["db", "cache"]), ('{"db": {"condition": "x"}}', ["db"]), ("{", [])],
)
def test_dependencies_in_a_label(label: str, names: list[str]) -> None:
    assert _dependencies(label) == names


@pytest.mark.parametrize("check", [True, False])
def test_diff_says_how_it_is_and_how_it_will_be(tmp_path: Path, check: bool) -> None:
    node = two_services()
    node.add_container(container("c", 3), Proc(12, "python3", gpu=GIB))
    was = go(node, tmp_path, state="report", stop=["unit:a", "container:c"])["diff"]["before"]
    evict(node, tmp_path, "unit:a", "container:c")
    diff = go(node, tmp_path, check=check)["diff"]
    assert diff["before"] == "container c: exited, restart no\nunit a.service: inactive, disabled\n"
    # As the eviction's own diff told it from the other side.
    assert diff["after"] == was == "container c: running, restart always\nunit a.service: active, enabled\n"
