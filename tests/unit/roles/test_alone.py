# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles say to variables that cannot be meant, in a playbook that has nothing else of this collection. The host is this machine."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._lock import LockError, NodeLock, lock_directory
from ansible_collections.unimem.dgx_spark.tests.unit.playbooks.running import ROOT, play, said
from ansible_collections.unimem.dgx_spark.tests.unit.playbooks.test_settings import ROLES, given, lists, load, ours

REQUIRED = {
    "image_build": {"image_build_image": "x"},
    "model_sync": {"model_sync_source": "here", "model_sync_path": "/nowhere"},
    "service_eviction": {},
    "tp_launch": {"tp_launch_head": "here"},
}


def alone(directory: Path, role: str, rescue: str = "", **variables: Any) -> subprocess.CompletedProcess[str]:
    """A playbook with that role and nothing else; what *rescue* names is shown when it fails."""
    (directory / "hosts").write_text("here ansible_connection=local ansible_python_interpreter=/usr/bin/python3\n")
    tasks: dict[str, Any] = {"block": [{"ansible.builtin.include_role": {"name": f"unimem.dgx_spark.{role}"}, "vars": {**REQUIRED[role], **variables}}]}
    if rescue:
        tasks["rescue"] = [{"ansible.builtin.debug": {"msg": "left: {{ " + rescue + " }}"}}]
    (directory / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [tasks]}]))
    return play(str(directory / "play.yml"), directory, inventory=directory / "hosts")


@pytest.mark.parametrize("role", ROLES)
def test_a_misspelt_variable_is_an_error(role: str, tmp_path: Path) -> None:
    option = next(iter(load(ROOT / "roles" / role / "defaults" / "main.yml")))
    done = alone(tmp_path, role, **{option + "s": 1})
    assert done.returncode != 0 and f"{option}s (here): did you mean {option}?" in said(done), said(done)
    # Ansible's own check of the arguments comes first, and nothing else that was not skipped.
    assert "changed=0 " in done.stdout and int(re.search(r"ok=(\d+)", done.stdout)[1]) <= 3, done.stdout


@pytest.mark.parametrize("role", ROLES)
def test_what_roles_and_playbooks_set_themselves_is_known(role: str) -> None:
    left = set(load(ROOT / "roles" / role / "vars" / "main.yml")[f"__{role}_results"])
    assert left == {name for name in lists()["__deploy_results"] if name.startswith(f"{role}_")}
    files = [*(ROOT / "playbooks").glob("*.yml"), *(ROOT / "playbooks" / "tasks").glob("*.yml"), *(ROOT / "roles").glob("*/tasks/*.yml")]
    names = {name for path in files for name in ours(given(load(path))) if name.startswith(f"{role}_")}
    names |= {name for name in load(ROOT / "playbooks" / "settings" / "roles.yml") if name.startswith(f"{role}_")}
    assert names <= left | set(load(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]["main"]["options"])


def test_a_variable_of_somebody_elses_and_one_that_is_misspelt_where_things_are_put_back(tmp_path: Path) -> None:
    done = alone(tmp_path, "service_eviction", service_eviction_mine=1, deploy_other_variables=["service_eviction_mine"])
    assert done.returncode == 0 and "Nothing reads" not in said(done), said(done)
    back = {"service_eviction_state": "restored", "service_eviction_journal_directory": str(tmp_path / "j")}
    done = alone(tmp_path, "service_eviction", service_eviction_reson="failure", **back)
    assert done.returncode == 0 and "did you mean service_eviction_reason?" in said(done), said(done)


def test_without_a_need_it_is_said_that_nothing_is_stopped(tmp_path: Path) -> None:
    services = [{"selector": "unit:no-such.service", "policy": "if_needed"}, {"selector": "unit:no-such-either.service", "policy": "never"}]
    done = alone(tmp_path, "service_eviction", service_eviction_state="evicted", service_eviction_services=services)
    assert done.returncode == 0, said(done)
    assert "nothing that is listed as 'if_needed' is stopped: unit:no-such.service." in said(done)
    assert "unit:no-such-either.service is listed with the policy 'never', and nothing on any host matches it" in said(done)
    assert said(done).count("no-such-either") == 1, "it is said once"
    done = alone(tmp_path, "service_eviction", service_eviction_services=services[:1], service_eviction_need="1 MiB")
    assert done.returncode == 0 and "no-such" not in said(done), said(done)


def test_selectors_are_read_without_a_need_too(tmp_path: Path) -> None:
    done = alone(tmp_path, "service_eviction", service_eviction_services=[{"selector": "unti:x.service", "policy": "if_needed"}])
    assert done.returncode != 0 and "does not begin with a known kind" in said(done), said(done)


def test_the_result_of_an_eviction_that_failed_is_there(tmp_path: Path) -> None:
    """Another run is at work, which only who stops things minds."""
    variables = {"service_eviction_state": "evicted", "service_eviction_drop_page_cache": True, "service_eviction_journal_directory": str(tmp_path / "j")}
    try:
        lock = NodeLock(lock_directory(), {"pid": 1, "state": "freed"}).__enter__()
    except LockError as exc:
        pytest.skip(f"no lock to be had on this machine: {exc}")
    try:
        done = alone(tmp_path, "service_eviction", "[service_eviction_result.verdict, service_eviction_result.evicted]", **variables)
    finally:
        lock.__exit__()
    assert "left: ['not_permitted', []]" in said(done), said(done)
