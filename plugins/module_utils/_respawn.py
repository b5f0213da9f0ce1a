# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether what was stopped is started again, and by whom.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

Units and containers are seen by looking again. A bare process has no such record: what tells it is that another one of its
kind has the same line of parents. It is watched for only while somebody lives who could start it.
"""

from __future__ import annotations

import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container
from ansible_collections.unimem.dgx_spark.plugins.module_utils._node import Node, pauses
from ansible_collections.unimem.dgx_spark.plugins.module_utils._plan import Plan
from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import script_of
from ansible_collections.unimem.dgx_spark.plugins.module_utils._protect import protected_program
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Member, Scene, names_started
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import DEAD_STATES
from ansible_collections.unimem.dgx_spark.plugins.module_utils._stopper import Stopper, signature
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tenants import process_title

#: Seconds after the end of a bare process in which it is watched for the next one of its kind: loops in scripts sleep a second or two.
WATCH_SECONDS = 3.0


class Sight(t.Protocol):
    """What is needed of each process to see who descends from whom; a Member and a Stat have it."""

    @property
    def parent(self) -> int: ...

    @property
    def start_time(self) -> int: ...

    @property
    def state(self) -> str: ...


class Shape(t.Protocol):
    """What makes a process the same thing again; a Member and a Process have it."""

    @property
    def name(self) -> str: ...

    @property
    def start_time(self) -> int: ...

    @property
    def argv(self) -> tuple[str, ...]: ...

    @property
    def executable(self) -> str | None: ...

    @property
    def uid(self) -> int | None: ...


class Respawns:
    """Looks for what comes back, over all rounds of one run."""

    def __init__(self, node: Node, stopper: Stopper) -> None:
        self.node = node
        self.stopper = stopper
        #: identities (pid, start time) of all processes that were there before the last stop
        self.known: set[tuple[int, int]] = set()
        #: the line of parents of each bare process that was to be stopped, as far as they could start it again, nearest first
        self.lines: dict[tuple[int, int], list[Member]] = {}

    def see(self, plan: Plan, scene: Scene) -> None:
        """Remember what is there before a round begins to stop."""
        self.known.update((member.pid, member.start_time) for member in scene.members.values())
        for tenant in plan.tenants:
            for process in tenant.processes:
                member = scene.members.get(process["pid"])
                if member is not None:
                    self.lines[member.pid, member.start_time] = _line(scene, member)

    # Bare processes

    def seen_in(self, plan: Plan, scene: Scene) -> str:
        """Who starts processes again that were stopped: twice already, or so soon that it holds no GPU memory yet. Empty when nobody does."""
        reborn = self._reborn(scene.members, scene.members.get, {process["pid"] for process in scene.holders})
        if reborn:
            return reborn
        for tenant in plan.tenants:
            for process in tenant.processes:
                member = scene.members[process["pid"]]
                if self.stopper.processes.get(signature(member), 0) >= 2:
                    return f"{process_title(process)} comes back each time it is stopped; it is started by {starter(scene, member.parent, process)}"
        return ""

    def watch(self, deadline: float) -> str:
        """The same for those that come back later, watched for while somebody lives who could start them; empty when nobody has."""
        end = min(self.stopper.last_end + WATCH_SECONDS, deadline)
        for pause in pauses(self.node):
            if not self.stopper.bare:
                break
            now = self.node.processes()
            reborn = self._reborn(now, self.node.process)
            if reborn:
                return reborn
            left = end - self.node.monotonic()
            if left <= 0 or not any(self._living(identity, now) for identity in self.stopper.bare):
                break
            self.node.pause(min(pause, left))
        return ""

    def living_starters(self) -> list[str]:
        """For each bare process that was stopped: who has started it and still runs, in words."""
        if not self.stopper.bare:
            return []
        now = self.node.processes()
        notes = []
        for identity, was in self.stopper.bare.items():
            living = None if _lives(was, now) else self._living(identity, now)
            if living is not None:
                notes.append(f"{was.name} (pid {was.pid}) was started by {describe(living)}, which still runs; if that starts it again, stop that first")
        return notes

    def _living(self, identity: tuple[int, int], now: t.Mapping[int, Sight]) -> Member | None:
        """The nearest parent of a stopped process that lives."""
        return next((each for each in self.lines.get(identity, []) if _lives(each, now)), None)

    def _reborn(self, now: t.Mapping[int, Sight], read: t.Callable[[int], Shape | None], but: t.Collection[int] = ()) -> str:
        for pid, sight in now.items():
            if pid in but or (pid, sight.start_time) in self.known or sight.state in DEAD_STATES:
                continue
            for identity, was in self.stopper.bare.items():
                living = self._living(identity, now)
                if living is None or not self._descends(sight, living, now):
                    continue
                shape = read(pid)
                if shape is not None and shape.start_time == sight.start_time and is_again(shape, was):
                    return (
                        f"{shape.name} (pid {pid}, it was {was.pid}) has been started again, and will take the memory back; "
                        f"it is started by {describe(living)}; stop that first"
                    )
        return ""

    def _descends(self, sight: Sight, ancestor: Member, now: t.Mapping[int, Sight]) -> bool:
        """Whether only what is new is between a process and that ancestor: what was there before has other children of its own."""
        above, steps = sight.parent, 0
        while above != ancestor.pid:
            between = now.get(above)
            if between is None or (above, between.start_time) in self.known or steps > len(now):
                return False
            above, steps = between.parent, steps + 1
        return True

    # Units and containers

    def came_back(self, scene: Scene) -> list[str]:
        """Units and containers that were stopped and run again."""
        found = []
        for key, invocation in self.stopper.units.items():
            unit = scene.units.get(key)
            if unit is not None and unit.running and unit.invocation != invocation:
                found.append(f"{unit.name} was stopped and has been started again, by none of its own sockets, timers or paths")
        for container in scene.containers.values():
            if self._was_stopped(container):
                found.append(f"container {container.name} was stopped and has been started again{_client_of(scene, container)}")
        return found

    def still_come(self, plan: Plan, scene: Scene) -> list[str]:
        """What a further round would have to stop once more."""
        names = []
        for tenant in plan.tenants:
            names += [unit.name for unit in tenant.units if unit.key in self.stopper.units and unit.invocation != self.stopper.units[unit.key]]
            names += [f"container {container.name}{_client_of(scene, container)}" for container in tenant.containers if self._was_stopped(container)]
            for process in tenant.processes:
                member = scene.members[process["pid"]]
                if signature(member) in self.stopper.processes:
                    names.append(f"{process_title(process)}, started by {starter(scene, member.parent, process)}")
        return names

    def _was_stopped(self, container: Container) -> bool:
        """Whether it is one that was stopped, or a new one of its name (``docker run --rm --name`` in a loop)."""
        return any(container.key == key or (container.name, container.engine) == (was.name, was.engine) for key, was in self.stopper.containers.items())


def is_again(shape: Shape, was: Member) -> bool:
    """Whether a new process is the next one of its kind: the same words, the same program, the same user."""
    return (shape.argv, shape.executable, shape.uid) == (was.argv, was.executable, was.uid)


def describe(member: Member) -> str:
    """A process that starts others, for people."""
    script = script_of(member.argv, member.executable)
    name = f"{member.name} {script}" if script and script != member.name else member.name
    place = f" in {member.unit.split(':', 1)[1]}" if member.unit else f" in {member.scope}" if member.scope else ""
    return f"{name} (pid {member.pid}){place}"


def starter(scene: Scene, parent: int, process: t.Mapping[str, t.Any]) -> str:
    """Who starts a process again, as far as that can be seen."""
    told = (process.get("owner") or {}).get("restarted_by")
    if told:
        return str(told)
    member = scene.members.get(parent)
    if member is None or member.pid == 1:
        return "something that does not stay (its parent is pid 1)"
    return f"{describe(member)}; stop that first"


def _line(scene: Scene, member: Member) -> list[Member]:
    """The parents of a process up to the first that starts nothing again: init, a service manager, sshd, a container runtime, a desktop."""
    line: list[Member] = []
    above = scene.members.get(member.parent)
    while above is not None and above.pid > 1 and above not in line and protected_program(above.name) is None:
        line.append(above)
        above = scene.members.get(above.parent)
    return line


def _lives(member: Member, now: t.Mapping[int, Sight]) -> bool:
    sight = now.get(member.pid)
    return sight is not None and sight.start_time == member.start_time and sight.state not in DEAD_STATES


def _client_of(scene: Scene, container: Container) -> str:
    """By whom, where a client that runs this container or waits for it tells."""
    for member in scene.members.values():
        if container.name in names_started(member.argv)[0]:
            above = scene.members.get(member.parent)
            return f", by {describe(above if above is not None and above.pid > 1 else member)}"
    return ""
