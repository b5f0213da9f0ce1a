# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A systemd that knows one unit, by the words of systemctl."""

from __future__ import annotations

import typing as t
from collections.abc import Sequence

from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld, PendingRun, RunResult

NAME = "unimem-rank-default.service"


class _Done(t.NamedTuple):
    result: RunResult

    def finish(self) -> RunResult:
        return self.result


class Systemd(FakeWorld):
    """Notes what systemctl is told. ``broken``: what it answers to everything."""

    def __init__(self) -> None:
        super().__init__()
        self.argvs: list[list[str]] = []
        self.states: dict[str, str] = {}
        self.broken: RunResult | None = None
        self.on_stop: t.Callable[[], object] = lambda: None

    @property
    def reloaded(self) -> bool:
        """Whether systemd was made to read its files again."""
        return any({"daemon-reload", "enable", "disable", "preset", "mask"} & set(argv) for argv in self.argvs)

    def start(self, argv: Sequence[str], timeout: float) -> PendingRun:
        return _Done(self.run(argv, timeout))

    def run(self, argv: Sequence[str], timeout: float) -> RunResult:
        self.argvs.append(list(argv))
        if self.broken is not None:
            return self.broken
        name = argv[-1]
        if "show" in argv:
            return RunResult(rc=0, stdout=f"Id={name}\nActiveState={self.states.get(name, 'inactive')}\nTimeoutStopUSec=1min 45s\n")
        if "start" in argv:
            self.states[name] = "active"
        elif "stop" in argv:
            self.on_stop()
            self.states[name] = "inactive"
        elif "reset-failed" in argv:
            self.states[name] = "inactive"
        return RunResult(rc=0)
