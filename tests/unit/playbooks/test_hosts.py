# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A playbook that has no host to work on says so and fails: Ansible itself would warn and end well."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.tests.unit.playbooks.running import RECORDED, ROOT, play, said

PLAYBOOKS = sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml"))


def variable(playbook: str) -> str:
    return "record_hosts" if playbook == "record" else "deploy_hosts"


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_a_pattern_that_matches_nothing_is_an_error(playbook: str, tmp_path: Path) -> None:
    done = play(playbook, tmp_path, **{variable(playbook): "nosuch"})
    assert done.returncode not in (0, None), said(done)
    assert f"no host matches 'nosuch' in the inventory ({RECORDED}), which has spark-01, spark-02 (in groups: sparks)." in said(done)
    assert f"-e {variable(playbook)}=PATTERN" in said(done)
    assert "TASK [" not in done.stdout


def test_every_play_has_its_hosts_from_the_lookup() -> None:
    for playbook in PLAYBOOKS:
        hosts = [line for line in (ROOT / "playbooks" / f"{playbook}.yml").read_text().splitlines() if line.startswith("  hosts:")]
        default = "all" if playbook == "record" else "sparks"
        wanted = f"{variable(playbook)} | default('{default}'), variable='{variable(playbook)}'"
        assert hosts and set(hosts) == {f"""  hosts: "{{{{ lookup('unimem.dgx_spark.play_hosts', {wanted}) }}}}\""""}, playbook


def test_a_limit_that_leaves_nothing_is_one_too(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {hosts: {web-01: }, children: {sparks: {hosts: {spark-01: , spark-02: }}}}\n")
    done = play("unimem.dgx_spark.plan", tmp_path, "--limit", "web-01", inventory=inventory)
    assert done.returncode not in (0, None)
    assert "--limit web-01 leaves none of the hosts that match 'sparks' (spark-01, spark-02)." in said(done)


def test_whoever_only_checks_a_playbook_needs_no_hosts(tmp_path: Path) -> None:
    for only in ("--syntax-check", "--list-tasks"):
        done = play("unimem.dgx_spark.deploy_qwen", tmp_path, only, inventory=Path("/dev/null"))
        assert done.returncode == 0, said(done)


def test_what_the_inventory_says_of_connections_does_not_matter(tmp_path: Path) -> None:
    """No connection is made, with a limit, tags, in check mode, and to hosts that a play has just added: the group's size is looked at next."""
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {hosts: {spark-01: , spark-02: }, vars: {ansible_connection: nonsense, ansible_become: true}}\n")
    playbook = tmp_path / "site.yml"
    playbook.write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.group_by: {key: made}\n      connection: local\n"
        "      vars: {ansible_connection: local, ansible_become: false}\n      tags: always\n"
        "- import_playbook: unimem.dgx_spark.plan\n"
    )
    done = play(str(playbook), tmp_path, "--check", "--tags", "always", "--limit", "spark-01", inventory=inventory, deploy_hosts="made")
    assert done.returncode == 0 and "no hosts matched" not in said(done), said(done)
    done = play(str(playbook), tmp_path, "--limit", "spark-01", inventory=inventory, deploy_hosts="made")
    assert done.returncode != 0 and "no host matches" not in said(done), said(done)


def test_a_list_of_hosts_is_a_pattern(tmp_path: Path) -> None:
    done = play("plan", tmp_path, deploy_hosts=["nosuch", "spark-02"])
    assert "the hosts of this play, spark-02, have 1" in said(done), said(done)
    assert "no host matches 'nosuch,other' in" in said(play("plan", tmp_path, deploy_hosts=["nosuch", "other"]))
