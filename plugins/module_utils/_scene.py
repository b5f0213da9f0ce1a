# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is on the node, gathered once and then looked at: processes, units, containers, and which restarts which.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

Planning (``_plan``) needs nothing but a Scene, so all of its rules can be tried on invented ones.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container, Engine, EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._owners import OwnerReader
from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import ancestors, boot_id, read_process
from ansible_collections.unimem.dgx_spark.plugins.module_utils._protect import own_pid, protection
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import DEAD_STATES, Identity
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import Systemd, SystemdError, Unit, unit_key
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

#: Programs that start containers on behalf of a unit.
CLIENTS = ("docker", "podman", "nerdctl", "docker-compose", "podman-compose")
#: Their verbs after which a container of theirs runs; ``stop`` and ``rm`` say nothing about who starts it.
_STARTING = ("run", "start", "create", "up", "restart", "attach", "wait")

_MAKING = ("run", "create", "up")

#: The runtime's own processes beside a container's: protected elsewhere, ended by the runtime itself here.
SHIMS = ("docker-init", "conmon", "conmonrs", "podman", "runc", "crun", "slirp4netns", "rootlesskit")
#: Names that a container's first process may have: it is the container's own, and ends with it.
CONTAINER_INITS = ("init", "systemd")

_LISTEN = "0A"


class Member(t.NamedTuple):
    """One process of the node."""

    pid: int
    start_time: int
    parent: int
    state: str
    name: str
    argv: tuple[str, ...]
    executable: str | None
    uid: int | None
    user: str | None
    rss: int  # anonymous resident bytes; memory of CUDA is not in them on a unified machine
    unit: str | None  # key of the unit in whose control group it is
    container: str | None  # key of the container
    runtime: str | None  # docker, podman, containerd, crio, kubernetes, nspawn, lxc
    scope: str | None  # the scope (a login session, a desktop application) where it is in no unit
    protected: str | None


@dataclass
class Scene:
    """All that is known of the node at one moment."""

    boot_id: str
    euid: int
    facts: dict[str, t.Any]
    units: dict[str, Unit] = field(default_factory=dict)
    #: units that are not services (sockets, timers, targets), by key, as far as they were asked for
    others: dict[str, Unit] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)
    #: unit key -> keys of the containers that it runs
    wraps: dict[str, list[str]] = field(default_factory=dict)
    #: those of them that it makes anew at each start
    makes: dict[str, list[str]] = field(default_factory=dict)
    #: keys of what the journal says is evicted, or was about to be
    evicted: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    #: container engines that are there and could not be asked, each in a sentence; they are among the problems too
    closed: list[str] = field(default_factory=list)

    def of_unit(self, key: str) -> list[Member]:
        """The live processes of a unit."""
        return [member for member in self.members.values() if member.unit == key]

    def of_container(self, key: str) -> list[Member]:
        """The live processes of a container."""
        return [member for member in self.members.values() if member.container == key]

    def wrappers(self, container: str) -> list[str]:
        """Keys of the running units that run this container."""
        return [key for key, inner in self.wraps.items() if container in inner and key in self.units and self.units[key].running]

    def offspring(self, pid: int) -> list[Member]:
        """The live descendants of a process: what its end may take along, or leave behind."""
        children: dict[int, list[Member]] = {}
        for member in self.members.values():
            children.setdefault(member.parent, []).append(member)
        found = list(children.get(pid, []))
        for member in found:
            found.extend(each for each in children.get(member.pid, []) if each not in found)
        return found

    def unit(self, key: str) -> Unit | None:
        """A unit of any kind by key."""
        return self.units.get(key) or self.others.get(key)

    @property
    def holders(self) -> list[dict[str, t.Any]]:
        """The processes that the driver lists."""
        return [process for process in self.facts.get("processes") or [] if isinstance(process.get("pid"), int)]

    def identity(self, process: t.Mapping[str, t.Any]) -> Identity | None:
        """The identity of a process entry of the facts; None when /proc does not know it, or it is another one by now."""
        member = self.members.get(process["pid"])
        if member is None or process.get("start_time") != member.start_time:
            return None
        return Identity(self.boot_id, member.pid, member.start_time)


def read_members(world: World, known: t.Mapping[int, t.Mapping[str, t.Any]] | None = None) -> dict[int, Member]:
    """All visible processes that live, by pid. ``known``: what the facts say of some of them."""
    reader = OwnerReader(world)
    own = set(ancestors(world, own_pid(world)))
    users: dict[int, str | None] = {}
    found: dict[int, Member] = {}
    for name in world.list_dir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        process = read_process(world, pid)
        if process is None or process.state in DEAD_STATES:
            continue
        place = reader.place(pid)
        unit = unit_key(place.unit, place.uid) if place.unit and place.unit.endswith(".service") else None
        entry = dict((known or {}).get(pid) or {})
        if entry.get("start_time") != process.start_time:
            entry = {}
        protected = protection(
            {
                "owner": entry.get("owner"),
                "pid": pid,
                "start_time": process.start_time,
                "name": process.name,
                "comm": process.comm,
                "executable": process.executable,
                "kernel_thread": process.kernel_thread,
                "command": " ".join(process.argv),
            },
            own,
        )
        # On its way into a container runc calls itself runc:[1:CHILD], then runc:[2:INIT].
        name = process.name.partition(":[")[0]
        if protected and pid not in own and (place.container or unit) and name in (*SHIMS, *(CONTAINER_INITS if place.container else ())):
            protected = None
        found[pid] = Member(
            pid=pid,
            start_time=process.start_time,
            parent=process.parent,
            state=process.state,
            name=process.name,
            argv=process.argv,
            executable=process.executable,
            uid=process.uid,
            user=users.setdefault(process.uid, world.user_name(process.uid)) if process.uid is not None else None,
            rss=_anonymous(world.read_text(f"/proc/{pid}/status") or ""),
            unit=unit,
            container=f"container:{place.container}" if place.container else None,
            runtime=place.runtime,
            scope=place.scope,
            protected=protected,
        )
    return found


def _anonymous(status: str) -> int:
    match = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def names_started(argv: t.Sequence[str]) -> tuple[set[str], dict[str, str]]:
    """The containers that a command line of a container client starts: words that can be names, and compose options.

    Both are empty where it is no such command. Wrappers before it (``/usr/bin/env docker``, ``sh -c`` excepted) are seen through.
    """
    words = list(argv)
    position = next((index for index, word in enumerate(words[:4]) if word.rsplit("/", 1)[-1] in CLIENTS), None)
    if position is None:
        return set(), {}
    client, rest = words[position].rsplit("/", 1)[-1], words[position + 1 :]
    if not any(word in _STARTING for word in rest):
        return set(), {}
    names: set[str] = set()
    for index, word in enumerate(rest):
        if word.startswith("--name="):
            names.add(word[len("--name=") :])
        elif word == "--name" and index + 1 < len(rest):
            names.add(rest[index + 1])
    verb = next(word for word in rest if word in _STARTING)
    if verb in ("start", "restart", "attach", "wait"):
        names.update(word for word in rest[rest.index(verb) + 1 :] if not word.startswith("-"))
    options: dict[str, str] = {}
    if client.endswith("-compose") or "compose" in rest:
        options["compose"] = "yes"
        for index, word in enumerate(rest[:-1]):
            if word in ("-f", "--file"):
                options["file"] = rest[index + 1]
            elif word in ("-p", "--project-name"):
                options["project"] = rest[index + 1]
            elif word == "--project-directory":
                options["directory"] = rest[index + 1]
    return names, options


def makes_containers(argv: t.Sequence[str]) -> bool:
    """Whether a command line of a container client makes what it starts (``run``), and not only starts it (``start --attach``)."""
    position = next((index for index, word in enumerate(argv[:4]) if word.rsplit("/", 1)[-1] in CLIENTS), None)
    verb = None if position is None else next((word for word in argv[position + 1 :] if word in _STARTING), None)
    return verb in _MAKING


def find_wraps(
    units: t.Iterable[Unit], containers: t.Iterable[Container], members: t.Iterable[Member], making: bool = False
) -> dict[str, list[str]]:
    """Which unit runs which containers: what its commands say, and the clients in its control group. ``making``: only those that it makes.

    A label is not believed: it is the container's own word. A user's engine belongs to that user's units only, so that nobody
    can have a unit of the system stopped by giving a container its name.
    """
    clients: dict[str, list[tuple[str, ...]]] = {}
    for member in members:
        if member.unit and member.argv and member.argv[0].rsplit("/", 1)[-1] in CLIENTS:
            clients.setdefault(member.unit, []).append(member.argv)
    known = list(containers)
    wraps: dict[str, list[str]] = {}
    for unit in units:
        if unit.load_state != "loaded":
            continue
        for argv in [*unit.commands, *clients.get(unit.key, [])]:
            names, options = names_started(argv)
            if (not names and not options) or (making and not makes_containers(argv)):
                continue
            for container in known:
                if _user_of(container.engine) != unit.uid:
                    continue
                named = container.name in names or any(len(name) >= 12 and container.id.startswith(name) for name in names)
                if (named or _same_project(container, options, unit)) and container.key not in wraps.get(unit.key, []):
                    wraps.setdefault(unit.key, []).append(container.key)
    return wraps


def _user_of(socket_path: str) -> int | None:
    match = re.match(r"/run/user/(\d+)/", socket_path)
    return int(match[1]) if match else None


def _same_project(container: Container, options: t.Mapping[str, str], unit: Unit) -> bool:
    if not options or container.project is None:
        return False
    if "project" in options:
        return options["project"] == container.project
    if "file" in options:
        file = options["file"] if options["file"].startswith("/") else f"{unit.working_directory.rstrip('/')}/{options['file']}"
        return file in container.labels.get("com.docker.compose.project.config_files", "").split(",")
    directory = options.get("directory") or unit.working_directory
    return directory != "" and directory.rstrip("/") == container.labels.get("com.docker.compose.project.working_dir", "").rstrip("/")


def read_listeners(world: World, pids: t.Iterable[int], tables: str = "/proc/net") -> dict[int, list[int]]:
    """TCP ports that are listened on in this network namespace (or in that of ``tables``), with those of ``pids`` that do."""
    inodes: dict[str, int] = {}
    for table in (f"{tables}/tcp", f"{tables}/tcp6"):
        for line in (world.read_text(table) or "").split("\n")[1:]:
            fields = line.split()
            # sl local_address rem_address st ... inode is the tenth field (proc_net_tcp of the kernel's documentation)
            if len(fields) > 9 and fields[3] == _LISTEN:
                port = fields[1].rpartition(":")[2]
                if re.fullmatch(r"[0-9A-F]{4}", port):
                    inodes[fields[9]] = int(port, 16)
    ports: dict[int, list[int]] = {port: [] for port in inodes.values()}
    for pid in pids:
        for descriptor in world.list_dir(f"/proc/{pid}/fd"):
            target = world.read_link(f"/proc/{pid}/fd/{descriptor}") or ""
            inode = target[len("socket:[") : -1] if target.startswith("socket:[") else ""
            if inode in inodes and pid not in ports[inodes[inode]]:
                ports[inodes[inode]].append(pid)
    return ports


def read_scene(world: World, systemd: Systemd, engines: t.Sequence[Engine], facts: dict[str, t.Any], problems: t.Sequence[str] = ()) -> Scene:
    """Look at the node. What cannot be read is missing, and said in ``problems``; those given are of engines that may not be asked."""
    known = {process["pid"]: process for process in facts.get("processes") or [] if isinstance(process.get("pid"), int)}
    scene = Scene(boot_id=boot_id(world) or "", euid=world.effective_uid(), facts=facts, problems=list(problems), closed=list(problems))
    scene.members = read_members(world, known)
    users = sorted({uid for uid in (_uid_of(member.unit) for member in scene.members.values() if member.unit) if uid is not None})
    for uid in [None, *users]:
        for unit in systemd.units(uid):
            scene.units[unit.key] = unit
    for engine in engines:
        try:
            for container in engine.list_running():
                # The system's engines come first: what another one says of a container of theirs does not count.
                scene.containers.setdefault(container.key, container)
        except EngineError as exc:
            scene.problems.append(str(exc))
            scene.closed.append(str(exc))
    scene.wraps = find_wraps(scene.units.values(), scene.containers.values(), scene.members.values())
    scene.makes = find_wraps(scene.units.values(), scene.containers.values(), scene.members.values(), making=True)
    _read_related(scene, systemd)
    return scene


def _uid_of(key: str | None) -> int | None:
    match = re.search(r"@uid:(\d+)$", key or "")
    return int(match[1]) if match else None


def _read_related(scene: Scene, systemd: Systemd) -> None:
    """Read the sockets, timers, paths and targets that stop with the node's services or start them again, and theirs in turn."""
    for uid in {unit.uid for unit in scene.units.values()}:
        asked: set[str] = set()
        # Bounded: a cycle ends it as well, since nothing is asked twice.
        while True:
            have = [unit for unit in [*scene.units.values(), *scene.others.values()] if unit.uid == uid and unit.running]
            wanted = {name for unit in have for name in (*unit.dependents, *unit.triggered_by, *unit.upheld_by)}
            wanted -= asked | {name for unit in scene.units.values() if unit.uid == uid for name in (unit.name, *unit.names)}
            if not wanted:
                break
            asked |= wanted
            try:
                for unit in systemd.show(sorted(wanted), uid).values():
                    scene.others[unit.key] = unit
            except SystemdError as exc:
                scene.problems.append(str(exc))
