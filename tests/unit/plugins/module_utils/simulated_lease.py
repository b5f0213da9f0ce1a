# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An invented node with a lease: the simulated node of the reclaim tests, its Docker, a clock, and units that are only noted.

The lease's files are real ones in a directory of the test.
"""

from __future__ import annotations

import typing as t
from dataclasses import replace
from pathlib import Path

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container, EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import LeaseError, LeaseStore
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_look import look_by
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_run import run
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import PersistError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import container_name
from ansible_collections.unimem.dgx_spark.plugins.module_utils._reclaim_run import run as run_reclaim
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import Identity
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_node import (
    BOOT,
    ENGINE,
    GIB,
    Proc,
    SimulatedEngine,
    SimulatedNode,
    container,
    unit,
)

RANK = container_name("default", 1)


class Clock:
    """Boot time that only tests move, and a wall clock that they may set to anything."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self.boot = BOOT
        self.wall = 1_000_000.0

    def boottime(self) -> float:
        return self._node.clock

    def boot_id(self) -> str:
        return self.boot

    def date(self, ahead: float = 0.0) -> str:
        return f"date {self.wall + self._node.clock + ahead:.0f}"


class Units:
    """What should run on the node for a lease."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.boot = False
        self.refuses = ""
        self.commands: list[list[str]] = []

    def arm(self, command: t.Sequence[str], guard: bool, ttl: float) -> None:
        self.commands.append(list(command))
        if self.refuses:
            raise LeaseError(self.refuses)
        self.running = {"timer", "guard"} if guard else {"timer"}
        self.boot = True

    def missing(self, guard: bool) -> list[str]:
        return sorted(({"timer", "guard"} if guard else {"timer"}) - self.running)

    def rest(self, from_service: bool = False) -> None:
        self.running = set()

    def disarm(self, from_service: bool = False) -> None:
        self.running = set()
        self.boot = False

    def left(self) -> list[str]:
        return sorted(self.running) + (["boot"] if self.boot else [])


class Docker(SimulatedEngine):
    """The node's Docker with what ranks need of it. ``hung``: it answers nothing. ``stubborn``: nothing ends there."""

    hung = False
    stubborn = False

    def __init__(self, node: SimulatedNode, socket_path: str) -> None:
        super().__init__(node, socket_path)
        self.statuses: dict[str, int] = {}  # with what containers have ended
        self.environment: list[str] = []  # of all of them
        self.log = b""  # of the last start of any of them, in frames

    def _answer(self) -> None:
        if self.hung:
            raise EngineError("hung", f"the container engine at {self.socket_path} has not answered within 15 s")

    def list_labelled(self, labels: t.Sequence[str]) -> list[dict[str, t.Any]]:
        self._answer()
        rows = []
        for made in self.node.containers.values():
            if all(made.labels.get(label.split("=")[0]) == label.split("=")[1] if "=" in label else label in made.labels for label in labels):
                row = {"Id": made.id, "Names": [f"/{made.name}"], "Labels": made.labels, "State": made.status, "Created": 1}
                rows.append({**row, "Status": "Up 2 minutes (healthy)" if made.running else "Exited (0) 1 second ago"})
        return rows

    def inspect(self, container_id: str) -> Container | None:
        self._answer()
        return super().inspect(container_id)

    def signal(self, container_id: str, name: str) -> None:
        self._answer()
        if not self.stubborn:
            super().signal(container_id, name)

    def stop(self, container_id: str, seconds: int) -> None:
        self._answer()
        self.node.clock += 1
        if not self.stubborn:
            super().signal(container_id, "SIGTERM")

    def start(self, container_id: str) -> None:
        self._answer()
        super().start(container_id)

    def describe(self, container_id: str) -> dict[str, t.Any] | None:
        self._answer()
        made = self.node.containers.get(f"container:{container_id}")
        return None if made is None else {"State": {"ExitCode": self.statuses.get(made.name, 0)}, "Config": {"Env": self.environment}}

    def read_log(self, container_id: str, seconds: float, since: int = 0) -> t.Iterator[bytes]:
        yield self.log

    def remove(self, container_id: str) -> None:
        self._answer()
        made = self._get(container_id)
        if made.running:
            raise EngineError("conflict", f"container {made.name} is running")
        del self.node.containers[made.key]
        self.node.happened(f"remove {made.name}")


class Machine(SimulatedNode):
    """The simulated node, whose driver says which container a process is of."""

    def gather(self) -> dict[str, t.Any]:
        facts = super().gather()
        for row in facts["processes"]:
            made = self.containers.get(self.procs[row["pid"]].container or "")
            if made is not None:
                row["owner"] = {**row["owner"], "kind": "container", "name": made.name, "id": made.id}
        return facts


class SimulatedLeaseNode:
    """See the module's text."""

    def __init__(self, directory: Path) -> None:
        self.machine = Machine()
        self.docker = Docker(self.machine, ENGINE)
        self.machine.engines[ENGINE] = self.docker
        self.clock = Clock(self.machine)
        self.store = LeaseStore(str(directory / "state" / "lease"))
        self.units = Units()
        self.locks = str(directory / "locks")
        self.journal = str(directory / "state" / "default.json")
        self.proof: str | None = None
        self.kept = False  # whether a unit keeps the rank across boots
        self.stuck = ""  # why that cannot be removed
        self.free: int | None = None  # MemAvailable, where a test says it

    def restoring(self) -> SimulatedNode:
        return self.machine

    def engines(self) -> tuple[t.Sequence[Docker], list[str]]:
        return ([], [f"the container engine at {ENGINE} does not answer"]) if self.docker.hung else ([self.docker], [])

    def available(self) -> int | None:
        return self.machine.memory("unified")["available"] if self.free is None else self.free

    def identity(self, pid: int) -> Identity | None:
        proc = self.machine.procs.get(pid)
        return None if proc is None else Identity(BOOT, pid, proc.start_time)

    def open_process(self, identity: Identity) -> t.Any:
        return self.machine.open_process(identity)

    def journal_digest(self, path: str) -> str:
        return Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""

    def remove_tree(self, path: str) -> None:
        self.machine.happened(f"remove {path}")

    def keeps(self, deployment: str) -> bool:
        return self.kept

    def let_go(self, deployment: str) -> bool:
        if self.stuck:
            raise PersistError(self.stuck)
        kept, self.kept = self.kept, False
        return kept

    def pause(self, seconds: float) -> None:
        self.machine.clock += seconds

    # what tests do with it

    def lease(self, state: str, owner: str | None = "a", check: bool = False, **changes: t.Any) -> dict[str, t.Any]:
        """Call the module, or for "report" node_lease_info. The result, with ``msg``, empty for a success."""
        parameters: dict[str, t.Any] = {
            "state": state,
            "owner": None if owner is None else {"id": owner, "user": "alice", "controller": "desk", "pid": 7, "started": "noon"},
            "deployment": "default",
            "launch_id": None,
            "journal": self.journal,
            "ttl": 60,
            "reason": "failure",
            "take_over": None,
            "settle": True,
            "floor": 0,
            "floor_seconds": 5,
            "grace": 30,
            "timeout": 300,
            "launch_directory": None,
            **changes,
        }
        if state == "report":
            try:
                return {"changed": False, **vars(look_by(self, parameters)), "msg": ""}
            except LeaseError as exc:
                return {"changed": False, "msg": str(exc), "message": str(exc)}
        result, failure = run(self, parameters, check, lambda command: self.proof)
        return {**result, "msg": failure or ""}

    def add_rank(self, number: int = 100, launch: str = "l1", pid: int = 500, gpu: int = 60 * GIB, **changes: t.Any) -> Container:
        """A rank of the deployment that runs."""
        labels = {"io.unimem.deployment": "default", "io.unimem.launch-id": launch, "io.unimem.rank": "1"}
        made = container(RANK, number, policy="no", labels=labels, pid=pid)
        return self.machine.add_container(made, replace(Proc(pid, "VLLM::Worker", gpu=gpu, uid=0, user="root"), **changes))

    def add_service(self) -> None:
        """The service that is in the way."""
        self.machine.add_unit(unit("vllm-embeddings.service"), Proc(10, "vllm", gpu=12 * GIB))

    def evict(self) -> None:
        """Make room as the play does, with a journal."""
        parameters = {
            "state": "freed", "stop": ["unit:vllm-embeddings.service"], "always": [], "protect": [], "need": 0, "kill_leftovers": False,
            "drop_page_cache": False, "cache_paths": [], "grace": 30, "timeout": 60, "rounds": 3, "restore": {}, "reason": "any", "journal": self.journal,
        }
        result, failure = run_reclaim(self.machine, parameters, False, self.locks)
        assert failure is None and result["verdict"] == "freed"

    def service(self) -> tuple[str, str]:
        """Active and enabled state of the service."""
        found = self.machine.units["unit:vllm-embeddings.service"]
        return found.active_state, found.file_state

    @property
    def rank_names(self) -> list[str]:
        """Containers of ranks that are there."""
        return [made.name for made in self.machine.containers.values() if made.labels]
