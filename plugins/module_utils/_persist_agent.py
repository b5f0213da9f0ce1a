# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What a node runs for a rank that it keeps across boots: python3 agent.pyz DEPLOYMENT [check].

It starts the container that the deployment made, when all that it needs is there, and then stays as long as it runs: a rank that
runs already is only followed. It never makes a container, and it never works beside a run: where the node is leased, or the
container is another one by now, it ends. Its exit status is for systemd: 0 leave it at that, 1 try again, REFUSED do not.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container, EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._fabric import probe_peers
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import LOCK_NAME, LeaseError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_guard import FloorWatch
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_node import LeaseNode, LiveLeaseNode
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_settle import kill_ranks
from ansible_collections.unimem.dgx_spark.plugins.module_utils._liveness import Pulse
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lock import LockError, NodeLock
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import (
    DIRECTORY,
    NEED_LABEL,
    TRIES_FILE,
    Liveness,
    PersistError,
    PersistStore,
    Record,
    Tries,
    unit_name,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist_units import PAUSE, REFUSED
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_engines import Rank, find_ranks
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_log import PEER_ENDED, PEER_LOST, STOPPED, RankLog, failed_by, parse_stamp, split_frames
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size

DONE, FAILED = 0, 1

#: Seconds for Docker, the GPU's driver and this node's fabric address to be there; for the memory of a rank that ended to be back; for the
#: other nodes, whose boot may take longer or come later: nothing is started meanwhile, so waiting costs nothing.
BOOT_SECONDS, MEMORY_SECONDS, PEER_SECONDS = 600.0, 300.0, 3600.0

#: Seconds that a group has to stand before its start counts as good, and that Docker may be silent while a rank is followed.
STEADY_SECONDS, ENGINE_SECONDS = 600.0, 300.0

#: Seconds between two looks: at what is waited for, and at a rank that loads or runs.
WAIT, LOAD, LOOK = 5.0, 1.0, 5.0

#: As with the lease's guard: less MemAvailable than the floor for so long while a model loads, and the node is lost.
FLOOR_SECONDS = 5.0

#: So many failures in a row that began alike, and a further start would only end like them.
ALIKE = 2

#: Bytes of a log, and seconds, in which it is found what a rank failed by.
LOG_BYTES, LOG_SECONDS = 64 * 1024 * 1024, 30.0

_LOCK_SECONDS = 60.0


class Links(t.Protocol):
    """The way to the other nodes."""

    def has(self, address: str) -> bool:
        """Whether this node has the address."""

    def unreached(self, source: str, peers: t.Sequence[str], port: int) -> dict[str, str]:
        """Which nodes do not answer, and why not."""

    def is_open(self, source: str, address: str, port: int) -> str:
        """Empty when somebody listens there, else why not."""


class LiveLinks:
    """This machine's."""

    _SECONDS = 3.0

    def has(self, address: str) -> bool:
        """See Links. Only an address of this node's can be bound."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, 0))
            except OSError as exc:
                return exc.errno != errno.EADDRNOTAVAIL
            return True

    def unreached(self, source: str, peers: t.Sequence[str], port: int) -> dict[str, str]:
        """See Links."""
        try:
            return {peer: why for peer, why in probe_peers(source, peers, port, self._SECONDS).items() if why is not None}
        except OSError as exc:
            return dict.fromkeys(peers, exc.strerror or str(exc))

    def is_open(self, source: str, address: str, port: int) -> str:
        """See Links."""
        try:
            socket.create_connection((address, port), self._SECONDS, (source, 0)).close()
        except OSError as exc:
            return exc.strerror or str(exc)
        return ""


class _LetAlone(Exception):
    """It is somebody else's now, or nobody's."""


class _Refused(Exception):
    """It is not started, and trying again would not help."""


class _Failed(Exception):
    """It did not work; systemd comes again."""


class _Stop(BaseException):
    """systemd wants the unit to end. No error that anything should catch."""


class Keeper:
    """Keeps one rank. ``now``: the clock on the wall, in seconds."""

    def __init__(
        self,
        node: LeaseNode,
        store: PersistStore,
        links: Links,
        pulse: Pulse,
        now: t.Callable[[], float] = time.time,
        say: t.Callable[[str], None] = lambda text: None,
    ) -> None:
        self._node = node
        self._store = store
        self._links = links
        self._pulse = pulse
        self._now = now
        self._say = say
        self._rank: Rank | None = None
        self._record: Record | None = None

    def run(self) -> int:
        """Start the rank where it does not run, and follow it. The exit status."""
        try:
            record = self._current()
            self._rank = self._find(record)
            if self._rank.row["running"]:
                self._say(f"{record.name} runs; it is followed")
            else:
                self._start(record)
            return self._follow()
        except _LetAlone as exc:
            self._say(f"left alone: {exc}")
            return DONE
        except (_Refused, PersistError, LeaseError) as exc:
            self._say(f"refused: {exc}")
            return REFUSED
        except (_Failed, EngineError) as exc:
            self._say(f"failed: {exc}")
            return FAILED
        except _Stop:
            return self._stop()

    # -- what it is about -----------------------------------------------------------------------------------------------------------

    def _current(self) -> Record:
        """The record, as it is now: a run may have changed it, or taken it away."""
        record = self._store.load()
        if record is None:
            raise _LetAlone("the rank is not to be kept any more")
        if self._record is not None and record.launch_id != self._record.launch_id:
            raise _LetAlone(f"launch {self._record.launch_id} is no more, now it is {record.launch_id}")
        self._record = record
        return record

    def _find(self, record: Record) -> Rank:
        """The rank's container, once Docker answers."""
        for _again in self._wait(BOOT_SECONDS):
            engines, problems = self._node.engines()
            if engines and not problems:
                for rank in find_ranks(engines, record.deployment):
                    if rank.id == record.container and rank.row["launch_id"] == record.launch_id:
                        return rank
                raise _LetAlone(f"the container {record.name} of launch {record.launch_id} is gone")
        raise _Refused(f"Docker has not answered within {BOOT_SECONDS:.0f} s")

    def _container(self) -> Container | None:
        return None if self._rank is None else self._rank.engine.inspect(self._rank.id)

    def _leased(self) -> str:
        """By whom the node is held, or was when it went down; empty when by nobody."""
        lease = self._node.store.load()
        return "" if lease is None else f"the node is leased, for {lease.describe(self._node.clock)}"

    def _check_lease(self) -> None:
        leased = self._leased()
        if leased:
            raise _LetAlone(leased)

    def _wait(self, seconds: float, pause: float = WAIT) -> t.Iterator[None]:
        """Looks until the time is over. Whoever came meanwhile has the node."""
        end = self._node.clock.boottime() + seconds
        while True:
            yield
            if self._node.clock.boottime() >= end:
                return
            self._node.pause(pause)
            self._current()

    # -- the start ------------------------------------------------------------------------------------------------------------------

    def _start(self, record: Record) -> None:
        self._check_lease()
        self._check_tries(record)
        self._wait_for_address(record)
        if record.rank == 0:
            self._wait_for_peers(record)
        else:
            # First what may take long, then the head, which waits for its workers only so long.
            self._gate(record)
            self._wait_for_head(record)
        self._gate(record)
        who = {"pid": os.getpid(), "user": "the node's own unit", "state": f"starting {record.name}", "since": self._node.clock.date()}
        try:
            with NodeLock(self._node.locks, who, LOCK_NAME, wait=_LOCK_SECONDS):
                self._check_lease()
                self._current()
                if self._rank is None or self._container() is None:
                    raise _LetAlone(f"the container {record.name} is gone")
                self._save(self._store.tries().start(self._now()))
                self._rank.engine.start(self._rank.id)
        except LockError as exc:
            raise _LetAlone(str(exc)) from exc
        self._say(f"{record.name} of launch {record.launch_id} is started")

    def _check_tries(self, record: Record) -> None:
        tries = self._store.tries().settle(self._now())
        self._save(tries)
        self._check_used_up(record, tries)

    def _check_used_up(self, record: Record, tries: Tries) -> None:
        if len(tries.failures) >= record.tries:
            raise _Refused(self._used_up(record, tries))
        if tries.alike >= ALIKE:
            raise _Refused(
                f"{record.name} has failed {tries.alike} times in a row in the same way ({tries.why}); a further start would only cost memory, so it is "
                f"not started again by itself. Mend that ('docker logs {record.name}') and {self._anew(record)}"
            )

    def _used_up(self, record: Record, tries: Tries) -> str:
        return (
            f"{record.name} has failed {len(tries.failures)} times within a day; it is not started again by itself. Look why ('docker logs {record.name}'), "
            f"and {self._anew(record)}"
        )

    def _anew(self, record: Record) -> str:
        return f"deploy anew, or remove {self._store.path(TRIES_FILE)} and start {unit_name(record.deployment)}"

    def _save(self, tries: Tries) -> None:
        if tries != self._store.tries():
            self._store.save_tries(tries)

    def _wait_for_address(self, record: Record) -> None:
        for _again in self._wait(BOOT_SECONDS):
            if self._links.has(record.address):
                return
        raise _Refused(f"this node has not got its fabric address {record.address} within {BOOT_SECONDS:.0f} s; look at the cable and at netplan")

    def _wait_for_peers(self, record: Record) -> None:
        missing: dict[str, str] = {}
        for _again in self._wait(PEER_SECONDS):
            left = self._links.unreached(record.address, record.peers, record.probe_port)
            if not left:
                return
            if left.keys() != missing.keys():
                self._say(f"waiting for {', '.join(left)}")
            missing = left
        raise _Refused(
            f"the group's other nodes do not answer from {record.address}: {'; '.join(f'{peer}: {why}' for peer, why in missing.items())}. Nothing was started"
        )

    def _wait_for_head(self, record: Record) -> None:
        why, said = "", False
        for _again in self._wait(PEER_SECONDS):
            why = self._links.is_open(record.address, record.head, record.control_port)
            if not why:
                return
            if not said:
                self._say(f"waiting for rank 0 at {record.head} port {record.control_port}")
                said = True
        raise _Refused(f"rank 0 was not started at {record.head} port {record.control_port} within {PEER_SECONDS:.0f} s ({why}). Nothing was started")

    def _gate(self, record: Record) -> None:
        """Only where a new CUDA process can get what the rank needs. The memory of one that ended can take minutes to come back."""
        need, dropped = self._need(record), False
        why = ""
        for _again in self._wait(MEMORY_SECONDS):
            facts = self._node.restoring().gather()
            memory, sources = facts["memory"], facts.get("sources") or {}
            if sources.get("gpu", "") == "none":
                why = f"the GPU driver does not answer ({(sources.get('reasons') or {}).get('gpus', 'no reason given')})"
                continue
            have = memory["allocatable"]
            if have is None:
                why = "what a new CUDA process could get is not known here"
                continue
            if have >= need:
                free = memory["cuda_free"]
                if free is None or free >= need or dropped:
                    return
                # The rest is page cache, which a CUDA context does not push aside.
                dropped = True
                problem = self._node.restoring().drop_cache(WAIT * 6)
                self._say(f"the page cache was dropped: {format_size(free)} were free, {format_size(need)} are needed" if problem is None else problem)
                continue
            why = (
                f"{record.name} needs {format_size(need)}, and a new CUDA process could get {format_size(have)} of {format_size(memory['total'] or 0)}"
                f"{_holders(facts)}"
            )
        raise _Refused(f"{why}. Nothing was started")

    def _need(self, record: Record) -> int:
        container = self._container()
        need = "" if container is None else container.labels.get(NEED_LABEL, "")
        # What is not known is no reason to load into a node that is full already.
        return max(record.floor, int(need) if need.isdigit() else 0)

    # -- its life -------------------------------------------------------------------------------------------------------------------

    def _follow(self) -> int:
        watch: FloorWatch | None = None
        ready: float | None = None
        silent: float | None = None
        while True:
            record, now = self._current(), self._node.clock.boottime()
            try:
                container = self._container()
                silent = None
                if container is None:
                    raise _LetAlone(f"the container {record.name} is gone")
                if not container.running:
                    return self._ended(record)
                if container.health == "healthy":
                    ready = now if ready is None else ready
                    if now - ready >= STEADY_SECONDS:
                        self._save(self._store.tries().good())
                    if record.liveness is not None and self._is_dead(record, record.liveness, now):
                        return FAILED
                else:
                    ready = None
                    self._pulse.rest()
                    if watch is None or watch.floor != record.floor:
                        watch = FloorWatch(record.floor, FLOOR_SECONDS)
                    if watch.look(self._node.available(), now) and not self._leased():
                        return self._save_the_node(record, watch)
            except EngineError as exc:
                silent = now if silent is None else silent
                if now - silent >= ENGINE_SECONDS:
                    raise _Failed(str(exc)) from exc
            self._node.pause(LOAD if ready is None else LOOK)

    def _is_dead(self, record: Record, wanted: Liveness, now: float) -> bool:
        """Whether the group gave no token again and again, and was stopped for that."""
        if self._leased():
            self._pulse.rest()
            return False
        dead, said = self._pulse.look(wanted, lambda: self._key(wanted), now)
        if said:
            self._say(said)
        if not dead:
            return False
        self._pulse.rest()
        tries = self._store.tries().fail(self._now())
        if len(tries.failures) > record.tries:
            return False  # said already
        self._save(tries)
        if len(tries.failures) >= record.tries:
            self._say(f"no token comes, and yet it is left as it is: {self._used_up(record, tries)}")
            return False
        self._say(f"no token came {wanted.failures} times in a row; the group is stopped, and started again in {PAUSE} s")
        if self._rank is not None:
            self._rank.engine.stop(self._rank.id, record.stop_seconds)
        return True

    def _key(self, wanted: Liveness) -> str:
        for entry in (self._inspected().get("Config") or {}).get("Env") or []:
            name, _equals, value = str(entry).partition("=")
            if name == wanted.key_variable:
                return value
        return ""

    def _inspected(self) -> dict[str, t.Any]:
        """All that the engine says of the container."""
        return {} if self._rank is None else self._rank.engine.describe(self._rank.id) or {}

    def _save_the_node(self, record: Record, watch: FloorWatch) -> int:
        """While a model loads it can take all that the kernel needs to go on. Then only the power switch helps."""
        if self._rank is not None:
            kill_ranks(self._node, [self._rank])
        self._say(
            f"MemAvailable stayed below {format_size(record.floor)} for {FLOOR_SECONDS:g} s (down to {format_size(watch.lowest or 0)}); "
            f"{record.name} was killed to save the node"
        )
        return self._count(record, "its node's last memory was taken")

    def _ended(self, record: Record) -> int:
        """Who ended it decides what follows."""
        self._check_lease()
        status = (self._inspected().get("State") or {}).get("ExitCode")
        if status == STOPPED:
            self._save(self._store.tries().good())
            raise _LetAlone(f"{record.name} was stopped by somebody; the next boot starts it again, or 'systemctl start {unit_name(record.deployment)}'")
        if status == PEER_ENDED:
            # Its own node counts that. This rank comes again when rank 0 has, or when all others are there.
            self._save(self._store.tries().good())
            raise _Failed(f"{record.name} ended since another rank had ended")
        self._say(f"{record.name} ended with status {status}")
        return self._count(record, "" if status == PEER_LOST else self._failed_by())

    def _failed_by(self) -> str:
        """By what the last start failed, as its log says; empty where it does not."""
        container = self._container()
        if self._rank is None or container is None:
            return ""
        # The log of a container goes on where it is started again.
        log, since = RankLog(4), int(parse_stamp(container.started_at) or 0)
        try:
            for line in split_frames(self._rank.engine.read_log(self._rank.id, LOG_SECONDS, since), LOG_BYTES):
                log.feed(line)
        except EngineError as exc:
            self._say(f"its log cannot be read: {exc}")
        return failed_by(log.told())

    def _count(self, record: Record, why: str) -> int:
        tries = self._store.tries().fail(self._now(), why)
        self._save(tries)
        self._check_used_up(record, tries)
        return FAILED

    def _stop(self) -> int:
        """The node goes down, or somebody stops the unit. A run that holds the node stops its ranks by itself."""
        try:
            record = self._store.load()
            leased = self._leased()
            if self._rank is None or record is None or leased:
                self._say(f"stopped; the rank is left to others{f': {leased}' if leased else ''}")
                return DONE
            container = self._container()
            if container is not None and container.running:
                self._rank.engine.stop(self._rank.id, record.stop_seconds)
                self._say(f"{record.name} was stopped")
            self._save(self._store.tries().good())
        except (EngineError, LeaseError, PersistError) as exc:
            self._say(str(exc))
        return DONE


def _holders(facts: t.Mapping[str, t.Any]) -> str:
    """Who has most of the pool, for the sentence of a refusal."""
    held: dict[str, int] = {}
    for process in facts.get("processes") or []:
        name = str((process.get("owner") or {}).get("name") or process.get("name"))
        held[name] = held.get(name, 0) + (process.get("memory") or 0)
    most = sorted(held.items(), key=lambda item: -item[1])[:3]
    return f" (held by {', '.join(f'{name}: {format_size(size)}' for name, size in most)})" if most else ""


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _raise_stop(_number: int, _frame: t.Any) -> None:
    # Once: whoever asks again waits for the first answer.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stop


def main(argv: t.Sequence[str], directory: str = DIRECTORY) -> int:
    """Keep the rank of a deployment, or only say that this program can run here."""
    if len(argv) not in (2, 3) or argv[2:] not in ([], ["check"]):
        _say(f"usage: {argv[0] if argv else 'agent.pyz'} DEPLOYMENT [check]")
        return REFUSED
    try:
        store = PersistStore(argv[1], directory)
        node = LiveLeaseNode()
        if argv[2:]:
            node.engines()
            _say("ready")
            return DONE
        signal.signal(signal.SIGTERM, _raise_stop)
        status = Keeper(node, store, LiveLinks(), Pulse(), say=_say).run()
    except (PersistError, LeaseError) as exc:
        _say(f"refused: {exc}")
        return REFUSED
    except _Stop:
        return DONE
    # Not through the interpreter's end: a question that is still under way would be waited for.
    os._exit(status)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
