# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._protect import (
    PROTECTED_PROGRAMS,
    PROTECTED_UNITS,
    _is_like,
    own_pid,
    protected_program,
    protected_unit,
    protection,
    protection_of,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld


@pytest.mark.parametrize(
    "name",
    [
        "sshd",
        "sshd-session",
        "systemd",
        "systemd-logind",
        "dockerd",
        "containerd",
        "containerd-shim",
        "containerd-shim-runc-v2",
        "conmon",
        "Xorg",
        "Xwayland",
        "gnome-shell",
        "gdm3",
        "nvidia-persistenced",
        "nvidia-persiste",
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-cuda-mps",
        "nv-hostengine",
        "kubelet",
    ],
)
def test_programs_that_are_never_stopped(name: str) -> None:
    assert name in (protected_program(name) or "")


@pytest.mark.parametrize("name", ["python3", "VLLM::EngineCore", "llama-server", "ollama", "sshd2-client", "xorg-like", "docker-model", "raylet", ""])
def test_other_programs(name: str) -> None:
    assert protected_program(name) is None


@pytest.mark.parametrize(
    "unit", ["ssh.service", "docker.service", "user@1000.service", "session-3.scope", "user-1000.slice", "gdm.service", "nvidia-persistenced.service"]
)
def test_units_that_are_never_stopped(unit: str) -> None:
    assert unit in (protected_unit(unit) or "")


@pytest.mark.parametrize("unit", ["vllm-embeddings.service", "ollama.service", "docker-vllm.service"])
def test_other_units(unit: str) -> None:
    assert protected_unit(unit) is None


PATTERNS = [pattern for _what, patterns in (*PROTECTED_PROGRAMS, *PROTECTED_UNITS) for pattern in patterns]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_read_as_anywhere_else(pattern: str) -> None:
    """One star, and nothing else that means anything to fnmatch, whose answer is the right one."""
    assert pattern.count("*") <= 1 and not set(pattern) & set("?[")
    start, _star, end = pattern.partition("*")
    names = [start, end, start + end, f"{start}x{end}", f"x{start}{end}", f"{start}{end}x", start[:-1] + end, start + end[1:], pattern.lower()]
    assert [_is_like(name, pattern) for name in names] == [fnmatchcase(name, pattern) for name in names]


ORDINARY = {"pid": 50, "start_time": 7, "name": "python3", "command": "python3 serve.py", "executable": "/usr/bin/python3.12", "owner": {"kind": "process"}}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"pid": 1}, "pid 1"),
        ({"start_time": None}, "cannot be identified"),
        ({"kernel_thread": True}, "kernel thread"),
        ({"pid": 60}, "this very run"),
        ({"executable": "/usr/sbin/sshd"}, "sshd"),
        ({"name": "python3", "comm": "Xorg"}, "Xorg"),
        ({"command": "sshd: alice [priv]"}, "sshd"),
        ({"owner": {"kind": "desktop", "name": "firefox"}}, "desktop"),
        ({"owner": {"kind": "container", "runtime": "kubernetes"}}, "Kubernetes"),
        ({"owner": {"kind": "unit", "name": "docker.service"}}, "docker.service"),
    ],
)
def test_reasons_of_protection(change: dict[str, object], word: str) -> None:
    assert protection(ORDINARY) is None
    assert word in (protection({**ORDINARY, **change}, own_line=[60, 61]) or "")


def stat(pid: int, comm: str, parent: int, flags: int = 0) -> str:
    return f"{pid} ({comm}) S {parent} 1 1 0 -1 {flags} 1 2 3 4 5 6 7 8 20 0 1 0 77 9 9"


def test_protection_is_read_from_the_machine() -> None:
    files = {
        "/proc/1/stat": stat(1, "systemd", 0),
        "/proc/10/stat": stat(10, "sudo", 1),
        "/proc/11/stat": stat(11, "python3", 10),
        "/proc/50/stat": stat(50, "python3", 1),
        "/proc/51/stat": stat(51, "kworker/0:1", 2, 0x00200000),
    }
    world = FakeWorld(files, links={"/proc/self": "11", "/proc/50/exe": "/usr/bin/python3.12"})
    assert own_pid(world) == 11
    assert protection_of(world, 50) is None
    assert "this very run" in (protection_of(world, 10) or "")
    assert protection_of(world, 51) == "kernel thread"
    assert "cannot be identified" in (protection_of(world, 4711) or "")
    assert "desktop" in (protection_of(world, 50, {"owner": {"kind": "desktop", "name": "x"}}) or "")
