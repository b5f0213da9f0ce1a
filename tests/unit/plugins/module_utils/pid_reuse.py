# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pids used again under the module's hands, for test_pid_reuse: runs in a PID namespace of its own, with a tiny pid_max.

Each round the module is to stop a victim that the driver lists, and at one chosen moment the victim ends and a bystander gets its
pid. Then the module goes on. A bystander that is sent any signal ends, and that is seen. Prints a JSON object with the counts.
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._node import LiveNode
from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import read_process
from ansible_collections.unimem.dgx_spark.plugins.module_utils._reclaim_run import run
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Scene, read_scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import Identity, ProcessHandle
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld

#: Moments at which the pid changes hands: before the module looks at /proc again, around opening it, and between the signals.
MOMENTS = ("scene", "before open", "after open", "after TERM", "never")
GIB = 1024**3
TICK = 1 / os.sysconf("SC_CLK_TCK")


UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc"]
#: From this kernel on a PID namespace has a pid_max of its own; before, writing it would change the machine's.
OWN_PID_MAX = (6, 14)


def rounds(number: int, seed: int) -> dict[str, int]:
    """So many rounds in a PID namespace; the counts."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    size = "tiny" if release and (int(release[1]), int(release[2])) >= OWN_PID_MAX else "usual"
    argv = [*UNSHARE, sys.executable, __file__, str(number), str(seed), size]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    assert size != "tiny" or counts["pid_max"] == 400
    return counts


def judge(counts: dict[str, int], number: int) -> None:
    assert counts["rounds"] == number and counts["wrong"] == 0
    # It did its work where the pid stayed with its process, and gave a good part of the bystanders their chance.
    assert counts["ended"] == counts["never"] > 0
    assert counts["swapped"] == number - counts["never"] > number / 2
    assert counts["signals"] >= counts["never"]


def fork(ignore_term: bool = False) -> int:
    """A process that waits; TERM ends it unless it is told otherwise."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore_term else signal.SIG_DFL)
        while True:
            signal.pause()
    return pid


def lives(pid: int) -> bool:
    process = read_process(LiveWorld(), pid)
    return process is not None and process.state != "Z"


class Swap:
    """A victim, and the bystander that takes its pid over."""

    def __init__(self, moment: str, stubborn: bool) -> None:
        self.moment = moment
        self.victim = fork(stubborn)
        self.start_time = 0
        self.bystander: int | None = None

    def at(self, moment: str) -> None:
        if moment != self.moment or self.bystander is not None:
            return
        os.kill(self.victim, signal.SIGKILL)
        os.waitpid(self.victim, 0)
        for _attempt in range(1000):
            with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
                file.write(str(self.victim - 1))
            # The bystander ignores nothing: whatever signal it gets ends it.
            pid = fork()
            if pid == self.victim:
                self.bystander = pid
                return
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise SystemExit(f"pid {self.victim} was not given out again")

    def finish(self) -> bool:
        """Whether the bystander lives untouched; ends what is left."""
        pid = self.bystander or self.victim
        untouched = self.bystander is None or os.waitpid(self.bystander, os.WNOHANG) == (0, 0)
        if untouched:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        return untouched


class NoUnits:
    """A machine without service managers."""

    def show(self, *_arguments: t.Any, **_options: t.Any) -> dict[str, t.Any]:
        return {}

    def units(self, *_arguments: t.Any, **_options: t.Any) -> list[t.Any]:
        return []


class Handle(ProcessHandle):
    """A pinned process that loses its pid after SIGTERM."""

    swap: Swap

    def send(self, number: int) -> None:
        super().send(number)
        SENT.append(number)
        if number == signal.SIGTERM:
            self.swap.at("after TERM")


SENT: list[int] = []


class Node(LiveNode):
    """This namespace as the module sees it. Only the driver's list is invented."""

    def __init__(self, swap: Swap) -> None:
        super().__init__(LiveWorld())
        self.swap = swap
        self.systemd = NoUnits()  # type: ignore[assignment]

    def gather(self) -> dict[str, t.Any]:
        process = read_process(self._world, self.swap.victim)
        rows = []
        if process is not None and self.swap.bystander is None and process.state != "Z":
            owner = {"kind": "process", "name": "victim", "restarted_by": None}
            rows.append({"pid": process.pid, "start_time": process.start_time, "memory": GIB, "name": process.name, "command": "victim", "user": "root",
                         "kinds": ["compute"], "state": process.state, "protected": None, "owner": owner})
        return {"class": "unified", "memory": self.memory("unified"), "processes": rows, "process_memory": GIB * len(rows), "unattributed": 0}

    def memory(self, klass: str) -> dict[str, int | None]:
        held = GIB if self.swap.bystander is None and lives(self.swap.victim) else 0
        return {"total": 100 * GIB, "free": 50 * GIB, "available": 60 * GIB - held, "reclaimable": 0, "cuda_free": 50 * GIB, "allocatable": 60 * GIB - held}

    def scene(self, facts: dict[str, t.Any]) -> Scene:
        seen = read_scene(self._world, self.systemd, [], facts)
        self.swap.at("scene")
        return seen

    def open_process(self, identity: Identity) -> ProcessHandle:
        self.swap.at("before open")
        handle = super().open_process(identity)
        self.swap.at("after open")
        mine = Handle(self._world, identity, handle._descriptor)
        handle._descriptor = -1
        mine.swap = self.swap
        return mine


def parameters(directory: str, name: str) -> dict[str, t.Any]:
    return {
        "state": "freed", "stop": [f"process:{name}"], "protect": [], "need": 0, "always": [], "kill_leftovers": True, "drop_page_cache": False,
        "cache_paths": [], "grace": 0, "timeout": 5, "rounds": 2, "restore": {}, "reason": "any", "journal": f"{directory}/journal.json",
    }  # fmt: skip


def main() -> None:
    number, seed = int(sys.argv[1]), int(sys.argv[2])
    if sys.argv[3] == "tiny":
        with open("/proc/sys/kernel/pid_max", "w", encoding="ascii") as file:
            file.write("400")
    os.fsync = lambda _descriptor: None  # no power fails here, and it is most of the time
    chance = random.Random(seed)
    directory = tempfile.mkdtemp()
    counts = {"rounds": 0, "swapped": 0, "wrong": 0, "ended": 0, "never": 0, "signals": 0, "pids": 0, "pid_max": 0}
    pids = set()
    name = read_process(LiveWorld(), os.getpid()).name  # type: ignore[union-attr]
    fork()  # pid 2 counts as a kernel thread
    try:
        for _round in range(number):
            moment = chance.choice(MOMENTS)
            swap = Swap(moment, stubborn=chance.random() < 0.5)
            pids.add(swap.victim)
            # What holds GPU memory is older than one tick of the clock by which start times are told.
            time.sleep(1.1 * TICK)
            run(Node(swap), parameters(directory, name), False, f"{directory}/locks")
            counts["never"] += swap.moment == "never"
            counts["rounds"] += 1
            counts["swapped"] += swap.bystander is not None
            counts["ended"] += swap.bystander is None and not lives(swap.victim)
            counts["wrong"] += not swap.finish()
        counts["signals"] = len(SENT)
        counts["pids"] = len(pids)
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
            counts["pid_max"] = int(file.read())
    finally:
        shutil.rmtree(directory)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
