# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The /proc/meminfo of a host: the pool's own figures, memory of the driver in no bucket."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from lib import cgroups, meminfo, poolfs

MIB = 1 << 20
GIB = 1 << 30
#: As read from a host with the embeddings service (driver memory, locked), a full cache and some dirty pages.
STAT = f"""\
cache 0
total_cache {4000 * MIB}
total_rss {1100 * MIB}
total_rss_huge 0
total_shmem {100 * MIB}
total_mapped_file {60 * MIB}
total_dirty {8 * MIB}
total_writeback {MIB}
total_inactive_anon {190 * MIB}
total_active_anon {10 * MIB}
total_inactive_file {3500 * MIB}
total_active_file {400 * MIB}
total_unevictable {1000 * MIB}
"""
DRIVER = {"total_rss": 1000 * MIB}


def shown(driver: dict[str, int] | None = None) -> dict[str, int]:
    pool = meminfo.usage_v1(6 * GIB, 5200 * MIB, meminfo.parse_stat(STAT), 100 * MIB, 0.5, driver)
    return meminfo.parse_meminfo(meminfo.render(pool))


def test_total_and_free_are_the_pools() -> None:
    values = shown()
    assert values["MemTotal"] == 6 * GIB
    assert values["MemFree"] == 6 * GIB - 5200 * MIB


def test_available_is_free_and_file_pages_and_reclaimable_slab() -> None:
    values = shown()
    assert values["MemAvailable"] == values["MemFree"] + 3900 * MIB + 50 * MIB
    assert values["MemAvailable"] <= values["MemTotal"]


def test_the_buckets_are_consistent() -> None:
    values = shown()
    assert values["Active"] == values["Active(anon)"] + values["Active(file)"]
    assert values["Inactive"] == values["Inactive(anon)"] + values["Inactive(file)"]
    assert values["Slab"] == values["SReclaimable"] + values["SUnreclaim"] == 100 * MIB
    assert values["Dirty"] == 8 * MIB and values["Writeback"] == MIB and values["Shmem"] == 100 * MIB


def test_swap_and_huge_pages_are_there_and_zero() -> None:
    values = shown()
    assert [values[name] for name in ("SwapTotal", "SwapFree", "HugePages_Total", "HugePages_Free")] == [0, 0, 0, 0]
    assert values["Hugepagesize"] == 2 * MIB


def test_memory_of_the_driver_is_in_no_bucket_but_still_taken() -> None:
    plain, hidden = shown(), shown(DRIVER)
    assert hidden["MemFree"] == plain["MemFree"] and hidden["MemAvailable"] == plain["MemAvailable"]
    assert plain["AnonPages"] - hidden["AnonPages"] == 1000 * MIB
    assert hidden["Unevictable"] == hidden["Mlocked"] == 0
    assert hidden["Inactive(anon)"] == 190 * MIB  # what programs use stays


def test_driver_memory_that_is_not_locked_leaves_the_anonymous_lists() -> None:
    stat = meminfo.parse_stat(STAT) | {"total_unevictable": 0, "total_inactive_anon": 1190 * MIB}
    values = meminfo.parse_meminfo(meminfo.render(meminfo.usage_v1(6 * GIB, 5200 * MIB, stat, 0, 0, DRIVER)))
    assert values["Inactive(anon)"] == 190 * MIB and values["Active(anon)"] == 10 * MIB


def test_usage_above_the_limit_is_not_negative() -> None:
    pool = meminfo.usage_v1(GIB, GIB + MIB, {}, 0, 0)
    assert pool.free == 0 and pool.available == 0


def test_cgroup_v2_has_its_own_names() -> None:
    stat = {"file": 3 * GIB, "anon": GIB, "inactive_file": 2 * GIB, "active_file": GIB, "kernel": 9 * MIB}
    stat |= {"slab": 2 * MIB, "slab_reclaimable": MIB, "kernel_stack": 3 * MIB, "pagetables": 4 * MIB}
    values = meminfo.parse_meminfo(meminfo.render(meminfo.usage_v2(6 * GIB, 5 * GIB, stat, {"anon": GIB})))
    assert (values["MemFree"], values["AnonPages"], values["Cached"]) == (GIB, 0, 3 * GIB)
    assert (values["Slab"], values["SUnreclaim"], values["KernelStack"], values["PageTables"]) == (2 * MIB, MIB, 3 * MIB, 4 * MIB)


def test_the_reclaimable_share_of_kernel_memory() -> None:
    assert meminfo.reclaimable_share({"Slab": 80, "KernelStack": 10, "PageTables": 10, "SReclaimable": 40}) == 0.4
    assert meminfo.reclaimable_share({}) == 0.0


class Kernel:
    """The other end of /dev/fuse: a datagram socket pair keeps the borders of messages, as the device does."""

    def __init__(self, read: Callable[[], str], write: Callable[[str], None]) -> None:
        self.end, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.end.settimeout(10)
        files = [poolfs.PoolFile(2, "meminfo", 0o444, read, None), poolfs.PoolFile(3, "drop_caches", 0o200, None, write)]
        self.server = poolfs.Server(served.detach(), files)
        self.thread = threading.Thread(target=self.server.serve, daemon=True)
        self.thread.start()
        self.unique = 0

    def ask(self, opcode: int, node: int = 1, body: bytes = b"") -> tuple[int, bytes]:
        self.unique += 1
        header = poolfs.IN_HEADER.pack(poolfs.IN_HEADER.size + len(body), opcode, self.unique, node, 0, 0, 0, 0, 0)
        self.end.send(header + body)
        answer = self.end.recv(1 << 17)
        length, error, unique = poolfs.OUT_HEADER.unpack_from(answer)
        assert (length, unique) == (len(answer), self.unique)
        return -error, answer[poolfs.OUT_HEADER.size :]

    def open(self, node: int) -> int:
        error, answer = self.ask(poolfs.OPEN, node, struct.pack("<II", os.O_RDONLY, 0))
        handle, flags, _pad = poolfs.OPEN_OUT.unpack(answer)
        assert error == 0 and flags & poolfs.FOPEN_DIRECT_IO
        return int(handle)

    def read(self, node: int, handle: int, offset: int, size: int) -> bytes:
        error, answer = self.ask(poolfs.READ, node, poolfs.READ_IN.pack(handle, offset, size) + bytes(20))
        assert error == 0
        return answer


@pytest.fixture
def kernel() -> Kernel:
    texts = iter(["first reading\n", "second reading\n", "third\n"])
    written: list[str] = []

    def write(text: str) -> None:
        if text.strip() != "3":
            raise OSError(errno.EINVAL, "no")
        written.append(text)

    made = Kernel(lambda: next(texts), write)
    error, answer = made.ask(poolfs.INIT, 0, struct.pack("<IIII", 7, 45, 131072, 0))
    assert error == 0 and struct.unpack_from("<II", answer) == poolfs.PROTOCOL and len(answer) == 64
    return made


def test_files_are_found_by_name(kernel: Kernel) -> None:
    error, answer = kernel.ask(poolfs.LOOKUP, 1, b"meminfo\0")
    assert error == 0 and len(answer) == 128 and poolfs.ENTRY_HEAD.unpack_from(answer)[0] == 2
    assert kernel.ask(poolfs.LOOKUP, 1, b"other\0")[0] == errno.ENOENT


def test_a_reading_is_one_moment_and_a_reading_from_the_start_a_new_one(kernel: Kernel) -> None:
    handle = kernel.open(2)
    assert kernel.read(2, handle, 0, 5) == b"first"
    assert kernel.read(2, handle, 5, 100) == b" reading\n"
    assert kernel.read(2, handle, 0, 100) == b"second reading\n"


def test_writing_acts_and_wrong_values_are_refused(kernel: Kernel) -> None:
    def write(node: int, data: bytes) -> tuple[int, bytes]:
        return kernel.ask(poolfs.WRITE, node, poolfs.WRITE_IN.pack(1, 0, len(data), 0, 0, 0, 0) + data)

    assert write(3, b"3\n") == (0, struct.pack("<II", 2, 0))
    assert write(3, b"9\n")[0] == errno.EINVAL
    assert write(2, b"3\n")[0] == errno.EACCES


def test_what_is_not_needed_is_refused_and_the_end_is_clean(kernel: Kernel) -> None:
    assert kernel.ask(99)[0] == errno.ENOSYS
    assert kernel.ask(poolfs.DESTROY)[0] == 0
    kernel.thread.join(10)
    assert not kernel.thread.is_alive()


def test_the_pool_reads_a_cgroup_directory(tmp_path: Path) -> None:
    for name, text in {
        "memory.limit_in_bytes": str(6 * GIB),
        "memory.usage_in_bytes": str(5200 * MIB),
        "memory.kmem.usage_in_bytes": "0",
        "memory.stat": STAT,
        "memory.force_empty": "",
    }.items():
        (tmp_path / name).write_text(text)
    unit = tmp_path / "system.slice" / "gb10-simd.service"
    unit.mkdir(parents=True)
    (unit / "memory.stat").write_text(f"total_rss {1000 * MIB}\n")
    pool = poolfs.Pool(tmp_path, "gb10-simd.service")
    assert meminfo.parse_meminfo(pool.meminfo())["AnonPages"] == 100 * MIB
    with pytest.raises(OSError, match="not 1, 2, 3 or 4"):
        pool.drop_caches("7")
    pool.drop_caches("3\n")
    assert (tmp_path / "memory.force_empty").read_text() == "0"


def test_the_pool_reads_a_cgroup_directory_of_v2(tmp_path: Path) -> None:
    for name, text in {
        "memory.max": str(6 * GIB),
        "memory.current": str(5 * GIB),
        "memory.stat": f"anon {GIB}\nfile {3 * GIB}\nunevictable {GIB}\n",
        "memory.reclaim": "",
    }.items():
        (tmp_path / name).write_text(text)
    unit = tmp_path / "payload" / "system.slice" / "gb10-simd.service"  # beside systemd-nspawn's own group
    unit.mkdir(parents=True)
    (unit / "memory.stat").write_text(f"anon {GIB}\n")
    pool = poolfs.Pool(tmp_path, "gb10-simd.service")
    values = meminfo.parse_meminfo(pool.meminfo())
    assert (values["MemFree"], values["AnonPages"], values["Mlocked"]) == (GIB, 0, 0)
    pool.drop_caches("3\n")
    assert (tmp_path / "memory.reclaim").read_text() == str(3 * GIB)


def test_what_cannot_be_reclaimed_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.reclaim").write_text("")
    asked: list[bytes] = []

    def write(_descriptor: int, data: bytes) -> int:
        asked.append(data)
        raise BlockingIOError(errno.EAGAIN, "not all could go")

    monkeypatch.setattr(os, "write", write)
    cgroups.reclaim(tmp_path, MIB)
    assert asked == [b"1048576"]
