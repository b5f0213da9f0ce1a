# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make room: look, plan, write it down, have it stopped, measure, look again; and say what came of it.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.
"""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.unimem.dgx_spark.plugins.module_utils._advice import Advice, advise
from ansible_collections.unimem.dgx_spark.plugins.module_utils._entries import journal_entries
from ansible_collections.unimem.dgx_spark.plugins.module_utils._journal import Journal, JournalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._node import Node, pauses
from ansible_collections.unimem.dgx_spark.plugins.module_utils._outcome import Options, Outcome
from ansible_collections.unimem.dgx_spark.plugins.module_utils._plan import CACHE_SHARE, Plan, Step, cache_helps, make_plan
from ansible_collections.unimem.dgx_spark.plugins.module_utils._recovery import Recovery
from ansible_collections.unimem.dgx_spark.plugins.module_utils._respawn import Respawns
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import Selector
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import Identity, SignalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size, format_sizes
from ansible_collections.unimem.dgx_spark.plugins.module_utils._stopper import Stopper
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tenants import Refusal, Seen, Tenant, Wishes, process_title
from ansible_collections.unimem.dgx_spark.plugins.module_utils._unmatched import unmatched

#: Seconds until the driver is asked for the first time whether memory that is not back yet has a reason that it knows.
_FIRST_LOOK = 0.15

#: How results of actions begin that have not come about.
_UNFINISHED = ("failed: ", "still running", "still there", "cannot be killed")


class Reclaimer:
    """One run of ``state=report`` or ``state=freed``."""

    def __init__(self, node: Node, journal: Journal, wishes: Wishes, options: Options) -> None:
        self.node = node
        self.journal = journal
        self.wishes = wishes
        self.options = options
        self.outcome = Outcome()
        self.start = node.monotonic()
        self.deadline = self.start + options.timeout
        self.stopper = Stopper(node, journal, options, self.outcome, self.deadline)
        self.respawns = Respawns(node, self.stopper)
        self.recovery = Recovery()
        self.facts: dict[str, t.Any] = {}
        #: identities (pid, start time) of what belonged to what was stopped, with the selector it was stopped for
        self.belonged: dict[tuple[int, int], t.Any] = {}
        #: identities of what bare processes that were stopped had started
        self.offspring: set[tuple[int, int]] = set()
        self.listed: set[int] = set()
        self.considered: set[tuple[int, t.Any]] = set()
        self.outlived: set[tuple[int, t.Any]] = set()

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

    def _gather(self) -> None:
        self.facts = self.node.gather()
        self.recovery.see(self.facts)

    def _seen(self) -> Seen:
        return Seen(self.belonged, self.stopper.containers, self.recovery.pending)

    def _look(self) -> tuple[Plan, Scene]:
        self._gather()
        scene = self.node.scene(self.facts)
        scene.evicted = {entry["key"] for entry in self.journal.open_entries}
        plan = make_plan(scene, self.wishes, self._seen())
        self.listed = plan.listed
        self.considered.update((process["pid"], process.get("start_time")) for process in scene.holders)
        self._trace(self.facts.get("memory") or {})
        if not self.outcome.before:
            self.outcome.before = dict(self.facts.get("memory") or {})
            self.outcome.notes.extend(scene.problems)
            nothing = self._note_unmatched(scene, self.wishes.protect, "protected")
            self.outcome.protection = {"matched": [each.text for each in self.wishes.protect if each.text not in nothing], "unmatched": nothing}
            named = [each for each in self.wishes.stop if not each.is_wide and not any(each.matches_entry(entry) for entry in self.journal.open_entries)]
            self._note_unmatched(scene, named, "stopped")
        return plan, scene

    def _note_unmatched(self, scene: Scene, selectors: t.Sequence[Selector], wish: str) -> list[str]:
        """Say which selectors nothing matches, and return them."""
        nothing = unmatched(scene, self.node.systemd, selectors)
        self.outcome.notes.extend(f"'{text}' is to be {wish}, and nothing on this node matches it now; is it misspelt?" for text in nothing)
        return nothing

    def _show(self, plan: Plan, scene: Scene, number: int) -> None:
        """Put a plan into the outcome, as far as it is not there."""
        for step in plan.steps:
            self.outcome.actions.append(_action_row(step, number, self._holds(scene, step)))
        for refusal in plan.refusals:
            row = _refusal_row(refusal)
            if row not in self.outcome.refused:
                self.outcome.refused.append(row)
        for unit in (unit for tenant in plan.tenants for unit in (*tenant.companions, *tenant.units) if unit.successors):
            note = f"{unit.name} has {', '.join(unit.successors)} started when it ends (OnSuccess=, OnFailure=); what that does is not undone"
            if note not in self.outcome.notes:
                self.outcome.notes.append(note)
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
            if protected:
                advice = Advice([], f"it is never stopped: {protected}" if keeper is None else protected)
            elif listed:
                advice = Advice([], "")
            else:
                advice = advise(scene, self.wishes, self._seen(), process)
            rows.append(
                {
                    **process,
                    "protected": protected,
                    "listed": listed,
                    "missing": advice.missing or None,
                    "permit": advice.permits[0].selector if advice.permits else None,
                    "inventory": "\n".join(permit.line for permit in advice.permits) or None,
                }
            )
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
                return self._end(scene, "not_permitted", "; ".join(self.stopper.denied) or "nothing was stopped")
            while True:
                self._wait(stopping, scene.boot_id)
                plan, scene = self._look()
                over = self.stopper.failed or self.node.monotonic() >= self.deadline
                if over or plan.steps or self._satisfied(plan) or not self.recovery.is_coming:
                    break
            back = self.respawns.came_back(scene)
            self.outcome.notes.extend(note for note in back if note not in self.outcome.notes)
            again = "" if over else self.respawns.seen_in(plan, scene)
            if not again and self._satisfied(plan):
                # What is free now is as good as gone: it has only not taken its memory yet.
                again = "; ".join(back)
            if again:
                return self._end(scene, "respawning", again)
            if self._satisfied(plan) or over or number >= self.options.rounds:
                break
            if not plan.steps:
                break
            number += 1
            self._show(plan, scene, number)
        again = self.respawns.watch(scene, self.deadline) if not over and (self._satisfied(plan) or not plan.steps) else ""
        if again:
            _plan, scene = self._look()
            return self._end(scene, "respawning", again)
        return self._conclude(plan, scene)

    def _carry_out(self, plan: Plan, scene: Scene, number: int) -> bool:
        """One round. False when nothing could be begun."""
        rows = [row for row in self.outcome.actions if row["round"] == number]
        try:
            self.journal.record(journal_entries(self.node, plan, scene))
        except JournalError as exc:
            self.stopper.denied.append(f"{exc}; nothing is stopped without a journal")
            for row in rows:
                row["result"] = "not done: no journal"
            return False
        self.recovery.released += sum(process.get("memory") or 0 for tenant in plan.tenants for process in tenant.holders)
        for tenant in plan.tenants:
            for member in tenant.members:
                self.belonged[(member.pid, member.start_time)] = tenant.selector
            for process in tenant.processes:
                bare = [member for member in scene.offspring(process["pid"]) if member.unit is None and member.container is None]
                self.offspring.update((member.pid, member.start_time) for member in bare)
        self.respawns.see(plan, scene)
        steps = {(row["key"], row["action"]): row for row in rows}
        if plan.drop_cache:
            self._drop_cache(steps[("cache", "drop")])
            if not self._needed():
                for row in rows:
                    if row["result"] == "planned":
                        row["result"] = "not needed any more"
                return True
        if not self.stopper.disable(plan, steps):
            return False
        self.stopper.stop(plan, scene, steps)
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

    # Waiting and judging

    def _wait(self, plan: Plan, boot: str) -> None:
        """Wait until the memory is back, something new matches, or the time is over."""
        klass = str(self.facts.get("class"))
        ended = [process for tenant in self._ended(plan) for process in tenant.holders]
        stopped = {(process["pid"], process.get("start_time")) for process in ended}
        # What has not ended in time is no news.
        self.outlived.update({(process["pid"], process.get("start_time")) for tenant in plan.tenants for process in tenant.holders} - stopped)
        released = sum(process.get("memory") or 0 for process in ended)
        then = (self.facts.get("memory") or {}).get("allocatable")
        target = self.wishes.need if self.wishes.need > 0 else None if then is None else then + max(0, released - self.recovery.slack(released))
        interval = _FIRST_LOOK
        look = self.node.monotonic() + interval
        for pause in pauses(self.node):
            memory = self.node.memory(klass)
            self._trace(memory)
            have = memory.get("allocatable")
            if target is not None and have is not None and have >= target:
                return
            if not ended and self.stopper.failed:
                return
            # Asking the driver costs a process each time, so it is asked less often as time goes on.
            if self.node.monotonic() >= look or target is None:
                interval = min(10.0, 2 * interval)
                look = self.node.monotonic() + interval
                self._gather()
                if self._settled(stopped) or self._something_new(stopped, boot):
                    return
            if self.node.monotonic() >= self.deadline:
                return
            self.node.pause(min(pause, max(0.0, self.deadline - self.node.monotonic())))

    def _ended(self, plan: Plan) -> list[Tenant]:
        """The tenants all of whose parts did what was asked: what the others hold is not on its way."""
        failed = {row["key"] for row in self.outcome.actions if row["result"].startswith(_UNFINISHED)}
        return [tenant for tenant in plan.tenants if not failed & tenant.keys]

    def _settled(self, stopped: t.Collection[tuple[int, t.Any]]) -> bool:
        """Whether what was stopped is gone and the pool no longer misses what it held, whatever others have taken since."""
        listed = {(process.get("pid"), process.get("start_time")) for process in self.facts.get("processes") or []}
        if any(each in listed for each in stopped):
            return False
        if not self.recovery.is_known:
            return self.facts.get("class") == "none" or (self.facts.get("memory") or {}).get("allocatable") is None
        return not self.recovery.is_coming

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

    def _conclude(self, plan: Plan, scene: Scene) -> Outcome:
        have = (self.facts.get("memory") or {}).get("allocatable")
        have_text, need_text = format_sizes(have or 0, self.wishes.need)
        if self.wishes.need > 0 and self._reached() and not any(tenant.always for tenant in plan.tenants):
            return self._end(scene, "freed", f"{have_text} can be had, {need_text} were wanted")
        remain = [tenant for tenant in plan.tenants if tenant.units or tenant.containers or tenant.processes]
        if self.stopper.stuck:
            return self._end(scene, "unkillable_reboot", f"{', '.join(self.stopper.stuck)} cannot be ended; only a reboot frees what it holds")
        if self.stopper.denied:
            return self._end(scene, "not_permitted", "; ".join(self.stopper.denied))
        if self.stopper.stayed:
            return self._end(scene, "still_held", f"{', '.join(self.stopper.stayed)} did not end; {'; '.join(self._unfinished())}")
        back = self.respawns.still_come(plan, scene)
        if back:
            return self._end(scene, "respawning", f"started again after being stopped: {'; '.join(back)}")
        if self.facts.get("class") == "unresponsive":
            return self._end(scene, "unresponsive_driver", "the GPU driver no longer answers")
        if remain:
            text = f"still running after {self.options.rounds} rounds: {', '.join(tenant.title for tenant in remain)}"
            return self._end(scene, "still_held", "; ".join((text, *self._unfinished())))
        if plan.verdict == "not_permitted" and self.wishes.need <= 0:
            return self._end(scene, plan.verdict, plan.message)
        left = [process_title(process) for process in scene.holders if (process["pid"], process.get("start_time")) in self.belonged]
        if left and self.wishes.need <= 0:
            return self._end(scene, "still_held", "; ".join((f"{', '.join(left)} should have ended and has not", *self._unfinished())))
        orphans = [process_title(process) for process in scene.holders if (process["pid"], process.get("start_time")) in self.offspring]
        if orphans and self.wishes.need <= 0:
            text = f"{', '.join(orphans)} was started by what was stopped, and holds GPU memory without being listed"
            return self._end(scene, "still_held", text)
        if not self.recovery.is_back(self.outcome.before):
            return self._end(
                scene,
                "held_by_driver",
                f"what was stopped is gone, but the memory has not come back within {self.options.timeout:.0f} s: the driver keeps it. "
                "'drop_page_cache: true' returns what drivers from 590 on keep in pools; else it comes back with time, or with a reboot",
            )
        if self.wishes.need > 0:
            return self._end(scene, "still_held", f"{have_text} can be had, {need_text} are wanted, and nothing that may be stopped is left")
        before = self.outcome.before.get("allocatable")
        gained = ""
        if have is not None and before is not None:
            now_text, before_text = format_sizes(have, before)
            gained = f"; a new CUDA process can get {now_text}, before it was {before_text}"
        return self._end(scene, "freed", f"nothing that matches is left{gained}")

    def _unfinished(self) -> list[str]:
        """What was asked of a thing and has not come about, in words."""
        return [f"{row['target']}: {row['result']}" for row in self.outcome.actions if row["result"].startswith(_UNFINISHED)]

    def _trace(self, memory: t.Mapping[str, t.Any]) -> None:
        self.outcome.trace(self.node.monotonic() - self.start, memory)

    def _end(self, scene: Scene, verdict: str, message: str, measure: bool = True) -> Outcome:
        self.outcome.verdict = verdict
        self.outcome.message = message
        self.outcome.held_by = self._holders(scene)
        self.outcome.notes.extend(self.respawns.living_starters())
        if measure:
            self.outcome.after = dict(self.facts.get("memory") or {}) if self.outcome.changed else self.outcome.before
        if not self.outcome.changed:
            self.outcome.diff_after = dict(self.outcome.diff_before)
            for row in self.outcome.actions:
                row["result"] = "not done" if row["result"] == "planned" else row["result"]
        return self.outcome


def _action_row(step: Step, number: int, freed: int) -> dict[str, t.Any]:
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


def _refusal_row(refusal: Refusal) -> dict[str, t.Any]:
    return {
        "target": refusal.target,
        "code": refusal.code,
        "reason": refusal.reason,
        "selector": refusal.selector,
        "missing": refusal.lacks,
        "permit": refusal.permit.selector if refusal.permit else None,
        "inventory": refusal.permit.line if refusal.permit else None,
    }
