# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file system of two files, served from the machine to one host of the lab.

* ``meminfo``      the host's own /proc/meminfo, bound over it at boot, and in its containers by the host's runc wrapper
* ``drop_caches``  drops the page cache of this host only, bound over /proc/sys/vm/drop_caches

lxcfs does the first of these, but answers by the memory cgroup of whoever asks: in a container of the host it would
show the container's own usage, where on a real machine every container sees the whole pool. Here the answer is the
host's, whoever asks. The FUSE protocol (include/uapi/linux/fuse.h, version 7) is spoken directly: a handful of its
requests is all that two files need, and the lab then needs neither a library nor a service of the machine.

Runs as a process of its own: ``python3 -m lib.poolfs --mount DIR --cgroup DIR --name NAME``; it ends when it is unmounted.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import cgroups, meminfo

LOOKUP, FORGET, GETATTR, SETATTR = 1, 2, 3, 4
OPEN, READ, WRITE, STATFS, RELEASE, FLUSH, INIT = 14, 15, 16, 17, 18, 25, 26
OPENDIR, READDIR, RELEASEDIR, INTERRUPT, DESTROY, BATCH_FORGET = 27, 28, 29, 36, 38, 42
NO_REPLY = {FORGET, INTERRUPT, BATCH_FORGET}

IN_HEADER = struct.Struct("<IIQQIIIHH")
OUT_HEADER = struct.Struct("<IiQ")
INIT_IN = struct.Struct("<IIII")
INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
ENTRY_HEAD = struct.Struct("<QQQQII")
ATTR_HEAD = struct.Struct("<QII")
OPEN_OUT = struct.Struct("<QII")
READ_IN = struct.Struct("<QQI")
WRITE_IN = struct.Struct("<QQIIQII")
DIRENT = struct.Struct("<QQII")
STATFS_OUT = struct.Struct("<QQQQQIIII24x")

PROTOCOL = (7, 31)
FOPEN_DIRECT_IO = 1
MAX_WRITE = 4096
BUFFER = 1 << 17  # the kernel asks for at least 8 KiB and room for one write
ROOT = 1
MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8


@dataclass(frozen=True)
class PoolFile:
    """One file: its node number, name, mode, and what reading and writing it do."""

    node: int
    name: str
    mode: int
    read: Callable[[], str] | None
    write: Callable[[str], None] | None


class Pool:
    """A host's memory cgroup, read afresh at each question. ``directory`` is the cgroup's directory."""

    def __init__(self, directory: Path, driver_unit: str = "") -> None:
        self.directory = directory
        self.version = 2 if (directory / "memory.max").exists() else 1
        # Under v2 systemd-nspawn keeps the host's own tree in a group "payload", beside itself.
        system = directory / "payload" if self.version == 2 else directory
        self.driver = system / "system.slice" / driver_unit if driver_unit else None
        # The machine's own file, opened once: through the path it could one day be this file system's, and never answer.
        self.machine = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)

    def _number(self, name: str) -> int:
        return int((self.directory / name).read_text(encoding="ascii"))

    def _driver_stat(self) -> dict[str, int]:
        if self.driver is None:
            return {}
        try:
            return meminfo.parse_stat((self.driver / "memory.stat").read_text(encoding="ascii"))
        except OSError:  # the unit does not run
            return {}

    def usage(self) -> meminfo.PoolUsage:
        stat_text = (self.directory / "memory.stat").read_text(encoding="ascii")
        figures = meminfo.parse_stat(stat_text)
        if self.version == 2:
            return meminfo.usage_v2(self._number("memory.max"), self._number("memory.current"), figures, self._driver_stat())
        share = meminfo.reclaimable_share(meminfo.parse_meminfo(os.pread(self.machine, 1 << 16, 0).decode("ascii")))
        return meminfo.usage_v1(
            self._number("memory.limit_in_bytes"),
            self._number("memory.usage_in_bytes"),
            figures,
            self._number("memory.kmem.usage_in_bytes"),
            share,
            self._driver_stat(),
        )

    def meminfo(self) -> str:
        return meminfo.render(self.usage())

    def drop_caches(self, text: str) -> None:
        """What a write to drop_caches does, for this cgroup; raises OSError(EINVAL) for what the kernel refuses too."""
        if text.strip() not in ("1", "2", "3", "4"):
            raise OSError(errno.EINVAL, "not 1, 2, 3 or 4")
        if self.version == 2:
            cgroups.reclaim(self.directory, self.usage().cache)
        else:
            with open(self.directory / "memory.force_empty", "w", encoding="ascii") as file:
                file.write("0")


class Server:
    """Answers the kernel's requests on one /dev/fuse descriptor."""

    def __init__(self, descriptor: int, files: list[PoolFile]) -> None:
        self.descriptor = descriptor
        self.by_node = {file.node: file for file in files}
        self.by_name = {file.name: file for file in files}
        self.handles: dict[int, bytes] = {}
        self.next_handle = 1
        self.started = int(time.time())

    def attributes(self, node: int) -> bytes:
        file = self.by_node.get(node)
        mode = file.mode | stat.S_IFREG if file else 0o555 | stat.S_IFDIR
        now = self.started
        return ATTR.pack(node, 0, 0, now, now, now, 0, 0, 0, mode, 1 if file else 2, 0, 0, 0, 4096, 0)

    def reply(self, unique: int, payload: bytes = b"", error: int = 0) -> None:
        try:
            os.write(self.descriptor, OUT_HEADER.pack(OUT_HEADER.size + len(payload), -error, unique) + payload)
        except OSError as problem:
            if problem.errno != errno.ENOENT:  # the reader was interrupted and waits no more
                raise

    def serve(self) -> None:
        """Answer until unmounted."""
        while True:
            try:
                request = os.read(self.descriptor, BUFFER)
            except OSError as problem:
                if problem.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                if problem.errno == errno.ENODEV:  # unmounted
                    return
                raise
            if len(request) < IN_HEADER.size:  # the other end is gone
                return
            _length, opcode, unique, node, *_rest = IN_HEADER.unpack_from(request)
            body = request[IN_HEADER.size :]
            if opcode in NO_REPLY:
                continue
            try:
                self.answer(opcode, unique, node, body)
            except OSError as problem:
                self.reply(unique, error=problem.errno or errno.EIO)
            if opcode == DESTROY:
                return

    def answer(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        handler = self.HANDLERS.get(opcode)
        if handler is None:
            raise OSError(errno.ENOSYS, "not needed by two files")
        handler(self, unique, node, body)

    def on_init(self, unique: int, _node: int, body: bytes) -> None:
        major, _minor, readahead, _flags = INIT_IN.unpack_from(body)
        if major != PROTOCOL[0]:
            raise OSError(errno.EPROTO, f"FUSE protocol {major}")
        self.reply(unique, INIT_OUT.pack(*PROTOCOL, readahead, 0, 16, 12, MAX_WRITE, 1, 0, 0, 0))

    def on_lookup(self, unique: int, _node: int, body: bytes) -> None:
        file = self.by_name.get(body.rstrip(b"\0").decode("utf-8", "replace"))
        if file is None:
            raise OSError(errno.ENOENT, "no such file")
        self.reply(unique, ENTRY_HEAD.pack(file.node, 0, 3600, 3600, 0, 0) + self.attributes(file.node))

    def on_getattr(self, unique: int, node: int, _body: bytes) -> None:
        self.reply(unique, ATTR_HEAD.pack(3600, 0, 0) + self.attributes(node))

    def on_open(self, unique: int, node: int, _body: bytes) -> None:
        handle, self.next_handle = self.next_handle, self.next_handle + 1
        self.handles[handle] = b""
        self.reply(unique, OPEN_OUT.pack(handle, FOPEN_DIRECT_IO, 0))

    def on_opendir(self, unique: int, _node: int, _body: bytes) -> None:
        self.reply(unique, OPEN_OUT.pack(0, 0, 0))

    def on_read(self, unique: int, node: int, body: bytes) -> None:
        handle, offset, size = READ_IN.unpack_from(body)
        file = self.by_node[node]
        if offset == 0 or not self.handles.get(handle):  # as a seq_file: a reading from the start is a new one
            self.handles[handle] = file.read().encode("ascii") if file.read else b""
        self.reply(unique, self.handles[handle][offset : offset + size])

    def on_write(self, unique: int, node: int, body: bytes) -> None:
        _handle, _offset, size, *_rest = WRITE_IN.unpack_from(body)
        data = body[WRITE_IN.size : WRITE_IN.size + size]
        write = self.by_node[node].write
        if write is None:
            raise OSError(errno.EACCES, "read only")

        def work(write: Callable[[str], None] = write) -> None:  # takes seconds: the readers must not wait for it
            try:
                write(data.decode("ascii", "replace"))
            except OSError as problem:
                self.reply(unique, error=problem.errno or errno.EIO)
            else:
                self.reply(unique, struct.pack("<II", size, 0))

        threading.Thread(target=work, daemon=True).start()

    def on_readdir(self, unique: int, _node: int, body: bytes) -> None:
        _handle, offset, _size = READ_IN.unpack_from(body)
        entries = [(ROOT, ".", stat.S_IFDIR), (ROOT, "..", stat.S_IFDIR)]
        entries += [(file.node, file.name, stat.S_IFREG) for file in self.by_node.values()]
        payload = b""
        for position, (node, name, kind) in enumerate(entries):
            if position >= offset:
                encoded = name.encode("ascii")
                entry = DIRENT.pack(node, position + 1, len(encoded), kind >> 12) + encoded
                payload += entry + b"\0" * (-len(entry) % 8)
        self.reply(unique, payload)

    def on_release(self, unique: int, _node: int, body: bytes) -> None:
        self.handles.pop(READ_IN.unpack_from(body.ljust(READ_IN.size, b"\0"))[0], None)
        self.reply(unique)

    def on_statfs(self, unique: int, _node: int, _body: bytes) -> None:
        self.reply(unique, STATFS_OUT.pack(0, 0, 0, len(self.by_node), 0, 4096, 255, 4096, 0))

    def on_nothing(self, unique: int, _node: int, _body: bytes) -> None:
        self.reply(unique)

    HANDLERS: dict[int, Callable[[Server, int, int, bytes], None]] = {
        INIT: on_init,
        LOOKUP: on_lookup,
        GETATTR: on_getattr,
        SETATTR: on_getattr,  # the O_TRUNC of a shell's '>' changes nothing
        OPEN: on_open,
        READ: on_read,
        WRITE: on_write,
        RELEASE: on_release,
        FLUSH: on_nothing,
        OPENDIR: on_opendir,
        READDIR: on_readdir,
        RELEASEDIR: on_nothing,
        STATFS: on_statfs,
        DESTROY: on_nothing,
    }


def mount(target: Path, name: str) -> int:
    """Mount on ``target``; returns the descriptor to serve. Raises OSError."""
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(name.encode(), os.fsencode(target), b"fuse", MS_NOSUID_NODEV_NOEXEC, options) != 0:
        number = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(number, f"cannot mount on {target}: {os.strerror(number)}")
    return descriptor


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="serve the memory figures of one host of the lab")
    parser.add_argument("--mount", type=Path, required=True)
    parser.add_argument("--cgroup", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--driver-unit", default="", help="the unit on the host that holds memory for the simulated driver's clients")
    parser.add_argument("--ready", type=int, default=-1, help="a descriptor to write 1 to when mounted")
    options = parser.parse_args(arguments)
    pool = Pool(options.cgroup, options.driver_unit)
    pool.meminfo()  # fails here, before the mount, when the cgroup is not what it should be
    files = [
        PoolFile(2, "meminfo", 0o444, pool.meminfo, None),
        PoolFile(3, "drop_caches", 0o200, None, pool.drop_caches),
    ]
    server = Server(mount(options.mount, options.name), files)
    if options.ready >= 0:
        os.write(options.ready, b"1")
        os.close(options.ready)
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
