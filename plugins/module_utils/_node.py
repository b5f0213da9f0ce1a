# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node that is acted upon: all that reclaiming and restoring need of the world, in one place.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.
"""

from __future__ import annotations

import os
import time
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Engine, find_engines
from ansible_collections.unimem.dgx_spark.plugins.module_utils._facts import gather
from ansible_collections.unimem.dgx_spark.plugins.module_utils._meminfo import read_memory
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ollama import read_loaded
from ansible_collections.unimem.dgx_spark.plugins.module_utils._owners import OwnerReader
from ansible_collections.unimem.dgx_spark.plugins.module_utils._page_cache import drop_all, evict_files
from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import Process, Stat, read_process, read_stat
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Scene, read_listeners, read_scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import Identity, ProcessHandle, Signaller
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import Systemd
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld, World


class Node(t.Protocol):
    """One machine, read and acted upon. Tests put an invented one in its place."""

    systemd: Systemd

    def gather(self) -> dict[str, t.Any]:
        """The facts of gpu_memory_facts, now."""

    def memory(self, klass: str) -> dict[str, int | None]:
        """The ``memory`` part of the facts, now: cheap."""

    def scene(self, facts: dict[str, t.Any]) -> Scene:
        """All that runs on the node, now."""

    def engine(self, socket_path: str) -> Engine | None:
        """The container engine behind a socket, if it answers."""

    def open_process(self, identity: Identity) -> ProcessHandle:
        """Pin a process. Raises SignalError."""

    def processes(self) -> dict[int, Stat]:
        """All visible processes by pid, now: cheap."""

    def process(self, pid: int) -> Process | None:
        """One process, now; None when there is none."""

    def listening(self, pids: t.Collection[int] | None = None) -> set[int]:
        """TCP ports that are listened on, by these processes or by any."""

    def listening_inside(self, pid: int) -> set[int]:
        """TCP ports that are listened on in a network of that process's own; none where it shares the node's."""

    def loaded(self, ports: t.Collection[int]) -> list[dict[str, str]]:
        """The models that an Ollama behind one of these ports has loaded, each with ``model`` and ``until``."""

    def evict_files(self, paths: list[str]) -> tuple[int, list[str]]:
        """Evict the page cache of files."""

    def drop_cache(self, timeout: float) -> str | None:
        """Drop the whole page cache; None, or why not."""

    def set_link(self, path: str, target: str | None) -> None:
        """Make a symbolic link of systemd's, or remove it (target None)."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""

    def now(self) -> str:
        """The date and time, for people."""

    def pause(self, seconds: float) -> None:
        """Let a moment pass between two looks."""


def pauses(node: Node) -> t.Iterator[float]:
    """Pauses between two looks at something that nobody announces: a twentieth of what has been waited, so that looking costs little.

    Between 20 ms, which is less than anything here takes, and a second.
    """
    start = node.monotonic()
    while True:
        yield min(1.0, max(0.02, (node.monotonic() - start) / 20))


class LiveNode:
    """This machine."""

    def __init__(self, world: World | None = None, facts_timeout: float = 10.0) -> None:
        self._world: World = world or LiveWorld()
        self._facts_timeout = facts_timeout
        self._signaller = Signaller(self._world)
        self._engines: dict[str, Engine] = {}
        self.systemd = Systemd(self._world)

    def gather(self) -> dict[str, t.Any]:
        """See Node."""
        return gather(self._world, timeout=self._facts_timeout)

    def memory(self, klass: str) -> dict[str, int | None]:
        """See Node. Memory that a GPU has of its own is known to the driver only."""
        if klass in ("coherent", "discrete"):
            return t.cast("dict[str, int | None]", self.gather()["memory"])
        return read_memory(self._world, klass)

    def scene(self, facts: dict[str, t.Any]) -> Scene:
        """See Node."""
        problems = self._find_engines()
        return read_scene(self._world, self.systemd, list(self._engines.values()), facts, problems)

    def _find_engines(self) -> list[str]:
        reader = OwnerReader(self._world)
        places = [reader.place(pid) for pid in self._world.process_table()]
        users = {place.uid for place in places if place.runtime == "podman"}
        engines, problems = find_engines(self._world, users)
        self._engines = {engine.socket_path: engine for engine in engines}
        return problems

    def engine(self, socket_path: str) -> Engine | None:
        """See Node."""
        if socket_path not in self._engines:
            # A journal names an engine whose containers are all stopped: Podman's is asked for as well, then.
            users: set[int | None] = {None, *(int(name) for name in self._world.list_dir("/run/user") if name.isdigit())} if "podman" in socket_path else set()
            engines, _problems = find_engines(self._world, users)
            self._engines.update({engine.socket_path: engine for engine in engines})
        return self._engines.get(socket_path)

    def open_process(self, identity: Identity) -> ProcessHandle:
        """See Node."""
        return self._signaller.open(identity)

    def processes(self) -> dict[int, Stat]:
        """See Node."""
        read = {int(name): read_stat(self._world, int(name)) for name in self._world.list_dir("/proc") if name.isdigit()}
        return {pid: stat for pid, stat in read.items() if stat is not None}

    def process(self, pid: int) -> Process | None:
        """See Node."""
        return read_process(self._world, pid)

    def listening(self, pids: t.Collection[int] | None = None) -> set[int]:
        """See Node."""
        ports = read_listeners(self._world, pids or ())
        return set(ports) if pids is None else {port for port, holders in ports.items() if holders}

    def listening_inside(self, pid: int) -> set[int]:
        """See Node."""
        theirs = self._world.read_link(f"/proc/{pid}/ns/net")
        if theirs is None or theirs == self._world.read_link("/proc/self/ns/net"):
            return set()
        return set(read_listeners(self._world, (), f"/proc/{pid}/net"))

    def loaded(self, ports: t.Collection[int]) -> list[dict[str, str]]:
        """See Node."""
        return read_loaded(ports)

    def evict_files(self, paths: list[str]) -> tuple[int, list[str]]:
        """See Node."""
        return evict_files(paths)

    def drop_cache(self, timeout: float) -> str | None:
        """See Node."""
        return drop_all(self._world, timeout)

    def set_link(self, path: str, target: str | None) -> None:
        """See Node."""
        if target is None:
            os.unlink(path)
        else:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            os.symlink(target, path)

    def monotonic(self) -> float:
        """See Node."""
        return self._world.monotonic()

    def now(self) -> str:
        """See Node."""
        return time.strftime("%Y-%m-%dT%H:%M:%S%z")

    def pause(self, seconds: float) -> None:
        """See Node. Between two measurements there is nothing to wait on: the kernel does not announce free memory."""
        time.sleep(max(0.0, seconds))
