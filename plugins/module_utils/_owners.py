# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Who owns a process: the unit, container or desktop that it belongs to, and what would start it again.

The control group of a process tells, in the shapes that Docker, Podman, containerd, CRI-O, Kubernetes and systemd give it on
cgroup v1 and v2. It is the only link that holds when the driver knows no name and the process has changed its own.
"""

from __future__ import annotations

import os
import re
import typing as t
from collections.abc import Iterable, Mapping

from ansible_collections.unimem.dgx_spark.plugins.module_utils._containers import COMPOSE_DIRECTORY, Container, ContainerReader
from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import Process, boot_id, read_process, read_stat, split_cmdline
from ansible_collections.unimem.dgx_spark.plugins.module_utils._protect import PROTECTED_PROGRAMS, protected_program
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import Deadline, World

#: Seconds that systemctl may take.
SYSTEMCTL_TIMEOUT = 3.0

_RUNTIME_SCOPE = re.compile(r"^(docker|libpod-payload|libpod|cri-containerd|crio|nerdctl|containerd)-([0-9a-f]{64})(?:\.scope)?$")
_BARE_ID = re.compile(r"^[0-9a-f]{64}$")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$")
_USER_MANAGER = re.compile(r"^user@(\d{1,10})\.service$")
_MACHINE = re.compile(r"^(?:machine-(.+)\.scope|systemd-nspawn@(.+)\.service|lxc\.payload\.(.+))$")
_DESKTOP_SCOPE = re.compile(r"^app-(?:gnome|flatpak|kde|xfce|dbus)?-?.*\.scope$")
_RUNTIMES = {
    "docker": "docker",
    "libpod-payload": "podman",
    "libpod": "podman",
    "cri-containerd": "containerd",
    "crio": "crio",
    "nerdctl": "containerd",
    "containerd": "containerd",
}

#: Programs that start again what they have started: their children come back.
_SUPERVISORS = frozenset({"circusd", "forever", "honcho", "monit", "nodemon", "pm2", "runsv", "s6-supervise", "supervisord", "supervise"})


class Place(t.NamedTuple):
    """Where a control group path says that a process is. ``uid``: of the user whose service manager it is below."""

    container: str | None = None
    runtime: str | None = None
    pod: str | None = None
    unit: str | None = None
    scope: str | None = None
    uid: int | None = None


def parse_cgroup(text: str) -> dict[str, str]:
    """Controllers -> path, of /proc/<pid>/cgroup. The v2 hierarchy has the empty name. A path can hold colons."""
    paths: dict[str, str] = {}
    for line in text.split("\n"):
        fields = line.split(":", 2)
        if len(fields) == 3 and fields[0].isdecimal() and fields[2].startswith("/"):
            paths[fields[1]] = fields[2]
    return paths


def _locate_path(path: str) -> Place:
    segments = [segment for segment in path.split("/") if segment]
    uid: int | None = None
    unit: str | None = None
    scope: str | None = None
    pod: str | None = None
    for position, segment in enumerate(segments):
        manager = _USER_MANAGER.match(segment)
        if manager and not unit:
            uid = int(manager[1])
            scope = None
            continue
        found_pod = _POD.search(segment) if "kubepods" in segments[0] or segment.startswith("pod") else None
        if found_pod:
            pod = found_pod[1].replace("_", "-")
        runtime = _RUNTIME_SCOPE.match(segment)
        if runtime:
            name = _RUNTIMES[runtime[1]]
            return Place(container=runtime[2], runtime="kubernetes" if pod else name, pod=pod, unit=unit, uid=uid)
        if _BARE_ID.match(segment):
            before = segments[position - 1] if position else ""
            name = "docker" if before == "docker" else "podman" if before.startswith("libpod") else "containerd"
            return Place(container=segment, runtime="kubernetes" if pod else name, pod=pod, unit=unit, uid=uid)
        machine = _MACHINE.match(segment)
        if machine and not unit:
            name = next(group for group in machine.groups() if group)
            runtime_name = "lxc" if segment.startswith("lxc") else "nspawn"
            return Place(container=name, runtime=runtime_name, unit=segment if segment.endswith(".service") else None, uid=uid)
        if segment.endswith(".service") and unit is None:
            unit = segment
        elif segment.endswith(".scope"):
            scope = segment
    return Place(pod=pod, unit=unit, scope=None if unit else scope, uid=uid)


def locate(text: str, base: Mapping[str, str] | None = None) -> Place:
    """Where /proc/<pid>/cgroup says that a process is.

    ``base`` is what comes before the system's own tree in each hierarchy, as found at pid 1: where this machine is itself a
    container that sees its outside paths, those say nothing about what runs on it.
    """
    places: list[Place] = []
    paths = parse_cgroup(text)
    # systemd's own hierarchy knows units; a container without systemd shows in the others only.
    for controllers in sorted(paths, key=lambda name: (name != "name=systemd", name != "", name)):
        path = paths[controllers]
        prefix = (base or {}).get(controllers, "")
        if prefix and (path == prefix or path.startswith(prefix + "/")):
            path = path[len(prefix) :]
        places.append(_locate_path(path))
    for place in places:
        if place.container:
            return place
    return next((place for place in places if place.unit or place.scope), places[0] if places else Place())


def cgroup_base(pid_one: str) -> dict[str, str]:
    """What stands before the system's own tree in each hierarchy, from /proc/1/cgroup."""
    base: dict[str, str] = {}
    for controllers, path in parse_cgroup(pid_one).items():
        stripped = path[: -len("/init.scope")] if path.endswith("/init.scope") else path.rstrip("/")
        if stripped:
            base[controllers] = stripped
    return base


def parse_systemctl_show(text: str) -> dict[str, dict[str, str]]:
    """Blocks of ``systemctl show``: unit -> property -> value."""
    units: dict[str, dict[str, str]] = {}
    for block in re.split(r"\n\s*\n", text):
        properties = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        if properties.get("Id"):
            units[properties["Id"]] = properties
    return units


def _option_values(argv: tuple[str, ...], *options: str) -> list[str]:
    values = [word.split("=", 1)[1] for word in argv for option in options if word.startswith(option + "=")]
    return values + [after for word, after in zip(argv, argv[1:]) if word in options]


def runs_container(argv: tuple[str, ...], container: Container) -> bool:
    """Whether a command line is a client (or Podman's monitor) that lives as long as this container runs."""
    if not argv:
        return False
    program = os.path.basename(argv[0])
    if program in ("conmon", "conmonrs"):
        return container.id in argv
    if program not in ("docker", "podman", "nerdctl", "docker-compose"):
        return False
    words = [word for word in argv[1:] if not word.startswith("-")]
    if program == "docker-compose" or "compose" in words:
        return "up" in words and container.project is not None and container.project in _option_values(argv, "-p", "--project-name")
    if not any(word in ("run", "start", "attach", "wait") for word in words):
        return False
    names = {container.name, container.id, container.id[:12]}
    return bool(names & set(_option_values(argv, "--name"))) or ("run" not in words and bool(names & set(words)))


class OwnerReader:
    """Finds owners, each daemon and unit asked once. ``reasons``: pid -> what could not be found out about its owner, and why."""

    def __init__(self, world: World, deadline: Deadline | None = None) -> None:
        self._world = world
        self._deadline = deadline or Deadline(world, 2 * SYSTEMCTL_TIMEOUT)
        self._containers = ContainerReader(world, self._deadline)
        self._clients: list[tuple[tuple[str, ...], Place, int]] | None = None
        self._base: dict[str, str] | None = None
        self._boot_id: str | None = None
        self.reasons: dict[int, str] = {}

    def place(self, pid: int) -> Place:
        """Where a process is."""
        if self._base is None:
            self._base = cgroup_base(self._world.read_text("/proc/1/cgroup") or "")
        return locate(self._world.read_text(f"/proc/{pid}/cgroup") or "", self._base)

    def owners(self, processes: Iterable[Process]) -> dict[int, dict[str, t.Any]]:
        """Owner of each process."""
        found = list(processes)
        places = {process.pid: self.place(process.pid) for process in found}
        owners = {process.pid: self._owner(process, places[process.pid]) for process in found}
        self._add_units(owners, places)
        return owners

    def _owner(self, process: Process, place: Place) -> dict[str, t.Any]:
        owner: dict[str, t.Any] = {
            "kind": "process",
            "name": process.name,
            "id": None,
            "unit": None,
            "restarted_by": None,
            "runtime": None,
            "project": None,
            "pod": place.pod,
            "user": None,
        }
        if place.uid is not None:
            owner["user"] = self._world.user_name(place.uid) or str(place.uid)
        if place.container:
            return self._container_owner(owner, process.pid, place)
        if _is_desktop(process, place):
            owner.update(kind="desktop", id=place.unit or place.scope, unit=place.unit)
            return owner
        if place.unit:
            owner.update(kind="unit" if place.uid is None else "user_unit", name=place.unit, unit=place.unit)
            return owner
        if self._boot_id is None:
            self._boot_id = boot_id(self._world) or ""
        owner.update(id=f"{self._boot_id}:{process.pid}:{process.start_time}", unit=place.scope, restarted_by=self._supervisor(process))
        return owner

    def _container_owner(self, owner: dict[str, t.Any], pid: int, place: Place) -> dict[str, t.Any]:
        container_id, runtime = t.cast(str, place.container), t.cast(str, place.runtime)
        short = container_id[:12] if _BARE_ID.match(container_id) else container_id
        owner.update(kind="container", name=short, id=container_id, unit=place.unit, runtime=runtime)
        container = self._containers.find(runtime, container_id, place.uid)
        restarted_by: list[str] = []
        if container:
            owner.update(name=container.name, project=container.project)
            if container.restart_policy not in (None, "", "no"):
                restarted_by.append(f"{runtime} (restart policy {container.restart_policy})")
            if not owner["unit"]:
                owner["unit"] = self._client_unit(container, place.uid)
        if container_id in self._containers.reasons:
            self.reasons[pid] = self._containers.reasons[container_id]
        if runtime in ("kubernetes", "crio"):
            restarted_by.append("kubernetes" if place.pod is None else f"kubernetes (pod {place.pod})")
        owner["restarted_by"] = "; ".join(restarted_by) or None
        return owner

    def _client_unit(self, container: Container, uid: int | None) -> str | None:
        """The unit whose main process is a client that runs this container: stopping the container alone would bring it back."""
        if self._clients is None:
            self._clients = []
            for pid, comm in self._world.process_table().items():
                if comm in ("docker", "podman", "nerdctl", "docker-compose", "conmon", "conmonrs"):
                    argv = split_cmdline(self._world.read_text(f"/proc/{pid}/cmdline") or "")
                    place = self.place(pid)
                    if place.unit:
                        self._clients.append((argv, place, pid))
        directory = container.labels.get(COMPOSE_DIRECTORY)
        for argv, place, pid in self._clients:
            if place.uid != uid:
                continue
            if runs_container(argv, container):
                return place.unit
            if directory and "up" in argv and self._world.read_link(f"/proc/{pid}/cwd") == directory:
                return place.unit
        return None

    def _supervisor(self, process: Process) -> str | None:
        pid = process.parent
        for _generation in range(4):
            stat = read_stat(self._world, pid) if pid > 1 else None
            if stat is None:
                return None
            program = stat.comm.split(" ", 1)[0].lower()
            if program in _SUPERVISORS:
                return f"{stat.comm} (pid {pid})"
            pid = stat.parent
        return None

    def _add_units(self, owners: Mapping[int, dict[str, t.Any]], places: Mapping[int, Place]) -> None:
        """Invocation ids and restart policies of all units, in one call of systemctl for the system and one for each user."""
        wanted: dict[int | None, set[str]] = {}
        for pid, owner in owners.items():
            if owner["unit"] and owner["unit"].endswith(".service"):
                wanted.setdefault(places[pid].uid, set()).add(owner["unit"])
        for uid, units in wanted.items():
            properties, reason = self._show(uid, sorted(units))
            for pid, owner in owners.items():
                if places[pid].uid == uid and owner["unit"] in units:
                    self._add_unit(owner, uid, properties.get(owner["unit"], {}))
                    if reason:
                        self.reasons[pid] = "; ".join(filter(None, (self.reasons.get(pid), reason)))

    def _show(self, uid: int | None, units: list[str]) -> tuple[dict[str, dict[str, str]], str | None]:
        argv = ["systemctl"]
        if uid is not None:
            argv.append("--user")
            if uid != self._world.effective_uid():
                name = self._world.user_name(uid)
                if name is None or self._world.effective_uid() != 0:
                    return {}, f"the service manager of uid {uid} can be asked by that user and by root only"
                argv.append(f"--machine={name}@.host")
        argv += ["show", "--property=Id,InvocationID,Restart", "--", *units]
        run = self._world.run(argv, self._deadline.left(SYSTEMCTL_TIMEOUT))
        if run.missing:
            return {}, "there is no systemctl on this machine"
        if run.timed_out:
            return {}, "systemctl did not answer in time"
        if run.rc != 0:
            return {}, f"systemctl failed: {(run.stderr.strip() or 'no message').splitlines()[0]}"
        return parse_systemctl_show(run.stdout), None

    def _add_unit(self, owner: dict[str, t.Any], uid: int | None, properties: Mapping[str, str]) -> None:
        unit = owner["unit"]
        invocation = properties.get("InvocationID") or (None if uid is not None else self._world.read_link(f"/run/systemd/units/invocation:{unit}"))
        if owner["kind"] in ("unit", "user_unit"):
            owner["id"] = invocation
        restart = properties.get("Restart")
        if restart and restart != "no":
            policy = f"systemd (Restart={restart})" if owner["kind"] in ("unit", "user_unit") else f"systemd ({unit}, Restart={restart})"
            owner["restarted_by"] = "; ".join(filter(None, (policy, owner["restarted_by"])))


def _is_desktop(process: Process, place: Place) -> bool:
    if place.unit and (protected_program(place.unit.rsplit(".", 1)[0]) or "").startswith(_DESKTOP):
        return True
    if (protected_program(process.comm) or "").startswith(_DESKTOP):
        return True
    return place.uid is not None and place.scope is not None and bool(_DESKTOP_SCOPE.match(place.scope))


_DESKTOP = next(what for what, _patterns in PROTECTED_PROGRAMS if what.startswith("display"))


def owner_of(world: World, pid: int) -> dict[str, t.Any]:
    """Owner of one process: {kind, name, id, unit, restarted_by, runtime, project, pod, user}, read now.

    kind is ``unit``, ``user_unit``, ``container``, ``desktop`` or ``process``. id is a unit's invocation id, a container's full id,
    and for a process ``<boot id>:<pid>:<start time>``. unit is, for a container, the unit whose client runs it. A process that
    cannot be seen is owned by itself, without an id.
    """
    process = read_process(world, pid)
    if process is None:
        return unseen_owner(None)
    return OwnerReader(world).owners([process])[pid]


def unseen_owner(name: str | None) -> dict[str, t.Any]:
    """Owner of a process that the driver lists and /proc does not show."""
    owner: dict[str, t.Any] = dict.fromkeys(("kind", "name", "id", "unit", "restarted_by", "runtime", "project", "pod", "user"))
    owner.update(kind="process", name=name)
    return owner
