# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import make_owner
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._run_owner import has_ended, run_owner


@pytest.fixture
def other() -> t.Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield made
    made.kill()
    made.communicate()


def test_it_names_this_process_for_people() -> None:
    owner = run_owner()
    assert owner["pid"] == os.getpid() and owner["controller"] and owner["user"]
    assert owner["started"][:4].isdigit()
    assert make_owner(owner).id == owner["id"], "nothing of it is cut"
    assert run_owner() == owner


def test_in_a_worker_of_ansibles_it_is_the_same() -> None:
    context = multiprocessing.get_context("fork")
    pipe, far = context.Pipe()
    worker = context.Process(target=lambda: far.send(run_owner()))
    worker.start()
    told = pipe.recv()
    worker.join()
    assert told == run_owner()


def test_a_run_that_lives_has_not_ended(other: subprocess.Popen[bytes]) -> None:
    owner = run_owner(pid=other.pid)
    assert owner["id"] != run_owner()["id"]
    assert not has_ended(owner)
    other.kill()
    other.wait()
    assert has_ended(owner)


def test_a_pid_that_is_another_process_by_now_has_ended(other: subprocess.Popen[bytes]) -> None:
    owner = run_owner(pid=other.pid)
    assert has_ended({**owner, "start_time": owner["start_time"] - 1})


@pytest.mark.parametrize("changes", [{"host": ""}, {"host": "another machine"}, {"pid": 0}, {"pid": "7"}, {"start_time": 0}, {"start_time": None}])
def test_what_cannot_be_known_has_not_ended(other: subprocess.Popen[bytes], changes: dict[str, t.Any]) -> None:
    owner = run_owner(pid=other.pid)
    other.kill()
    other.wait()
    assert not has_ended({**owner, **changes})
    assert not has_ended({})


def test_a_process_that_proc_hides_has_not_ended(other: subprocess.Popen[bytes]) -> None:
    owner = run_owner(pid=other.pid)
    boot, namespace = owner["host"].split("/")
    hidden = FakeWorld(files={"/proc/sys/kernel/random/boot_id": boot}, links={"/proc/self/ns/pid": namespace})
    assert not has_ended(owner, hidden)
    other.kill()
    other.wait()
    assert has_ended(owner, hidden)


def test_where_proc_tells_nothing_a_run_has_an_id_and_is_never_dead() -> None:
    owner = run_owner(FakeWorld(), pid=7)
    assert owner["id"].endswith("/7") and owner["host"] == "" and owner["started"] == ""
    assert not has_ended(owner, FakeWorld())
