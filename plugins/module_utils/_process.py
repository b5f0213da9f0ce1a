# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""One process as /proc shows it. A process can end between two reads: whatever is missing then is None."""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

#: The inode of the machine's first PID namespace (PROC_PID_INIT_INO of the kernel).
INITIAL_PID_NAMESPACE = "pid:[4026531836]"

#: Flag of kernel threads in the ninth field of /proc/<pid>/stat (PF_KTHREAD of the kernel).
_KERNEL_THREAD = 0x00200000

#: The kernel keeps 15 characters of a name.
_COMM_LENGTH = 15

#: Programs that run scripts. Shells and the like have the script's name themselves where it was executed and not handed to them.
_INTERPRETER = re.compile(r"(?:python|pypy|perl|ruby|node|lua)[0-9.]*|(?:ba|da|z|k|fi)?sh|busybox")

#: Options of theirs that the next word belongs to.
_WITH_VALUE = ("-W", "-X", "-o", "-r", "-I")

#: A process asleep in the kernel may hold the lock that its command line is read under.
_STUCK_READ = 0.3


class Stat(t.NamedTuple):
    """What of /proc/<pid>/stat is used. ``start_time`` counts clock ticks since boot."""

    comm: str
    state: str
    parent: int
    kernel_thread: bool
    start_time: int


class Process(t.NamedTuple):
    """A process. ``argv`` is not masked: it must not leave the module."""

    pid: int
    comm: str
    state: str
    parent: int
    kernel_thread: bool
    start_time: int
    argv: tuple[str, ...]
    executable: str | None
    uid: int | None

    @property
    def name(self) -> str:
        """Its name: comm, or in full where comm is only the first 15 characters of what argv[0] says.

        The kernel calls a program ``exe`` that was started through its own link (``/proc/self/exe``): then that of its title, its script or its file.
        """
        title = os.path.basename(self.argv[0].split(" ", 1)[0]) if self.argv else ""
        if self.comm == "exe":
            own = "" if title == "exe" or is_interpreter(title) else title
            return own or script_of(self.argv, self.executable) or os.path.basename(self.executable or "") or self.comm
        if len(self.comm.encode("utf-8", "replace")) >= _COMM_LENGTH and title.startswith(self.comm):
            return title
        return self.comm


def parse_stat(text: str) -> Stat | None:
    """Fields of /proc/<pid>/stat. The name may hold blanks and parentheses, so that fields are counted after the last one."""
    opening, closing = text.find("("), text.rfind(")")
    if opening < 0 or closing < opening:
        return None
    fields = text[closing + 1 :].split()
    # Fields 3 (state), 4 (ppid), 9 (flags) and 22 (starttime) of proc(5); the first one here is field 3.
    if len(fields) < 20 or not all(re.fullmatch(r"-?\d{1,20}", fields[index]) for index in (1, 6, 19)):
        return None
    return Stat(
        comm=text[opening + 1 : closing],
        state=fields[0],
        parent=int(fields[1]),
        kernel_thread=bool(int(fields[6]) & _KERNEL_THREAD),
        start_time=int(fields[19]),
    )


def parse_uid(status: str) -> int | None:
    """Effective uid in /proc/<pid>/status."""
    match = re.search(r"^Uid:\s+\d+\s+(\d{1,10})\b", status, re.MULTILINE)
    return int(match[1]) if match else None


def read_stat(world: World, pid: int) -> Stat | None:
    """/proc/<pid>/stat; None when there is no such process, or it is hidden."""
    text = world.read_text(f"/proc/{pid}/stat")
    return parse_stat(text) if text else None


def read_process(world: World, pid: int) -> Process | None:
    """A process; None when there is none, or it is hidden."""
    stat = read_stat(world, pid)
    if stat is None:
        return None
    # Reading the command line of a process stuck in a driver can itself block for ever.
    cmdline = world.read_text(f"/proc/{pid}/cmdline", _STUCK_READ if stat.state == "D" else None)
    return Process(
        pid=pid,
        comm=stat.comm,
        state=stat.state,
        parent=stat.parent,
        kernel_thread=stat.kernel_thread,
        start_time=stat.start_time,
        argv=split_cmdline(cmdline or ""),
        executable=_without_deleted(world.read_link(f"/proc/{pid}/exe")),
        uid=parse_uid(world.read_text(f"/proc/{pid}/status") or ""),
    )


def is_interpreter(name: str) -> bool:
    """Whether a program of this name runs scripts, so that its name says little."""
    return _INTERPRETER.fullmatch(name) is not None


def script_of(argv: t.Sequence[str], executable: str | None) -> str | None:
    """The name of the script or module that an interpreter runs; None where it runs none, or is none."""
    if not is_interpreter(os.path.basename(executable or "")):
        return None
    words = iter(argv[1:])
    for word in words:
        if word == "-m":
            return next(words, None)
        if word in ("-", "--", "-e") or (word[:2] != "--" and word[:1] == "-" and word[-1:] == "c"):
            return None  # from standard input, or the words themselves: -c, -lc
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return os.path.basename(word) or None
    return None


def split_cmdline(text: str) -> tuple[str, ...]:
    """Words of /proc/<pid>/cmdline; a process that wrote its title there leaves empty ones at the end."""
    return tuple(text.rstrip("\0").split("\0")) if text.strip("\0") else ()


def _without_deleted(target: str | None) -> str | None:
    suffix = " (deleted)"
    return target[: -len(suffix)] if target and target.endswith(suffix) else target


def boot_id(world: World) -> str | None:
    """Identity of this boot; with it, a pid and a start time a process is known for ever."""
    text = world.read_text("/proc/sys/kernel/random/boot_id")
    return text.strip() if text and text.strip() else None


def identity(world: World, pid: int) -> tuple[str | None, int, int] | None:
    """(boot id, pid, start time) of a process: two processes never share it. None when there is no such process."""
    stat = read_stat(world, pid)
    return None if stat is None else (boot_id(world), pid, stat.start_time)


def ancestors(world: World, pid: int) -> list[int]:
    """The pid itself, its parent, and so on up to pid 1."""
    line: list[int] = []
    while pid > 0 and pid not in line:
        line.append(pid)
        stat = read_stat(world, pid)
        if stat is None:
            break
        pid = stat.parent
    return line
