# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What there is of a lease on a node, and what it was held for. Reads only, and needs little, since every deployment looks."""

from __future__ import annotations

import os
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineApi, EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._journal import Journal, JournalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import (
    DIRECTORY,
    FOREIGN,
    NONE,
    OVER,
    OWN,
    Clock,
    Lease,
    LeaseError,
    LeaseStore,
    LiveClock,
    Owner,
    check_deployment,
    make_owner,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import is_kept
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_engines import RankEngine, all_engines, find_ranks
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

#: The option `owner` of the modules.
OWNER_OPTION: t.Final = {
    "type": "dict",
    "options": {
        "id": {"type": "str", "required": True},
        "user": {"type": "str", "default": ""},
        "controller": {"type": "str", "default": ""},
        "pid": {"type": "int", "default": 0},
        "started": {"type": "str", "default": ""},
        "host": {"type": "str", "default": ""},
        "start_time": {"type": "int", "default": 0},
    },
}


class LookNode(t.Protocol):
    """One machine, as far as looking is concerned."""

    clock: Clock
    store: LeaseStore

    def engines(self) -> tuple[t.Sequence[RankEngine], list[str]]:
        """The container engines that answer, and a sentence for each that is there and does not."""

    def keeps(self, deployment: str) -> bool:
        """Whether a deployment's rank would be started again. Raises PersistError."""


class LiveLookNode:
    """This machine. ``engine_timeout``: seconds that a container engine has for an answer."""

    def __init__(self, world: World, directory: str = DIRECTORY, engine_timeout: float = 15.0) -> None:
        self._world = world
        self._engine_timeout = engine_timeout
        self.clock: Clock = LiveClock()
        self.store = LeaseStore(directory)

    def engines(self) -> tuple[t.Sequence[EngineApi], list[str]]:
        """See LookNode."""
        return all_engines(self._world, self._engine_timeout)

    def keeps(self, deployment: str) -> bool:
        """See LookNode."""
        return is_kept(deployment)


@dataclass
class Seen:
    """What there is. As module node_lease_info returns it."""

    state: str = NONE
    message: str = ""
    lease: dict[str, t.Any] | None = None
    fired: dict[str, t.Any] | None = None
    ranks: list[dict[str, t.Any]] = field(default_factory=list)
    evicted: list[dict[str, t.Any]] = field(default_factory=list)
    kept: bool = False


def journal_path(given: str | None, deployment: str) -> str:
    """Where the journal of a deployment is. Raises ValueError."""
    path = given or f"/var/lib/unimem/{deployment}.json"
    if not os.path.isabs(path):
        raise ValueError(f"journal: {path!r} is not an absolute path")
    return os.path.normpath(path)


def look_by(node: LookNode, params: t.Mapping[str, t.Any]) -> Seen:
    """As the module's parameters ask. Raises ValueError for some that cannot be meant, and LeaseError."""
    try:
        owner = make_owner(params["owner"]) if params.get("owner") else None
        check_deployment(params["deployment"])
    except LeaseError as exc:
        raise ValueError(str(exc)) from exc
    return look(node, owner, params["deployment"], journal_path(params["journal"], params["deployment"]))


def look(node: LookNode, owner: Owner | None, deployment: str, journal: str) -> Seen:
    """What there is now. Raises LeaseError and PersistError."""
    lease = node.store.load()
    seen = Seen(
        state=state_of(node, owner, lease), lease=None if lease is None else lease.public(node.clock), fired=node.store.fired(), kept=node.keeps(deployment)
    )
    try:
        seen.ranks = [{name: value for name, value in rank.row.items() if name != "host"} for rank in find_ranks(node.engines()[0], deployment)]
        seen.evicted = [
            {"kind": entry["kind"], "name": entry.get("name"), "restore": entry.get("restore"), "state": entry["state"]}
            for entry in Journal(journal).load().open_entries
        ]
    except (EngineError, JournalError) as exc:
        seen.message = f"not all could be read: {exc}"
    if not seen.message:
        seen.message = "there is no lease on this node" if lease is None else describe(seen.state, lease, node)
    return seen


def state_of(node: LookNode, owner: Owner | None, lease: Lease | None) -> str:
    """What the lease is to a run: NONE, OWN, FOREIGN or OVER."""
    return NONE if lease is None else lease.seen_by(owner.id if owner else None, node.clock)


def describe(state: str, lease: Lease, node: LookNode) -> str:
    """The same in a sentence."""
    whose = {OWN: "the lease is held by this run", FOREIGN: "the lease is another run's", OVER: "the lease has run out and was not settled"}
    return f"{whose[state]}: {lease.describe(node.clock)}"
