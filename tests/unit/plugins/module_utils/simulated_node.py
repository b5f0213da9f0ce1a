# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An invented node for the tests of reclaiming: units, containers, processes and a memory pool, with a clock of its own.

It does what is asked of it as systemd, Docker and the kernel would, and keeps a log of it. ``die_after`` ends a run at
any point, as SIGKILL would: the state stays, and the next run finds it.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container, EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import Process, Stat
from ansible_collections.unimem.dgx_spark.plugins.module_utils._protect import protection
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Member, Scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import Identity, SignalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import SystemdError, Unit, unit_key
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import RunResult

GIB = 1024**3
BOOT = "11111111-2222-3333-4444-555555555555"
ENGINE = "/run/docker.sock"


class Died(Exception):
    """The run was ended from outside."""


@dataclass
class Proc:
    """A process. ``gpu`` bytes are the driver's, ``rss`` the kernel's."""

    pid: int
    name: str
    gpu: int = 0
    rss: int = 0
    uid: int = 1000
    user: str = "alice"
    unit: str | None = None
    container: str | None = None
    parent: int = 1
    start_time: int = 1000
    argv: tuple[str, ...] = ()
    runtime: str | None = None
    ignores_term: bool = False
    unkillable: bool = False
    slow_release: float = 0.0
    comes_back: bool = False
    comes_back_after: float | None = None  # seconds, while its parent lives
    sized: bool = True
    own: bool = False
    listed: bool = True
    kinds: tuple[str, ...] = ("compute",)
    supervisor: str | None = None
    exe: str | None = None


def unit(name: str, uid: int | None = None, **changes: t.Any) -> Unit:
    """An active, enabled service."""
    made = Unit(
        name=name,
        uid=uid,
        names=(name,),
        load_state="loaded",
        active_state="active",
        sub_state="running",
        file_state="enabled",
        fragment=f"/etc/systemd/system/{name}",
        transient=False,
        invocation=f"inv-{name}-1",
        main_pid=0,
        cgroup=f"/system.slice/{name}",
        restart="always",
        restarts=0,
        kill_mode="control-group",
        refuses_stop=False,
        dependents=(),
        upheld_by=(),
        triggered_by=(),
        triggers=(),
        wanted_by=("multi-user.target",),
        stop_seconds=90.0,
        working_directory="",
        commands=(),
    )
    return made._replace(**changes)


def container(name: str, number: int, **changes: t.Any) -> Container:
    """A running container that is always restarted."""
    made = Container(
        id=f"{number:064x}",
        name=name,
        engine=ENGINE,
        image="image:1",
        running=True,
        status="running",
        pid=0,
        started_at="2026-01-01T00:00:00Z",
        policy="always",
        policy_retries=0,
        auto_remove=False,
        stop_signal="SIGTERM",
        stop_seconds=None,
        health=None,
        labels={},
        shares=(),
        ports=(),
    )
    return made._replace(**changes)


class SimulatedNode:
    """See the module's text. Give units, containers and processes; then use it as a Node."""

    def __init__(self, total: int = 120 * GIB, base: int = 6 * GIB, cache: int = 10 * GIB, klass: str = "unified", euid: int = 0) -> None:
        self.total, self.base, self.cache, self.klass, self.euid = total, base, cache, klass, euid
        self.clock = 0.0
        self.procs: dict[int, Proc] = {}
        self.units: dict[str, Unit] = {}
        self.others: dict[str, Unit] = {}
        self.containers: dict[str, Container] = {}
        self.wraps: dict[str, list[str]] = {}
        self.makes: dict[str, list[str]] | None = None  # None: units make what they run
        self.late: list[tuple[str, Proc]] = []  # appears when that thing was stopped
        self.pending_release: list[tuple[float, int]] = []
        self.ports: set[int] = set()
        self.unit_ports: dict[str, int] = {}
        self.inside: dict[int, set[int]] = {}  # ports in the network of a container, by its first process
        self.models: dict[int, list[dict[str, str]]] = {}  # what an Ollama behind a port has loaded
        self.links: dict[str, dict[str, str]] = {}
        self.log: list[str] = []
        self.times: list[float] = []  # when each line of the log happened
        self.die_after: int | None = None
        self.driver_keeps = False
        self.stuck = "D"  # the state of what no signal ends
        self.deny: set[str] = set()
        self.next_pid = 9000
        self.starts: list[str] = []
        self.problems: list[str] = []
        self.systemd = SimulatedSystemd(self)
        self.engines: dict[str, SimulatedEngine] = {ENGINE: SimulatedEngine(self, ENGINE)}
        self.signals: list[tuple[int, int]] = []
        self.births: list[tuple[float, Proc]] = []  # what a parent that still lives then starts again
        self.deaths: list[tuple[float, int]] = []  # pids that end by themselves
        self.started_gone: dict[str, list[Proc]] = {}

    # making it

    def add_unit(self, made: Unit, *procs: Proc) -> Unit:
        self.units[made.key] = made
        for proc in procs:
            self.procs[proc.pid] = replace(proc, unit=made.key)
        return made

    def add_container(self, made: Container, *procs: Proc, wrapper: str | None = None) -> Container:
        self.containers[made.key] = made
        for proc in procs:
            self.procs[proc.pid] = replace(proc, container=made.key, runtime=proc.runtime or "docker")
        if wrapper:
            self.wraps.setdefault(wrapper, []).append(made.key)
        return made

    def add_process(self, proc: Proc) -> Proc:
        self.procs[proc.pid] = proc
        return proc

    def state(self) -> dict[str, t.Any]:
        """What a restore must bring back."""
        return {
            "units": {key: (each.active_state, each.file_state) for key, each in {**self.units, **self.others}.items()},
            "containers": {key: (each.running, each.policy) for key, each in self.containers.items()},
        }

    def happened(self, what: str) -> None:
        """Note something done to the node; the run may end right after it."""
        self.log.append(what)
        self.times.append(self.clock)
        if self.die_after is not None and len(self.log) > self.die_after:
            raise Died(what)

    # being it

    def kill_proc(self, pid: int) -> None:
        proc = self.procs.pop(pid, None)
        if proc is None:
            return
        if self.driver_keeps:
            self.pending_release.append((float("inf"), proc.gpu))
        elif proc.slow_release:
            self.pending_release.append((self.clock + proc.slow_release, proc.gpu))
        if proc.comes_back_after is not None:
            self.births.append((self.clock + proc.comes_back_after, proc))
        if proc.comes_back:
            self.next_pid += 1
            self.procs[self.next_pid] = replace(proc, pid=self.next_pid, start_time=proc.start_time + self.next_pid)

    def end_of(self, key: str) -> None:
        """End the processes of a unit or container, and let what was waiting for that appear."""
        for proc in [each for each in self.procs.values() if key in (each.unit, each.container)]:
            self.started_gone.setdefault(key, []).append(proc)
            self.kill_proc(proc.pid)
        for trigger, proc in [each for each in self.late if each[0] == key]:
            self.late.remove((trigger, proc))
            self.procs[proc.pid] = proc

    def begin_of(self, key: str) -> None:
        for proc in self.started_gone.pop(key, []):
            self.next_pid += 1
            self.procs[self.next_pid] = replace(proc, pid=self.next_pid, start_time=proc.start_time + self.next_pid)

    def pass_time(self) -> None:
        """Let happen what was due by now."""
        for when, pid in [each for each in self.deaths if each[0] <= self.clock]:
            self.deaths.remove((when, pid))
            self.kill_proc(pid)
        for when, proc in [each for each in self.births if each[0] <= self.clock]:
            self.births.remove((when, proc))
            if proc.parent in self.procs:
                self.next_pid += 1
                self.procs[self.next_pid] = replace(proc, pid=self.next_pid, gpu=0, start_time=proc.start_time + self.next_pid)

    def held(self) -> int:
        self.pending_release = [each for each in self.pending_release if each[0] > self.clock]
        return sum(proc.gpu + proc.rss for proc in self.procs.values()) + sum(size for _when, size in self.pending_release)

    # Node

    def memory(self, klass: str) -> dict[str, int | None]:
        available = self.total - self.base - self.held()
        free = available - self.cache
        return {
            "total": self.total,
            "free": free,
            "available": available,
            "reclaimable": self.cache,
            "cuda_free": free if klass == "unified" else None,
            "allocatable": available,
        }

    def processes(self) -> dict[int, Stat]:
        self.pass_time()
        return {proc.pid: Stat(proc.name[:15], "S", proc.parent, False, proc.start_time) for proc in self.procs.values()}

    def process(self, pid: int) -> Process | None:
        proc = self.procs.get(pid)
        if proc is None:
            return None
        return Process(pid, proc.name[:15], "S", proc.parent, False, proc.start_time, proc.argv or (proc.name,), proc.exe or f"/usr/bin/{proc.name}", proc.uid)

    def gather(self) -> dict[str, t.Any]:
        self.pass_time()
        rows = []
        for proc in self.procs.values():
            if proc.gpu and proc.listed:
                rows.append(
                    {
                        "pid": proc.pid,
                        "start_time": proc.start_time,
                        "kinds": list(proc.kinds),
                        "memory": proc.gpu if proc.sized else None,
                        "name": proc.name,
                        "command": " ".join(proc.argv) or proc.name,
                        "user": proc.user,
                        "protected": None,
                        "owner": {"kind": "process", "name": proc.name, "id": None, "unit": None, "restarted_by": proc.supervisor},
                    }
                )
        hidden = sum(size for _when, size in self.pending_release) + sum(proc.gpu for proc in self.procs.values() if not proc.sized)
        return {
            "class": self.klass,
            "memory": self.memory(self.klass),
            "processes": rows,
            "process_memory": sum(row["memory"] or 0 for row in rows),
            "unattributed": hidden,
        }

    def scene(self, facts: dict[str, t.Any]) -> Scene:
        members = {}
        for proc in self.procs.values():
            entry = {"pid": proc.pid, "start_time": proc.start_time, "name": proc.name, "command": " ".join(proc.argv)}
            members[proc.pid] = Member(
                pid=proc.pid,
                start_time=proc.start_time,
                parent=proc.parent,
                state="S",
                name=proc.name,
                argv=proc.argv or (proc.name,),
                executable=proc.exe or f"/usr/bin/{proc.name}",
                uid=proc.uid,
                user=proc.user,
                rss=proc.rss,
                unit=proc.unit,
                container=proc.container,
                runtime=proc.runtime,
                scope=None,
                protected=protection(entry, [proc.pid] if proc.own else []),
            )
        running = {key: each for key, each in self.containers.items() if each.running and each.engine in self.engines}
        return Scene(
            boot_id=BOOT,
            euid=self.euid,
            facts=facts,
            units=dict(self.units),
            others=dict(self.others),
            containers=running,
            members=members,
            wraps={key: [each for each in inner if each in running] for key, inner in self.wraps.items()},
            makes=self.wraps if self.makes is None else self.makes,
            problems=list(self.problems),
            closed=list(self.problems),
        )

    def engine(self, socket_path: str) -> SimulatedEngine | None:
        return self.engines.get(socket_path)

    def open_process(self, identity: Identity) -> SimulatedHandle:
        self._check(identity)
        return SimulatedHandle(self, identity)

    def _check(self, identity: Identity) -> Proc:
        proc = self.procs.get(identity.pid)
        if proc is None:
            raise SignalError("gone", f"process {identity.pid} has ended")
        if proc.start_time != identity.start_time or identity.boot_id != BOOT:
            raise SignalError("not_the_same", f"pid {identity.pid} belongs to another process now; it is left alone")
        return proc

    def listening(self, pids: t.Collection[int] | None = None) -> set[int]:
        if pids is None:
            return set(self.ports)
        keys = {self.procs[pid].unit for pid in pids if pid in self.procs}
        return {port for key, port in self.unit_ports.items() if key in keys and port in self.ports}

    def listening_inside(self, pid: int) -> set[int]:
        return set(self.inside.get(pid, ()))

    def loaded(self, ports: t.Collection[int]) -> list[dict[str, str]]:
        return [row for port in ports for row in self.models.get(port, [])]

    def evict_files(self, paths: list[str]) -> tuple[int, list[str]]:
        self.happened(f"evict {' '.join(paths)}")
        self.cache = self.cache // 2
        return len(paths), []

    def drop_cache(self, timeout: float) -> str | None:
        if self.euid != 0:
            return "dropping the whole page cache needs root (become: true)"
        self.happened("drop the page cache")
        self.cache = 0
        return None

    def set_link(self, path: str, target: str | None) -> None:
        self.happened(f"{'link' if target else 'unlink'} {path}")
        name = path.rsplit("/", 1)[-1]
        if target is None:
            del self.links[name][path]
        else:
            self.links.setdefault(name, {})[path] = target

    def monotonic(self) -> float:
        return self.clock

    def now(self) -> str:
        return f"2026-01-01T00:00:{self.clock:05.2f}"

    def pause(self, seconds: float) -> None:
        self.clock += max(seconds, 0.001)


class SimulatedHandle:
    """A pinned process."""

    def __init__(self, node: SimulatedNode, identity: Identity) -> None:
        self.node, self.identity = node, identity

    def __enter__(self) -> SimulatedHandle:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def send(self, number: int) -> None:
        proc = self.node._check(self.identity)
        if "signal" in self.node.deny:
            raise SignalError("not_permitted", f"signalling process {self.identity.pid} is not permitted: Operation not permitted")
        self.node.signals.append((proc.pid, number))
        self.node.happened(f"signal {number} {proc.name}")
        if proc.unkillable or (number == 15 and proc.ignores_term):
            return
        self.node.kill_proc(proc.pid)

    def wait(self, seconds: float) -> bool:
        proc = self.node.procs.get(self.identity.pid)
        if proc is None or proc.start_time != self.identity.start_time:
            return True
        self.node.clock += max(0.0, seconds)
        return False

    def state(self) -> str | None:
        return self.node.stuck if self.identity.pid in self.node.procs else None

    def close(self) -> None:
        pass


@dataclass
class _Pending:
    do: t.Callable[[], RunResult]
    done: RunResult | None = field(default=None)

    def finish(self) -> RunResult:
        if self.done is None:
            self.done = self.do()
        return self.done


class SimulatedSystemd:
    """The service managers of the node."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node

    def _find(self, name: str, uid: int | None) -> tuple[dict[str, Unit], str] | None:
        key = unit_key(name, uid)
        for table in (self.node.units, self.node.others):
            if key in table:
                return table, key
        return None

    def _set(self, name: str, uid: int | None, **changes: t.Any) -> None:
        found = self._find(name, uid)
        if found is None:
            raise SystemdError(f"Unit {name} not found.")
        table, key = found
        table[key] = table[key]._replace(**changes)

    def show(self, names: t.Iterable[str], uid: int | None = None, timeout: float = 20.0) -> dict[str, Unit]:
        found = {}
        for name in names:
            where = self._find(name, uid)
            found[name] = where[0][where[1]] if where else unit(name, uid, load_state="not-found", active_state="inactive", file_state="")
        return found

    def file_state(self, name: str, uid: int | None = None, timeout: float = 20.0) -> str:
        where = self._find(name, uid)
        return where[0][where[1]].file_state if where else ""

    def start_stopping(self, names: t.Sequence[str], uid: int | None, timeout: float) -> _Pending:
        def do() -> RunResult:
            if "stop" in self.node.deny:
                return RunResult(1, "", "Failed to stop: Access denied")
            for name in names:
                self._stop(name, uid)
            return RunResult(0)

        return _Pending(do)

    def _stop(self, name: str, uid: int | None) -> None:
        where = self._find(name, uid)
        if where is None or not where[0][where[1]].running:
            return
        self._set(name, uid, active_state="inactive")
        self.node.happened(f"stop {name}")
        key = where[1]
        for inner in self.node.wraps.get(key, []):
            # The client ends with its unit and takes the container along; the engine's policy is still in force.
            if "policy revives" in self.node.deny and self.node.containers[inner].policy != "no":
                continue
            self.node.end_of(inner)
            self.node.containers[inner] = self.node.containers[inner]._replace(running=False, status="exited")
        self.node.end_of(key)
        for other in where[0][key].dependents:
            self._stop(other, uid)

    def kill(self, name: str, uid: int | None, timeout: float) -> None:
        self.node.happened(f"kill {name}")
        self._set(name, uid, active_state="inactive")

    def start(self, name: str, uid: int | None, timeout: float) -> None:
        where = self._find(name, uid)
        if where is None:
            raise SystemdError(f"systemctl start {name} failed: Unit {name} not found.")
        unit_now = where[0][where[1]]
        if unit_now.file_state == "masked" or unit_now.load_state == "masked":
            raise SystemdError(f"systemctl start {name} failed: Unit {name} is masked.")
        if not unit_now.conditions_met:
            return  # which systemctl calls a success
        triggered = [self.node.units[key] for key in (unit_key(each, uid) for each in unit_now.triggers) if key in self.node.units]
        if name.endswith(".socket") and any(each.running for each in triggered):
            raise SystemdError(f"systemctl start {name} failed: Socket service already active, refusing.")
        self._set(name, uid, active_state="active", invocation=unit_now.invocation + "+")
        self.node.happened(f"start {name}")
        if name.endswith((".path", ".timer")):
            for each in triggered:
                if not each.running:
                    self.start(each.name, uid, timeout)
        self.node.begin_of(where[1])
        if where[1] in self.node.unit_ports:
            self.node.ports.add(self.node.unit_ports[where[1]])
        for inner in self.node.wraps.get(where[1], []):
            if inner in self.node.containers:
                self.node.containers[inner] = self.node.containers[inner]._replace(running=True, status="running")
                self.node.begin_of(inner)

    def forget_starts(self, names: t.Sequence[str], uid: int | None, timeout: float) -> None:
        for name in names:
            self.node.happened(f"forget starts of {name}")

    def disable(self, name: str, uid: int | None, timeout: float) -> None:
        if "disable" in self.node.deny:
            raise SystemdError(f"systemctl disable {name} failed: Read-only file system")
        self._set(name, uid, file_state="disabled")
        self.node.links.pop(name, None)
        self.node.happened(f"disable {name}")

    def enable(self, name: str, uid: int | None, timeout: float) -> None:
        self._set(name, uid, file_state="enabled")
        self.node.links[name] = {f"/etc/systemd/system/multi-user.target.wants/{name}": f"/etc/systemd/system/{name}"}
        self.node.happened(f"enable {name}")

    def mask(self, name: str, uid: int | None, timeout: float) -> None:
        self._set(name, uid, file_state="masked")
        self.node.happened(f"mask {name}")

    def unmask(self, name: str, uid: int | None, timeout: float) -> None:
        self._set(name, uid, file_state="generated")
        self.node.happened(f"unmask {name}")

    def reload(self, uid: int | None, timeout: float) -> None:
        self.node.happened("daemon-reload")

    def enabled_links(self, name: str) -> dict[str, str]:
        return dict(self.node.links.get(name, {}))

    def links(self, name: str, uid: int | None = None) -> dict[str, str]:
        return self.enabled_links(name)


class SimulatedEngine:
    """A container engine of the node."""

    def __init__(self, node: SimulatedNode, socket_path: str) -> None:
        self.node, self.socket_path = node, socket_path

    def list_running(self) -> list[Container]:
        return [each for each in self.node.containers.values() if each.running and each.engine == self.socket_path]

    def inspect(self, container_id: str) -> Container | None:
        return self.node.containers.get(f"container:{container_id}")

    def find(self, name: str) -> Container | None:
        return next((each for each in self.node.containers.values() if each.name == name), None)

    def _get(self, container_id: str) -> Container:
        found = self.inspect(container_id)
        if found is None:
            raise EngineError("missing", f"No such container: {container_id}")
        return found

    def set_policy(self, container_id: str, policy: str, retries: int) -> None:
        made = self._get(container_id)
        self.node.containers[made.key] = made._replace(policy=policy, policy_retries=retries)
        self.node.happened(f"policy {made.name} {policy}")

    def signal(self, container_id: str, name: str) -> None:
        made = self._get(container_id)
        if not made.running:
            raise EngineError("conflict", f"container {made.name} is not running")
        self.node.happened(f"{name} {made.name}")
        procs = [proc for proc in self.node.procs.values() if proc.container == made.key]
        if name == "SIGTERM" and any(proc.ignores_term for proc in procs):
            return
        self.node.end_of(made.key)
        if made.policy == "no":
            if made.auto_remove:
                del self.node.containers[made.key]
            else:
                self.node.containers[made.key] = made._replace(running=False, status="exited")
        else:
            self.node.begin_of(made.key)

    def wait(self, container_id: str, seconds: float) -> None:
        found = self.inspect(container_id)
        if found is not None and found.running:
            self.node.clock += max(0.0, seconds)

    def start(self, container_id: str) -> None:
        made = self._get(container_id)
        self.node.containers[made.key] = made._replace(running=True, status="running")
        self.node.happened(f"start {made.name}")
        self.node.begin_of(made.key)
