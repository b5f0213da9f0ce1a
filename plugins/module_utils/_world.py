# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Everything the logic reads of a machine goes through a World, so that a recorded or invented machine can stand in for a real one.

A reading never raises: what cannot be read is None (or empty, or a result that says so), and ``World.reasons`` says why.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import socket
import stat
import time
import typing as t
from collections.abc import Callable, Mapping, Sequence

from ansible_collections.unimem.dgx_spark.plugins.module_utils._child import Child, start_command, start_function
from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json

#: No text that is read here is longer in practice; a larger one is cut, so that a strange file cannot fill the memory.
MAX_TEXT = 4 * 1024 * 1024

KERNEL_LOG = "/dev/kmsg"
#: Far more than a kernel keeps. It could add messages as fast as they are read here.
MAX_KERNEL_LOG = 32 * 1024 * 1024


class RunResult(t.NamedTuple):
    """What a command did. ``missing``: there is no such program. ``timed_out``: it was ended, or abandoned, at its deadline."""

    rc: int
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    missing: bool = False


class ProbeResult(t.NamedTuple):
    """What a function said that ran in a child process: its dictionary, or the reason why there is none."""

    data: dict[str, t.Any] | None = None
    error: str | None = None
    timed_out: bool = False


class Response(t.NamedTuple):
    """Answer to a GET over a UNIX socket. ``status`` is None when there was no answer; ``error`` then says why."""

    status: int | None = None
    body: str = ""
    error: str | None = None


class PendingRun(t.Protocol):
    """A command under way."""

    def finish(self) -> RunResult:
        """Wait for the command, at most until its deadline."""


class PendingProbe(t.Protocol):
    """A function under way in a child process."""

    def finish(self) -> ProbeResult:
        """Wait for the function, at most until its deadline."""


class World(t.Protocol):
    """The readings of one machine. Paths are absolute; times are seconds."""

    #: path, command or socket -> why it could not be read (the last time it was tried)
    reasons: dict[str, str]

    def read_text(self, path: str, timeout: float | None = None) -> str | None:
        """Text of a file; None when it is absent or unreadable. With a timeout the read cannot block this process."""

    def read_text_of(self, uid: int, path: str, timeout: float) -> str | None:
        """Text of a file that a user chose: only when it is that user's own, so that a link cannot make root read another's."""

    def list_dir(self, path: str) -> list[str]:
        """Sorted names in a directory; empty when it is absent or unreadable."""

    def read_link(self, path: str) -> str | None:
        """Target of a symbolic link; None when it is absent or unreadable."""

    def process_table(self) -> dict[int, str]:
        """The visible processes: pid -> comm (at most 15 characters, chosen by the process)."""

    def user_name(self, uid: int) -> str | None:
        """Name of a user; None when the machine does not know the uid."""

    def effective_uid(self) -> int:
        """The uid these readings are made with."""

    def start(self, argv: Sequence[str], timeout: float) -> PendingRun:
        """Start a command, without a shell."""

    def run(self, argv: Sequence[str], timeout: float) -> RunResult:
        """Run a command, without a shell, for at most ``timeout`` seconds."""

    def start_probe(self, name: str, function: Callable[[], dict[str, t.Any]], timeout: float) -> PendingProbe:
        """Start a function that returns a JSON-able dictionary in a child process of its own."""

    def request(self, socket_path: str, url_path: str, timeout: float) -> Response:
        """HTTP GET over a UNIX socket."""

    def count_kernel_messages(self, text: str) -> int | None:
        """How many messages that the kernel's log still has hold a text; None when it cannot be read."""

    def monotonic(self) -> float:
        """A clock that never goes back."""


class _DoneRun(t.NamedTuple):
    result: RunResult

    def finish(self) -> RunResult:
        return self.result


class _DoneProbe(t.NamedTuple):
    result: ProbeResult

    def finish(self) -> ProbeResult:
        return self.result


def why(error: OSError) -> str:
    """Why a reading failed, in words for the reasons."""
    if error.errno == errno.ENOENT:
        return "no such file"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission denied"
    if error.errno == errno.ESRCH:
        return "the process has ended"
    return os.strerror(error.errno) if error.errno else str(error)


class Deadline:
    """Seconds left of a time that several readings share."""

    def __init__(self, world: World, seconds: float) -> None:
        self._world = world
        self._end = world.monotonic() + max(0.0, seconds)

    def left(self, at_most: float | None = None) -> float:
        """Seconds left, never negative, and never more than ``at_most``."""
        left = max(0.0, self._end - self._world.monotonic())
        return left if at_most is None else min(left, at_most)


def _printable(name: str) -> str:
    # Names of files are bytes, and any user can make one that is no text.
    return os.fsencode(name).decode("utf-8", "replace")


def _open_without_waiting(path: str, flags: int) -> int:
    # A FIFO in the place of a file would block the open for ever.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


class LiveWorld:
    """This machine. ``root`` is put before every path of a file (for a mounted or prepared tree)."""

    def __init__(self, root: str = "/") -> None:
        self.reasons: dict[str, str] = {}
        self._root = root.rstrip("/")

    def _path(self, path: str) -> str:
        return self._root + path

    def read_text(self, path: str, timeout: float | None = None) -> str | None:
        """See World."""
        return self._read(path) if timeout is None else self._read_apart(path, None, timeout)

    def read_text_of(self, uid: int, path: str, timeout: float) -> str | None:
        """See World."""
        return self._read_apart(path, uid, timeout)

    def _read_apart(self, path: str, uid: int | None, timeout: float) -> str | None:
        """In a process of its own, because the read may block: on a stuck process, or on a file system of a server that is gone."""
        result = self.start_probe("read", lambda: {"text": self._read(path, uid), "reason": self.reasons.get(path)}, timeout).finish()
        if result.data is None:
            self.reasons[path] = result.error or "unreadable"
            return None
        if result.data["text"] is None:
            self.reasons[path] = str(result.data["reason"])
        return t.cast("str | None", result.data["text"])

    def _read(self, path: str, uid: int | None = None) -> str | None:
        try:
            with open(self._path(path), "rb", buffering=0, opener=_open_without_waiting) as stream:
                status = os.fstat(stream.fileno())
                if not stat.S_ISREG(status.st_mode):
                    self.reasons[path] = "not a regular file"
                    return None
                if uid is not None and status.st_uid != uid:
                    self.reasons[path] = f"it does not belong to uid {uid}"
                    return None
                # In pieces: /proc/sys refuses to fill a large buffer.
                data = b""
                while len(data) < MAX_TEXT:
                    chunk = stream.read(65536)
                    if not chunk:
                        break
                    data += chunk
        except OSError as error:
            self.reasons[path] = why(error)
            return None
        self.reasons.pop(path, None)
        return data.decode("utf-8", "replace")

    def list_dir(self, path: str) -> list[str]:
        """See World."""
        try:
            names = os.listdir(self._path(path))
        except OSError as error:
            self.reasons[path] = why(error)
            return []
        self.reasons.pop(path, None)
        return sorted(_printable(name) for name in names)

    def read_link(self, path: str) -> str | None:
        """See World."""
        try:
            target = _printable(os.readlink(self._path(path)))
        except OSError as error:
            self.reasons[path] = why(error)
            return None
        self.reasons.pop(path, None)
        return target

    def process_table(self) -> dict[int, str]:
        """See World."""
        table: dict[int, str] = {}
        for name in self.list_dir("/proc"):
            if name.isdecimal():
                comm = self._read(f"/proc/{name}/comm")
                if comm is not None:
                    table[int(name)] = comm.rstrip("\n")
        return table

    def user_name(self, uid: int) -> str | None:
        """See World."""
        try:
            return pwd.getpwuid(uid).pw_name
        except (KeyError, OverflowError):
            return None

    def effective_uid(self) -> int:
        """See World."""
        return os.geteuid()

    def start(self, argv: Sequence[str], timeout: float) -> PendingRun:
        """See World."""
        try:
            child = start_command(argv, time.monotonic() + timeout)
        except OSError as error:
            # A node without memory starts no process: then all the more it has to be described.
            self.reasons[argv[0]] = f"no process could be started: {why(error)}"
            return _DoneRun(RunResult(rc=126, stderr=self.reasons[argv[0]]))
        if child is None:
            self.reasons[argv[0]] = "no such program"
            return _DoneRun(RunResult(rc=127, missing=True))
        return _LiveRun(child)

    def run(self, argv: Sequence[str], timeout: float) -> RunResult:
        """See World."""
        return self.start(argv, timeout).finish()

    def start_probe(self, name: str, function: Callable[[], dict[str, t.Any]], timeout: float) -> PendingProbe:
        """See World."""
        try:
            child = start_function(function, time.monotonic() + timeout)
        except OSError as error:
            return _DoneProbe(ProbeResult(error=f"no process could be started: {why(error)}"))
        return _LiveProbe(name, child, timeout)

    def request(self, socket_path: str, url_path: str, timeout: float) -> Response:
        """See World. HTTP/1.0, so that the answer ends where the connection ends; that needs no HTTP library."""
        end = time.monotonic() + timeout
        chunks: list[bytes] = []
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(max(0.01, timeout))
                connection.connect(self._path(socket_path))
                connection.sendall(f"GET {url_path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode("ascii"))
                size = 0
                while size < MAX_TEXT:
                    connection.settimeout(max(0.01, end - time.monotonic()))
                    chunk = connection.recv(65536)
                    if not chunk:
                        break
                    chunks.append(chunk)
                    size += len(chunk)
        except socket.timeout:
            return Response(error=f"no answer within {timeout:.1f} s")
        except OSError as error:
            return Response(error=why(error))
        except UnicodeEncodeError:
            return Response(error="the request is not ASCII")
        return parse_response(b"".join(chunks))

    def count_kernel_messages(self, text: str) -> int | None:
        """See World. Each read gives one message; where there is none left, the log has been read."""
        wanted, count, size = text.encode("ascii"), 0, 0
        try:
            descriptor = _open_without_waiting(self._path(KERNEL_LOG), os.O_RDONLY)
            try:
                if not stat.S_ISCHR(os.fstat(descriptor).st_mode):
                    self.reasons[KERNEL_LOG] = "not the kernel's log"
                    return None
                while size < MAX_KERNEL_LOG:
                    try:
                        message = os.read(descriptor, 8192)
                    except BlockingIOError:
                        break
                    except BrokenPipeError:
                        # The message was overwritten before it was read: the next read gives the oldest one that is left.
                        continue
                    if not message:
                        break
                    count += wanted in message
                    size += len(message)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.reasons[KERNEL_LOG] = why(error)
            return None
        self.reasons.pop(KERNEL_LOG, None)
        return count

    def monotonic(self) -> float:
        """See World."""
        return time.monotonic()


def parse_response(data: bytes) -> Response:
    """Split an HTTP answer that ended with its connection into status and body."""
    head, separator, body = data.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(None, 2)
    if not separator or len(words) < 2 or not words[0].startswith(b"HTTP/") or not re.fullmatch(rb"\d{3}", words[1]):
        return Response(error="the answer is not HTTP")
    return Response(status=int(words[1]), body=body.decode("utf-8", "replace"))


class _LiveRun(t.NamedTuple):
    child: Child

    def finish(self) -> RunResult:
        outcome = self.child.finish()
        return RunResult(
            rc=outcome.rc,
            stdout=outcome.stdout[:MAX_TEXT].decode("utf-8", "replace"),
            stderr=outcome.stderr[:MAX_TEXT].decode("utf-8", "replace"),
            timed_out=outcome.timed_out,
        )


class _LiveProbe(t.NamedTuple):
    name: str
    child: Child
    timeout: float

    def finish(self) -> ProbeResult:
        outcome = self.child.finish()
        if outcome.timed_out:
            return ProbeResult(error=f"no answer within {self.timeout:g} s", timed_out=True)
        try:
            answer = parse_json(outcome.stdout)
        except ValueError:
            return ProbeResult(error=f"the child process for {self.name} ended with status {outcome.rc} and no answer")
        if "error" in answer:
            return ProbeResult(error=str(answer["error"]))
        return ProbeResult(data=answer["data"])


class FakeWorld:
    """A machine made of texts. Directories follow from the files; what was not given does not exist on it."""

    def __init__(
        self,
        files: Mapping[str, str] | None = None,
        commands: Mapping[tuple[str, ...], RunResult] | None = None,
        links: Mapping[str, str] | None = None,
        probes: Mapping[str, ProbeResult] | None = None,
        responses: Mapping[tuple[str, str], Response] | None = None,
        users: Mapping[int, str] | None = None,
        uid: int = 0,
        clock: Callable[[], float] = lambda: 0.0,
        reasons: dict[str, str] | None = None,
        kernel_messages: Mapping[str, int] | None = None,
    ) -> None:
        self.files: Mapping[str, str] = files or {}
        self.commands: Mapping[tuple[str, ...], RunResult] = commands or {}
        self.links: Mapping[str, str] = links or {}
        self.probes: Mapping[str, ProbeResult] = probes or {}
        self.responses: Mapping[tuple[str, str], Response] = responses or {}
        self.users: Mapping[int, str] = {0: "root"} if users is None else users
        self.uid = uid
        self.clock = clock
        self.reasons: dict[str, str] = {} if reasons is None else reasons
        self.kernel_messages: Mapping[str, int] = kernel_messages or {}

    def read_text(self, path: str, timeout: float | None = None) -> str | None:
        """See World."""
        text = self.files.get(path)
        if text is None:
            self.reasons.setdefault(path, "no such file")
        return text

    def read_text_of(self, uid: int, path: str, timeout: float) -> str | None:
        """See World."""
        return self.read_text(path)

    def list_dir(self, path: str) -> list[str]:
        """See World."""
        prefix = path.rstrip("/") + "/"
        names = {known[len(prefix) :].split("/", 1)[0] for known in [*self.files, *self.links, *(key[0] for key in self.responses)] if known.startswith(prefix)}
        if not names:
            self.reasons.setdefault(path, "no such file")
        return sorted(names)

    def read_link(self, path: str) -> str | None:
        """See World."""
        target = self.links.get(path)
        if target is None:
            self.reasons.setdefault(path, "no such file")
        return target

    def process_table(self) -> dict[int, str]:
        """See World."""
        pids = (int(name) for name in self.list_dir("/proc") if name.isdecimal())
        return {pid: self.files[f"/proc/{pid}/comm"].rstrip("\n") for pid in sorted(pids) if f"/proc/{pid}/comm" in self.files}

    def user_name(self, uid: int) -> str | None:
        """See World."""
        return self.users.get(uid)

    def effective_uid(self) -> int:
        """See World."""
        return self.uid

    def start(self, argv: Sequence[str], timeout: float) -> PendingRun:
        """See World."""
        result = self.commands.get(tuple(argv))
        if result is None:
            self.reasons.setdefault(argv[0], "no such program")
            result = RunResult(rc=127, missing=True)
        return _DoneRun(result)

    def run(self, argv: Sequence[str], timeout: float) -> RunResult:
        """See World."""
        return self.start(argv, timeout).finish()

    def start_probe(self, name: str, function: Callable[[], dict[str, t.Any]], timeout: float) -> PendingProbe:
        """See World. The function is never called: a machine made of texts answers with what was recorded."""
        return _DoneProbe(self.probes.get(name, ProbeResult(error=f"{name} was not recorded")))

    def request(self, socket_path: str, url_path: str, timeout: float) -> Response:
        """See World."""
        return self.responses.get((socket_path, url_path), Response(error="no such file"))

    def count_kernel_messages(self, text: str) -> int | None:
        """See World."""
        count = self.kernel_messages.get(text)
        if count is None:
            self.reasons.setdefault(KERNEL_LOG, "no such file")
        return count

    def monotonic(self) -> float:
        """See World."""
        return self.clock()
