# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What a node runs by itself while it is leased, from an archive of these files: python3 agent.pyz VERB.

expire  look at the lease, and undo what it was held for if it has run out (the timer, every few seconds)
guard   watch the memory until the lease is gone
boot    undo what a lease of an earlier boot was held for
check   say that the agent can run here, and do nothing

Its output goes to the node's journal. Only the standard library is used; nobody else has to be there, no controller and no network.
"""

from __future__ import annotations

import os
import sys
import typing as t
from dataclasses import replace

from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import (
    DIRECTORY,
    EXPIRED,
    FIRED_FILE,
    LEASE_FILE,
    LOCK_NAME,
    REBOOT,
    Lease,
    LeaseError,
    LeaseStore,
    LiveClock,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lock import LockError, NodeLock

if t.TYPE_CHECKING:
    from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_node import LeaseNode

ARCHIVE = "agent.pyz"

#: Seconds that a container engine has for an answer; the guard has none to lose.
_PATIENCE, _GUARD_PATIENCE = 15.0, 3.0

VERBS = ("expire", "guard", "boot", "check")

#: Seconds after a try that failed until the next one; after the last the lease is left to the next run or the next boot.
RETRIES = (10.0, 30.0, 60.0, 120.0, 300.0)


def main(argv: t.Sequence[str], directory: str = DIRECTORY) -> int:
    """Run one verb. The exit status is for the journal only: the timer comes again in any case."""
    verb = argv[1] if len(argv) == 2 else ""
    if verb not in VERBS:
        _say(f"usage: {argv[0] if argv else ARCHIVE} {'|'.join(VERBS)}")
        return 2
    try:
        if verb in ("expire", "boot") and not _is_over(LeaseStore(directory)):
            return 0  # the common case, before anything larger is loaded
        return _run(verb, directory)
    except LeaseError as exc:
        _say(str(exc))
        return 1


def _is_over(store: LeaseStore) -> bool:
    lease = store.load()
    return lease is None or lease.remaining(LiveClock()) <= 0.0


def _run(verb: str, directory: str) -> int:
    from ansible_collections.unimem.dgx_spark.plugins.module_utils import _lease_guard, _lease_node

    node = _lease_node.LiveLeaseNode(directory=directory, engine_timeout=_GUARD_PATIENCE if verb == "guard" else _PATIENCE)
    if verb == "check":
        node.engines()
        _say("ready")
        return 0
    if verb == "guard":
        if not _lease_guard.stay_in_memory():
            _say("this machine does not let the guard keep its memory; it goes on without")
        _lease_guard.Guard(node).watch()
        return 0
    return boot(node) if verb == "boot" else expire(node)


def boot(node: LeaseNode) -> int:
    """As ``expire``, and stays until it is done or given up: no timer of an earlier boot comes again."""
    while True:
        status = expire(node)
        lease = node.store.load()
        if lease is None or lease.remaining(node.clock) > 0.0 or lease.attempts > len(RETRIES):
            return status
        node.pause(RETRIES[0])


def expire(node: LeaseNode) -> int:
    """Undo what a lease that has run out was held for, and let it go. 0 when that is done, or not due."""
    from ansible_collections.unimem.dgx_spark.plugins.module_utils import _lease_settle

    who = {"pid": os.getpid(), "user": "the node's own timer", "state": "settling an expired lease", "since": node.clock.date()}
    try:
        with NodeLock(node.locks, who, LOCK_NAME):
            lease = node.store.load()
            if lease is None:
                clean_up(node, from_service=True)
                return 0
            if lease.remaining(node.clock) > 0.0 or not _is_due(node, lease):
                return 0
            rebooted = node.clock.boot_id() != lease.boot_id
            _say(f"the lease of {lease.owner.describe()} has run out; undoing deployment {lease.deployment}")
            done = _lease_settle.settle(node, lease)
            _say(f"{done.verdict}: {done.message}")
            event = {"reason": REBOOT if rebooted else EXPIRED, **done.as_dict()}
            if done.verdict != _lease_settle.NOT_SETTLED:
                node.store.save_fired(lease, node.clock, event)
                clean_up(node, from_service=True)
                return 0
            return _again(node, lease, event)
    except LockError:
        return 0  # a run is at work with the lease; the timer comes again


def _is_due(node: LeaseNode, lease: Lease) -> bool:
    if lease.attempts == 0 or node.clock.boot_id() != lease.boot_id:
        return True
    return node.clock.boottime() >= lease.retry


def _again(node: LeaseNode, lease: Lease, event: dict[str, t.Any]) -> int:
    """Note that it failed and when to try again. After the last try the timer ends; the lease stays, for the next run to settle."""
    attempts = lease.attempts + 1
    last = attempts > len(RETRIES)
    node.store.save_fired(lease, node.clock, {**event, "attempt": attempts})
    # A lease of an earlier boot becomes one of this boot, long over, so that the tries are counted on this boot's clock.
    now = node.clock.boottime()
    pause = RETRIES[min(attempts, len(RETRIES)) - 1]
    node.store.save(replace(lease, attempts=attempts, retry=now + pause, boot_id=node.clock.boot_id(), expires=min(lease.expires, now), standing=[]))
    if last:
        _say("given up in this boot; the next run on this node, or the next boot, settles it first")
        node.units.rest(from_service=True)
    return 1


def clean_up(node: LeaseNode, from_service: bool = False) -> None:
    """No lease any more: the file goes first, since without it nothing else acts; what fired is kept for those who ask."""
    node.store.remove(LEASE_FILE)
    node.units.disarm(from_service)
    node.store.remove(ARCHIVE, f".{ARCHIVE}.new", f".{LEASE_FILE}.new", f".{FIRED_FILE}.new")
    node.store.leave()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
