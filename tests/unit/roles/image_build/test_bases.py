# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which Ids the images have that a build starts from: as the daemon lists them by their tags, or looked up one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
PLAYBOOK: list[dict[str, Any]] = [
    {
        "name": "Tell",
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(ROOT / "roles" / "image_build" / "vars" / "main.yml")],
        "tasks": [
            {"name": "Keep what the daemon says", "ansible.builtin.set_fact": {"__image_build_daemon": {"images": "{{ listed }}"}}},
            {"name": "Tell", "ansible.builtin.copy": {"content": "{{ [__image_build_bases_listed, __image_build_base_ids] | to_json }}", "dest": "{{ to }}"}},
        ],
    }
]
LISTED = [
    {"Id": "sha256:aa", "RepoTags": ["org/base:1", "other/name:1"]},
    {"Id": "sha256:bb", "RepoTags": ["org/base:2"]},
    {"Id": "sha256:cc", "RepoTags": None},
]


def ids(directory: Path, bases: list[str], looked_up: tuple[str, ...] = ()) -> tuple[bool, list[str]]:
    """Whether all bases are listed, and their Ids, by the role's own expressions."""
    (directory / "play.yml").write_text(json.dumps(PLAYBOOK), encoding="utf-8")
    variables = {
        "image_build_host": "localhost",
        "image_build_bases": bases,
        "__image_build_bases_found": {"images": [{"Id": text} for text in looked_up]},
        "listed": LISTED,
        "to": str(directory / "told.json"),
    }
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", "play.yml", "-e", json.dumps(variables)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_PYTHON_INTERPRETER": sys.executable}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    all_listed, found = json.loads((directory / "told.json").read_text(encoding="utf-8"))
    return all_listed, found


def test_those_that_are_listed_by_their_tags_in_the_order_of_the_variable(tmp_path: Path) -> None:
    assert ids(tmp_path, ["org/base:2", "org/base:1"]) == (True, ["sha256:bb", "sha256:aa"])
    assert ids(tmp_path, []) == (True, [])


def test_one_by_one_where_a_name_is_not_listed_as_it_is_written(tmp_path: Path) -> None:
    assert ids(tmp_path, ["org/base:1", "org/base@sha256:cc"], ("sha256:aa", "sha256:cc")) == (False, ["sha256:aa", "sha256:cc"])
