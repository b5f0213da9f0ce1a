# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether what was stopped is started again, and by whom.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

What runs again is seen by looking again. A loop in a script takes a while, though, so that what such a script has started is
watched for: a bare process, of which the next one has the same line of parents, and a container with a client that somebody runs
by hand. Nothing is watched for that nobody is known to start: neither units, nor what has lost its parents.
"""

from __future__ import annotations

import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container, EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._node import Node, pauses
from ansible_collections.unimem.dgx_spark.plugins.module_utils._plan import Plan
from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import is_interpreter, script_of
from ansible_collections.unimem.dgx_spark.plugins.module_utils._protect import protected_program
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Member, Scene, names_started
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import DEAD_STATES
from ansible_collections.unimem.dgx_spark.plugins.module_utils._stopper import Stopper, signature
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tenants import process_key, process_title

#: Seconds after the end of a thing in which it is watched for: loops in scripts sleep a second or two.
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
        #: who could start each bare process and container again that was to be stopped, by its key, nearest first
        self.lines: dict[str, list[Member]] = {}

    def see(self, plan: Plan, scene: Scene) -> None:
        """Remember what is there before a round begins to stop."""
        self.known.update((member.pid, member.start_time) for member in scene.members.values())
        for tenant in plan.tenants:
            for process in tenant.processes:
                member = scene.members.get(process["pid"])
                if member is not None:
                    self.lines[process_key(process)] = _line(scene, member)
            for container in tenant.containers:
                self.lines[container.key] = [each for client in _clients(scene, container) for each in _line(scene, client)]

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

    def watch(self, scene: Scene, deadline: float) -> str:
        """The same for what comes back later, watched for while somebody lives who could start it; empty when nobody has."""
        for key, was in self.stopper.containers.items():
            # A client that starts it right now; before the stop it may not have been there.
            clients = _clients(scene, was)
            self.lines[key] = [*clients, *(each for client in clients for each in _line(scene, client)), *self.lines.get(key, [])]
        for pause in pauses(self.node):
            if not any(self.lines.values()):
                break
            now = self.node.processes()
            again = self._reborn(now, self.node.process) or self._run_again(now)
            if again:
                return again
            ends = [ended + WATCH_SECONDS for key, ended in self.stopper.ended.items() if self._living(key, now)]
            left = min(max(ends, default=0.0), deadline) - self.node.monotonic()
            if left <= 0:
                break
            self.node.pause(min(pause, left))
        return ""

    def living_starters(self) -> list[str]:
        """For each process and container that was stopped: who has started it and still runs, in words."""
        things = {_key(was): f"{was.name} (pid {was.pid})" for was in self.stopper.bare.values()}
        things.update((key, f"container {was.name}") for key, was in self.stopper.containers.items())
        things = {key: name for key, name in things.items() if key in self.stopper.ended and self.lines.get(key)}
        now = self.node.processes() if things else {}
        notes = []
        for key, name in things.items():
            living = self._living(key, now)
            if living is not None:
                notes.append(f"{name} was started by {describe(living)}, which still runs; if that starts it again, stop that first")
        return notes

    def _living(self, key: str, now: t.Mapping[int, Sight]) -> Member | None:
        """The nearest that lives of those who could start a thing again."""
        return next((each for each in self.lines.get(key, []) if _lives(each, now)), None)

    def _run_again(self, now: t.Mapping[int, Sight]) -> str:
        """Who has a container run again, or a new one of its name."""
        for key, was in self.stopper.containers.items():
            living = self._living(key, now)
            engine = None if living is None else self.node.engine(was.engine)
            if living is None or engine is None:
                continue
            try:
                found = engine.find(was.name)
            except EngineError:
                continue
            if found is not None and (found.running or found.id != was.id):
                return f"container {was.name} was stopped and has been started again, by {describe(living)}; stop that first"
        return ""

    def _reborn(self, now: t.Mapping[int, Sight], read: t.Callable[[int], Shape | None], but: t.Collection[int] = ()) -> str:
        for pid, sight in now.items():
            if pid in but or (pid, sight.start_time) in self.known or sight.state in DEAD_STATES:
                continue
            for was in self.stopper.bare.values():
                living = self._living(_key(was), now)
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
    script = script_of(member.argv, member.executable) if is_interpreter(member.name) else None
    name = f"{member.name} {script}" if script else member.name
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


def _key(member: Member) -> str:
    return process_key({"pid": member.pid, "start_time": member.start_time})


def _clients(scene: Scene, container: Container) -> list[Member]:
    """The clients that somebody runs, and no unit, to start this container, to stay with it or to wait for its end."""
    return [member for member in scene.members.values() if member.unit is None and container.name in names_started(member.argv)[0]]


def _client_of(scene: Scene, container: Container) -> str:
    """By whom, where a client tells."""
    for client in _clients(scene, container):
        above = _line(scene, client)
        return f", by {describe(above[0] if above else client)}"
    return ""
