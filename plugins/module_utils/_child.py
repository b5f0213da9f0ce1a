# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Child processes with a deadline that holds even when the child cannot be killed.

A call into a wedged GPU driver sleeps in the kernel where no signal arrives, so that waiting for such a child means
waiting for ever. These children are asked to end at their deadline and then abandoned: init reaps them. They hold none
of this process's descriptors, because a child that keeps the module's stdout would keep the ssh channel open as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
import typing as t
from collections.abc import Callable, Sequence

#: Programs are looked for here too: a non-root login on some systems has no sbin on its PATH.
EXTRA_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

#: Output beyond this is read and thrown away.
MAX_OUTPUT = 8 * 1024 * 1024

#: A child that closed its output, or was killed, ends within microseconds; this is how often that is checked, and for how long.
_REAP_PAUSE = 0.002
_REAP_LIMIT = 0.1


class Outcome(t.NamedTuple):
    """How a child ended. ``rc`` is its exit status, or minus the signal, or -9 when it was abandoned."""

    rc: int
    stdout: bytes
    stderr: bytes
    timed_out: bool


class Child:
    """A child process under way: collect it with ``finish``."""

    def __init__(self, pid: int, stdout: int, stderr: int, deadline: float) -> None:
        self.pid = pid
        self._pipes = {stdout: bytearray(), stderr: bytearray()}
        self._stdout, self._stderr = stdout, stderr
        self._deadline = deadline

    def finish(self) -> Outcome:
        """Read until the child has closed its output or the deadline has passed; never wait any longer than that."""
        timed_out = not self._read()
        if timed_out:
            # The whole session: a command may have children of its own. A process stuck in the kernel ignores it.
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        for pipe in (self._stdout, self._stderr):
            os.close(pipe)
        return Outcome(self._reap(), bytes(self._pipes[self._stdout]), bytes(self._pipes[self._stderr]), timed_out)

    def _read(self) -> bool:
        poller = select.poll()
        open_pipes = set(self._pipes)
        for pipe in open_pipes:
            poller.register(pipe, select.POLLIN | select.POLLHUP)
        while open_pipes:
            left = self._deadline - time.monotonic()
            # What is already there is taken even when the deadline passed while something else was done.
            ready = poller.poll(max(0.0, left) * 1000)
            if not ready and left <= 0:
                return False
            for pipe, _event in ready:
                try:
                    chunk = os.read(pipe, 65536)
                except BlockingIOError:
                    continue
                if chunk:
                    room = MAX_OUTPUT - len(self._pipes[pipe])
                    self._pipes[pipe] += chunk[: max(0, room)]
                else:
                    poller.unregister(pipe)
                    open_pipes.discard(pipe)
        return True

    def _reap(self) -> int:
        end = time.monotonic() + _REAP_LIMIT
        while True:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return 0
            if pid:
                return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
            if time.monotonic() >= end:
                return -int(signal.SIGKILL)
            time.sleep(_REAP_PAUSE)


def _start(run: Callable[[], int], deadline: float) -> Child:
    """Fork; the child has its own session, /dev/null as input, two pipes as output and no other descriptor. OSError where that fails."""
    pipes: list[int] = []
    try:
        pipes += os.pipe()
        pipes += os.pipe()
        pid = os.fork()
    except OSError:
        for pipe in pipes:
            os.close(pipe)
        raise
    out_read, out_write, err_read, err_write = pipes
    if pid == 0:
        _become(run, out_write, err_write)
    os.close(out_write)
    os.close(err_write)
    for pipe in (out_read, err_read):
        os.set_blocking(pipe, False)
    return Child(pid, out_read, err_read, deadline)


def _become(run: Callable[[], int], out: int, err: int) -> t.NoReturn:
    """In the child: let go of everything of the parent's, then do the work."""
    status = 125
    try:
        os.setsid()
        # Duplicated above 2 first: one of the pipes may itself be descriptor 0, 1 or 2.
        out, err = (fcntl.fcntl(pipe, fcntl.F_DUPFD, 3) for pipe in (out, err))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                    os.close(int(name))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGALRM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        status = run()
    finally:
        # Nothing of the parent's (buffers, handlers, temporary files) may be flushed or removed by its child.
        os._exit(status)


def start_function(function: Callable[[], dict[str, t.Any]], deadline: float) -> Child:
    """Run a function that returns a JSON-able dictionary in a child.

    Its output is JSON: ``{"data": …}``, or ``{"error": text}`` when the function raised.
    """

    def run() -> int:
        try:
            answer: dict[str, t.Any] = {"data": function()}
        # A child has nobody to raise to: whatever went wrong is its answer.
        except BaseException as error:  # pylint: disable=broad-exception-caught
            answer = {"error": f"{type(error).__name__}: {error}"}
        data = json.dumps(answer).encode("utf-8")
        while data:
            data = data[os.write(1, data) :]
        return 0

    return _start(run, deadline)


def find_program(name: str) -> str | None:
    """Full path of a program; None when there is none."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *EXTRA_PATH])
    return shutil.which(name, path=path)


def start_command(argv: Sequence[str], deadline: float) -> Child | None:
    """Run a command, without a shell, in the C locale. None when there is no such program."""
    program = find_program(argv[0])
    if program is None:
        return None
    environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": "C"}

    def run() -> int:
        try:
            os.execve(program, list(argv), environment)
        except OSError as error:
            os.write(2, f"{program}: {os.strerror(error.errno or 0)}\n".encode())
        return 126

    return _start(run, deadline)
