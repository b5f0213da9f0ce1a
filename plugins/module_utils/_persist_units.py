# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The unit that keeps a rank: a file and a link, which the next boot reads, and its state in this boot.

systemd is not made to reload its configuration, which can take the GPU away from containers that run (NVIDIA/nvidia-docker#1730);
``systemctl enable`` and ``disable`` do that, and so do the modules that call them. A unit that is new is found without.
So what may change while a rank runs is in the record that its program reads, and not in the unit.
"""

from __future__ import annotations

import os
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import DIRECTORY, PersistError, PersistStore, is_kept, unit_name
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import RUNNING, Systemd, SystemdError, Unit, explain
from ansible_collections.unimem.dgx_spark.plugins.module_utils._unit_files import UNIT_DIRECTORY, quoted, unit_paths, write_unit
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

#: What the unit's program ends with when trying again would not help; systemd leaves it at that.
REFUSED = 3

#: Seconds between two tries.
PAUSE = 30

#: Seconds beside those that a container is given to stop.
_MARGIN = 30

_TIMEOUT = 30.0

_TEXT = """\
# Made by unimem.dgx_spark for a deployment that is kept across boots (tp_launch_persist); removed with it.
[Unit]
Description=Rank of deployment {deployment}: started after a boot, and followed (unimem.dgx_spark)
# After whatever else takes memory at a boot, and after a lease of an earlier boot is settled.
After=docker.service unimem-lease-boot.service multi-user.target
PartOf=docker.service
ConditionPathExists={record}
# The program itself counts how often the rank failed, across boots; this is for a program that cannot run.
StartLimitIntervalSec=86400
StartLimitBurst={burst}

[Service]
Type=exec
Environment=LC_ALL=C.UTF-8
ExecStart={command}
Restart=on-failure
RestartSec={pause}
RestartPreventExitStatus={refused}
TimeoutStopSec={stop_seconds}
SyslogIdentifier={name}
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
"""


def unit_text(deployment: str, command: t.Sequence[str], record: str, tries: int, stop_seconds: int) -> str:
    """The unit's file. ``command``: the program with its arguments."""
    return _TEXT.format(
        deployment=deployment,
        name=unit_name(deployment).rsplit(".", 1)[0],
        record=record,
        command=" ".join(quoted(word) for word in command),
        burst=3 * tries + 3,  # a rank that ends with another one is started anew without having failed
        pause=PAUSE,
        refused=REFUSED,
        stop_seconds=stop_seconds + _MARGIN,
    )


class PersistUnits:
    """The unit of one deployment on this node."""

    def __init__(self, world: World, deployment: str, unit_directory: str = UNIT_DIRECTORY) -> None:
        self._world = world
        self._systemd = Systemd(world)
        self.name = unit_name(deployment)
        self._directory = unit_directory
        self._link, self._file = unit_paths(unit_directory, self.name)

    def text(self) -> str:
        """The file as it is; an empty text when there is none, or something else in its place. Raises PersistError."""
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return ""
        except OSError as exc:
            if os.path.islink(self._file):  # replaced, not followed
                return ""
            raise _error(self._file, "read", exc) from exc
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
            return file.read(65536)

    def enabled(self) -> bool:
        """Whether the next boot starts it."""
        return os.path.lexists(self._link)

    def exists(self) -> bool:
        """Whether anything of it is on the disk."""
        return os.path.lexists(self._file) or self.enabled()

    def active(self) -> bool:
        """Whether its program runs, or is about to. Raises PersistError."""
        return self._show().active_state in RUNNING

    def write(self, text: str) -> None:
        """The file, and the link for the next boot. Raises PersistError."""
        try:
            write_unit(self._directory, self.name, text)
        except OSError as exc:
            raise _error(self._file, "written", exc) from exc

    def start(self) -> None:
        """Start its program. Raises PersistError."""
        try:
            self._systemd.forget_starts([self.name], None, _TIMEOUT)
            self._systemd.start(self.name, None, _TIMEOUT)
        except SystemdError as exc:
            raise PersistError(str(exc), denied=exc.denied) from exc

    def stop(self) -> None:
        """Stop its program, which stops the rank that its record names. Raises PersistError."""
        found = self._show()
        if found.active_state in RUNNING:
            limit = (found.stop_seconds or 0.0) + _TIMEOUT
            done = self._systemd.start_stopping([self.name], None, limit).finish()
            if done.timed_out or done.rc != 0:
                raise PersistError(f"{self.name} cannot be stopped: {explain(done)}")
            found = self._show()
        if found.active_state == "failed":
            self._systemd.forget_starts([self.name], None, _TIMEOUT)

    def remove(self) -> None:
        """Take it off the disk. The link goes first: without it no boot starts anything. Raises PersistError."""
        for path in (self._link, self._file, f"{self._file}.new"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise _error(path, "removed", exc) from exc

    def _show(self) -> Unit:
        try:
            return self._systemd.show([self.name])[self.name]
        except (SystemdError, KeyError) as exc:
            raise PersistError(f"{self.name} cannot be asked for: {exc}") from exc


def let_go(world: World, deployment: str, directory: str = DIRECTORY, unit_directory: str = UNIT_DIRECTORY) -> bool:
    """Remove what keeps a deployment's rank on this node; the rank itself goes on. Whether there was anything. Raises PersistError."""
    store = PersistStore(deployment, directory)
    units = PersistUnits(world, deployment, unit_directory)
    if not is_kept(deployment, directory, unit_directory):
        return False
    units.remove()
    # Before the unit is stopped: without a record its program leaves the rank alone, and ends by itself should systemd not answer.
    store.remove()
    units.stop()
    return True


def _error(path: str, what: str, exc: OSError) -> PersistError:
    return PersistError(f"{path} cannot be {what}: {exc.strerror}", denied=isinstance(exc, PermissionError))
