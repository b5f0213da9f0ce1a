# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbooks say to settings that nobody reads, and to a model's file that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._unknown_settings import PREFIXES
from ansible_collections.unimem.dgx_spark.tests.unit.playbooks.running import ROOT, play, said

ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())
SETTINGS = ROOT / "playbooks" / "tasks" / "settings.yml"
#: Keywords whose value is an expression without braces.
BARE = ("when", "that", "until", "failed_when", "changed_when")
JINJA = jinja2.Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"])


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def ours(names: Iterator[str]) -> set[str]:
    return {name for name in names if name.startswith(PREFIXES)}


def given(node: Any) -> Iterator[str]:
    """The names that tasks and plays give a value themselves."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "register":
                yield value
            elif key in ("vars", "ansible.builtin.set_fact") and isinstance(value, dict):
                yield from value
            yield from given(value)
    elif isinstance(node, list):
        for entry in node:
            yield from given(entry)


def read(node: Any, bare: bool = False) -> Iterator[str]:
    """The names that templates read."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from read(value, key in BARE)
    elif isinstance(node, list):
        for entry in node:
            yield from read(entry, bare)
    elif isinstance(node, str):
        for name in JINJA.parse("{{ " + node + " }}" if bare else node).find_all(jinja2.nodes.Name):
            yield name.name


def lists() -> dict[str, Any]:
    """The variables of the task that looks for misspelt names."""
    (task,) = [task for task in load(SETTINGS) if "__deploy_playbooks_own" in task.get("vars", {})]
    return dict(task["vars"])


def test_the_names_that_only_the_playbooks_read_are_all_there_and_no_others() -> None:
    files = [*(ROOT / "playbooks").glob("*.yml"), *(ROOT / "playbooks" / "tasks").glob("*.yml"), *(ROOT / "playbooks" / "settings").glob("*.yml")]
    files = [path for path in files if path.name != "record.yml" or path.parent.name == "tasks"]
    known = {name for role in ROLES for name in load(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]["main"]["options"]}
    known |= set(load(ROOT / "playbooks" / "settings" / "defaults.yml")["deploy_defaults"]) | set(load(ROOT / "playbooks" / "settings" / "roles.yml"))
    known |= set(lists()["__deploy_results"]) | {name for path in (ROOT / "playbooks" / "vars").glob("*.yml") for name in load(path)}
    for path in files:
        known |= set(given(load(path)))
    wanted = {name for path in files for name in ours(read(load(path)))} - known
    assert wanted == set(lists()["__deploy_playbooks_own"])


def test_the_names_that_the_roles_leave_are_all_there_and_no_others() -> None:
    left = {name for path in (ROOT / "roles").glob("*/tasks/*.yml") for name in ours(given(load(path)))}
    # A task's own variable, for a role that it includes.
    options = {name for role in ROLES for name in load(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]["main"]["options"]}
    assert left - options == set(lists()["__deploy_results"])


def test_every_role_is_asked_for_its_variables() -> None:
    assert [path.split("/roles/")[1].split("/")[0] for path in lists()["__deploy_specifications"]] == ROLES
    assert {f"{role}_" for role in ROLES} <= set(PREFIXES)


@pytest.mark.parametrize("playbook", ["deploy_qwen", "undeploy_qwen", "diagnose", "plan"])
def test_a_misspelt_setting_is_an_error_before_anything_is_read(playbook: str, tmp_path: Path) -> None:
    done = play(playbook, tmp_path, tp_launch_contxt_length=4096, deploy_report="reports", deploy_profile_file="is not looked for")
    assert done.returncode != 0, said(done)
    assert "tp_launch_contxt_length (all hosts): did you mean tp_launch_context_length?" in said(done)
    assert "deploy_report (all hosts): did you mean deploy_reports?" in said(done)
    assert done.stdout.count("TASK [") <= 2 and "Read the model's file" not in done.stdout


def inventory(directory: Path, own: str) -> Path:
    """The recorded nodes, with a variable of its own on the second."""
    path = directory / "recorded.yml"
    text = (ROOT / "inventory" / "recorded.yml").read_text().replace("{{ inventory_dir }}/..", str(ROOT))
    path.write_text(text.replace("plan_recording: seed-worker", f"plan_recording: seed-worker\n      {own}"))
    return path


def test_one_in_the_inventory_is_found_on_its_host(tmp_path: Path) -> None:
    done = play("plan", tmp_path, inventory=inventory(tmp_path, "tp_launch_prot: 9000"), tp_launch_ray_port=6380)
    assert done.returncode != 0
    assert "tp_launch_prot (spark-02): did you mean tp_launch_port?" in said(done) and "ray_port" not in said(done)


def test_two_playbooks_in_one_run(tmp_path: Path) -> None:
    """What the first one left is no setting of the user's; what an import gives the second one is. A variable of somebody else's is told of."""
    site = tmp_path / "site.yml"
    site.write_text("- import_playbook: unimem.dgx_spark.plan\n" * 2 + "  vars: {tp_launch_prot: 9000}\n")
    done = play(str(site), tmp_path, inventory=inventory(tmp_path, "tp_launch_mine: 1\n      deploy_user: bob"), deploy_other_variables=["tp_launch_mine"])
    assert done.returncode != 0 and done.stdout.count("TASK [Show the plan]") == 1, said(done)
    (error,) = [line for line in done.stdout.splitlines() if '"msg": "Nothing reads what is set here' in line]
    assert error.count("\\n  ") == 1 and "  tp_launch_prot (the playbook): did you mean tp_launch_port?" in error


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"deploy_profile:\n  tp_launch_port: [8000\n  tp_launch_bind: ::\n", "model.yml: line 3, column 17: expected ',' or ']', but got ':'"),
        (b"deploy_profile:\n  tp_launch_served_model_name: \xe4\n", "model.yml: line 2: a byte that is no UTF-8"),
        (b"- deploy_profile\n", "must be stored as a dictionary"),
        (b"profile: {}\n", "model.yml has no dictionary deploy_profile"),
    ],
)
def test_a_models_file_that_cannot_be_read(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "model.yml").write_bytes(content)
    done = play("plan", tmp_path, deploy_profile_file="model.yml")
    assert done.returncode != 0 and says in said(done), said(done)
    assert "Unknown error" not in said(done)


def test_a_ray_that_knows_the_groups_secret_is_expected_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "tell.yml").write_text(
        "- hosts: localhost\n  gather_facts: false\n  vars_files:\n"
        f"    - {ROOT / 'playbooks' / 'vars' / 'qwen3.5-122b-a10b-fp8.yml'}\n  tasks:\n"
        "    - ansible.builtin.debug: {msg: 'TOLD {{ deploy_profile.tp_launch_engine }} {{ deploy_profile.image_build_expect_packages | to_json }}'}\n"
        "    - ansible.builtin.debug: {msg: 'TOLD {{ deploy_profile.tp_launch_engine }} {{ deploy_profile.image_build_expect_packages | to_json }}'}\n"
        "      vars: {tp_launch_engine: vllm_mp}\n"
    )
    done = play(str(tmp_path / "tell.yml"), tmp_path, inventory=None)
    told = [line.split("TOLD ")[1].replace("\\", "").rstrip('"') for line in done.stdout.splitlines() if "TOLD" in line]
    assert told == ['vllm_ray {"vllm": ">=0.17", "ray": ">=2.52"}', 'vllm_mp {"vllm": ">=0.17"}'], said(done)
