# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._guards import earlyoom_thresholds, parse_oomd, read_guards
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["earlyoom"], {"mem_percent": "10", "swap_percent": "10"}),
        (["earlyoom", "-m", "2,1", "-s80", "--prefer", "VLLM"], {"mem_percent": "2,1", "swap_percent": "80", "prefer": "VLLM"}),
        (["earlyoom", "-M", "2097152", "-s", "100", "--avoid=^sshd$"], {"mem_kib": "2097152", "swap_percent": "100", "avoid": "^sshd$"}),
        (["earlyoom", "-m"], {"mem_percent": "", "swap_percent": "10"}),
    ],
)
def test_earlyoom(argv: list[str], expected: dict[str, str]) -> None:
    assert earlyoom_thresholds(argv) == expected


def test_oomd_settings() -> None:
    assert parse_oomd("[OOM]\n#SwapUsedLimit=90%\nSwapUsedLimit = 80%\nOther=1\n") == {"SwapUsedLimit": "80%"}


def test_oomd_reads_drop_ins_over_the_main_file() -> None:
    files = {
        "/proc/7/comm": "systemd-oomd\n",
        "/proc/7/cmdline": "/usr/lib/systemd/systemd-oomd\0",
        "/etc/systemd/oomd.conf": "[OOM]\nSwapUsedLimit=70%\nDefaultMemoryPressureLimit=50%\n",
        "/usr/lib/systemd/oomd.conf.d/10-defaults.conf": "DefaultMemoryPressureDurationSec=20s\n",
        "/etc/systemd/oomd.conf.d/20-mine.conf": "SwapUsedLimit=60%\n",
    }
    world = FakeWorld(files)
    (guard,) = read_guards(world, world.process_table())
    assert guard["name"] == "systemd-oomd"
    assert guard["thresholds"] == {"SwapUsedLimit": "60%", "DefaultMemoryPressureLimit": "50%", "DefaultMemoryPressureDurationSec": "20s"}


def test_nohang_reads_the_file_it_was_given() -> None:
    files = {
        "/proc/8/comm": "nohang\n",
        "/proc/8/cmdline": "/usr/sbin/nohang\0--monitor\0--config\0/etc/nohang/mine.conf\0",
        "/proc/8/status": "Uid:\t0\t0\t0\t0\n",
        "/etc/nohang/mine.conf": "soft_threshold_min_mem = 8 %\n# hard_threshold_min_mem = 9 %\nhard_threshold_min_mem = 4 %\n",
    }
    world = FakeWorld(files)
    (guard,) = read_guards(world, world.process_table())
    assert guard["thresholds"] == {"soft_threshold_min_mem": "8 %", "hard_threshold_min_mem": "4 %"}


def test_other_processes_are_no_guards() -> None:
    world = FakeWorld({"/proc/9/comm": "bash\n", "/proc/9/cmdline": "bash\0earlyoom\0"})
    assert read_guards(world, world.process_table()) == []


def test_the_command_line_of_a_user_names_no_file_that_is_read() -> None:
    class Noting(FakeWorld):
        def read_text_of(self, uid: int, path: str, timeout: float) -> str | None:
            asked.append((uid, path))
            return None

    asked: list[tuple[int, str]] = []
    files = {
        "/proc/8/comm": "nohang\n",
        "/proc/8/cmdline": "nohang\0--config=/etc/shadow\0",
        "/proc/8/status": "Uid:\t1000\t1000\t1000\t1000\n",
    }
    world = Noting(files)
    read_guards(world, world.process_table())
    assert asked == [(0, "/etc/nohang/nohang.conf")]
