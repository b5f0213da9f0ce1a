# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who may do what: without root, without the docker group, with a password for sudo; and two runs at once."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from harness import run_module, ssh_argv
from stand_ins import HOLD, JOURNAL, LIBRARY, StandIns, module_defaults, wait_for

HOST = "spark-02"
MODULE = "unimem.dgx_spark.gpu_process_reclaim"


def as_user(user: str, **parameters: Any) -> dict[str, Any]:
    """The module through Ansible as somebody else than root."""
    journal = {"journal": f"/home/{user}/.unimem/e2e.json"}
    run = run_module(MODULE, json.dumps({**journal, **parameters}), HOST, variables={"ansible_user": user})
    found = run.results(host=HOST)
    assert found, run.output
    return {**found[-1][2], "failed": bool(run.failures)}


@pytest.fixture
def nobody_special(strangers: StandIns) -> Iterator[str]:
    """A user of the host who is in no group and may use sudo with a password only. The password."""
    password = secrets.token_hex(8)
    strangers.run("useradd", "--create-home", "--shell", "/bin/bash", "e2e-carol")
    strangers.run("sh", "-c", f"echo e2e-carol:{password} | chpasswd")
    strangers.run("sh", "-c", "cp -r /home/spark/.ssh /home/e2e-carol/ && chown -R e2e-carol: /home/e2e-carol/.ssh")
    strangers.run("sh", "-c", "echo 'e2e-carol ALL=(ALL) ALL' > /etc/sudoers.d/e2e-carol && chmod 440 /etc/sudoers.d/e2e-carol")
    yield password
    strangers.run("sh", "-c", "rm -f /etc/sudoers.d/e2e-carol; pkill --uid e2e-carol; userdel --remove --force e2e-carol 2> /dev/null; true")


def test_without_root_and_without_the_docker_group(strangers: StandIns, nobody_special: str) -> None:
    strangers.unit("e2e-unit.service", f"{HOLD} --name e2e-unit --mib 16")
    strangers.container("e2e-container")
    theirs = strangers.process("e2e-theirs", "--mib", "16")
    before = strangers.state()
    stop = ["unit:e2e-unit", "container:e2e-container", "process:e2e-theirs"]
    report = as_user("e2e-carol", stop=stop)
    assert report["verdict"] == "reported" and not report["failed"]
    assert {row["pid"] for row in report["held_by"]} >= {theirs}, "it sees who holds what"
    assert any("/run/docker.sock" in note and "group" in note for note in report["notes"])
    reasons = {row["target"]: row["reason"] for row in report["refused"]}
    # Another line in the inventory would not help any of them.
    assert all(row["inventory"] is None and "root (become: true)" in row["missing"] for row in report["refused"]), report["refused"]
    assert all(row["inventory"] is None and row["missing"] for row in report["held_by"] if row["pid"] == theirs)
    assert "become: true" in reasons["e2e-unit.service"] and "needs root" in reasons[f"e2e-theirs (pid {theirs})"]
    for selector in stop:
        refused = as_user("e2e-carol", state="freed", stop=[selector])
        assert refused["failed"] and not refused["changed"] and refused["verdict"] == "not_permitted", refused
    assert strangers.state() == before and strangers.alive(theirs)


def test_member_of_the_docker_group_may_stop_containers_and_own_processes(strangers: StandIns) -> None:
    strangers.container("e2e-container", "--restart", "always")
    mine = strangers.process("e2e-mine", "--mib", "16")
    before = strangers.state()
    freed = as_user("spark", state="freed", stop=["container:e2e-container", "process:e2e-mine"])
    assert freed["verdict"] == "freed", freed["msg"]
    assert strangers.state() == {"e2e-container": "exited no"} and not strangers.alive(mine)
    assert as_user("spark", state="restored")["verdict"] == "restored" and strangers.state() == before


def test_with_a_password_for_sudo(strangers: StandIns, nobody_special: str) -> None:
    """What `-K` asks for."""
    strangers.unit("e2e-unit.service", f"{HOLD} --name e2e-unit --mib 16")
    run = run_module(
        MODULE,
        json.dumps({"state": "freed", "stop": ["unit:e2e-unit"], "journal": JOURNAL}),
        HOST,
        "--become",
        "--ask-become-pass",
        variables={"ansible_user": "e2e-carol"},
        passwords={r"^BECOME password.*:\s*?$": nobody_special},
    )
    assert run.rc == 0, run.output
    assert strangers.state() == {"e2e-unit.service": "inactive disabled"}


def test_second_run_is_told_who_is_at_work(strangers: StandIns) -> None:
    strangers.unit("e2e-slow.service", f"{HOLD} --name e2e-slow --mib 16 --end-after 4")
    strangers.unit("e2e-other.service", f"{HOLD} --name e2e-other --mib 16")
    asked = {"parameters": {**module_defaults(), "state": "freed", "stop": ["unit:e2e-slow"], "journal": JOURNAL}}
    command = f"PYTHONPATH={LIBRARY} PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 {LIBRARY}/reclaim.py"
    first = subprocess.Popen([*ssh_argv(HOST), command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdin is not None
    first.stdin.write(json.dumps(asked))
    first.stdin.close()
    wait_for(lambda: "deactivating" in strangers.state()["e2e-slow.service"])
    second = strangers.reclaim(stop=["unit:e2e-other"])
    assert second["verdict"] == "not_permitted" and second["done"] == [] and not second["changed"]
    assert "another run is at work" in second["msg"] and "state=freed" in second["msg"] and JOURNAL in second["msg"]
    # Looking is never refused.
    assert strangers.reclaim("report", stop=["unit:e2e-other"])["verdict"] == "reported"
    assert strangers.reclaim(check=True, stop=["unit:e2e-other"])["verdict"] == "freed"
    assert first.stdout is not None
    done = json.loads(first.stdout.read())
    assert first.wait() == 0 and done["verdict"] == "freed", done["msg"]
    assert strangers.state() == {"e2e-slow.service": "inactive disabled", "e2e-other.service": "active enabled"}
