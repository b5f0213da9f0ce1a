# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One rank of a tensor-parallel group: the first process of its container.

Engines leave half a group behind when something dies: a headless worker that never ends, a worker process that still
serves after its parent is gone, a head that says healthy with a dead rank. This program makes a rank, and the group,
one thing: it starts the rank's processes in order, passes their output on, and ends them all as soon as one of them
ends; over a small connection between the ranks the others learn it and end too, each saying why. A rank that ended is
then simply a container that exited, which everybody can see.

It is read-only mounted into the engine's image and uses nothing but Python's standard library (3.9 or newer).
Its one argument is a JSON file:

    rank, world, role        this rank, how many there are, its role
    control                  {"address": of rank 0, "port": its port}: where the ranks meet
    steps                    in order, each {"name", "kind", ...}:
                             service: "argv", "env" - a process that must stay
                             gate:    "argv", "env", "timeout" - a process that must succeed before the next step
                             tcp:     "address", "port", "timeout" - a port that must be open before the next step
    ready                    {"url": ...}: where rank 0's engine says that it is up
    ready_file               made when the whole group is ready, removed when it is not
    start_timeout            seconds until the group must be ready
    join_timeout             seconds until all ranks must have met
    grace                    seconds from TERM to KILL for each service
    secrets                  names of environment variables whose values are masked in all output

The environment gives UNIMEM_LAUNCH_ID, the same for all ranks of a launch, and UNIMEM_GROUP_TOKEN, which lets them
recognise each other. Exit status: that of the process that ended first (128 + signal), 143 when asked to stop,
70 when another rank ended first, 71 when the connection to it was lost, 72 when something took too long,
77 when this program itself is at fault, 78 when the file says nonsense.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import os
import queue
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import typing as t
import urllib.error
import urllib.request

EXIT_PEER_ENDED = 70
EXIT_PEER_LOST = 71
EXIT_TOO_SLOW = 72
EXIT_FAULT = 77
EXIT_BAD_FILE = 78
EXIT_STOPPED = 143

PROBE = 0.5  # seconds between two questions whether the engine is up
HEARTBEAT = 5.0  # seconds between two signs of life
LOOK = 2.0  # seconds between two looks at the node's memory while the group starts
SAY = 30.0  # seconds after which it is said although it has hardly changed
LOOK_READY, SAY_READY = 10.0, 900.0  # the same once the group is ready
PROGRESS = 1.0  # seconds between two states of a progress bar that are passed on
SILENCE = 30.0  # seconds without one after which a rank counts as lost
FAREWELL = 10.0  # seconds in which a rank that ends waits for those it has not met, to tell them
LINE_END = re.compile(rb"\r?\n|\r(?=[^\n])")  # a carriage return at the very end of what was read may be half a line end
MAX_LINE = 65536  # bytes of a message between ranks, and of a line of output that is masked as a whole


class RankError(Exception):
    """The rank cannot go on; the status is what the program ends with."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def check(plan: t.Any, environment: t.Mapping[str, str]) -> None:
    """ValueError, KeyError or TypeError when a rank cannot live by its file: found before anything is started."""
    rank, world = int(plan["rank"]), int(plan["world"])
    if not 0 <= rank < world:
        raise ValueError(f"there is no rank {rank} of {world}")
    for name in ("start_timeout", "join_timeout", "grace"):
        seconds = float(plan[name])
        if seconds < 0 or not math.isfinite(seconds):
            raise ValueError(f"{name} is no number of seconds")
    if not isinstance(plan["steps"], list) or not plan["steps"]:
        raise ValueError("no steps")
    for step in plan["steps"]:
        name, kind = step["name"], step["kind"]
        if kind == "tcp":
            if not 0 < int(step["port"]) < 65536 or not step["address"]:
                raise ValueError(f"step {name} has no port or no address")
        elif kind not in ("service", "gate"):
            raise ValueError(f"step {name} is of kind {kind}")
        elif not isinstance(step["argv"], list) or not step["argv"]:
            raise ValueError(f"step {name} has no argv")
        elif not isinstance(step.get("env", {}), dict):
            raise ValueError(f"step {name} has an env that is no object")
        float(step.get("timeout", 0))
    if rank == 0:
        str(plan["ready"]["url"])
    if world > 1:
        if not plan["control"]["address"] or not 0 < int(plan["control"]["port"]) < 65536:
            raise ValueError("control has no port or no address")
        if not environment.get("UNIMEM_GROUP_TOKEN"):
            raise ValueError("UNIMEM_GROUP_TOKEN is not set, and without it anybody could be a rank")


class Output:
    """The container's log: whole lines, with secrets masked, from several threads."""

    def __init__(self, hidden: t.Sequence[str], stream: t.BinaryIO) -> None:
        # The longest first, so that a secret that contains another one leaves nothing behind.
        self._hidden = sorted({value.encode() for value in hidden if value}, key=len, reverse=True)
        self._stream = stream
        self._lock = threading.Lock()

    def mask(self, line: bytes) -> bytes:
        """The line without the secrets."""
        for value in self._hidden:
            line = line.replace(value, b"***")
        return line

    def write(self, name: str, line: bytes) -> None:
        """One line of one process."""
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._stream.write(f"[{name}] ".encode() + self.mask(line.rstrip(b"\r\n")) + b"\n")
            self._stream.flush()

    def say(self, text: str) -> None:
        """One line of this program."""
        self.write("rank", f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}".encode())


class Service:
    """A process of the rank with its output; its end is an event."""

    def __init__(self, step: t.Mapping[str, t.Any], output: Output, events: queue.SimpleQueue[tuple[t.Any, ...]]) -> None:
        self.name = str(step["name"])
        environment = {**os.environ, **{str(key): str(value) for key, value in step.get("env", {}).items()}}
        try:
            # A session of its own, so that a terminal's or a group's signal reaches it through this program only.
            self.process = subprocess.Popen(
                [str(word) for word in step["argv"]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise RankError(127, f"{self.name} cannot be started: {error.strerror}: {error.filename or step['argv'][0]}") from error
        self._output = output
        self._events = events
        self._pump = threading.Thread(target=self._pass_on, daemon=True)
        self._pump.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def _pass_on(self) -> None:
        stream = self.process.stdout
        if stream is None:
            return
        rest, shown = b"", -PROGRESS
        while True:
            data = stream.read1(MAX_LINE)  # type: ignore[attr-defined]
            if not data:
                break
            rest += data
            while True:
                found = LINE_END.search(rest)
                if found is None:
                    break
                line, rest = rest[: found.start()], rest[found.end() :]
                # A progress bar goes back to the beginning of its line again and again; of that one state a second is enough.
                if found[0] == b"\r":
                    if not line or time.monotonic() - shown < PROGRESS:
                        continue
                    shown = time.monotonic()
                self._output.write(self.name, line)
            if len(rest) >= MAX_LINE:
                self._output.write(self.name, rest)
                rest = b""
        if rest:
            self._output.write(self.name, rest)

    def _wait(self) -> None:
        self.process.wait()
        # The last lines say why it ended. A grandchild may hold the pipe open, hence the bound.
        self._pump.join(2.0)
        self._events.put(("exit", self))

    @property
    def status(self) -> int:
        """Its exit status as a shell would say it."""
        code = self.process.returncode
        return 128 - code if code < 0 else code

    def describe_end(self) -> str:
        """How it ended, for people."""
        code = self.process.returncode
        return f"{self.name} was killed by signal {-code}" if code < 0 else f"{self.name} ended with exit status {code}"

    def signal(self, number: int) -> None:
        """Signal the process and what it started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def stop(self, grace: float) -> None:
        """TERM, then KILL after the grace."""
        if self.process.poll() is None:
            # Only the process itself: an engine's main process ends its children in order, and they do not like a TERM of their own.
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
        self.signal(signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._pump.join(1.0)


def _proof(token: str, nonce: str, rank: int) -> str:
    return hmac.new(token.encode(), f"{nonce}:{rank}".encode(), hashlib.sha256).hexdigest()


def _ahead(hello: dict[str, t.Any] | None, now: float) -> float | None:
    """How many seconds rank 0's clock is ahead of this one, but for the message's way over the cable."""
    clock = hello.get("clock") if hello else None
    return float(clock) - now if isinstance(clock, (int, float)) and math.isfinite(clock) else None


def read_memory(path: str = "/proc/meminfo") -> dict[str, int] | None:
    """total, available, free and cached MiB of the node: /proc/meminfo is the host's in a container too. None where it cannot be read."""
    names = {"MemTotal": "total", "MemAvailable": "available", "MemFree": "free", "Cached": "cached"}
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            words = [line.split() for line in stream]
        found = {names[line[0].rstrip(":")]: int(line[1]) // 1024 for line in words if len(line) > 1 and line[0].rstrip(":") in names}
    except (OSError, ValueError):
        return None
    return found if len(found) == len(names) else None


class Link:
    """A connection to another rank: lines of JSON both ways, with signs of life."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._lock = threading.Lock()
        self._buffer = b""

    def send(self, **message: t.Any) -> None:
        """Send; a broken connection is noticed by the reading side."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout: float) -> dict[str, t.Any] | None:
        """The next message; None when the connection ended. OSError when nothing came in time, ValueError on nonsense."""
        self._connection.settimeout(timeout)
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_LINE:
                raise ValueError("a message is too long")
            data = self._connection.recv(4096)
            if not data:
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("a message is no object")
        return message

    def close(self) -> None:
        """Close; a thread that reads learns it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class Group:
    """This rank's connections to the others: a star around rank 0."""

    def __init__(self, plan: t.Mapping[str, t.Any], token: str, launch: str, output: Output, events: queue.SimpleQueue[tuple[t.Any, ...]]) -> None:
        self.rank = int(plan["rank"])
        self.world = int(plan["world"])
        self._address = (str(plan["control"]["address"]), int(plan["control"]["port"]))
        self._token = token
        self._launch = launch
        self._output = output
        self._events = events
        self._links: dict[int, Link] = {}
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._closing = threading.Event()
        self._complete = threading.Event()

    def open(self, join_timeout: float) -> None:
        """Begin to listen (rank 0) or to connect; in the background."""
        if self.world == 1:
            self._events.put(("joined",))
            return
        if self.rank == 0:
            family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
            self._listener = socket.socket(family, socket.SOCK_STREAM)
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self._listener.bind(self._address)
            except OSError as error:
                raise RankError(EXIT_BAD_FILE, f"cannot listen on {self._address[0]} port {self._address[1]}: {error.strerror}") from error
            self._listener.listen(self.world)
            threading.Thread(target=self._accept, daemon=True).start()
        else:
            threading.Thread(target=self._join, args=(join_timeout,), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def _accept(self) -> None:
        listener = self._listener
        while listener is not None and not self._closing.is_set():
            try:
                connection, peer = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._welcome, args=(connection, peer[0]), daemon=True).start()

    def _welcome(self, connection: socket.socket, peer: str) -> None:
        """Let a rank of this launch in, and nobody else."""
        link = Link(connection)
        nonce = secrets.token_hex(16)
        link.send(type="hello", launch=self._launch, nonce=nonce, clock=time.time())
        try:
            answer = link.receive(10.0) or {}
            rank = int(answer.get("rank", -1))
            known = hmac.compare_digest(str(answer.get("proof", "")), _proof(self._token, nonce, rank))
        except (OSError, ValueError, TypeError):
            link.close()
            return
        with self._lock:
            if not known or not 0 < rank < self.world or rank in self._links:
                why = "it is of another launch" if not known else f"rank {rank} is not wanted or there already"
                self._output.say(f"refused a connection from {peer}: {why}")
                link.send(type="refused", reason=why)
                link.close()
                return
            self._links[rank] = link
            complete = len(self._links) == self.world - 1
        self._output.say(f"rank {rank} joined from {peer}")
        if complete:
            self._complete.set()
            self._events.put(("joined",))
        self._listen_to(rank, link)

    def _join(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        while not self._closing.is_set():
            try:
                link = Link(socket.create_connection(self._address, timeout=5.0))
                hello = link.receive(10.0)
                ahead = _ahead(hello, time.time())
                if hello is not None and hello.get("launch") == self._launch:
                    link.send(rank=self.rank, proof=_proof(self._token, str(hello.get("nonce")), self.rank))
                    with self._lock:
                        self._links[0] = link
                    self._complete.set()
                    self._events.put(("joined", ahead))
                    self._listen_to(0, link)
                    return
                link.close()  # rank 0 of an older launch that is about to go
            except (OSError, ValueError):
                pass
            if time.monotonic() > end:
                self._events.put(("slow", f"rank 0 could not be met at {self._address[0]} port {self._address[1]} within {timeout:.0f} s"))
                return
            self._closing.wait(1.0)

    def _listen_to(self, rank: int, link: Link) -> None:
        while True:
            try:
                message = link.receive(SILENCE)
            except (OSError, ValueError) as error:
                message = None
                why = f"nothing was heard from it for {SILENCE:.0f} s" if isinstance(error, socket.timeout) else str(error)
            else:
                why = "its connection ended"
            if self._closing.is_set():
                return
            if message is None:
                self._events.put(("lost", f"rank {rank} is lost: {why}"))
                return
            kind = message.get("type")
            if kind == "ready":
                self._events.put(("ready",))
            elif kind in ("ended", "refused"):
                self._events.put(("peer", str(message.get("reason", "it did not say why"))[:1000]))
                return

    def _beat(self) -> None:
        while not self._closing.wait(HEARTBEAT):
            self.tell(type="alive")

    def tell(self, **message: t.Any) -> None:
        """Tell the ranks that this one is connected to."""
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.send(**message)

    def farewell(self, seconds: float, **message: t.Any) -> None:
        """Tell also those that this rank has not met yet, if they come in time: they would wait for it until their join timeout."""
        if self.world > 1 and not self._complete.is_set():
            self._complete.wait(seconds)
            self.tell(**message)

    def close(self) -> None:
        """End all connections."""
        self._closing.set()
        if self._listener is not None:
            self._listener.close()
        with self._lock:
            for link in self._links.values():
                link.close()


class Rank:
    """The rank's life: start, stay, end."""

    def __init__(self, plan: t.Mapping[str, t.Any], environment: t.Mapping[str, str], stream: t.BinaryIO) -> None:
        hidden = [environment.get(str(name), "") for name in (*plan.get("secrets", ()), "UNIMEM_GROUP_TOKEN")]
        self.plan = plan
        self.output = Output(hidden, stream)
        self.events: queue.SimpleQueue[tuple[t.Any, ...]] = queue.SimpleQueue()
        self.group = Group(plan, environment.get("UNIMEM_GROUP_TOKEN", ""), environment.get("UNIMEM_LAUNCH_ID", ""), self.output, self.events)
        self.services: list[Service] = []
        self.ready_file = str(plan.get("ready_file") or "")
        self.joined = False
        self.answers = False
        self.ready = False
        self._ending = threading.Event()

    def run(self) -> int:
        """Until the end; the exit status of the program."""
        end = time.monotonic() + float(self.plan["start_timeout"])
        join_end = time.monotonic() + float(self.plan["join_timeout"])
        try:
            self._set_ready(False)
            self.output.say(f"rank {self.plan['rank']} of {self.plan['world']} ({self.plan['role']}), launch {os.environ.get('UNIMEM_LAUNCH_ID', '')}")
            threading.Thread(target=self._watch_memory, daemon=True).start()
            self.group.open(float(self.plan["join_timeout"]))
            for step in self.plan["steps"]:
                self._step(step, min(end, time.monotonic() + float(step.get("timeout", end - time.monotonic()))))
            if int(self.plan["rank"]) == 0:
                threading.Thread(target=self._probe, daemon=True).start()
            while True:
                limit = None if self.ready else (end if self.joined else min(end, join_end))
                self._handle(limit)
        except RankError as error:
            self._finish(error)
            return error.status
        except Exception as error:
            # Whatever it is, like a full disk under the ready file: nothing of the rank, and no other rank, may go on without this program.
            for line in traceback.format_exc().splitlines():
                self.output.write("rank", line.encode())
            self._finish(RankError(EXIT_FAULT, f"{type(error).__name__}: {error}"))
            return EXIT_FAULT

    def _step(self, step: t.Mapping[str, t.Any], end: float) -> None:
        name = str(step["name"])
        if step["kind"] == "tcp":
            self.output.say(f"{name}: waiting for {step['address']} port {step['port']}")
            while True:
                try:
                    socket.create_connection((str(step["address"]), int(step["port"])), timeout=2.0).close()
                    return
                except OSError as error:
                    reason = error.strerror or str(error)
                if time.monotonic() > end:
                    raise RankError(EXIT_TOO_SLOW, f"{name}: {step['address']} port {step['port']} did not open in time ({reason})")
                with contextlib.suppress(queue.Empty):
                    self._dispatch(self.events.get(timeout=0.5))
        service = Service(step, self.output, self.events)
        self.output.say(f"{name} started, pid {service.process.pid}")
        if step["kind"] == "service":
            self.services.append(service)
            return
        while True:
            try:
                event = self.events.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                service.stop(1.0)
                raise RankError(EXIT_TOO_SLOW, f"{name} did not succeed in time") from None
            if event[0] == "exit" and event[1] is service:
                if service.process.returncode != 0:
                    raise RankError(service.status, service.describe_end())
                return
            try:
                self._dispatch(event)
            except RankError:
                service.stop(1.0)
                raise

    def _handle(self, limit: float | None) -> None:
        try:
            event = self.events.get(timeout=None if limit is None else max(0.0, limit - time.monotonic()))
        except queue.Empty:
            what = "the engine was not ready" if self.joined else "not all ranks had met"
            raise RankError(EXIT_TOO_SLOW, f"{what} within the time allowed") from None
        self._dispatch(event)

    def _dispatch(self, event: tuple[t.Any, ...]) -> None:
        kind = event[0]
        if kind == "exit":
            service = event[1]
            # An engine that ends by itself, even in order, is not there any more: never status 0.
            raise RankError(service.status or 1, service.describe_end())
        if kind == "signal":
            raise RankError(EXIT_STOPPED, f"asked to stop by signal {event[1]}")
        if kind == "peer":
            raise RankError(EXIT_PEER_ENDED, event[1])
        if kind == "lost":
            raise RankError(EXIT_PEER_LOST, event[1])
        if kind == "slow":
            raise RankError(EXIT_TOO_SLOW, event[1])
        if kind == "joined":
            self.joined = True
            if int(self.plan["rank"]) == 0:
                self.output.say("all ranks have met")
            else:
                # So that what the ranks said can be put in one order afterwards, whatever their nodes' clocks show.
                self.output.say("met rank 0" + (f"; its clock is {event[1]:+.3f} s from this one" if event[1] is not None else ""))
        elif kind == "answers":
            self.answers = True
        elif kind == "ready":
            self.answers = self.joined = True
        if self.joined and self.answers and not self.ready:
            self.ready = True
            self.output.say("the group is ready")
            self._set_ready(True)
            if int(self.plan["rank"]) == 0:
                self.group.tell(type="ready")

    def _probe(self) -> None:
        """Ask rank 0's engine until it says that it is up. Whether it generates, only a completion tells."""
        url = str(self.plan["ready"]["url"])
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not self._ending.wait(PROBE):
            try:
                with opener.open(url, timeout=10.0) as answer:
                    if answer.status == 200:
                        self.events.put(("answers",))
                        return
            except (OSError, urllib.error.URLError, ValueError):
                continue

    def _watch_memory(self) -> None:
        """Say how the node's memory changes: a log that ends for lack of it then shows where it went."""
        said, at = None, 0.0
        while True:
            now, memory = time.monotonic(), read_memory()
            if memory is not None:
                changed = abs(memory["available"] - said) if said is not None else memory["total"]
                if changed * 100 >= memory["total"] * (5 if self.ready else 1) or now - at >= (SAY_READY if self.ready else SAY):
                    said, at = memory["available"], now
                    self.output.say(f"memory: {memory['available']} MiB available, {memory['free']} MiB free, {memory['cached']} MiB cached")
            if self._ending.wait(LOOK_READY if self.ready else LOOK):
                return

    def _set_ready(self, ready: bool) -> None:
        if not self.ready_file:
            return
        if ready:
            os.makedirs(os.path.dirname(self.ready_file), exist_ok=True)
            with open(self.ready_file, "w", encoding="ascii") as stream:
                stream.write("ready\n")
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(self.ready_file)

    def _finish(self, error: RankError) -> None:
        self._ending.set()
        with contextlib.suppress(OSError):  # what cannot be removed keeps nothing alive
            self._set_ready(False)
        self.output.say(f"ending with status {error.status}: {error.reason}")
        own = error.status not in (EXIT_PEER_ENDED, EXIT_PEER_LOST)
        message = {"type": "ended", "reason": f"rank {self.plan['rank']} ({self.plan['role']}): {error.reason}" if own else error.reason}
        self.group.tell(**message)
        grace = float(self.plan["grace"])
        for service in reversed(self.services):  # the engine before what it runs on
            service.stop(grace)
        if error.status not in (EXIT_STOPPED, EXIT_TOO_SLOW, EXIT_BAD_FILE):
            self.group.farewell(FAREWELL, **message)
        self.group.close()
        self.output.say("ended")


def main(argv: t.Sequence[str]) -> int:
    """Read the file, take the signals, live."""
    try:
        with open(argv[1], encoding="utf-8") as stream:
            plan = json.load(stream)
        check(plan, os.environ)
        rank = Rank(plan, os.environ, sys.stdout.buffer)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OSError) as error:
        sys.stderr.write(f"rank_supervisor: the rank's file cannot be used: {type(error).__name__}: {error}\n")
        return EXIT_BAD_FILE

    def forward(number: int, _frame: t.Any) -> None:
        rank.events.put(("signal", number))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    return rank.run()


if __name__ == "__main__":
    status = main(sys.argv)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through the interpreter's finalization: threads that still wait in a read or on a lock can crash it, and the status is lost.
    os._exit(status)
