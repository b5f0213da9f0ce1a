# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What makes a node look at its lease by itself: a timer, a guard of the memory, and a unit for the next boot.

Timer and guard are transient units, so nothing of them outlives a boot, and systemd is not made to reload its configuration,
which can take the GPU away from containers (NVIDIA/nvidia-docker#1730). The boot's unit is a file and a link, which the next
boot reads; it is there for exactly the boot in which the others are gone.
"""

from __future__ import annotations

import contextlib
import os
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import DIRECTORY, LEASE_FILE, LeaseError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import explain
from ansible_collections.unimem.dgx_spark.plugins.module_utils._unit_files import UNIT_DIRECTORY, quoted, unit_paths, write_unit
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

TIMER = "unimem-lease.timer"
SERVICE = "unimem-lease.service"
GUARD = "unimem-lease-guard.service"
BOOT = "unimem-lease-boot.service"

#: Seconds between two looks of the timer, and so what a lease may be late by.
CHECK_SECONDS = 10

_TIMEOUT = 30.0

_BOOT_TEXT = """\
# Made by unimem.dgx_spark for as long as a deployment holds this node's lease; removed with it.
[Unit]
Description=Undo what a deployment had begun before this boot (unimem.dgx_spark)
ConditionPathExists={condition}
After=docker.service multi-user.target

[Service]
Type=oneshot
Environment=LC_ALL=C.UTF-8
ExecStart={command}

[Install]
WantedBy=multi-user.target
"""


class LeaseUnits:
    """The units of a node's lease."""

    def __init__(self, world: World, directory: str = DIRECTORY, unit_directory: str = UNIT_DIRECTORY) -> None:
        self._world = world
        self._directory = directory
        self._unit_directory = unit_directory
        self._boot_link, self._boot_file = unit_paths(unit_directory, BOOT)

    def arm(self, command: t.Sequence[str], guard: bool, ttl: float) -> None:
        """Make and start all units. ``command`` is the agent's, without its verb. Raises LeaseError and leaves nothing behind."""
        try:
            self._stop([TIMER, GUARD, SERVICE])
            self._write_boot(command)
            every = str(max(1, min(CHECK_SECONDS, round(ttl))))
            self._run_transient(
                SERVICE,
                [f"--on-active={every}", f"--on-unit-inactive={every}", "--timer-property=AccuracySec=1s", "--property=Type=oneshot"],
                [*command, "expire"],
            )
            if guard:
                self._run_guard(command)
            missing = self.missing(guard)
            if missing:
                raise LeaseError(f"{', '.join(missing)} did not start; 'journalctl -u {missing[0]}' on the node may say why")
        except LeaseError:
            self.disarm()
            raise

    def missing(self, guard: bool) -> list[str]:
        """Which of the units that should run do not."""
        names = [TIMER, GUARD] if guard else [TIMER]
        result = self._world.run(["systemctl", "is-active", "--", *names], _TIMEOUT)
        states = result.stdout.split()
        return [name for name, state in zip(names, [*states, *[""] * len(names)]) if state not in ("active", "activating")]

    def rest(self, from_service: bool = False) -> None:
        """Stop looking in this boot; the next one looks again. The service that asks for it (``from_service``) ends by itself."""
        self._stop([TIMER, GUARD] if from_service else [TIMER, GUARD, SERVICE])

    def disarm(self, from_service: bool = False) -> None:
        """Stop and remove all units."""
        self.rest(from_service)
        for path in (self._boot_link, self._boot_file):
            with contextlib.suppress(OSError):
                os.unlink(path)

    def left(self) -> list[str]:
        """Units of a lease that are there."""
        result = self._world.run(["systemctl", "list-units", "--all", "--plain", "--no-legend", "unimem-lease*"], _TIMEOUT)
        names = [line.split()[0] for line in result.stdout.splitlines() if line.split()]
        return names + [path for path in (self._boot_file, self._boot_link) if os.path.lexists(path)]

    def _run_guard(self, command: t.Sequence[str]) -> None:
        # Before the kernel ends the guard it ends what the guard is there to end. Where the machine refuses that, systemd goes on without.
        options = ["--property=Type=exec", "--property=Restart=on-failure", "--property=RestartSec=1", "--property=StartLimitIntervalSec=0"]
        self._run_transient(GUARD, [*options, "--property=OOMScoreAdjust=-900", "--property=Nice=-5"], [*command, "guard"])

    def _run_transient(self, unit: str, options: t.Sequence[str], command: t.Sequence[str]) -> None:
        argv = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", f"--description=unimem.dgx_spark lease: {command[-1]}"]
        argv += ["--setenv=LC_ALL=C.UTF-8", "--property=SyslogLevel=notice", "--property=LogLevelMax=notice", *options, "--", *command]
        result = self._world.run(argv, _TIMEOUT)
        if result.rc != 0:
            why = "there is no systemd-run on this node" if result.missing else explain(result)
            raise LeaseError(f"{unit} cannot be started: {why}")

    def _stop(self, names: t.Sequence[str]) -> None:
        self._world.run(["systemctl", "--no-ask-password", "stop", "--", *names], _TIMEOUT)
        self._world.run(["systemctl", "--no-ask-password", "reset-failed", "--", *names], _TIMEOUT)

    def _write_boot(self, command: t.Sequence[str]) -> None:
        text = _BOOT_TEXT.format(condition=os.path.join(self._directory, LEASE_FILE), command=" ".join(quoted(word) for word in [*command, "boot"]))
        try:
            write_unit(self._unit_directory, BOOT, text)
        except OSError as exc:
            raise LeaseError(f"{self._boot_file} cannot be made: {exc.strerror}", denied=isinstance(exc, PermissionError)) from exc
