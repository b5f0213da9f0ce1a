# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._advice import advise
from ansible_collections.unimem.dgx_spark.plugins.module_utils._permits import Permit, permit_of, permit_process
from ansible_collections.unimem.dgx_spark.plugins.module_utils._plan import Plan, cache_helps, make_plan
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import parse_selector, parse_selectors
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tenants import Seen, Wishes
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_node import (
    GIB,
    Proc,
    SimulatedNode,
    container,
    unit,
)


def plan(node: SimulatedNode, stop: list[str], seen: Seen | None = None, **wishes: t.Any) -> Plan:
    made = Wishes(stop=parse_selectors(stop), **wishes)
    return make_plan(node.scene(node.gather()), made, seen)


def codes(made: Plan) -> set[tuple[str, str]]:
    return {(refusal.target, refusal.code) for refusal in made.refusals}


def line(selector: str, restore: str = "on_failure") -> str:
    return f"- {{selector: '{selector}', policy: if_needed, restore: {restore}}}"


def permits(made: Plan) -> list[str]:
    return [refusal.permit.line for refusal in made.refusals if refusal.permit]


def stops(made: Plan) -> list[str]:
    return [step.target for step in made.steps if step.action in ("stop", "terminate")]


# What stops along


def test_dependents_are_refused_unless_listed_and_then_stopped_too() -> None:
    node = SimulatedNode()
    node.add_unit(unit("main.service", dependents=("web.service",)), Proc(10, "main", gpu=GIB))
    node.add_unit(unit("web.service"), Proc(11, "web", rss=GIB))
    refused = plan(node, ["unit:main"])
    assert refused.verdict == "not_permitted" and codes(refused) == {("web.service", "takes_along")}
    assert permits(refused) == [line("unit:web.service")]
    assert stops(plan(node, ["unit:main", "unit:web"])) == ["main.service", "web.service"]


def test_dependents_of_dependents_count_and_those_that_do_not_run_do_not() -> None:
    node = SimulatedNode()
    node.add_unit(unit("main.service", dependents=("web.service", "idle.service")), Proc(10, "main", gpu=GIB))
    node.add_unit(unit("web.service", dependents=("proxy.service",)))
    node.add_unit(unit("proxy.service"))
    node.add_unit(unit("idle.service", active_state="inactive", dependents=("other.service",)))
    node.add_unit(unit("other.service"))
    assert codes(plan(node, ["unit:main", "unit:web"])) == {("proxy.service", "takes_along")}


def test_what_nothing_needs_any_more_stops_along() -> None:
    """StopWhenUnneeded=: only where nobody else that runs needs it."""
    node = SimulatedNode()
    node.add_unit(unit("main.service", needs=("cache.service", "db.service", "plain.service")), Proc(10, "main", gpu=GIB))
    node.add_unit(unit("cache.service", goes_unneeded=True, needed_by=("main.service", "idle.service")))
    node.add_unit(unit("db.service", goes_unneeded=True, needed_by=("main.service", "web.service")))
    node.add_unit(unit("plain.service", needed_by=("main.service",)))
    node.add_unit(unit("idle.service", active_state="inactive"))
    node.add_unit(unit("web.service"), Proc(11, "web", gpu=GIB))
    assert codes(plan(node, ["unit:main"])) == {("cache.service", "takes_along")}
    assert stops(plan(node, ["unit:main", "unit:cache"])) == ["main.service", "cache.service"]
    assert "plain.service" not in stops(plan(node, ["unit:main", "unit:cache"]))


@pytest.mark.parametrize(
    "changes", [{"load_state": "masked"}, {"load_state": "not-found"}, {"load_state": "error"}, {"refuses_start": True}], ids=str
)
def test_what_could_not_be_started_again_is_not_stopped(changes: dict[str, t.Any]) -> None:
    node = SimulatedNode()
    node.add_unit(unit("main.service", **changes), Proc(10, "main", gpu=GIB))
    refused = plan(node, ["unit:main"])
    assert codes(refused) == {("main.service", "lost")} and stops(refused) == []
    assert permits(refused) == [line("unit:main", "never")]
    assert stops(plan(node, ["unit:main"], restore={parse_selectors(["unit:main"])[0]: "never"})) == ["main.service"]


def test_a_mask_that_an_eviction_has_set_is_no_reason() -> None:
    """An eviction that ended between the mask and the stop is gone on with; restoring takes the mask away."""
    node = SimulatedNode()
    node.add_unit(unit("main.service", load_state="masked", file_state="masked"), Proc(10, "main", gpu=GIB))
    scene = node.scene(node.gather())
    scene.evicted = {"unit:main.service"}
    assert stops(make_plan(scene, Wishes(stop=parse_selectors(["unit:main"])))) == ["main.service"]


def test_a_target_that_would_stop_along_is_never_permitted() -> None:
    node = SimulatedNode()
    node.add_unit(unit("main.service", dependents=("multi-user.target",)), Proc(10, "main", gpu=GIB))
    node.others["unit:multi-user.target"] = unit("multi-user.target")
    assert plan(node, ["unit:*main*"]).verdict == "not_permitted"


def test_protected_dependent() -> None:
    node = SimulatedNode()
    node.add_unit(unit("main.service", dependents=("ssh.service",)), Proc(10, "main", gpu=GIB))
    node.add_unit(unit("ssh.service"))
    made = plan(node, ["unit:main", "unit:ssh"])
    assert not made.steps and ("ssh.service", "protected") in codes(made)


def test_socket_that_starts_something_else_as_well() -> None:
    node = SimulatedNode()
    node.add_unit(unit("main.service", triggered_by=("main.socket",)), Proc(10, "main", gpu=GIB))
    node.others["unit:main.socket"] = unit("main.socket", triggers=("main.service", "more.service"))
    assert codes(plan(node, ["unit:main"])) == {("main.socket", "takes_along")}


def test_unit_that_another_upholds() -> None:
    node = SimulatedNode()
    node.add_unit(unit("main.service", upheld_by=("keeper.service",)), Proc(10, "main", gpu=GIB))
    node.add_unit(unit("keeper.service"))
    assert codes(plan(node, ["unit:main"])) == {("main.service", "revived")}
    assert set(stops(plan(node, ["unit:main", "unit:keeper"]))) == {"main.service", "keeper.service"}
    node.units["unit:keeper.service"] = node.units["unit:keeper.service"]._replace(active_state="inactive")
    assert stops(plan(node, ["unit:main"])) == ["main.service"]


def test_unit_that_forbids_it() -> None:
    node = SimulatedNode()
    node.add_unit(unit("main.service", refuses_stop=True), Proc(10, "main", gpu=GIB))
    assert codes(plan(node, ["unit:main"])) == {("main.service", "refuses")}


def test_alias_of_a_unit() -> None:
    node = SimulatedNode()
    node.add_unit(unit("main.service", names=("main.service", "alias.service"), dependents=("web-alias.service",)), Proc(10, "main", gpu=GIB))
    node.add_unit(unit("web.service", names=("web.service", "web-alias.service")))
    assert codes(plan(node, ["unit:alias"])) == {("web.service", "takes_along")}


# What cannot be put back


@pytest.mark.parametrize(("policy", "allowed"), [("on_failure", False), ("on_undeploy", False), ("never", True)])
def test_what_would_be_lost_needs_its_policy(policy: str, allowed: bool) -> None:
    node = SimulatedNode()
    node.add_unit(unit("trial.service", transient=True), Proc(10, "trial", gpu=GIB))
    node.add_container(container("throwaway", 3, auto_remove=True, policy="no"), Proc(11, "python3", gpu=GIB))
    node.add_process(Proc(12, "bare", gpu=GIB))
    for text in ("unit:trial.service", "container:throwaway", "process:bare"):
        made = plan(node, [text], restore={parse_selector(text): policy})
        assert bool(made.steps) is allowed, text
        assert allowed or {code for _target, code in codes(made)} == {"lost"}
        assert allowed or permits(made) == [line(text, "never")]
        assert allowed or made.refusals[0].lacks == "its entry would have to say 'restore: never'"


def test_a_container_that_its_unit_makes_again_is_not_lost() -> None:
    node = SimulatedNode()
    node.add_unit(unit("run.service"))
    node.add_container(container("c", 3, auto_remove=True, policy="no"), Proc(11, "python3", gpu=GIB), wrapper="unit:run.service")
    made = plan(node, ["unit:run"])
    assert stops(made) == ["run.service", "c"] and not made.refusals
    node.makes = {}  # the unit only starts it
    assert codes(plan(node, ["unit:run"])) == {("c", "lost")}


# Containers and the units that run them


def test_listed_container_brings_its_unit_along_first() -> None:
    node = SimulatedNode()
    node.add_unit(unit("run.service"), Proc(5, "docker"))
    node.add_container(container("c", 3), Proc(11, "python3", gpu=GIB), wrapper="unit:run.service")
    assert stops(plan(node, ["container:c"])) == ["run.service", "c"]


def test_unit_that_runs_an_unlisted_container_too() -> None:
    node = SimulatedNode()
    node.add_unit(unit("run.service"), Proc(5, "docker"))
    node.add_container(container("c", 3), Proc(11, "python3", gpu=GIB), wrapper="unit:run.service")
    node.add_container(container("d", 4), Proc(12, "python3", gpu=GIB), wrapper="unit:run.service")
    made = plan(node, ["container:c"])
    assert not made.steps and ("run.service", "takes_along") in codes(made)
    assert "d" in next(refusal.reason for refusal in made.refusals if refusal.target == "run.service")
    assert stops(plan(node, ["container:c", "container:d"])) == ["run.service", "c", "d"]
    assert stops(plan(node, ["unit:run"])) == ["run.service", "c", "d"]


def test_container_that_another_shares_its_network_with() -> None:
    node = SimulatedNode()
    first = node.add_container(container("gateway", 3), Proc(11, "python3", gpu=GIB))
    node.add_container(container("sidecar", 4, shares=(first.id,)))
    assert codes(plan(node, ["container:gateway"])) == {("sidecar", "takes_along")}
    assert set(stops(plan(node, ["container:gateway", "container:sidecar"]))) == {"gateway", "sidecar"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"labels": {"io.kubernetes.pod.name": "x"}}, "revived"),
        ({"labels": {"com.docker.swarm.service.id": "x"}}, "revived"),
        ({"status": "paused"}, "refuses"),
    ],
)
def test_containers_that_are_left_alone(changes: dict[str, t.Any], code: str) -> None:
    node = SimulatedNode()
    node.add_container(container("c", 3, **changes), Proc(11, "python3", gpu=GIB))
    assert codes(plan(node, ["container:c"])) == {("c", code)}


def test_container_of_an_engine_that_cannot_be_asked() -> None:
    node = SimulatedNode()
    node.add_container(container("c", 3, engine="/run/user/1000/docker.sock"), Proc(11, "python3", gpu=GIB))
    node.problems.append("using /run/user/1000/docker.sock is not permitted")
    made = plan(node, ["process:python3"])
    assert made.verdict == "not_permitted" and "not permitted" in made.message
    assert codes(made) == {("python3 (pid 11)", "unknown")}


# Processes


def test_process_stands_for_its_service() -> None:
    node = SimulatedNode()
    node.add_unit(unit("ollama.service"), Proc(10, "ollama", gpu=GIB), Proc(11, "ollama", gpu=GIB))
    assert stops(plan(node, ["process:ollama"])) == ["ollama.service"]


def test_but_not_where_other_gpu_processes_of_it_do_not_match() -> None:
    node = SimulatedNode()
    node.add_unit(unit("mixed.service"), Proc(10, "ollama", gpu=GIB), Proc(11, "other", gpu=GIB))
    made = plan(node, ["process:ollama"])
    assert not made.steps and made.refusals[0].code == "takes_along" and permits(made) == [line("unit:mixed.service")]
    assert stops(plan(node, ["process:ollama", "process:other"])) == ["mixed.service"]
    assert stops(plan(node, ["process:ollama", "user:alice"])) == ["mixed.service"]


def test_process_that_the_driver_does_not_list_is_not_matched() -> None:
    node = SimulatedNode()
    node.add_process(Proc(10, "llama-server", rss=GIB))
    assert plan(node, ["process:llama-server", "user:alice"]).verdict == "nothing_to_do"


def test_process_that_proc_does_not_show() -> None:
    node = SimulatedNode()
    node.add_process(Proc(10, "llama-server", gpu=GIB))
    scene = node.scene(node.gather())
    scene.members.clear()
    made = make_plan(scene, Wishes(stop=parse_selectors(["process:llama-server"])))
    assert not made.steps and codes(made) == {("llama-server (pid 10)", "unknown")}


def test_pid_that_is_another_process_by_now() -> None:
    node = SimulatedNode()
    node.add_process(Proc(10, "llama-server", gpu=GIB))
    facts = node.gather()
    node.procs[10] = Proc(10, "postgres", start_time=5)
    made = make_plan(node.scene(facts), Wishes(stop=parse_selectors(["process:llama-server"])))
    assert not made.steps and {code for _target, code in codes(made)} == {"unknown"}


def test_children_with_gpu_memory_that_nobody_listed() -> None:
    """vLLM's engine core is left behind with all its memory where its parent ends badly."""
    node = SimulatedNode()
    node.add_process(Proc(10, "vllm", gpu=GIB))
    node.add_process(Proc(11, "helper", parent=10, listed=False))
    node.add_process(Proc(12, "VLLM::EngineCore", gpu=20 * GIB, parent=11))
    made = plan(node, ["process:vllm"])
    assert not made.steps and codes(made) == {("VLLM::EngineCore (pid 12)", "takes_along")}
    assert permits(made) == [line("process:VLLM::EngineCore", "never")]
    assert set(stops(plan(node, ["process:vllm", "process:VLLM::*"]))) == {"vllm (pid 10)", "VLLM::EngineCore (pid 12)"}
    # The other way round nothing is taken along.
    assert stops(plan(node, ["process:VLLM::*"])) == ["VLLM::EngineCore (pid 12)"]


def test_children_in_a_unit_or_container_of_their_own_are_not_taken_along() -> None:
    node = SimulatedNode()
    node.add_process(Proc(10, "vllm", gpu=GIB))
    node.add_unit(unit("other.service"), Proc(11, "other", gpu=GIB, parent=10))
    assert stops(plan(node, ["process:vllm"])) == ["vllm (pid 10)"]


def test_protected_child() -> None:
    node = SimulatedNode()
    node.add_process(Proc(10, "vllm", gpu=GIB))
    node.add_process(Proc(11, "sshd", parent=10, listed=False))
    assert codes(plan(node, ["process:vllm"])) == {("sshd (pid 11)", "protected")}


def test_process_under_a_supervisor() -> None:
    node = SimulatedNode()
    node.add_process(Proc(10, "llama-server", gpu=GIB, supervisor="pm2 (pid 9)"))
    made = plan(node, ["process:llama-server"])
    assert not made.steps and codes(made) == {("llama-server (pid 10)", "revived")} and "pm2 (pid 9)" in made.refusals[0].reason


def test_what_only_draws_is_stopped_by_its_name_alone() -> None:
    node = SimulatedNode()
    node.add_process(Proc(10, "blender", gpu=GIB, kinds=("graphics",)))
    node.add_process(Proc(11, "trainer", gpu=GIB))
    assert stops(plan(node, ["user:alice"])) == ["trainer (pid 11)"]
    assert stops(plan(node, ["process:*"], need=200 * GIB)) == []
    assert stops(plan(node, ["process:blender"], protect=parse_selectors(["user:alice"]))) == []
    assert stops(plan(node, ["process:blender"])) == ["blender (pid 10)"]
    node.procs[10].kinds = ("compute", "graphics")
    assert len(stops(plan(node, ["user:alice"]))) == 2


def test_zombie_is_nothing_to_stop() -> None:
    node = SimulatedNode()
    node.add_process(Proc(10, "trainer", gpu=GIB))
    facts = node.gather()
    facts["processes"][0]["state"] = "Z"
    made = make_plan(node.scene(facts), Wishes(stop=parse_selectors(["process:trainer"])))
    assert made.verdict == "nothing_to_do"


def test_engine_that_may_not_be_asked_is_not_taken_for_an_empty_one() -> None:
    node = SimulatedNode(euid=1000)
    node.problems = ["using /run/docker.sock is not permitted: become root, or a member of the engine's group"]
    made = plan(node, ["container:comfyui"])
    assert made.verdict == "not_permitted" and codes(made) == {("container:comfyui", "rights")} and "member of the engine's group" in made.message
    node.problems = []
    assert plan(node, ["container:comfyui"]).verdict == "nothing_to_do"


def test_rights() -> None:
    node = SimulatedNode(euid=1001)
    node.add_unit(unit("main.service"), Proc(10, "main", gpu=GIB))
    node.add_process(Proc(11, "theirs", gpu=GIB, uid=1000))
    node.add_process(Proc(12, "mine", gpu=GIB, uid=1001))
    assert codes(plan(node, ["unit:main"])) == {("main.service", "rights")}
    assert codes(plan(node, ["process:theirs"])) == {("theirs (pid 11)", "rights")}
    assert stops(plan(node, ["process:mine"])) == ["mine (pid 12)"]


def test_leftover_of_a_unit_that_ended_before_anybody_looked() -> None:
    """KillMode=process: it is dead, and what it left still holds its memory."""
    node = SimulatedNode()
    node.add_unit(unit("t.service", active_state="inactive"), Proc(10, "VLLM::EngineCore", gpu=GIB), Proc(11, "helper", rss=GIB))
    assert stops(plan(node, ["unit:t"])) == ["VLLM::EngineCore (pid 10)"]


def test_leftover_of_a_container_that_its_engine_says_has_ended() -> None:
    node = SimulatedNode()
    node.add_process(Proc(10, "VLLM::EngineCore", gpu=GIB, container="container:" + "a" * 64))
    belonged = {(10, 1000): parse_selector("container:c")}
    assert not plan(node, ["container:c"], Seen(belonged)).steps
    assert stops(plan(node, ["container:c"], Seen(belonged, {"container:" + "a" * 64}))) == ["VLLM::EngineCore (pid 10)"]


# Protection


@pytest.mark.parametrize("protect", ["unit:main.service", "unit:ma*", "process:main", "process:helper", "user:alice", "user:1000"])
def test_protect_wins_and_covers_all_that_stops_together(protect: str) -> None:
    node = SimulatedNode()
    node.add_unit(unit("main.service"), Proc(10, "main", gpu=GIB), Proc(11, "helper"))
    made = plan(node, ["unit:main"], protect=parse_selectors([protect]))
    assert made.verdict == "not_permitted" and {code for _target, code in codes(made)} == {"protected"}


def test_protected_container_protects_its_unit() -> None:
    node = SimulatedNode()
    node.add_unit(unit("run.service"))
    node.add_container(container("c", 3), Proc(11, "python3", gpu=GIB), wrapper="unit:run.service")
    assert plan(node, ["unit:run"], protect=parse_selectors(["container:c"])).verdict == "not_permitted"


def test_a_glob_shrugs_off_what_is_protected_and_a_name_does_not() -> None:
    node = SimulatedNode()
    node.add_unit(unit("gpu-a.service"), Proc(10, "a", gpu=GIB))
    node.add_unit(unit("gpu-b.service"), Proc(11, "Xorg", gpu=GIB))
    made = plan(node, ["unit:gpu-*"])
    assert stops(made) == ["gpu-a.service"] and codes(made) == {("Xorg (pid 11)", "protected")}
    assert plan(node, ["unit:gpu-a", "unit:gpu-b"]).verdict == "not_permitted"


# How much


def test_always_is_stopped_whatever_the_need() -> None:
    node = SimulatedNode()
    node.add_unit(unit("a.service"), Proc(10, "a", gpu=GIB))
    node.add_unit(unit("b.service"), Proc(11, "b", gpu=9 * GIB))
    always = parse_selectors(["unit:b"])
    assert stops(plan(node, ["unit:a", "unit:b"], need=1, always=always)) == ["b.service"]
    have = node.memory("unified")["allocatable"]
    assert stops(plan(node, ["unit:a", "unit:b"], need=have + 5 * GIB, always=always)) == ["b.service"]
    assert stops(plan(node, ["unit:a", "unit:b"], need=have + int(9.5 * GIB), always=always)) == ["b.service", "a.service"]


def test_always_that_is_refused_ends_it() -> None:
    node = SimulatedNode()
    node.add_unit(unit("b.service", refuses_stop=True), Proc(11, "b", gpu=9 * GIB))
    node.add_unit(unit("a.service"), Proc(10, "a", gpu=9 * GIB))
    need = node.memory("unified")["allocatable"] + GIB
    assert plan(node, ["unit:a", "unit:b"], need=need, always=parse_selectors(["unit:b"])).verdict == "not_permitted"
    assert stops(plan(node, ["unit:a", "unit:b"], need=need)) == ["a.service"]


def test_what_would_be_enough_if_it_were_permitted_is_told_from_what_would_not() -> None:
    node = SimulatedNode()
    node.add_unit(unit("a.service", refuses_stop=True), Proc(10, "a", gpu=9 * GIB))
    have = node.memory("unified")["allocatable"]
    assert plan(node, ["unit:a"], need=have + 5 * GIB).verdict == "not_permitted"
    assert plan(node, ["unit:a"], need=have + 10 * GIB).verdict == "not_enough"


@pytest.mark.parametrize("selector", ["unit:*", "container:*"])
def test_a_pattern_that_matches_everything_means_what_the_driver_lists(selector: str) -> None:
    """The lab's own driver, a database: they would be stopped first, and whatever they hold is nobody's GPU memory."""
    node = SimulatedNode()
    node.add_unit(unit("aaa.service"), Proc(9, "aaa", rss=30 * GIB))
    node.add_unit(unit("ssh.service"), Proc(8, "sshd"))
    node.add_container(container("database", 3), Proc(10, "postgres", rss=30 * GIB))
    node.add_unit(unit("model.service"), Proc(11, "model", gpu=9 * GIB))
    node.add_container(container("model", 4), Proc(12, "model", gpu=9 * GIB))
    need = node.memory("unified")["allocatable"] + 5 * GIB
    made = plan(node, [selector], need=need)
    assert stops(made) == ["model.service" if selector == "unit:*" else "model"] and not made.refusals
    assert plan(node, [selector], need=need + 20 * GIB).verdict == "not_enough"
    # What is named counts with what it is measured to hold.
    assert stops(plan(node, [selector, "unit:aaa"], need=need + 20 * GIB))[-1] == "aaa.service"


def test_what_holds_nothing_is_not_stopped_for_a_need() -> None:
    node = SimulatedNode()
    node.add_unit(unit("idle.service"), Proc(9, "idle"))
    node.add_unit(unit("model.service"), Proc(11, "model", gpu=9 * GIB))
    have = node.memory("unified")["allocatable"]
    assert stops(plan(node, ["unit:model", "unit:idle"], need=have + 5 * GIB)) == ["model.service"]
    assert stops(plan(node, ["unit:idle", "unit:model"], need=have + 5 * GIB)) == ["model.service"]
    made = plan(node, ["unit:idle"], need=have + 5 * GIB)
    assert made.verdict == "not_enough" and "would free 0 GiB: 5.0 GiB are missing" in made.message
    assert stops(plan(node, ["unit:idle"])) == ["idle.service"]
    assert stops(plan(node, ["unit:idle"], need=1, always=parse_selectors(["unit:idle"]))) == ["idle.service"]


def test_need_above_the_whole_pool() -> None:
    node = SimulatedNode()
    node.add_unit(unit("model.service", refuses_stop=True), Proc(11, "model", gpu=9 * GIB))
    made = plan(node, ["unit:model"], need=200 * GIB, always=parse_selectors(["unit:model"]))
    assert made.verdict == "not_enough" and not made.steps
    assert made.message == "200.0 GiB are wanted, which is more than the whole pool of 120.0 GiB: no eviction can make that room"


def test_sizes_of_a_sentence_are_in_one_unit() -> None:
    node = SimulatedNode()
    node.add_unit(unit("model.service"), Proc(11, "model", gpu=GIB // 8))
    made = plan(node, ["unit:model"], need=node.memory("unified")["allocatable"] + GIB // 4)
    assert made.message == "114.1 GiB are wanted, 113.9 GiB can be had now, and all that may be stopped would free 0.12 GiB: 0.12 GiB are missing"


def test_need_where_nobody_knows_the_pool() -> None:
    node = SimulatedNode()
    node.add_unit(unit("a.service"), Proc(10, "a", gpu=9 * GIB))
    facts = node.gather()
    facts["memory"]["allocatable"] = None
    assert make_plan(node.scene(facts), Wishes(stop=parse_selectors(["unit:a"]), need=1)).verdict == "not_permitted"


@pytest.mark.parametrize(
    ("reclaimable", "free", "need", "expected"),
    [
        (50, 10, 40, True),
        (50, 60, 40, False),  # there is enough already
        (1, 10, 40, False),  # too little to be worth it
        (50, 10, 0, True),
        (None, 10, 40, False),
        (50, None, 40, True),
    ],
)
def test_when_dropping_the_cache_helps(reclaimable: int | None, free: int | None, need: int, expected: bool) -> None:
    memory = {"total": 100 * GIB, "reclaimable": reclaimable and reclaimable * GIB, "cuda_free": free and free * GIB}
    assert cache_helps(memory, need * GIB) is expected


# What would permit it


def test_inventory_lines() -> None:
    node = SimulatedNode()
    node.add_unit(unit("ollama.service"), Proc(10, "ollama", gpu=GIB))
    node.add_unit(unit("run.service"))
    node.add_container(container("wrapped", 3), Proc(11, "python3", gpu=GIB), wrapper="unit:run.service")
    node.add_container(container("free", 4), Proc(12, "python3", gpu=GIB))
    node.add_process(Proc(13, "bare", gpu=GIB))
    node.add_process(Proc(14, "Xorg", gpu=GIB))
    node.add_unit(unit("nvidia-thing.service"), Proc(15, "thing", gpu=GIB))
    node.add_unit(unit("trial.service", transient=True), Proc(16, "trial", gpu=GIB))
    node.add_container(container("once", 5, auto_remove=True), Proc(17, "python3", gpu=GIB))
    node.add_unit(unit("starts.service"))
    node.add_container(container("started", 6, auto_remove=True), Proc(18, "python3", gpu=GIB), wrapper="unit:starts.service")
    node.makes = {"unit:run.service": node.wraps["unit:run.service"]}
    facts = node.gather()
    scene = node.scene(facts)
    found = {process["pid"]: permit_of(scene, process) for process in facts["processes"]}
    assert found == {
        10: Permit("unit:ollama.service", "on_failure"),
        11: Permit("unit:run.service", "on_failure"),
        12: Permit("container:free", "on_failure"),
        13: Permit("process:bare", "never"),
        14: None,
        15: None,
        16: Permit("unit:trial.service", "never"),
        17: Permit("container:once", "never"),
        18: Permit("unit:starts.service", "never"),
    }


def test_a_permit_holds_any_name() -> None:
    assert permit_process("a'b [x]/y*").line == "- {selector: 'process:a''b [[]x]?y[*]', policy: if_needed, restore: never}"


# What is missing, where something is not stopped


def advice(node: SimulatedNode, pid: int, stop: t.Sequence[str] = (), **wishes: t.Any) -> tuple[list[str], str]:
    facts = node.gather()
    process = next(each for each in facts["processes"] if each["pid"] == pid)
    given = advise(node.scene(facts), Wishes(stop=parse_selectors(stop), **wishes), Seen({}), process)
    return [permit.line for permit in given.permits], given.missing


def test_advice_is_all_that_has_to_be_listed() -> None:
    node = SimulatedNode()
    node.add_unit(unit("main.service", dependents=("web.service",), upheld_by=("keeper.service",)), Proc(10, "main", gpu=GIB))
    node.add_unit(unit("web.service"))
    node.add_unit(unit("keeper.service"))
    lines, missing = advice(node, 10)
    assert lines[0] == line("unit:main.service") and set(lines[1:]) == {line("unit:web.service"), line("unit:keeper.service")}
    assert "it is not listed" in missing and "web.service as well" in missing
    entries = parse_selectors(["unit:main", "unit:web", "unit:keeper"])
    assert len(stops(plan(node, [each.text for each in entries]))) == 3
    lines, missing = advice(node, 10, ["unit:main"])
    assert set(lines) == {line("unit:web.service"), line("unit:keeper.service")} and "not listed" not in missing


def test_advice_for_what_would_be_lost() -> None:
    node = SimulatedNode()
    node.add_container(container("once", 3, auto_remove=True, policy="no"), Proc(11, "python3", gpu=GIB))
    assert advice(node, 11)[0] == [line("container:once", "never")]
    lines, missing = advice(node, 11, ["container:once"])
    assert lines == [line("container:once", "never")] and "restore policy would have to be 'never'" in missing


def test_advice_without_root() -> None:
    node = SimulatedNode(euid=1001)
    node.add_unit(unit("main.service"), Proc(10, "main", gpu=GIB))
    node.add_process(Proc(12, "theirs", gpu=GIB, uid=1000))
    node.add_container(container("c", 3, engine="/closed.sock"), Proc(13, "python3", gpu=GIB))
    node.problems.append("using /run/docker.sock is not permitted: become root, or a member of the engine's group")
    lines, missing = advice(node, 10, ["unit:main"])
    assert lines == [] and missing == "main.service: stopping a unit of the system needs root (become: true)"
    lines, missing = advice(node, 10)
    assert lines == [line("unit:main.service")] and "it is not listed" in missing and "needs root" in missing
    lines, missing = advice(node, 12)
    assert lines == [line("process:theirs", "never")] and "needs root" in missing
    for stop in ([], ["process:python3"], ["container:c"]):
        lines, missing = advice(node, 13, stop)
        assert lines == [] and "member of the engine's group" in missing, stop
    made = plan(node, ["container:c"])
    assert permits(made) == [] and made.refusals[0].lacks == "root (become: true), or a user in the engine's group"


@pytest.mark.parametrize("stop", [[], ["unit:gpu-b"]])
def test_no_line_for_what_may_never_be_stopped(stop: list[str]) -> None:
    node = SimulatedNode()
    node.add_unit(unit("gpu-b.service"), Proc(10, "helper", gpu=GIB), Proc(11, "Xorg"))
    node.add_unit(unit("nvidia-thing.service"), Proc(15, "thing", gpu=GIB))
    node.add_unit(unit("stubborn.service", refuses_stop=True), Proc(16, "stubborn", gpu=GIB))
    node.add_process(Proc(17, "worker", gpu=GIB, supervisor="pm2 (pid 9)"))
    node.add_container(container("pod", 4, labels={"io.kubernetes.pod.name": "x"}), Proc(18, "python3", gpu=GIB))
    for pid, words in ((10, "Xorg (pid 11): it is never stopped"), (15, "GPU service"), (16, "forbids"), (17, "pm2 (pid 9)"), (18, "Kubernetes")):
        lines, missing = advice(node, pid, stop)
        assert lines == [] and words in missing, (pid, missing)
    assert advice(node, 16, protect=parse_selectors(["user:alice"]))[0] == []


def test_every_refusal_says_what_is_missing() -> None:
    node = SimulatedNode(euid=1001)
    node.add_unit(unit("main.service", refuses_stop=True, transient=True, dependents=("x.target", "ssh.service")), Proc(10, "main", gpu=GIB))
    node.others["unit:x.target"] = unit("x.target")
    node.add_unit(unit("ssh.service"))
    node.add_container(container("c", 3, status="paused", labels={"com.docker.swarm.task.id": "x"}), Proc(13, "python3", gpu=GIB))
    made = plan(node, ["unit:main", "container:c"], protect=parse_selectors(["user:alice"]))
    assert {refusal.code for refusal in made.refusals} >= {"protected", "takes_along", "refuses", "lost", "rights", "revived"}
    assert all(refusal.lacks for refusal in made.refusals)
