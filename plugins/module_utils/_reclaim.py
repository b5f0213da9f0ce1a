# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry a plan out: write it down, stop, measure, look again; and say what came of it.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

What is to be stopped is stopped side by side, so that the time it takes is that of the slowest. Nothing waits a fixed time:
processes are waited for through their pidfd, units by systemd, containers and memory by looking again after short pauses
that grow, until a deadline.
"""

from __future__ import annotations

import signal
import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container, Engine, EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._journal import SETTLED, STOPPED, Journal, JournalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._node import Node
from ansible_collections.unimem.dgx_spark.plugins.module_utils._plan import (
    CACHE_SHARE,
    Plan,
    Refusal,
    Seen,
    Step,
    Tenant,
    Wishes,
    cache_helps,
    make_plan,
    permit_selector,
    process_key,
    process_title,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import DEAD_STATES, Identity, ProcessHandle, SignalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import SystemdError, Unit, explain, is_denied

SUCCESS = ("reported", "nothing_to_do", "freed", "restored")

#: Memory counts as back when this share of what the driver had listed is: others go on using the pool meanwhile.
BACK_SHARE = 0.9

#: What comes and goes on an idle machine anyway, as a share of the pool.
NOISE_SHARE = 0.005

#: Seconds after SIGKILL in which a process that can end has ended.
KILL_SECONDS = 10.0

#: Pauses between two looks at the memory: short at first, never long.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.5, 2.0)

#: States in which a process that was sent SIGKILL is stuck in the kernel: asleep there, or spinning in a driver.
_STUCK = ("D", "R")

_MAX_TRAJECTORY = 600

#: Seconds until the driver is asked for the first time whether memory that is not back yet has a reason that it knows.
_FIRST_LOOK = 0.15

#: The rows of a round in ``actions``, by key and action.
_Rows = t.Mapping[tuple[str, str], dict[str, t.Any]]
#: A container that was signalled, its row, and when.
_Signalled = tuple[Container, dict[str, t.Any], float]


@dataclass
class Options:
    """How to go about it. Times in seconds."""

    kill_leftovers: bool = False
    cache_paths: list[str] = field(default_factory=list)
    grace: float = 30.0
    timeout: float = 300.0
    rounds: int = 3
    check: bool = False


@dataclass
class Outcome:
    """The result of the module."""

    verdict: str = ""
    would: str | None = None
    message: str = ""
    changed: bool = False
    before: dict[str, t.Any] = field(default_factory=dict)
    after: dict[str, t.Any] = field(default_factory=dict)
    actions: list[dict[str, t.Any]] = field(default_factory=list)
    refused: list[dict[str, t.Any]] = field(default_factory=list)
    spared: list[dict[str, t.Any]] = field(default_factory=list)
    held_by: list[dict[str, t.Any]] = field(default_factory=list)
    trajectory: list[list[float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    evicted: list[dict[str, t.Any]] = field(default_factory=list)
    diff_before: dict[str, str] = field(default_factory=dict)
    diff_after: dict[str, str] = field(default_factory=dict)

    @property
    def freed(self) -> int:
        """Bytes that a new CUDA process can get more than before."""
        now, then = self.after.get("allocatable"), self.before.get("allocatable")
        return max(0, now - then) if isinstance(now, int) and isinstance(then, int) else 0

    def as_result(self, journal: str) -> dict[str, t.Any]:
        """The return values of the module."""
        return {
            "changed": self.changed,
            "verdict": self.verdict,
            "would": self.would,
            "message": self.message,
            "actions": self.actions,
            "refused": self.refused,
            "spared": self.spared,
            "before": self.before,
            "after": self.after,
            "freed": self.freed,
            "held_by": self.held_by,
            "trajectory": self.trajectory,
            "notes": self.notes,
            "evicted": self.evicted,
            "journal": journal,
            "diff": {"before": _text(self.diff_before), "after": _text(self.diff_after)},
        }


def _text(states: t.Mapping[str, str]) -> str:
    return "".join(f"{name}: {states[name]}\n" for name in sorted(states))


class Signature(t.NamedTuple):
    """By what a process that came back is known: the pid is new, the rest is not."""

    name: str
    executable: str | None
    place: str | None
    uid: int | None


class Reclaimer:
    """One run of ``state=report`` or ``state=freed``."""

    def __init__(self, node: Node, journal: Journal, wishes: Wishes, options: Options) -> None:
        self.node = node
        self.journal = journal
        self.wishes = wishes
        self.options = options
        self.outcome = Outcome()
        self.belonged: dict[tuple[int, int], t.Any] = {}
        self.stopped_units: dict[str, str] = {}
        self.stopped: dict[Signature, int] = {}
        self.released = 0
        self.stuck: list[str] = []
        self.stayed: list[str] = []
        self.denied: list[str] = []
        self.facts: dict[str, t.Any] = {}
        self.listed: set[int] = set()
        self.considered: set[tuple[int, t.Any]] = set()
        self.outlived: set[tuple[int, t.Any]] = set()
        self.first_unattributed: int | None = None
        self.stopped_containers: set[str] = set()
        self.start = node.monotonic()
        self.deadline = self.start + options.timeout
        self.handles: list[tuple[dict[str, t.Any], t.Any, ProcessHandle, float]] = []

    # Looking only

    def report(self) -> Outcome:
        """What is there, and what ``freed`` would do. Touches nothing and never fails."""
        plan, scene = self._look()
        self._show(plan, scene, 1)
        self.outcome.verdict = "reported"
        self.outcome.would = plan.verdict or "freed"
        self.outcome.message = plan.message or f"{format_size(plan.expected)} would be freed (estimated)"
        if self.facts.get("class") == "unresponsive":
            self.outcome.would, self.outcome.message = "unresponsive_driver", "the GPU driver does not answer, so nobody can say who holds its memory"
        self.outcome.after = self.outcome.before
        self.outcome.held_by = self._holders(scene)
        return self.outcome

    def _look(self) -> tuple[Plan, Scene]:
        self.facts = self.node.gather()
        scene = self.node.scene(self.facts)
        plan = make_plan(scene, self.wishes, Seen(self.belonged, self.stopped_containers, self._pending()))
        self.listed = plan.listed
        self.considered.update((process["pid"], process.get("start_time")) for process in scene.holders)
        if not self.outcome.before:
            self.first_unattributed = self._unattributed()
            self.outcome.before = dict(self.facts.get("memory") or {})
            self._trace(self.outcome.before)
            self.outcome.notes.extend(scene.problems)
        return plan, scene

    def _show(self, plan: Plan, scene: Scene, number: int) -> None:
        """Put a plan into the outcome, as far as it is not there."""
        for step in plan.steps:
            self.outcome.actions.append(_action(step, number, self._holds(scene, step)))
        for refusal in plan.refusals:
            row = _refusal(refusal)
            if row not in self.outcome.refused:
                self.outcome.refused.append(row)
        self.outcome.spared = [{"target": tenant.title, "selector": tenant.selector.text, "memory": tenant.memory} for tenant in plan.spared]
        self._show_diff(plan)

    def _show_diff(self, plan: Plan) -> None:
        for tenant in plan.tenants:
            for unit in (*tenant.companions, *tenant.units):
                self.outcome.diff_before.setdefault(f"unit {unit.name}", f"{unit.active_state}, {unit.file_state or 'no unit file'}")
                becomes = unit.file_state or "no unit file"
                if unit.starts_at_boot:
                    becomes = "masked" if unit.file_state == "generated" else "disabled"
                self.outcome.diff_after[f"unit {unit.name}"] = f"inactive, {becomes}"
            for container in tenant.containers:
                self.outcome.diff_before.setdefault(f"container {container.name}", f"{container.status}, restart {container.policy}")
                self.outcome.diff_after[f"container {container.name}"] = "exited, restart no"
            for process in tenant.processes:
                self.outcome.diff_before.setdefault(f"process {process_title(process)}", "running")
                self.outcome.diff_after[f"process {process_title(process)}"] = "ended"

    def _holds(self, scene: Scene, step: Step) -> int:
        """Bytes that end with what one step stops: of the driver, and resident ones beside them."""
        if step.action not in ("stop", "terminate"):
            return 0
        inside = set()
        for member in scene.members.values():
            own = member.container or member.unit if step.layer != "process" else f"process:{member.pid}:{member.start_time}"
            if own == step.key:
                inside.add(member.pid)
        listed = sum(process.get("memory") or 0 for process in scene.holders if process["pid"] in inside)
        resident = sum(scene.members[pid].rss for pid in inside) if scene.facts.get("class") in ("unified", "none") else 0
        return listed + resident

    def _holders(self, scene: Scene) -> list[dict[str, t.Any]]:
        rows = []
        for process in scene.holders:
            keeper = next((selector for selector in self.wishes.protect if selector.matches(process)), None)
            protected = process.get("protected") or (f"'{keeper.text}' protects it" if keeper else None)
            listed = process["pid"] in self.listed
            selector = None if protected or listed else permit_selector(scene, process)
            rows.append({**process, "protected": protected, "listed": listed, "permit": selector, "inventory": inventory_line(selector)})
        return rows

    # Acting

    def free(self) -> Outcome:
        """Make room. Changes nothing in check mode, and nothing at all when the plan has a verdict."""
        plan, scene = self._look()
        self._show(plan, scene, 1)
        if self.facts.get("class") == "unresponsive":
            return self._end(scene, "unresponsive_driver", "the GPU driver does not answer, so nobody can say who holds its memory; nothing is stopped")
        if plan.verdict:
            return self._end(scene, plan.verdict, plan.message)
        if self.options.check:
            self.outcome.changed = True
            self.outcome.after = self.outcome.before
            return self._end(scene, "freed", f"would free {format_size(plan.expected)} (estimated)", measure=False)
        number = 1
        while True:
            stopping = plan
            if not self._carry_out(plan, scene, number):
                return self._end(scene, "not_permitted", "; ".join(self.denied) or "nothing was stopped")
            while True:
                self._wait(stopping, scene.boot_id)
                plan, scene = self._look()
                over = self.stayed or self.stuck or self.node.monotonic() >= self.deadline
                if over or plan.steps or self._satisfied(plan) or not self._is_coming():
                    break
            self._note_restarts(scene)
            if self._satisfied(plan) or self.stayed or self.stuck or number >= self.options.rounds or self.node.monotonic() >= self.deadline:
                break
            again = self._respawning(plan, scene)
            if again:
                return self._end(scene, "respawning", again)
            if not plan.steps:
                break
            number += 1
            self._show(plan, scene, number)
        return self._conclude(plan, scene)

    def _carry_out(self, plan: Plan, scene: Scene, number: int) -> bool:
        """One round. False when nothing could be begun."""
        rows = [row for row in self.outcome.actions if row["round"] == number]
        try:
            self.journal.record(self._entries(plan, scene))
        except JournalError as exc:
            self.denied.append(f"{exc}; nothing is stopped without a journal")
            for row in rows:
                row["result"] = "not done: no journal"
            return False
        self.released += sum(process.get("memory") or 0 for tenant in plan.tenants for process in tenant.holders)
        for tenant in plan.tenants:
            for member in tenant.members:
                self.belonged[(member.pid, member.start_time)] = tenant.selector
        steps = {(row["key"], row["action"]): row for row in rows}
        if plan.drop_cache:
            self._drop_cache(steps[("cache", "drop")])
            if not self._needed():
                for row in rows:
                    if row["result"] == "planned":
                        row["result"] = "not needed any more"
                return True
        if not self._disable(plan, steps):
            return False
        self._stop(plan, scene, steps)
        return True

    def _needed(self) -> bool:
        if self.wishes.need <= 0:
            return True
        have = self.node.memory(str(self.facts.get("class"))).get("allocatable")
        return have is None or have < self.wishes.need

    def _drop_cache(self, row: dict[str, t.Any]) -> None:
        klass = str(self.facts.get("class"))
        before = self.node.memory(klass)
        count, problems = self.node.evict_files(self.options.cache_paths) if self.options.cache_paths else (0, [])
        self.outcome.notes.extend(problems)
        result = f"evicted the cache of {count} files" if count else ""
        if not self.options.cache_paths or cache_helps(self.node.memory(klass), self.wishes.need):
            problem = self.node.drop_cache(max(1.0, self.deadline - self.node.monotonic()))
            if problem:
                result = "; ".join(part for part in (result, problem) if part)
                self.outcome.notes.append(problem)
            else:
                result = "; ".join(part for part in (result, "dropped the whole page cache") if part)
        after = self.node.memory(klass)
        row["result"] = result
        row["freed"] = max(0, (after.get("free") or 0) - (before.get("free") or 0))
        # A running system has some cache again at once; only what is worth it counts as a change.
        self.outcome.changed = self.outcome.changed or row["freed"] >= CACHE_SHARE * (after.get("total") or 0)
        self.wishes = replace(self.wishes, drop_page_cache=False)
        self._trace(after)

    def _disable(self, plan: Plan, steps: _Rows) -> bool:
        """Take all units out of the next boot, before the first is stopped; when one refuses, put the others back and stop nothing."""
        done: list[tuple[Unit, str]] = []
        for tenant in plan.tenants:
            for unit in (*tenant.companions, *tenant.units):
                action = next((name for name in ("disable", "mask") if (unit.key, name) in steps), None)
                if action is None:
                    continue
                row = steps[(unit.key, action)]
                try:
                    if action == "mask":
                        self.node.systemd.mask(unit.name, unit.uid, self._left())
                    else:
                        self.node.systemd.disable(unit.name, unit.uid, self._left())
                except SystemdError as exc:
                    row["result"] = f"failed: {exc}"
                    self.denied.append(str(exc))
                    self._undo(done)
                    return False
                row["result"] = f"{action}d" if action == "disable" else "masked"
                self.outcome.changed = True
                done.append((unit, action))
        return True

    def _undo(self, done: t.Sequence[tuple[Unit, str]]) -> None:
        self.outcome.changed = False
        for unit, action in done:
            try:
                if action == "mask":
                    self.node.systemd.unmask(unit.name, unit.uid, self._left())
                else:
                    self.node.systemd.enable(unit.name, unit.uid, self._left())
            except SystemdError as exc:
                self.outcome.changed = True
                self.outcome.notes.append(f"{exc}; it is in the journal, so 'state: restored' tries again")

    def _stop(self, plan: Plan, scene: Scene, steps: _Rows) -> None:
        units = [unit for tenant in plan.tenants for unit in tenant.units]
        self._stop_units([unit for tenant in plan.tenants for unit in tenant.companions], steps, wait=True)
        pending = self._stop_units(units, steps, wait=False)
        keys = {unit.key for unit in units}
        wrapped = {key for unit in keys for key in scene.wraps.get(unit, [])}
        containers = [container for tenant in plan.tenants for container in tenant.containers]
        signalled = self._signal_containers([each for each in containers if each.key not in wrapped], steps)
        for tenant in plan.tenants:
            for process in tenant.processes:
                self._terminate(process, scene, steps[(process_key(process), "terminate")])
        for finish in pending:
            finish()
        signalled += self._signal_containers([each for each in containers if each.key in wrapped], steps)
        self._await_containers(signalled)
        self._await_processes()

    # Units

    def _stop_units(self, units: t.Sequence[Unit], steps: _Rows, wait: bool) -> list[t.Callable[[], None]]:
        """Begin to stop units, those of one manager in one call. Returns what waits for them, which is done at once with ``wait``."""
        pending: list[t.Callable[[], None]] = []
        for uid in dict.fromkeys(unit.uid for unit in units):
            mine = self._unchanged([unit for unit in units if unit.uid == uid], uid, steps)
            if not mine:
                continue
            seconds = max([self.options.grace, *((unit.stop_seconds or 0.0) + 5.0 for unit in mine)])
            run = self.node.systemd.start_stopping([unit.name for unit in mine], uid, min(seconds, self._left()))
            self.outcome.changed = True

            def finish(run: t.Any = run, mine: tuple[Unit, ...] = tuple(mine), uid: int | None = uid) -> None:
                self._finish_units(run.finish(), list(mine), uid, steps)

            if wait:
                finish()
            else:
                pending.append(finish)
        return pending

    def _unchanged(self, units: list[Unit], uid: int | None, steps: _Rows) -> list[Unit]:
        """Those that are still what was planned: the same invocation, with the same dependents."""
        try:
            now = self.node.systemd.show([unit.name for unit in units], uid)
        except SystemdError as exc:
            for unit in units:
                steps[(unit.key, "stop")]["result"] = f"failed: {exc}"
            return []
        found = []
        for unit in units:
            row, seen = steps[(unit.key, "stop")], now.get(unit.name)
            if seen is None or not seen.running:
                row["result"] = "stopped"  # with one that it depends on, or by itself meanwhile
                self._record_stop(unit)
            elif (seen.invocation, set(seen.dependents)) != (unit.invocation, set(unit.dependents)):
                row["result"] = "left alone: it has been started anew since it was looked at"
            else:
                found.append(unit)
        return found

    def _finish_units(self, result: t.Any, units: list[Unit], uid: int | None, steps: _Rows) -> None:
        now = self._show_units(units, uid)
        for unit in units:
            row, seen = steps[(unit.key, "stop")], now.get(unit.name)
            running = seen is not None and seen.running or (seen is not None and seen.active_state == "deactivating")
            if not running:
                row["result"] = "stopped"
                self._record_stop(unit)
            elif seen is not None and seen.invocation != unit.invocation and seen.active_state != "deactivating":
                row["result"] = "stopped, and started again by something else"
                self._record_stop(unit)
            elif is_denied(result):
                row["result"] = f"failed: {explain(result)}"
                self.denied.append(f"stopping {unit.name}: {explain(result)}")
            else:
                self._kill_unit(unit, row, explain(result))

    def _show_units(self, units: list[Unit], uid: int | None) -> dict[str, Unit]:
        try:
            return self.node.systemd.show([unit.name for unit in units], uid)
        except SystemdError as exc:
            self.outcome.notes.append(str(exc))
            return {}

    def _kill_unit(self, unit: Unit, row: dict[str, t.Any], why: str) -> None:
        if not self.options.kill_leftovers:
            row["result"] = f"still running: {why}; 'kill_leftovers: true' would allow SIGKILL"
            self.stayed.append(unit.name)
            return
        try:
            self.node.systemd.kill(unit.name, unit.uid, self._left())
        except SystemdError as exc:
            self.outcome.notes.append(str(exc))
        end = self.node.monotonic() + KILL_SECONDS
        for pause in _pauses():
            seen = self._show_units([unit], unit.uid).get(unit.name)
            if seen is None or (not seen.running and seen.active_state != "deactivating"):
                row["result"] = "killed"
                self._record_stop(unit)
                return
            if self.node.monotonic() >= end:
                break
            self.node.pause(pause)
        row["result"] = "still running after SIGKILL"
        self.stuck.append(unit.name)

    def _record_stop(self, unit: Unit) -> None:
        self.stopped_units[unit.key] = unit.invocation
        self.journal.mark([unit.key], STOPPED, stopped_at=self.node.now())

    # Containers

    def _signal_containers(self, containers: t.Sequence[Container], steps: _Rows) -> list[_Signalled]:
        """Restart policy first, then the container's own stop signal. Returns those to wait for, with when they were signalled."""
        waiting = []
        for container in containers:
            row = steps[(container.key, "stop")]
            engine = self.node.engine(container.engine)
            if engine is None:
                row["result"] = f"failed: {container.engine} does not answer any more"
                continue
            try:
                if self._set_policy(engine, container, steps) and self._is_running(engine, container):
                    engine.signal(container.id, container.stop_signal)
                    self.outcome.changed = True
                    waiting.append((container, row, self.node.monotonic()))
                else:
                    self._record_container(container, row, "stopped")
            except EngineError as exc:
                row["result"] = f"failed: {exc}"
                if exc.code == "denied":
                    self.denied.append(f"stopping container {container.name}: {exc}")
                elif exc.code == "conflict" and not self._is_running(engine, container):
                    row["result"] = "stopped"
        return waiting

    def _set_policy(self, engine: Engine, container: Container, steps: _Rows) -> bool:
        """Whether the container is still there."""
        row = steps.get((container.key, "set_restart_policy_no"))
        now = engine.inspect(container.id)
        if row is None:
            return now is not None
        if now is None:
            row["result"] = "gone: its unit removed it"
            return False
        engine.set_policy(container.id, "no", 0)
        row["result"] = f"'{container.policy}' is 'no' now"
        self.outcome.changed = True
        return True

    def _is_running(self, engine: Engine, container: Container) -> bool:
        now = engine.inspect(container.id)
        return now is not None and now.running

    def _await_containers(self, waiting: list[_Signalled]) -> None:
        killed: set[str] = set()
        for pause in _pauses():
            left = []
            for container, row, since in waiting:
                engine = self.node.engine(container.engine)
                try:
                    running = engine is not None and self._is_running(engine, container)
                except EngineError as exc:
                    row["result"] = f"failed: {exc}"
                    self.stuck.append(container.name)
                    continue
                if not running:
                    self._record_container(container, row, "killed" if container.key in killed else "stopped")
                    continue
                if self.node.monotonic() - since >= (KILL_SECONDS if container.key in killed else self.options.grace):
                    since = self._kill_container(container, row, killed)
                    if since < 0:
                        continue
                left.append((container, row, since))
            waiting = left
            if not waiting:
                return
            self.node.pause(pause)

    def _record_container(self, container: Container, row: dict[str, t.Any], how: str) -> None:
        row["result"] = how
        self.stopped_containers.add(container.key)
        self.journal.mark([container.key], STOPPED, stopped_at=self.node.now())

    def _kill_container(self, container: Container, row: dict[str, t.Any], killed: set[str]) -> float:
        """SIGKILL a container that ignored its stop signal, once and if that is allowed. When it was sent, or -1."""
        engine = self.node.engine(container.engine)
        if container.key in killed or engine is None:
            row["result"] = "still running after SIGKILL"
            self.stuck.append(container.name)
            return -1.0
        if not self.options.kill_leftovers:
            row["result"] = f"still running {self.options.grace:.0f} s after {container.stop_signal}; 'kill_leftovers: true' would allow SIGKILL"
            self.stayed.append(container.name)
            return -1.0
        try:
            engine.signal(container.id, "SIGKILL")
        except EngineError as exc:
            self.outcome.notes.append(f"SIGKILL to container {container.name}: {exc}")
        killed.add(container.key)
        return self.node.monotonic()

    # Processes

    def _terminate(self, process: dict[str, t.Any], scene: Scene, row: dict[str, t.Any]) -> None:
        identity = scene.identity(process)
        if identity is None:
            row["result"] = "left alone: it is another process by now"
            return
        try:
            handle = self.node.open_process(identity)
        except SignalError as exc:
            row["result"] = "ended by itself" if exc.code == "gone" else f"left alone: {exc}"
            if exc.code in ("not_permitted", "unsupported"):
                self.denied.append(str(exc))
            return
        member = scene.members[identity.pid]
        signature = Signature(member.name, member.executable, member.container or member.unit, member.uid)
        try:
            handle.send(signal.SIGTERM)
        except SignalError as exc:
            handle.close()
            row["result"] = "ended by itself" if exc.code == "gone" else f"left alone: {exc}"
            if exc.code == "not_permitted":
                self.denied.append(str(exc))
            return
        self.outcome.changed = True
        self.stopped[signature] = self.stopped.get(signature, 0) + 1
        self.handles.append((row, identity, handle, self.node.monotonic()))

    def _await_processes(self) -> None:
        handles, self.handles = self.handles, []
        late = []
        for row, identity, handle, since in handles:
            if handle.wait(min(since + self.options.grace, self.deadline) - self.node.monotonic()):
                self._ended(row, identity, handle, "ended")
            elif not self.options.kill_leftovers:
                row["result"] = f"still running {self.options.grace:.0f} s after SIGTERM; 'kill_leftovers: true' would allow SIGKILL"
                self.stayed.append(row["target"])
                handle.close()
            else:
                late.append((row, identity, handle))
        for row, _identity, handle in late:
            try:
                handle.send(signal.SIGKILL)
            except SignalError as exc:
                row["result"] = "ended" if exc.code == "gone" else f"left alone: {exc}"
        for row, identity, handle in late:
            if handle.wait(KILL_SECONDS):
                self._ended(row, identity, handle, "killed")
                continue
            state = handle.state()
            if state in _STUCK:
                row["result"] = f"cannot be killed: it is stuck in the kernel (state {state})"
                self.stuck.append(row["target"])
            elif state is None or state in DEAD_STATES:
                row["result"] = "killed"
            else:
                row["result"] = f"still there {KILL_SECONDS:.0f} s after SIGKILL (state {state})"
                self.stuck.append(row["target"])
            handle.close()

    def _ended(self, row: dict[str, t.Any], identity: Identity, handle: ProcessHandle, how: str) -> None:
        handle.close()
        row["result"] = how
        self.journal.mark([row["key"]], SETTLED, stopped_at=self.node.now(), note="a process cannot be restored")

    # Waiting and judging

    def _left(self) -> float:
        return max(1.0, self.deadline - self.node.monotonic())

    def _unattributed(self) -> int | None:
        value = self.facts.get("unattributed")
        return value if isinstance(value, int) else None

    def _wait(self, plan: Plan, boot: str) -> None:
        """Wait until the memory is back, something new matches, or the time is over."""
        klass = str(self.facts.get("class"))
        stopped = {(process["pid"], process.get("start_time")) for tenant in plan.tenants for process in tenant.holders}
        released = sum(process.get("memory") or 0 for tenant in plan.tenants for process in tenant.holders)
        then = (self.facts.get("memory") or {}).get("allocatable")
        target = self.wishes.need if self.wishes.need > 0 else None if then is None else then + max(0, released - self._slack(released))
        interval = _FIRST_LOOK
        look = self.node.monotonic() + interval
        for pause in _pauses():
            memory = self.node.memory(klass)
            self._trace(memory)
            have = memory.get("allocatable")
            if target is not None and have is not None and have >= target:
                return
            if self.stayed or self.stuck:
                return
            # Asking the driver costs a process each time, so it is asked less often as time goes on.
            if self.node.monotonic() >= look or target is None:
                interval = min(10.0, 2 * interval)
                look = self.node.monotonic() + interval
                self.facts = self.node.gather()
                if self._settled(stopped) or self._something_new(stopped, boot):
                    return
            if self.node.monotonic() >= self.deadline:
                return
            self.node.pause(min(pause, max(0.0, self.deadline - self.node.monotonic())))

    def _settled(self, stopped: t.Collection[tuple[int, t.Any]]) -> bool:
        """Whether what was stopped is gone and the pool no longer misses what it held, whatever others have taken since."""
        listed = {(process.get("pid"), process.get("start_time")) for process in self.facts.get("processes") or []}
        if any(each in listed for each in stopped):
            return False
        if self._unattributed() is None or self.first_unattributed is None:
            return self.facts.get("class") == "none" or (self.facts.get("memory") or {}).get("allocatable") is None
        return not self._is_coming()

    def _something_new(self, stopped: t.Collection[tuple[int, t.Any]], boot: str) -> bool:
        """Whether another round has something to do: a match that was not there, or a process that outlived its unit."""
        for process in self.facts.get("processes") or []:
            pid, start_time = process.get("pid"), process.get("start_time")
            if (pid, start_time) in stopped or (pid, start_time) in self.belonged:
                if start_time is not None and (pid, start_time) not in self.outlived and self._lives(Identity(boot, pid, start_time)):
                    self.outlived.add((pid, start_time))
                    return True
            elif (pid, start_time) not in self.considered and any(selector.matches(process) for selector in self.wishes.stop):
                return True
        return False

    def _pending(self) -> int:
        """Bytes of what was stopped that the driver lists no more and that nobody can have yet."""
        now, then = self._unattributed(), self.first_unattributed
        if now is None or then is None:
            return 0
        return min(self.released, max(0, now - then))

    def _is_coming(self) -> bool:
        return self._pending() > self._slack(self.released)

    def _slack(self, released: int) -> int:
        """By how much less than was released counts as all of it: others go on using the pool meanwhile."""
        total = (self.facts.get("memory") or {}).get("total") or 0
        return max(int((1 - BACK_SHARE) * released), int(NOISE_SHARE * total))

    def _lives(self, identity: Identity) -> bool:
        try:
            self.node.open_process(identity).close()
        except SignalError as exc:
            return exc.code == "not_permitted"
        return True

    def _satisfied(self, plan: Plan) -> bool:
        if self.wishes.need > 0:
            return self._reached() and not plan.drop_cache and not any(tenant.always for tenant in plan.tenants)
        return False  # all that matches: looked at again until nothing does

    def _reached(self) -> bool:
        have = (self.facts.get("memory") or {}).get("allocatable")
        return have is not None and have >= self.wishes.need

    def _note_restarts(self, scene: Scene) -> None:
        for key, invocation in self.stopped_units.items():
            unit = scene.units.get(key)
            if unit is not None and unit.running and unit.invocation != invocation:
                note = f"{unit.name} was stopped and has been started again, by none of its own sockets, timers or paths"
                if note not in self.outcome.notes:
                    self.outcome.notes.append(note)

    def _respawning(self, plan: Plan, scene: Scene) -> str:
        """Who starts again what was stopped twice already; empty when nobody does."""
        for tenant in plan.tenants:
            for process in tenant.processes:
                member = scene.members[process["pid"]]
                signature = Signature(member.name, member.executable, member.container or member.unit, member.uid)
                if self.stopped.get(signature, 0) >= 2:
                    return f"{process_title(process)} comes back each time it is stopped; it is started by {self._parent(scene, member.parent, process)}"
        return ""

    def _parent(self, scene: Scene, parent: int, process: t.Mapping[str, t.Any]) -> str:
        told = (process.get("owner") or {}).get("restarted_by")
        if told:
            return str(told)
        member = scene.members.get(parent)
        if member is None or member.pid == 1:
            return "something that does not stay (its parent is pid 1)"
        place = f" in {member.unit.split(':', 1)[1]}" if member.unit else f" in {member.scope}" if member.scope else ""
        return f"{member.name} (pid {member.pid}){place}; stop that first"

    def _came_back(self, plan: Plan, scene: Scene) -> list[str]:
        names = []
        for tenant in plan.tenants:
            names += [unit.name for unit in tenant.units if unit.key in self.stopped_units and unit.invocation != self.stopped_units[unit.key]]
            names += [f"container {container.name}" for container in tenant.containers if container.key in self.stopped_containers]
            for process in tenant.processes:
                member = scene.members[process["pid"]]
                if Signature(member.name, member.executable, member.container or member.unit, member.uid) in self.stopped:
                    names.append(f"{process_title(process)}, started by {self._parent(scene, member.parent, process)}")
        return names

    def _conclude(self, plan: Plan, scene: Scene) -> Outcome:
        have = (self.facts.get("memory") or {}).get("allocatable")
        if self.wishes.need > 0 and self._reached() and not any(tenant.always for tenant in plan.tenants):
            return self._end(scene, "freed", f"{format_size(have or 0)} can be had, {format_size(self.wishes.need)} were wanted")
        remain = [tenant for tenant in plan.tenants if tenant.units or tenant.containers or tenant.processes]
        if self.stuck:
            return self._end(scene, "unkillable_reboot", f"{', '.join(self.stuck)} cannot be ended; only a reboot frees what it holds")
        if self.denied:
            return self._end(scene, "not_permitted", "; ".join(self.denied))
        if self.stayed:
            return self._end(scene, "still_held", f"{', '.join(self.stayed)} did not end within the grace time")
        back = self._came_back(plan, scene)
        if back:
            return self._end(scene, "respawning", f"started again after being stopped: {'; '.join(back)}")
        if self.facts.get("class") == "unresponsive":
            return self._end(scene, "unresponsive_driver", "the GPU driver no longer answers")
        if remain:
            return self._end(scene, "still_held", f"still running after {self.options.rounds} rounds: {', '.join(tenant.title for tenant in remain)}")
        if plan.verdict == "not_permitted" and self.wishes.need <= 0:
            return self._end(scene, plan.verdict, plan.message)
        left = [process_title(process) for process in scene.holders if (process["pid"], process.get("start_time")) in self.belonged]
        failed = [f"{row['target']}: {row['result']}" for row in self.outcome.actions if row["result"].startswith("failed: ")]
        if left and self.wishes.need <= 0:
            return self._end(scene, "still_held", f"{', '.join(left)} should have ended and has not" + "".join(f"; {text}" for text in failed))
        if not self._returned():
            return self._end(
                scene,
                "held_by_driver",
                f"what was stopped is gone, but the memory has not come back within {self.options.timeout:.0f} s: the driver keeps it. "
                "'drop_page_cache: true' returns what drivers from 590 on keep in pools; else it comes back with time, or with a reboot",
            )
        if self.wishes.need > 0:
            text = f"{format_size(have or 0)} can be had, {format_size(self.wishes.need)} are wanted"
            return self._end(scene, "still_held", f"{text}, and nothing that may be stopped is left")
        before = self.outcome.before.get("allocatable")
        gained = "" if have is None or before is None else f"; a new CUDA process can get {format_size(have)}, before it was {format_size(before)}"
        return self._end(scene, "freed", f"nothing that matches is left{gained}")

    def _returned(self) -> bool:
        """Whether the memory of what was stopped is back in the pool."""
        before, after = self.outcome.before.get("allocatable"), (self.facts.get("memory") or {}).get("allocatable")
        if before is None or after is None or after - before >= self.released - self._slack(self.released):
            return True
        if self.facts.get("class") == "none":
            return True  # no driver that could keep it
        return self._unattributed() is not None and self.first_unattributed is not None and not self._is_coming()

    def _trace(self, memory: t.Mapping[str, t.Any]) -> None:
        have = memory.get("allocatable")
        if have is None:
            have = memory.get("available")
        if have is not None and len(self.outcome.trajectory) < _MAX_TRAJECTORY:
            self.outcome.trajectory.append([round(self.node.monotonic() - self.start, 2), have])

    def _end(self, scene: Scene, verdict: str, message: str, measure: bool = True) -> Outcome:
        self.outcome.verdict = verdict
        self.outcome.message = message
        self.outcome.held_by = self._holders(scene)
        if measure:
            self.outcome.after = dict(self.facts.get("memory") or {}) if self.outcome.changed else self.outcome.before
        if not self.outcome.changed:
            self.outcome.diff_after = dict(self.outcome.diff_before)
            for row in self.outcome.actions:
                row["result"] = "not done" if row["result"] == "planned" else row["result"]
        return self.outcome

    # The journal

    def _entries(self, plan: Plan, scene: Scene) -> list[dict[str, t.Any]]:
        entries = []
        for tenant in plan.tenants:
            common = {"selector": tenant.selector.text, "restore": tenant.policy, "boot_id": scene.boot_id, "at": self.node.now()}
            for role, units in (("companion", tenant.companions), ("service", tenant.units)):
                entries += [{**common, **self._unit_entry(unit, role, scene)} for unit in units]
            entries += [{**common, **self._container_entry(container, tenant, scene)} for container in tenant.containers]
            entries += [
                {
                    **common,
                    "key": process_key(process),
                    "kind": "process",
                    "name": str(process.get("name")),
                    "before": {"command": process.get("command"), "user": process.get("user"), "pid": process["pid"], "start_time": process.get("start_time")},
                }
                for process in tenant.processes
            ]
        return entries

    def _unit_entry(self, unit: Unit, role: str, scene: Scene) -> dict[str, t.Any]:
        pids = [member.pid for member in scene.of_unit(unit.key)]
        return {
            "key": unit.key,
            "kind": "unit",
            "name": unit.name,
            "uid": unit.uid,
            "role": role,
            "before": {
                "active_state": unit.active_state,
                "file_state": unit.file_state,
                "disabled": unit.starts_at_boot,
                "invocation": unit.invocation,
                "links": self.node.systemd.links(unit.name, unit.uid) if unit.starts_at_boot else {},
                "ports": sorted(self.node.listening(pids)) if pids else [],
            },
        }

    def _container_entry(self, container: Container, tenant: Tenant, scene: Scene) -> dict[str, t.Any]:
        pids = [member.pid for member in scene.of_container(container.key)]
        published = set(container.ports) & self.node.listening()
        return {
            "key": container.key,
            "kind": "container",
            "name": container.name,
            "engine": container.engine,
            "unit": next((unit.key for unit in tenant.units if container.key in scene.wraps.get(unit.key, [])), None),
            "before": {
                "id": container.id,
                "image": container.image,
                "policy": container.policy,
                "policy_retries": container.policy_retries,
                "auto_remove": container.auto_remove,
                "health": container.health,
                "shares": list(container.shares),
                "project": container.project,
                "service": container.labels.get("com.docker.compose.service"),
                "depends_on": container.labels.get("com.docker.compose.depends_on"),
                "ports": sorted(published | self.node.listening(pids)) if pids else sorted(published),
            },
        }


def _pauses() -> t.Iterator[float]:
    """Growing pauses, then the longest one again and again."""
    yield from _PAUSES
    while True:
        yield _PAUSES[-1]


def inventory_line(selector: str | None) -> str | None:
    """The line of an inventory that would permit stopping what a selector names; None where nothing would."""
    if selector is None:
        return None
    restore = "never" if selector.startswith("process:") else "on_failure"
    return f"- {{selector: '{selector}', policy: if_needed, restore: {restore}}}"


def _action(step: Step, number: int, freed: int) -> dict[str, t.Any]:
    return {
        "target": step.target,
        "layer": step.layer,
        "action": step.action,
        "result": "planned",
        "freed": freed,
        "round": number,
        "reason": step.reason,
        "key": step.key,
    }


def _refusal(refusal: Refusal) -> dict[str, t.Any]:
    return {
        "target": refusal.target,
        "code": refusal.code,
        "reason": refusal.reason,
        "selector": refusal.selector,
        "permit": refusal.permit,
        "inventory": inventory_line(refusal.permit),
    }
