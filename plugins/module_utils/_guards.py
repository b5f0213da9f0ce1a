# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Watchdogs that kill processes when memory runs low, and from when on: they end an engine while the budget still says that it fits."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping

from ansible_collections.unimem.dgx_spark.plugins.module_utils._mask import mask_argv
from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import parse_uid, split_cmdline
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

#: comm -> name of the watchdog.
WATCHDOGS = {"earlyoom": "earlyoom", "systemd-oomd": "systemd-oomd", "nohang": "nohang", "nohang-desktop": "nohang"}

OOMD_FILES = ("/usr/lib/systemd/oomd.conf", "/etc/systemd/oomd.conf")
OOMD_DIRECTORIES = ("/usr/lib/systemd/oomd.conf.d", "/run/systemd/oomd.conf.d", "/etc/systemd/oomd.conf.d")
_OOMD_SETTINGS = ("SwapUsedLimit", "DefaultMemoryPressureLimit", "DefaultMemoryPressureDurationSec")
#: What systemd-oomd uses when nothing is set (oomd.conf(5)).
_OOMD_DEFAULTS = {"SwapUsedLimit": "90%", "DefaultMemoryPressureLimit": "60%", "DefaultMemoryPressureDurationSec": "30s"}
_NOHANG_SETTING = re.compile(r"^((?:soft|hard|warning)_threshold_[a-z_]+)\s*=(.*)$")
#: Seconds that a file may take which a command line names.
_READ_TIMEOUT = 1.0
_EARLYOOM_OPTIONS = {"-m": "mem_percent", "-s": "swap_percent", "-M": "mem_kib", "-S": "swap_kib"}


def earlyoom_thresholds(argv: t.Sequence[str]) -> dict[str, str]:
    """``-m``, ``-s``, ``-M`` and ``-S`` with TERM[,KILL], and the patterns it prefers and avoids. Without them earlyoom uses 10 and 10 percent."""
    thresholds: dict[str, str] = {}
    for position, word in enumerate(argv[1:], 1):
        after = argv[position + 1] if position + 1 < len(argv) else ""
        option = word[:2]
        if option in _EARLYOOM_OPTIONS and not word.startswith("--"):
            thresholds[_EARLYOOM_OPTIONS[option]] = word[2:].lstrip("=") or after
        for name in ("--prefer", "--avoid", "--ignore"):
            if word == name or word.startswith(name + "="):
                thresholds[name[2:]] = word.partition("=")[2] or after
    if "mem_kib" not in thresholds:
        thresholds.setdefault("mem_percent", "10")
    if "swap_kib" not in thresholds:
        thresholds.setdefault("swap_percent", "10")
    return thresholds


def parse_oomd(text: str) -> dict[str, str]:
    """Settings of an oomd.conf that are set."""
    settings: dict[str, str] = {}
    for line in text.split("\n"):
        name, separator, value = line.partition("=")
        if separator and name.strip() in _OOMD_SETTINGS:
            settings[name.strip()] = value.strip()
    return settings


def _oomd_thresholds(world: World) -> dict[str, str]:
    texts = {path: path for path in OOMD_FILES}
    # Drop-ins of all directories apply in the order of their names; one in /etc hides one of the same name elsewhere.
    dropins = {name: f"{directory}/{name}" for directory in OOMD_DIRECTORIES for name in world.list_dir(directory) if name.endswith(".conf")}
    thresholds = dict(_OOMD_DEFAULTS)
    for path in [*texts, *(dropins[name] for name in sorted(dropins))]:
        for setting, value in parse_oomd(world.read_text(path) or "").items():
            thresholds[setting] = value or _OOMD_DEFAULTS[setting]
    return thresholds


def _nohang_thresholds(world: World, pid: int, argv: t.Sequence[str]) -> dict[str, str]:
    path = "/etc/nohang/nohang.conf"
    # Any user can call a process nohang, and name any file on its command line: only root's is followed, to a file of root's.
    if parse_uid(world.read_text(f"/proc/{pid}/status") or "") == 0:
        for word, after in zip(argv, [*argv[1:], ""]):
            if word in ("-c", "--config") and after.startswith("/"):
                path = after
            elif word.startswith("--config=/"):
                path = word.partition("=")[2]
    lines = (world.read_text_of(0, path, _READ_TIMEOUT) or "").split("\n")
    return {match[1]: match[2].strip() for match in (_NOHANG_SETTING.match(line.strip()) for line in lines) if match}


def read_guards(world: World, table: Mapping[int, str]) -> list[dict[str, t.Any]]:
    """The ``guards`` of the facts: [{name, pid, thresholds, command}] of the watchdogs that run now."""
    guards: list[dict[str, t.Any]] = []
    for pid, comm in sorted(table.items()):
        name = WATCHDOGS.get(comm)
        if name is None:
            continue
        argv = split_cmdline(world.read_text(f"/proc/{pid}/cmdline") or "")
        if name == "earlyoom":
            thresholds = earlyoom_thresholds(argv)
        elif name == "systemd-oomd":
            thresholds = _oomd_thresholds(world)
        else:
            thresholds = _nohang_thresholds(world, pid, argv)
        guards.append({"name": name, "pid": pid, "thresholds": thresholds, "command": " ".join(mask_argv(argv)) or None})
    return guards
