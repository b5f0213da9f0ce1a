# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import (
    Deadline,
    FakeWorld,
    LiveWorld,
    ProbeResult,
    Response,
    parse_response,
)


def test_files_links_and_directories_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "text").write_bytes(b"caf\xc3\xa9 \xff\n")
    (tmp_path / "proc" / "link").symlink_to("text")
    world = LiveWorld(str(tmp_path))
    assert world.read_text("/proc/text") == "caf\u00e9 \ufffd\n"
    assert world.read_link("/proc/link") == "text"
    assert world.list_dir("/proc") == ["link", "text"]
    assert world.reasons == {}


def test_what_cannot_be_read_has_a_reason(tmp_path: Path) -> None:
    world = LiveWorld(str(tmp_path))
    assert world.read_text("/absent") is None
    assert world.list_dir("/absent") == []
    assert world.read_link("/absent") is None
    assert world.reasons == {"/absent": "no such file"}


@pytest.mark.skipif(not os.path.exists("/proc/sys/kernel/osrelease"), reason="this machine has no /proc/sys")
def test_the_files_of_proc_sys_can_be_read() -> None:
    assert LiveWorld().read_text("/proc/sys/kernel/osrelease")


def test_a_read_with_a_deadline_gives_the_same(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x")
    world = LiveWorld(str(tmp_path))
    assert world.read_text("/text", timeout=5) == "x"
    assert world.read_text("/absent", timeout=5) is None
    assert world.reasons == {"/absent": "no such file"}


def test_a_read_that_blocks_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveWorld, "_read", lambda self, path, uid=None: time.sleep(600))
    world = LiveWorld()
    assert world.read_text("/stuck", timeout=0.3) is None
    assert "no answer" in world.reasons["/stuck"]


def test_a_fifo_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    world = LiveWorld(str(tmp_path))
    assert world.read_text("/fifo") is None
    assert world.read_text("/") is None
    assert world.reasons["/fifo"] == "not a regular file"


def test_a_file_that_a_user_chose_must_be_that_users_own(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    world = LiveWorld(str(tmp_path))
    assert world.read_text_of(os.geteuid(), "/mine", 5) == "x"
    assert world.read_text_of(os.geteuid() + 1, "/mine", 5) is None
    assert world.read_text_of(os.geteuid() + 1, "/link", 5) is None
    assert world.reasons["/link"] == f"it does not belong to uid {os.geteuid() + 1}"


def test_names_that_are_no_text(tmp_path: Path) -> None:
    os.symlink(b"/tmp/\xff", os.fsencode(tmp_path) + b"/\xfe")
    world = LiveWorld(str(tmp_path))
    (name,) = world.list_dir("/")
    json.dumps(name).encode("ascii")
    assert name == "\ufffd"
    (tmp_path / "exe").symlink_to(os.fsdecode(b"/tmp/\xff"))
    assert world.read_link("/exe") == "/tmp/\ufffd"


def test_this_process_is_in_the_table_of_this_machine() -> None:
    world = LiveWorld()
    assert os.getpid() in world.process_table()
    assert world.effective_uid() == os.geteuid()
    assert world.user_name(0) == "root"
    assert world.user_name(2**32 + 5) is None


def test_commands_of_this_machine() -> None:
    world = LiveWorld()
    assert world.run(["printf", "%s", "a b"], 10).stdout == "a b"
    missing = world.run(["no-such-program-anywhere"], 10)
    assert (missing.rc, missing.missing) == (127, True)


def test_a_machine_that_can_start_no_process_is_still_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fork() -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", fork)
    descriptors = len(os.listdir("/proc/self/fd"))
    world = LiveWorld()
    run = world.run(["true"], 5)
    assert (run.rc, run.missing, run.timed_out) == (126, False, False) and "no process could be started: Cannot allocate memory" in run.stderr
    assert world.start_probe("x", dict, 5).finish() == ProbeResult(error="no process could be started: Cannot allocate memory")
    (tmp_path / "file").write_text("x")
    assert world.read_text_of(os.getuid(), str(tmp_path / "file"), 5) is None and "no process" in world.reasons[str(tmp_path / "file")]
    assert len(os.listdir("/proc/self/fd")) == descriptors, "what was opened for the child is closed again"


def test_a_probe_of_this_machine() -> None:
    world = LiveWorld()
    assert world.start_probe("x", lambda: {"answer": 42}, 10).finish() == ProbeResult({"answer": 42})
    assert "ZeroDivisionError" in (world.start_probe("x", lambda: {"answer": 1 // 0}, 10).finish().error or "")
    died = world.start_probe("x", lambda: os._exit(3), 10).finish()
    assert (died.data, died.timed_out) == (None, False)
    assert "status 3" in (died.error or "")


def serve(path: Path, answer: bytes | None) -> threading.Thread:
    """A daemon that takes one request; without an answer it never speaks."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(1)

    def run() -> None:
        connection, _address = listener.accept()
        with connection, listener:
            request = connection.recv(65536)
            if answer is not None and request.startswith(b"GET /containers/x/json HTTP/1.0\r\n"):
                connection.sendall(answer)
            elif answer is None:
                connection.recv(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_request_over_a_socket(tmp_path: Path) -> None:
    thread = serve(tmp_path / "docker.sock", b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{}")
    response = LiveWorld(str(tmp_path)).request("/docker.sock", "/containers/x/json", 5)
    thread.join(5)
    assert response == Response(200, "{}")


def test_a_daemon_that_does_not_answer(tmp_path: Path) -> None:
    serve(tmp_path / "docker.sock", None)
    response = LiveWorld(str(tmp_path)).request("/docker.sock", "/containers/x/json", 0.2)
    assert response.status is None
    assert "no answer" in (response.error or "")


def test_no_daemon(tmp_path: Path) -> None:
    assert LiveWorld(str(tmp_path)).request("/docker.sock", "/x", 1) == Response(error="no such file")


@pytest.mark.parametrize("data", [b"", b"junk", b"HTTP/1.0\r\n\r\n", b"HTTP/1.0 abc\r\n\r\n", b"HTTP/1.0 " + b"9" * 5000 + b"\r\n\r\n", b"SSH-2.0 200\r\n\r\n"])
def test_what_is_not_http(data: bytes) -> None:
    assert parse_response(data).status is None


def test_messages_of_the_kernels_log_are_counted(tmp_path: Path) -> None:
    """A terminal gives one line a read and then none, as the kernel's log does."""
    master, slave = os.openpty()
    try:
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev" / "kmsg").symlink_to(os.ttyname(slave))
        world = LiveWorld(str(tmp_path))
        assert world.count_kernel_messages("NV_ERR_NO_MEMORY") == 0
        lines = ["3,1,1,-;usb 1-1: new device", "3,2,2,-;NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"]
        os.write(master, "\n".join([*lines, *lines, ""]).encode())
        assert world.count_kernel_messages("NV_ERR_NO_MEMORY") == 2
        assert world.reasons == {}
    finally:
        os.close(master)
        os.close(slave)


def test_a_kernels_log_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    world = LiveWorld(str(tmp_path))
    assert world.count_kernel_messages("x") is None and world.reasons == {"/dev/kmsg": "no such file"}
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev" / "kmsg")
    assert world.count_kernel_messages("x") is None and world.reasons == {"/dev/kmsg": "not the kernel's log"}


def test_a_message_that_was_overwritten_meanwhile_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bytes | type[OSError]] = [b"a NV_ERR_NO_MEMORY", BrokenPipeError, b"b NV_ERR_NO_MEMORY", BlockingIOError]

    def read(descriptor: int, size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, bytes):
            return answer
        raise answer

    monkeypatch.setattr(os, "read", read)
    monkeypatch.setattr("ansible_collections.unimem.dgx_spark.plugins.module_utils._world.KERNEL_LOG", "/dev/null")
    assert LiveWorld().count_kernel_messages("NV_ERR_NO_MEMORY") == 2


def test_a_deadline_is_shared_and_never_negative() -> None:
    now = [100.0]
    deadline = Deadline(FakeWorld(clock=lambda: now[0]), 10)
    assert (deadline.left(), deadline.left(3)) == (10, 3)
    now[0] = 108.0
    assert deadline.left(3) == 2
    now[0] = 200.0
    assert deadline.left() == 0
