# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd units: what they are, what stops with them, what starts them again, and how they are stopped and put back.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

Nothing here reloads the manager (``--no-reload``): with the systemd cgroup driver a ``daemon-reload`` takes the GPU away
from containers that run elsewhere on the node (NVIDIA/nvidia-docker#1730). Enablement is links in the file system, and the
next boot reads them whether or not the manager was told.
"""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._unit_files import UNIT_DIRECTORY
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import PendingRun, RunResult, World

PROPERTIES = (
    "Id",
    "Names",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "FragmentPath",
    "Transient",
    "InvocationID",
    "MainPID",
    "ControlGroup",
    "Restart",
    "NRestarts",
    "KillMode",
    "RefuseManualStart",
    "RefuseManualStop",
    "ConditionResult",
    "StopWhenUnneeded",
    "RequiredBy",
    "BoundBy",
    "RequisiteOf",
    "ConsistsOf",
    "PropagatesStopTo",
    "Requires",
    "Requisite",
    "BindsTo",
    "Wants",
    "Upholds",
    "UpheldBy",
    "OnSuccess",
    "OnFailure",
    "TriggeredBy",
    "Triggers",
    "WantedBy",
    "TimeoutStopUSec",
    "WorkingDirectory",
    "ExecStartPre",
    "ExecStart",
    "ExecStop",
)

RUNNING = ("active", "activating", "reloading", "refreshing")

#: Characters of what systemctl said that are shown.
_MOST_WORDS = 400

_ARGV = re.compile(r"argv\[\]=(.*?) ; (?:ignore_errors|flags)=")
_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")
_BOOTABLE = ("enabled", "alias", "linked", "indirect")


_DENIED = ("access denied", "permission denied", "interactive authentication required", "not permitted", "authentication is required")


class SystemdError(Exception):
    """systemctl refused or could not be asked. ``denied`` tells a lack of permission."""

    def __init__(self, message: str, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


class Unit(t.NamedTuple):
    """One unit as systemctl shows it. ``uid`` is None for the system manager, else whose user manager it belongs to."""

    name: str
    uid: int | None
    names: tuple[str, ...]
    load_state: str
    active_state: str
    sub_state: str
    file_state: str
    fragment: str
    transient: bool
    invocation: str
    main_pid: int
    cgroup: str
    restart: str
    restarts: int
    kill_mode: str
    refuses_stop: bool
    #: stopped with it: RequiredBy, BoundBy, RequisiteOf, ConsistsOf (the reverse of PartOf) and PropagatesStopTo (StopPropagatedFrom is its reverse)
    dependents: tuple[str, ...]
    upheld_by: tuple[str, ...]
    triggered_by: tuple[str, ...]
    triggers: tuple[str, ...]
    wanted_by: tuple[str, ...]
    stop_seconds: float | None
    working_directory: str
    commands: tuple[tuple[str, ...], ...]  # ExecStartPre, ExecStart and ExecStop, split into words
    refuses_start: bool = False
    #: whether its Condition...= and Assert...= lines were met when it was last started
    conditions_met: bool = True
    #: StopWhenUnneeded: it stops with the last of those that need it
    goes_unneeded: bool = False
    needs: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()
    #: what systemd starts when it has ended: OnSuccess and OnFailure
    successors: tuple[str, ...] = ()

    @property
    def running(self) -> bool:
        """Whether it runs, or is about to (a unit between two restarts is ``activating``)."""
        return self.active_state in RUNNING

    @property
    def unstartable(self) -> str:
        """Why it could not be started by hand, were it stopped now; empty where it could, as far as systemd tells."""
        if self.load_state == "masked":
            return "it is masked"
        if self.load_state == "not-found":
            return "its unit file is gone"
        if self.load_state in ("error", "bad-setting"):
            return f"systemd cannot use its unit file (LoadState={self.load_state})"
        return "its unit file forbids starting it by hand (RefuseManualStart=yes)" if self.refuses_start else ""

    @property
    def starts_at_boot(self) -> bool:
        """Whether the next boot would start it."""
        return self.file_state in _BOOTABLE or (self.file_state == "generated" and bool(self.wanted_by))

    @property
    def key(self) -> str:
        """Its key in the journal and in plans."""
        return unit_key(self.name, self.uid)


def unit_key(name: str, uid: int | None) -> str:
    """``unit:NAME``, or ``unit:NAME@uid:1000`` for a unit of a user's manager."""
    return f"unit:{name}" if uid is None else f"unit:{name}@uid:{uid}"


def parse_show(text: str, uid: int | None = None) -> list[Unit]:
    """Parse the output of ``systemctl show`` for one or more units (blocks are separated by blank lines)."""
    units = []
    for block in re.split(r"\n\s*\n", text):
        fields: dict[str, list[str]] = {}
        for line in block.split("\n"):
            name, equals, value = line.partition("=")
            if equals:
                # ExecStart= comes once for each command
                fields.setdefault(name, []).append(value)
        if fields.get("Id", [""])[0]:
            units.append(_unit(fields, uid))
    return units


def _unit(fields: t.Mapping[str, list[str]], uid: int | None) -> Unit:
    def text(name: str) -> str:
        return fields.get(name, [""])[0].strip()

    def words(*names: str) -> tuple[str, ...]:
        found: list[str] = []
        for name in names:
            found.extend(word for word in text(name).split() if word not in found)
        return tuple(found)

    def number(name: str) -> int:
        value = text(name)
        return int(value) if value.isdigit() else 0

    commands = [tuple(match.split()) for name in ("ExecStartPre", "ExecStart", "ExecStop") for value in fields.get(name, []) for match in _ARGV.findall(value)]
    return Unit(
        name=text("Id"),
        uid=uid,
        names=words("Names"),
        load_state=text("LoadState"),
        active_state=text("ActiveState"),
        sub_state=text("SubState"),
        file_state=text("UnitFileState"),
        fragment=text("FragmentPath"),
        transient=text("Transient") == "yes",
        invocation=text("InvocationID"),
        main_pid=number("MainPID"),
        cgroup=text("ControlGroup"),
        restart=text("Restart"),
        restarts=number("NRestarts"),
        kill_mode=text("KillMode"),
        refuses_stop=text("RefuseManualStop") == "yes",
        dependents=words("RequiredBy", "BoundBy", "RequisiteOf", "ConsistsOf", "PropagatesStopTo"),
        upheld_by=words("UpheldBy"),
        triggered_by=words("TriggeredBy"),
        triggers=words("Triggers"),
        wanted_by=words("WantedBy", "RequiredBy"),
        stop_seconds=_span(text("TimeoutStopUSec")),
        working_directory=text("WorkingDirectory").lstrip("!-"),
        commands=tuple(commands),
        refuses_start=text("RefuseManualStart") == "yes",
        conditions_met=text("ConditionResult") != "no",
        goes_unneeded=text("StopWhenUnneeded") == "yes",
        needs=words("Requires", "Requisite", "BindsTo", "Wants", "Upholds"),
        needed_by=words("RequiredBy", "RequisiteOf", "BoundBy", "WantedBy", "UpheldBy"),
        successors=words("OnSuccess", "OnFailure"),
    )


_SPAN = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)(y|month|w|d|h|min|s|ms|us)")
_SECONDS = {"y": 31557600.0, "month": 2629800.0, "w": 604800.0, "d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def _span(text: str) -> float | None:
    """A time span as systemctl prints it (``1min 30s``), in seconds; None for ``infinity`` and what is not understood."""
    found = _SPAN.findall(text)
    return sum(float(amount) * _SECONDS[unit] for amount, unit in found) if found else None


class Systemd:
    """The service managers of a node, through systemctl."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _argv(self, uid: int | None, *words: str) -> list[str]:
        if uid is None:
            return ["systemctl", *words]
        runtime = f"/run/user/{uid}"
        environment = ["env", f"XDG_RUNTIME_DIR={runtime}", f"DBUS_SESSION_BUS_ADDRESS=unix:path={runtime}/bus", "systemctl", "--user", *words]
        if uid == self._world.effective_uid():
            return environment
        return ["runuser", "-u", self._world.user_name(uid) or str(uid), "--", *environment]

    def units(self, uid: int | None = None, timeout: float = 20.0) -> list[Unit]:
        """All loaded service units of a manager, in one call. Empty where there is no such manager."""
        argv = self._argv(uid, "show", "--no-pager", "--all", f"--property={','.join(PROPERTIES)}", "*.service")
        result = self._world.run(argv, timeout)
        return parse_show(result.stdout, uid) if result.rc == 0 else []

    def show(self, names: t.Iterable[str], uid: int | None = None, timeout: float = 20.0) -> dict[str, Unit]:
        """Units by name, as they are now. Raises SystemdError when systemd cannot be asked."""
        wanted = [name for name in names if _NAME.fullmatch(name)]
        if not wanted:
            return {}
        argv = self._argv(uid, "show", "--no-pager", "--all", f"--property={','.join(PROPERTIES)}", "--", *wanted)
        result = self._world.run(argv, timeout)
        if result.rc != 0:
            raise SystemdError(f"systemctl show failed: {explain(result)}")
        # One block for each name, in order; Id is the primary name where an alias was asked for.
        return dict(zip(wanted, parse_show(result.stdout, uid)))

    def file_state(self, name: str, uid: int | None = None, timeout: float = 20.0) -> str:
        """The enablement as it is on disk now; ``show`` may tell an older one, ``is-enabled`` does not."""
        result = self._world.run(self._argv(uid, "is-enabled", "--", name), timeout)
        words = result.stdout.split()
        return words[0] if words else ""

    def links(self, name: str, uid: int | None = None) -> dict[str, str]:
        """The links by which a system unit is enabled or has other names, with their targets: what ``disable`` takes away."""
        found: dict[str, str] = {}
        if uid is not None:
            return found
        for entry in self._world.list_dir(UNIT_DIRECTORY):
            path = f"{UNIT_DIRECTORY}/{entry}"
            if entry.endswith((".wants", ".requires", ".upholds")):
                path = f"{path}/{name}"
            elif entry == name or not entry.endswith(".service"):
                continue
            target = self._world.read_link(path)
            if target is not None and (path.endswith(f"/{name}") or os.path.basename(target) == name):
                found[path] = target
        return found

    def start_stopping(self, names: t.Sequence[str], uid: int | None, timeout: float) -> PendingRun:
        """Have units of one manager stopped, side by side. ``finish`` of what is returned waits for them all."""
        return self._world.start(self._argv(uid, "--no-ask-password", "stop", "--", *names), timeout)

    def kill(self, name: str, uid: int | None, timeout: float) -> None:
        """SIGKILL all that is left in a unit's control group. Raises SystemdError."""
        self._act(uid, timeout, "kill", name, "--signal=SIGKILL")

    def start(self, name: str, uid: int | None, timeout: float) -> None:
        """Start a unit and wait until it says that it runs. Raises SystemdError."""
        self._act(uid, timeout, "start", name)

    def forget_starts(self, names: t.Sequence[str], uid: int | None, timeout: float) -> None:
        """Forget that units have failed, and how often they were started: before they are started for somebody who had them running.

        The limit (StartLimitBurst of systemd.unit(5)) counts everybody's starts, and a service that reaches it takes its socket with it.
        It is against units that end at once; one that does so reaches it again. What is not loaded has no count, which systemctl calls a failure.
        """
        self._world.run(self._argv(uid, "--no-ask-password", "reset-failed", "--", *names), timeout)

    def disable(self, name: str, uid: int | None, timeout: float) -> None:
        """Take a unit out of the next boot. Raises SystemdError."""
        self._act(uid, timeout, "disable", name, "--no-reload")

    def enable(self, name: str, uid: int | None, timeout: float) -> None:
        """Put a unit back into the next boot. Raises SystemdError."""
        self._act(uid, timeout, "enable", name, "--no-reload")

    def mask(self, name: str, uid: int | None, timeout: float) -> None:
        """Keep a generated unit (a Quadlet has no file that ``disable`` could act on) out of the next boot. Raises SystemdError."""
        self._act(uid, timeout, "mask", name, "--no-reload")

    def unmask(self, name: str, uid: int | None, timeout: float) -> None:
        """Undo ``mask``. Raises SystemdError."""
        self._act(uid, timeout, "unmask", "--no-reload", name)

    def reload(self, uid: int | None, timeout: float) -> None:
        """Make the manager read its unit files again: only where a unit cannot be started otherwise. Raises SystemdError."""
        result = self._world.run(self._argv(uid, "daemon-reload"), timeout)
        if result.rc != 0:
            raise SystemdError(f"systemctl daemon-reload failed: {explain(result)}", denied=is_denied(result))

    def _act(self, uid: int | None, timeout: float, verb: str, name: str, *options: str) -> None:
        result = self._world.run(self._argv(uid, "--no-ask-password", verb, *options, "--", name), timeout)
        if result.timed_out:
            raise SystemdError(f"systemctl {verb} {name} has not ended within {timeout:.0f} s")
        if result.rc != 0:
            raise SystemdError(f"systemctl {verb} {name} failed: {explain(result)}", denied=is_denied(result))


def is_denied(result: RunResult) -> bool:
    """Whether a command failed for a lack of rights."""
    text = f"{result.stderr} {result.stdout}".lower()
    return any(words in text for words in _DENIED)


def explain(result: RunResult) -> str:
    """Why a command failed, in one line: what systemctl says first is the reason, and last where to read more."""
    if result.missing:
        return "there is no systemctl on this node"
    if result.timed_out:
        return "it did not answer in time"
    words = " ".join((result.stderr or result.stdout).split())
    return words[:_MOST_WORDS] or f"exit status {result.rc}"
