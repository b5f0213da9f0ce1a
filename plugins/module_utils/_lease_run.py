# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""node_lease from its parameters to its result: who may do what with the lease, and the words for a refusal."""

from __future__ import annotations

import os
import sys
import typing as t
from dataclasses import asdict, dataclass, field, replace

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _lease_agent
from ansible_collections.unimem.dgx_spark.plugins.module_utils._agent_archive import ArchiveError, build_archive, check_agent
from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import (
    FIRED_FILE,
    FOREIGN,
    LOCK_NAME,
    MEMORY_FLOOR,
    OWN,
    Lease,
    LeaseError,
    Owner,
    check_deployment,
    check_launch_directory,
    make_owner,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_look import Seen, describe, journal_path, look, state_of
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_node import LeaseNode, LiveLeaseNode
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_settle import NOT_SETTLED, settle
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lock import LockError, NodeLock
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_engines import find_ranks
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import SizeError, parse_size
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld

#: No lease is shorter: the timer looks every 10 s, and a slow ssh takes that long.
MIN_TTL = 15


@dataclass
class Wishes:
    """The module's parameters, checked. Times in seconds."""

    state: str
    owner: Owner
    deployment: str
    journal: str
    launch_id: str | None
    ttl: float
    reason: str
    take_over: str
    settle: bool
    floor: int
    floor_seconds: float
    grace: int
    timeout: int
    launch_directory: str
    check: bool


@dataclass
class Result:
    """What is returned."""

    changed: bool = False
    failure: str | None = None
    settled: dict[str, t.Any] | None = None
    seen: Seen = field(default_factory=Seen)
    before: str = ""
    after: str = ""

    def as_dict(self) -> dict[str, t.Any]:
        """The module's result."""
        result = {"changed": self.changed, **asdict(self.seen), "settled": self.settled, "diff": {"before": f"{self.before}\n", "after": f"{self.after}\n"}}
        return {**result, "message": self.failure or self.seen.message}


def run_module(params: t.Mapping[str, t.Any], check: bool) -> tuple[dict[str, t.Any], str | None]:
    """Do what the module's parameters ask on this machine. Returns the result and, if it failed, what went wrong.

    Raises ValueError with a sentence for parameters that cannot be meant.
    """
    return run(LiveLeaseNode(), params, check, lambda command: check_agent(LiveWorld(), command))


def run(
    node: LeaseNode, params: t.Mapping[str, t.Any], check: bool, prove: t.Callable[[t.Sequence[str]], str | None]
) -> tuple[dict[str, t.Any], str | None]:
    """As run_module, on any LeaseNode. ``prove`` runs the agent once, and says what is wrong with it."""
    wishes = _wishes(params, check)
    result = Result()
    try:
        if check:
            _act(node, wishes, result, prove)
        else:
            who = {"pid": os.getpid(), "user": wishes.owner.describe(), "state": wishes.state, "since": node.clock.date()}
            # Who has it works for a moment, or settles a lease that has run out.
            with NodeLock(node.locks, who, LOCK_NAME, wait=wishes.timeout):
                _act(node, wishes, result, prove)
        result.seen = look(node, wishes.owner, wishes.deployment, wishes.journal)
    except (LeaseError, ArchiveError) as exc:
        result.failure = str(exc)
    except LockError as exc:
        result.failure = f"the lease of this node cannot be used now: {exc}"
    return result.as_dict(), result.failure


def _wishes(params: t.Mapping[str, t.Any], check: bool) -> Wishes:
    state = params["state"]
    try:
        owner = make_owner(params["owner"])
        check_deployment(params["deployment"])
        floor = parse_size(params["floor"], "floor") if params["floor"] else 0
    except (LeaseError, SizeError) as exc:
        raise ValueError(str(exc)) from exc
    for name, least in (("ttl", MIN_TTL), ("floor_seconds", 1), ("grace", 0), ("timeout", 30)):
        if params[name] < least:
            raise ValueError(f"{name}: {params[name]} is too small; it must be at least {least} s")
    journal = journal_path(params["journal"], params["deployment"])
    try:
        launch_directory = check_launch_directory(params["launch_directory"] or "", journal)
    except LeaseError as exc:
        raise ValueError(str(exc)) from exc
    return Wishes(
        state=state,
        owner=owner,
        deployment=params["deployment"],
        journal=journal,
        launch_id=params["launch_id"],
        ttl=float(params["ttl"]),
        reason=params["reason"],
        take_over=params["take_over"] or "",
        settle=params["settle"],
        floor=floor,
        floor_seconds=float(params["floor_seconds"]),
        grace=params["grace"],
        timeout=params["timeout"],
        launch_directory=launch_directory,
        check=check,
    )


def _act(node: LeaseNode, wishes: Wishes, result: Result, prove: t.Callable[[t.Sequence[str]], str | None]) -> None:
    lease = node.store.load()
    state = state_of(node, wishes.owner, lease)
    result.before = result.after = state if lease is None else describe(state, lease, node)
    if wishes.state == "released":
        _release(node, wishes, result, lease)
    elif wishes.state == "renewed":
        _renew(node, wishes, result, lease)
    else:
        if lease is not None and state != OWN:
            _take(node, wishes, result, lease, state)
        if wishes.state == "held" and result.failure is None:
            if lease is not None and state == OWN:
                _mend(node, wishes, result, lease)
            else:
                _hold(node, wishes, result, prove)


def _release(node: LeaseNode, wishes: Wishes, result: Result, lease: Lease | None) -> None:
    """Let our own lease go, run out or not. Somebody else's is none of our business: nothing of ours is held then, as asked."""
    if lease is None or lease.owner.id != wishes.owner.id:
        return
    result.changed = True
    result.after = "released"
    if not wishes.check:
        _lease_agent.clean_up(node)


def _renew(node: LeaseNode, wishes: Wishes, result: Result, lease: Lease | None) -> None:
    """Ours, and the node did nothing by itself: then it goes on, also where it had just run out and nobody noticed."""
    fired = node.store.fired()
    own_fired = fired if fired is not None and fired["owner"].get("id") == wishes.owner.id else None
    if lease is None or lease.owner.id != wishes.owner.id or lease.attempts:
        result.failure = "the lease of this run is lost, and with it what it had begun on this node"
        if own_fired is not None:
            result.failure += f": at {own_fired.get('at')} the node acted by itself ({own_fired.get('reason')}): {own_fired.get('detail')}"
        elif lease is not None and lease.owner.id != wishes.owner.id:
            result.failure += f": it is held by {lease.describe(node.clock)}"
        return
    if own_fired is not None and own_fired.get("reason") == MEMORY_FLOOR and own_fired.get("began_at") == lease.began_at:
        # Renewed all the same: whoever undoes the launch now needs the node for it.
        result.failure = f"at {own_fired.get('at')} the node acted by itself: {own_fired.get('detail')}"
    result.changed = True
    renewed = lease.renewed(node.clock, wishes.ttl, wishes.launch_id)
    result.after = describe(OWN, renewed, node)
    if wishes.check:
        return
    node.store.save(renewed)
    _mend(node, wishes, result, renewed)


def _mend(node: LeaseNode, wishes: Wishes, result: Result, lease: Lease) -> None:
    """Somebody may have stopped what looks at the lease."""
    guard = lease.floor > 0
    if node.units.missing(guard):
        result.changed = True
        if not wishes.check:
            node.units.arm(_command(node), guard, lease.ttl)


def _take(node: LeaseNode, wishes: Wishes, result: Result, lease: Lease, state: str) -> None:
    """Settle a lease that is over, or that the user says is; refuse one that lives."""
    if state == FOREIGN and wishes.take_over != lease.owner.id:
        result.failure = (
            f"another run holds this node: {lease.describe(node.clock)}. Nothing was touched. Wait until it has ended; if you know that it is dead, "
            f"take its lease over (take_over: '{lease.owner.id}')"
        )
        return
    if wishes.state == "held" and not wishes.settle:
        return  # whoever holds the node now undoes it
    result.changed = True
    result.after = "settled"
    if wishes.check:
        return
    done = settle(node, lease)
    result.settled = {**done.as_dict(), "lease": lease.public(node.clock)}
    if done.verdict == NOT_SETTLED:
        result.failure = f"a lease that ran out could not be settled: {done.message}. It was of {lease.describe(node.clock)}"
        return
    _lease_agent.clean_up(node)


def _hold(node: LeaseNode, wishes: Wishes, result: Result, prove: t.Callable[[t.Sequence[str]], str | None]) -> None:
    clock = node.clock
    lease = Lease(
        owner=wishes.owner,
        deployment=wishes.deployment,
        journal=wishes.journal,
        launch_id=wishes.launch_id or "",
        boot_id=clock.boot_id(),
        began=clock.boottime(),
        began_at=clock.date(),
        expires=clock.boottime() + wishes.ttl,
        expires_at=clock.date(wishes.ttl),
        ttl=wishes.ttl,
        reason=wishes.reason,
        floor=wishes.floor,
        floor_seconds=wishes.floor_seconds,
        grace=wishes.grace,
        timeout=wishes.timeout,
        launch_directory=wishes.launch_directory,
    )
    result.changed = True
    result.after = describe(OWN, lease, node)
    if wishes.check:
        return
    try:
        engines, problems = node.engines()
        if problems:
            raise LeaseError("; ".join(problems))
        standing = [rank.id for rank in find_ranks(engines, wishes.deployment) if rank.row["running"]]
    except EngineError as exc:
        raise LeaseError(str(exc)) from exc
    lease = replace(lease, standing=standing, journal_digest=node.journal_digest(wishes.journal))
    node.store.write_bytes(_lease_agent.ARCHIVE, build_archive(_lease_agent))
    command = _command(node)
    wrong = prove(command)
    if wrong:
        node.store.remove(_lease_agent.ARCHIVE)
        raise LeaseError(f"the node cannot guard itself: '{' '.join(command)} check' {wrong}; nothing was touched")
    node.store.remove(FIRED_FILE)
    # First the file, then what looks at it: a file without a timer only makes others wait.
    node.store.save(lease)
    try:
        node.units.arm(command, lease.floor > 0, wishes.ttl)
    except LeaseError:
        _lease_agent.clean_up(node)
        raise


def _command(node: LeaseNode) -> list[str]:
    """How the agent is run: by the Python that runs this, and nothing of a user's."""
    return [sys.executable or "/usr/bin/python3", "-I", "-B", os.path.join(node.store.directory, _lease_agent.ARCHIVE)]
