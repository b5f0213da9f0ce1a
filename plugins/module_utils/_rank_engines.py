# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The containers of ranks, as the container engines of a node list them."""

from __future__ import annotations

import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._containers import DOCKER_SOCKETS
from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container, EngineApi, find_engines
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import DEPLOYMENT_LABEL, LAUNCH_LABEL, rank_list
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World


class RankEngine(t.Protocol):
    """A container engine, as far as ranks are concerned. Each call raises EngineError."""

    socket_path: str

    def list_labelled(self, labels: t.Sequence[str]) -> list[dict[str, t.Any]]: ...

    def inspect(self, container_id: str) -> Container | None: ...

    def describe(self, container_id: str) -> dict[str, t.Any] | None: ...

    def read_log(self, container_id: str, seconds: float, since: int = 0) -> t.Iterator[bytes]: ...

    def start(self, container_id: str) -> None: ...

    def signal(self, container_id: str, name: str) -> None: ...

    def stop(self, container_id: str, seconds: int) -> None: ...

    def remove(self, container_id: str) -> None: ...


class Rank(t.NamedTuple):
    """A rank's container and its engine. ``row`` is as the filter rank_list returns it."""

    engine: RankEngine
    row: dict[str, t.Any]

    @property
    def id(self) -> str:
        """The container's full id."""
        return str(self.row["id"])

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.row["container"])


def find_ranks(engines: t.Iterable[RankEngine], deployment: str) -> list[Rank]:
    """The containers of a deployment's ranks, stopped ones too. Raises EngineError."""
    found = []
    for engine in engines:
        rows = engine.list_labelled([f"{DEPLOYMENT_LABEL}={deployment}", LAUNCH_LABEL])
        found += [Rank(engine, row) for row in rank_list({"": rows}, deployment)]
    return found


def all_engines(world: World, timeout: float) -> tuple[t.Sequence[EngineApi], list[str]]:
    """The engines that answer, and a sentence for each that is there and does not: it may have ranks that nobody sees."""
    engines, problems = find_engines(world, timeout=timeout)
    answering = {engine.socket_path for engine in engines}
    for path in DOCKER_SOCKETS:
        directory, name = path.rsplit("/", 1)
        linked = directory == "/var/run" and world.read_link("/var/run") is not None
        if not linked and path not in answering and name in world.list_dir(directory):
            problems.append(f"the container engine at {path} does not answer")
    return engines, problems
