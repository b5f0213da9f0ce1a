# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop what a plan names: out of the next boot, units, containers, processes; and remember what came of each.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

What is to be stopped is stopped side by side, so that the time it takes is that of the slowest. Nothing waits a fixed time:
processes are waited for through their pidfd, units by systemd, containers by their engine.
"""

from __future__ import annotations

import signal
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container, Engine, EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._journal import SETTLED, STOPPED, Journal, JournalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._node import Node, pauses
from ansible_collections.unimem.dgx_spark.plugins.module_utils._outcome import Options, Outcome
from ansible_collections.unimem.dgx_spark.plugins.module_utils._plan import Plan
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Member, Scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import DEAD_STATES, ProcessHandle, SignalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import SystemdError, Unit, explain, is_denied
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tenants import process_key

#: Seconds after SIGKILL in which a process that can end has ended.
KILL_SECONDS = 10.0

#: States in which a process that was sent SIGKILL is stuck in the kernel: asleep there, or spinning in a driver.
_STUCK = ("D", "R")

#: The rows of a round in ``actions``, by key and action.
Rows = t.Mapping[tuple[str, str], dict[str, t.Any]]


class Signature(t.NamedTuple):
    """By what a process that came back is known: the pid is new, the rest is not."""

    name: str
    executable: str | None
    place: str | None
    uid: int | None


def signature(member: Member) -> Signature:
    """See Signature."""
    return Signature(member.name, member.executable, member.container or member.unit, member.uid)


class _Signalled(t.NamedTuple):
    """A container that was asked to end, its row, when it was asked, and since when it ran then."""

    container: Container
    row: dict[str, t.Any]
    since: float
    started_at: str


class _Ending(t.NamedTuple):
    """A process that was asked to end, its row, and when it was asked."""

    row: dict[str, t.Any]
    handle: ProcessHandle
    since: float


class Stopper:
    """What one run stops, over all its rounds. The rows of ``outcome.actions`` are filled in as things end."""

    def __init__(self, node: Node, journal: Journal, options: Options, outcome: Outcome, deadline: float) -> None:
        self.node = node
        self.journal = journal
        self.options = options
        self.outcome = outcome
        self.deadline = deadline
        #: units that were stopped, with the invocation that was
        self.units: dict[str, str] = {}
        #: containers that were stopped, by key, as they were
        self.containers: dict[str, Container] = {}
        #: how often processes of one kind were stopped
        self.processes: dict[Signature, int] = {}
        #: these processes, by pid and start time, as they were
        self.bare: dict[tuple[int, int], Member] = {}
        #: when each process and container ended, by its key
        self.ended: dict[str, float] = {}
        #: what nothing ends, what did not end in time, and what was refused
        self.stuck: list[str] = []
        self.stayed: list[str] = []
        self.denied: list[str] = []

    @property
    def failed(self) -> bool:
        """Whether anything has not ended that was to end. Another round would not end it either."""
        return bool(self.stuck or self.stayed or self.denied)

    def disable(self, plan: Plan, steps: Rows) -> bool:
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
                row["result"] = "disabled" if action == "disable" else "masked"
                self.outcome.changed = True
                done.append((unit, action))
        for unit, action in done:
            word = "disabled" if action == "disable" else "masked"
            self.outcome.notes.append(
                f"{unit.name} is {word} for as long as it is evicted, since the next boot would start it before the model; 'state: restored' undoes that"
            )
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

    def stop(self, plan: Plan, scene: Scene, steps: Rows) -> None:
        """Stop all tenants of a plan, side by side, and wait for their ends. What came of it is in the rows and in the lists above."""
        units = [unit for tenant in plan.tenants for unit in tenant.units]
        # First what would start others again: it must have ended before they do.
        keepers = [unit for unit in units if any(unit.name in other.upheld_by for other in units)]
        self._stop_units([*(unit for tenant in plan.tenants for unit in tenant.companions), *keepers], steps, wait=True)
        pending = self._stop_units([unit for unit in units if unit not in keepers], steps, wait=False)
        keys = {unit.key for unit in units}
        wrapped = {key for unit in keys for key in scene.wraps.get(unit, [])}
        containers = [container for tenant in plan.tenants for container in tenant.containers]
        signalled = self._signal_containers([each for each in containers if each.key not in wrapped], steps)
        ending: list[_Ending] = []
        for tenant in plan.tenants:
            for process in tenant.processes:
                ending += self._terminate(process, scene, steps[(process_key(process), "terminate")])
        for finish in pending:
            finish()
        signalled += self._signal_containers([each for each in containers if each.key in wrapped], steps)
        self._await_containers(signalled)
        self._await_processes(ending)

    def _left(self) -> float:
        return max(1.0, self.deadline - self.node.monotonic())

    def _mark(self, key: str, state: str, **details: t.Any) -> None:
        """Note an end in the journal. Where that fails the entry stays open, so that it is restored all the same."""
        try:
            self.journal.mark([key], state, stopped_at=self.node.now(), **details)
        except JournalError as exc:
            note = f"{exc}; what was stopped is in it all the same, so 'state: restored' puts it back"
            if note not in self.outcome.notes:
                self.outcome.notes.append(note)

    # Units

    def _stop_units(self, units: t.Sequence[Unit], steps: Rows, wait: bool) -> list[t.Callable[[], None]]:
        """Begin to stop units, those of one manager in one call. Returns what waits for them, which is done at once with ``wait``."""
        pending: list[t.Callable[[], None]] = []
        for uid in dict.fromkeys(unit.uid for unit in units):
            mine = self._unchanged([unit for unit in units if unit.uid == uid], uid, steps)
            if not mine:
                continue
            # One that systemd would wait for without end gets the grace time and no more.
            seconds = max([self.options.grace, *(unit.stop_seconds + 5.0 for unit in mine if unit.stop_seconds is not None)])
            run = self.node.systemd.start_stopping([unit.name for unit in mine], uid, min(seconds, self._left()))
            self.outcome.changed = True

            def finish(run: t.Any = run, mine: tuple[Unit, ...] = tuple(mine), uid: int | None = uid) -> None:
                self._finish_units(run.finish(), list(mine), uid, steps)

            if wait:
                finish()
            else:
                pending.append(finish)
        return pending

    def _unchanged(self, units: list[Unit], uid: int | None, steps: Rows) -> list[Unit]:
        """Those that are still what was planned: the same invocation, with the same dependents."""
        try:
            now = self.node.systemd.show([unit.name for unit in units], uid)
        except SystemdError as exc:
            for unit in units:
                steps[(unit.key, "stop")]["result"] = f"failed: {exc}"
                self.stayed.append(unit.name)
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

    def _finish_units(self, result: t.Any, units: list[Unit], uid: int | None, steps: Rows) -> None:
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
        for pause in pauses(self.node):
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
        self.units[unit.key] = unit.invocation
        self._mark(unit.key, STOPPED)

    # Containers

    def _signal_containers(self, containers: t.Sequence[Container], steps: Rows) -> list[_Signalled]:
        """Restart policy first, then the container's own stop signal. Returns those to wait for."""
        waiting = []
        for container in containers:
            row = steps[(container.key, "stop")]
            engine = self.node.engine(container.engine)
            if engine is None:
                row["result"] = f"failed: {container.engine} does not answer any more"
                self.stayed.append(f"container {container.name}")
                continue
            try:
                now = engine.inspect(container.id) if self._set_policy(engine, container, steps) else None
                if now is not None and now.running:
                    self._signal_container(engine, container)
                    waiting.append(_Signalled(container, row, self.node.monotonic(), now.started_at))
                else:
                    self._record_container(container, row, "stopped")
            except EngineError as exc:
                row["result"] = f"failed: {exc}"
                if exc.code == "denied":
                    self.denied.append(f"stopping container {container.name}: {exc}")
                else:
                    self.stayed.append(f"container {container.name}")
        return waiting

    def _signal_container(self, engine: Engine, container: Container) -> None:
        try:
            engine.signal(container.id, container.stop_signal)
        except EngineError as exc:
            # It ended between the look and the signal: what was wanted, and the wait will see it.
            if exc.code not in ("conflict", "missing") or _is_running(engine, container):
                raise
        self.outcome.changed = True

    def _set_policy(self, engine: Engine, container: Container, steps: Rows) -> bool:
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

    def _await_containers(self, waiting: t.Sequence[_Signalled]) -> None:
        """Wait for those that were signalled, in the engine and not by looking again; SIGKILL what stays, if that is allowed."""
        late = []
        for each in waiting:
            if self._ends(each, each.since + self.options.grace, "stopped") or each.row["result"] != "planned":
                continue
            if self.options.kill_leftovers:
                late.append(each)
            else:
                seconds = f"{self.options.grace:.0f} s after {each.container.stop_signal}"
                each.row["result"] = f"still running {seconds}; 'kill_leftovers: true' would allow SIGKILL"
                self.stayed.append(f"container {each.container.name}")
        for each in late:
            self._kill_container(each)
        end = self.node.monotonic() + KILL_SECONDS
        for each in late:
            if not self._ends(each, end, "killed") and each.row["result"] == "planned":
                each.row["result"] = "still running after SIGKILL"
                self.stuck.append(f"container {each.container.name}")

    def _ends(self, each: _Signalled, until: float, how: str) -> bool:
        """Whether a container has ended by then (as node.monotonic() counts, and within the whole's deadline); recorded if so."""
        container, row = each.container, each.row
        engine = self.node.engine(container.engine)
        try:
            if engine is None:
                raise EngineError("unreachable", f"{container.engine} does not answer any more")
            # What has ended is seen even where no time is left to wait.
            engine.wait(container.id, max(0.0, min(until, self.deadline) - self.node.monotonic()))
            now = engine.inspect(container.id)
        except EngineError as exc:
            row["result"] = f"failed: {exc}"
            self.stayed.append(f"container {container.name}")
            return False
        again = now is not None and now.running and now.started_at != each.started_at
        if now is not None and now.running and not again:
            return False
        self._record_container(container, row, f"{how}, and started again by something else" if again else how)
        return True

    def _record_container(self, container: Container, row: dict[str, t.Any], how: str) -> None:
        row["result"] = how
        self.containers[container.key] = container
        self.ended[container.key] = self.node.monotonic()
        self._mark(container.key, STOPPED)

    def _kill_container(self, each: _Signalled) -> None:
        container = each.container
        engine = self.node.engine(container.engine)
        try:
            now = None if engine is None else engine.inspect(container.id)
            if engine is not None and now is not None and now.started_at == each.started_at:
                engine.signal(container.id, "SIGKILL")
        except EngineError as exc:
            self.outcome.notes.append(f"SIGKILL to container {container.name}: {exc}")

    # Processes

    def _terminate(self, process: dict[str, t.Any], scene: Scene, row: dict[str, t.Any]) -> list[_Ending]:
        """Ask a process to end. What to wait for, if it was asked."""
        identity = scene.identity(process)
        if identity is None:
            row["result"] = "left alone: it is another process by now"
            return []
        try:
            handle = self.node.open_process(identity)
        except SignalError as exc:
            self._not_signalled(row, exc)
            return []
        try:
            handle.send(signal.SIGTERM)
        except SignalError as exc:
            handle.close()
            self._not_signalled(row, exc)
            return []
        self.outcome.changed = True
        member = scene.members[identity.pid]
        kind = signature(member)
        self.processes[kind] = self.processes.get(kind, 0) + 1
        self.bare[member.pid, member.start_time] = member
        return [_Ending(row, handle, self.node.monotonic())]

    def _not_signalled(self, row: dict[str, t.Any], exc: SignalError) -> None:
        row["result"] = "ended by itself" if exc.code == "gone" else f"left alone: {exc}"
        if exc.code in ("not_permitted", "unsupported"):
            self.denied.append(str(exc))

    def _await_processes(self, ending: t.Sequence[_Ending]) -> None:
        late = []
        for each in ending:
            if each.handle.wait(min(each.since + self.options.grace, self.deadline) - self.node.monotonic()):
                self._ended(each, "ended")
            elif not self.options.kill_leftovers:
                each.row["result"] = f"still running {self.options.grace:.0f} s after SIGTERM; 'kill_leftovers: true' would allow SIGKILL"
                self.stayed.append(each.row["target"])
                each.handle.close()
            else:
                late.append(each)
        for each in late:
            try:
                each.handle.send(signal.SIGKILL)
            except SignalError as exc:
                each.row["result"] = "ended" if exc.code == "gone" else f"left alone: {exc}"
        for each in late:
            if each.handle.wait(KILL_SECONDS):
                self._ended(each, "killed")
                continue
            state = each.handle.state()
            if state in _STUCK:
                each.row["result"] = f"cannot be killed: it is stuck in the kernel (state {state})"
                self.stuck.append(each.row["target"])
            elif state is None or state in DEAD_STATES:
                each.row["result"] = "killed"
            else:
                each.row["result"] = f"still there {KILL_SECONDS:.0f} s after SIGKILL (state {state})"
                self.stuck.append(each.row["target"])
            each.handle.close()

    def _ended(self, ending: _Ending, how: str) -> None:
        ending.handle.close()
        self.ended[ending.row["key"]] = self.node.monotonic()
        ending.row["result"] = how
        self._mark(ending.row["key"], SETTLED, note="a process cannot be restored")


def _is_running(engine: Engine, container: Container) -> bool:
    now = engine.inspect(container.id)
    return now is not None and now.running
