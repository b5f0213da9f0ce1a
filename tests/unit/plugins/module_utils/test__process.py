# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import (
    ancestors,
    identity,
    parse_stat,
    parse_uid,
    read_process,
    script_of,
    split_cmdline,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld


def stat(pid: int, comm: str, parent: int = 1, flags: int = 4194560, start: int = 4711, state: str = "S") -> str:
    return f"{pid} ({comm}) {state} {parent} {pid} {pid} 0 -1 {flags} 1 2 3 4 5 6 7 8 20 0 1 0 {start} 999 888 18446744073709551615\n"


@pytest.mark.parametrize("comm", ["python3", "a) b (c", "((", "x) R 1 2 3", ":-) ", ""])
def test_start_time_is_counted_after_the_last_parenthesis(comm: str) -> None:
    parsed = parse_stat(stat(42, comm, parent=7, start=123456))
    assert parsed is not None
    assert (parsed.comm, parsed.parent, parsed.start_time, parsed.state, parsed.kernel_thread) == (comm, 7, 123456, "S", False)


def test_kernel_threads_are_told_by_their_flag() -> None:
    parsed = parse_stat(stat(55, "kworker/0:1", parent=2, flags=0x04208060))
    assert parsed is not None
    assert parsed.kernel_thread


@pytest.mark.parametrize("text", ["", "no parentheses", ")(", "1 (x) S", "1 (x) S a b c d e f g h i j k l m n o p q r s"])
def test_a_stat_that_makes_no_sense_is_no_process(text: str) -> None:
    assert parse_stat(text) is None


def test_a_name_cut_at_15_characters_is_completed_from_its_title() -> None:
    world = FakeWorld({"/proc/9/stat": stat(9, "VLLM::EngineCor"), "/proc/9/cmdline": "VLLM::EngineCore\0\0\0\0"})
    process = read_process(world, 9)
    assert process is not None
    assert process.name == "VLLM::EngineCore"
    assert process.argv == ("VLLM::EngineCore",)


def test_a_name_is_not_completed_from_another_program() -> None:
    world = FakeWorld({"/proc/9/stat": stat(9, "pt_main_thread"), "/proc/9/cmdline": "python3\0serve.py\0"})
    process = read_process(world, 9)
    assert process is not None
    assert process.name == "pt_main_thread"


@pytest.mark.parametrize(
    ("cmdline", "executable", "name"),
    [
        ("/proc/self/exe\0/opt/app/train.py\0", "/usr/bin/python3.12", "train.py"),
        ("/proc/self/exe\0-m\0vllm.serve\0", "/usr/bin/python3.12", "vllm.serve"),
        ("/proc/self/exe\0-c\0import x\0", "/usr/bin/python3.12", "python3.12"),
        ("VLLM::EngineCore\0x\0", "/usr/local/bin/vllm", "VLLM::EngineCore"),
        ("/proc/self/exe\0llama-server\0", "/opt/trainer", "trainer"),
        ("/proc/self/exe\0", None, "exe"),
        ("", None, "exe"),
    ],
)
def test_what_was_started_by_its_own_link_is_not_called_exe(cmdline: str, executable: str | None, name: str) -> None:
    world = FakeWorld({"/proc/9/stat": stat(9, "exe"), "/proc/9/cmdline": cmdline}, links={"/proc/9/exe": executable} if executable else {})
    process = read_process(world, 9)
    assert process is not None
    assert process.name == name


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        ("bash /opt/serve.sh --port 1", "serve.sh"),
        ("/bin/sh -x serve.sh", "serve.sh"),
        ("python3 -u -W ignore -X dev train.py --x", "train.py"),
        ("python3 -m http.server", "http.server"),
        ("bash -lc while", None),
        ("python3 - x", None),
        ("bash", None),
        ("", None),
    ],
)
def test_script_that_an_interpreter_runs(argv: str, script: str | None) -> None:
    assert script_of(argv.split(), f"/usr/bin/{argv.split()[0].rsplit('/', 1)[-1]}" if argv else None) == script
    assert script_of(argv.split(), "/usr/bin/llama-server") is None


def test_the_executable_of_an_updated_program_is_still_its_name() -> None:
    world = FakeWorld({"/proc/9/stat": stat(9, "python3")}, links={"/proc/9/exe": "/usr/bin/python3.12 (deleted)"})
    process = read_process(world, 9)
    assert process is not None
    assert process.executable == "/usr/bin/python3.12"


def test_identity_is_boot_pid_and_start_time() -> None:
    files = {"/proc/9/stat": stat(9, "x", start=5), "/proc/sys/kernel/random/boot_id": "b-1\n"}
    assert identity(FakeWorld(files), 9) == ("b-1", 9, 5)
    assert identity(FakeWorld(files), 10) is None
    # The same pid, given to another process, is another process.
    assert identity(FakeWorld({**files, "/proc/9/stat": stat(9, "x", start=6)}), 9) != identity(FakeWorld(files), 9)


def test_ancestors_end_at_pid_one_and_at_a_loop() -> None:
    files = {"/proc/1/stat": stat(1, "systemd", parent=0), "/proc/5/stat": stat(5, "sshd", parent=1), "/proc/9/stat": stat(9, "python3", parent=5)}
    assert ancestors(FakeWorld(files), 9) == [9, 5, 1]
    assert ancestors(FakeWorld({"/proc/7/stat": stat(7, "x", parent=8), "/proc/8/stat": stat(8, "y", parent=7)}), 7) == [7, 8]
    assert ancestors(FakeWorld(), 0) == []


def test_effective_uid() -> None:
    assert parse_uid("Name:\tx\nUid:\t1000\t1001\t1002\t1003\n") == 1001
    assert parse_uid("") is None


def test_command_lines() -> None:
    assert split_cmdline("a\0b c\0") == ("a", "b c")
    assert split_cmdline("") == ()
    assert split_cmdline("\0\0") == ()
