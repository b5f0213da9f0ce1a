# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role looks at before anything takes long, with stand-ins for Docker's modules and for ssh: once, and with a knock where the image will be sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
ROLE = "unimem.dgx_spark.image_build"
#: Stands for a module of community.docker: notes that it was called, and answers what the state says of this host.
MODULE = """
import json, os
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"name": {"type": "raw"}, "images": {}, "images_filters": {"type": "dict"}}, supports_check_mode=True)
with open(os.environ["STATE"], encoding="utf-8") as handle:
    state = json.load(handle)
with open(os.environ["STATE"] + ".calls", "a", encoding="utf-8") as handle:
    handle.write(os.environ["NODE"] + " {name}\\n")
module.exit_json(changed=False, host_info=state["daemon"], images=state["images"][os.environ["NODE"]])
"""
IMAGE = {"Id": "sha256:1", "Architecture": "amd64", "Os": "linux", "RootFS": {"Layers": ["sha256:aa"]}, "Config": {}, "Size": 1, "RepoTags": ["org/x:1"]}
DIGEST = "sha256:" + "0123456789abcdef" * 4
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEQ5"
STEPS = {
    "look": {"name": "Look", "ansible.builtin.include_role": {"name": ROLE, "tasks_from": "look"}},
    "role": {"name": "Have it", "ansible.builtin.include_role": {"name": ROLE}},
}


class Ran:
    """A run of some steps on two hosts, a (that makes the image) and b."""

    def __init__(self, directory: Path, steps: list[str], here: str, *arguments: str, **variables: Any) -> None:
        collection = directory / "collections/ansible_collections/community/docker/plugins/modules"
        programs = directory / "bin"
        for folder in (collection, programs):
            folder.mkdir(parents=True)
        for name in ("docker_host_info", "docker_image_info"):
            (collection / f"{name}.py").write_text("#!/usr/bin/python\n" + MODULE.replace("{name}", name), encoding="utf-8")
        for name, text in (("ssh", "echo 'root@10.0.0.2: Permission denied (publickey).' >&2; exit 255"), ("docker", "exit 1"), ("ip", "echo '[]'")):
            (programs / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            (programs / name).chmod(0o755)
        daemon = {"Architecture": "x86_64", "Driver": "overlay2", "DockerRootDir": "/", "DriverStatus": []}
        state = {"daemon": daemon, "images": {node: [IMAGE] if node in here else [] for node in "ab"}}
        (directory / "state").write_text(json.dumps(state), encoding="utf-8")
        play = {"name": "Image", "hosts": "all", "gather_facts": False, "any_errors_fatal": True, "tasks": [STEPS[step] for step in steps]}
        play["environment"] = {"STATE": str(directory / "state"), "NODE": "{{ inventory_hostname }}", "PATH": f"{programs}:{os.environ['PATH']}"}
        (directory / "play.yml").write_text(json.dumps([play]), encoding="utf-8")
        given = {
            "image_build_image": "org/x",
            "image_build_digest": DIGEST,
            "image_build_lock": str(directory / "lock.yml"),
            "__image_build_fabric": {"a": {"address": "10.0.0.1"}, "b": {"address": "10.0.0.2"}},
            "__image_build_host_key": HOST_KEY,
            **variables,
        }
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "a,b,", "-c", "local", "play.yml", "-e", json.dumps(given), *arguments]
        paths = [str(directory / "collections"), os.environ.get("ANSIBLE_COLLECTIONS_PATH", ""), str(ROOT / ".collections")]
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_COLLECTIONS_PATH": ":".join(path for path in paths if path),
        }
        self.done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=120)
        self.said = self.done.stdout + self.done.stderr
        calls = directory / "state.calls"
        self.calls = sorted(calls.read_text(encoding="utf-8").splitlines()) if calls.exists() else []


def test_an_image_that_is_there_is_looked_at_once(tmp_path: Path) -> None:
    ran = Ran(tmp_path, ["look", "role"], "ab")
    assert ran.done.returncode == 0, ran.said
    assert ran.calls == ["a docker_host_info", "a docker_image_info", "b docker_host_info", "b docker_image_info"]
    assert "Try the login" not in ran.said and "changed=0" in ran.said


def test_a_second_use_of_the_role_looks_again(tmp_path: Path) -> None:
    ran = Ran(tmp_path, ["role", "role"], "ab")
    assert ran.done.returncode == 0, ran.said
    assert ran.calls.count("a docker_host_info") == 2


@pytest.mark.parametrize(("step", "here"), [("look", ""), ("role", "a")])
def test_a_host_that_does_not_let_it_in_is_known_before_it_is_pulled(step: str, here: str, tmp_path: Path) -> None:
    ran = Ran(tmp_path, [step], here)
    assert ran.done.returncode != 0
    assert "ssh-copy-id 10.0.0.2" in ran.said and "image_build_temporary_key: true" in ran.said, ran.said
    assert "Have the image on one host" not in ran.said


def test_a_key_for_the_copy_need_not_be_tried(tmp_path: Path) -> None:
    ran = Ran(tmp_path, ["look"], "a", image_build_temporary_key=True)
    assert ran.done.returncode == 0, ran.said
    assert "Try the login" not in ran.said


def test_a_tag_that_was_never_pulled_is_one_that_will_be_sent(tmp_path: Path) -> None:
    ran = Ran(tmp_path, ["look"], "ab", image_build_digest="", image_build_tag="latest")
    assert ran.done.returncode != 0 and "ssh-copy-id" in ran.said, ran.said
    assert not any("docker_image_info" in call for call in ran.calls)


def test_a_tag_that_is_recorded_is_known(tmp_path: Path) -> None:
    (tmp_path / "lock.yml").write_text(f"org/x:latest: {DIGEST}\n", encoding="utf-8")
    ran = Ran(tmp_path, ["look", "role"], "ab", image_build_digest="", image_build_tag="latest")
    assert ran.done.returncode == 0, ran.said
    assert ran.calls.count("a docker_image_info") == 1 and "Pin |" not in ran.said


def test_check_mode_says_that_the_image_is_not_asked(tmp_path: Path) -> None:
    asked = {"image_build_expect_packages": {"vllm": ">=0.17"}, "image_build_expect_capability": "12.1"}
    ran = Ran(tmp_path, ["role"], "ab", "--check", **asked)
    assert ran.done.returncode == 0, ran.said
    assert "holds what is expected of it (vllm; GPU code for 12.1)" in ran.said
