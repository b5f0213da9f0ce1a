# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._lock import LockError, NodeLock

HOLD = """
import sys, time
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lock import NodeLock
with NodeLock(sys.argv[1], {"pid": 77, "user": "alice", "state": "freed", "since": "noon", "journal": "/j"}):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(directory: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    return child


def test_second_holder_is_told_who_has_it(tmp_path: Path) -> None:
    child = hold(tmp_path / "locks")
    try:
        with pytest.raises(LockError, match="process 77 of alice with state=freed and journal /j since noon") as caught:
            NodeLock(str(tmp_path / "locks"), {}).__enter__()
        assert caught.value.holder["pid"] == 77
    finally:
        child.communicate("")
    with NodeLock(str(tmp_path / "locks"), {"pid": 1}):
        pass


def test_a_holder_that_is_killed_gives_it_back(tmp_path: Path) -> None:
    child = hold(tmp_path / "locks")
    child.kill()
    child.wait()
    with NodeLock(str(tmp_path / "locks"), {"pid": os.getpid()}) as lock:
        assert json.loads(Path(lock.path).read_text())["pid"] == os.getpid()
    assert Path(lock.path).read_text() == ""
    child.stdin.close()
    child.stdout.close()


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir(mode=0o700)
    (tmp_path / "precious").write_text("x")
    (tmp_path / "locks" / "reclaim.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(LockError, match="cannot be used"):
        NodeLock(str(tmp_path / "locks"), {}).__enter__()
    assert (tmp_path / "precious").read_text() == "x"


def test_a_holder_that_said_nothing(tmp_path: Path) -> None:
    child = hold(tmp_path / "locks")
    try:
        (tmp_path / "locks" / "reclaim.lock").write_text("garbage")
        with pytest.raises(LockError, match="has not said who"):
            NodeLock(str(tmp_path / "locks"), {}).__enter__()
    finally:
        child.communicate("")


def test_waiting_ends_with_the_holder_or_with_its_time(tmp_path: Path) -> None:
    child = hold(tmp_path / "locks")
    started = time.monotonic()
    with pytest.raises(LockError, match="process 77"):
        NodeLock(str(tmp_path / "locks"), {}, wait=0.5).__enter__()
    assert time.monotonic() - started >= 0.5
    threading.Timer(0.3, lambda: child.communicate("")).start()
    with NodeLock(str(tmp_path / "locks"), {"pid": 1}, wait=30):
        assert time.monotonic() - started < 20


def test_locks_of_two_names_do_not_meet(tmp_path: Path) -> None:
    with NodeLock(str(tmp_path / "locks"), {}), NodeLock(str(tmp_path / "locks"), {}, "lease.lock"):
        assert sorted(path.name for path in (tmp_path / "locks").iterdir()) == ["lease.lock", "reclaim.lock"]
