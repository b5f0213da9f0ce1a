# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock, the state file, programs that are run, and what the base layer puts into a host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lib import command, lock, state
from lib.errors import LabError
from lib.paths import SOURCE

BASE = SOURCE / "base" / "root"


def test_the_lock_admits_one_and_names_it(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with lock.held(file, "up"), pytest.raises(LabError, match=rf"lab.py up, process {os.getpid()}"), lock.held(file, "down"):
        pytest.fail("the lock was given twice")
    assert not file.exists()
    with lock.held(file, "down"):
        assert "down" in file.read_text()


def test_a_lock_file_that_a_killed_run_left_is_no_obstacle(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.write_text("lab.py up, process 1")
    with lock.held(file, "up"):
        assert str(os.getpid()) in file.read_text()


def test_state_is_remembered_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    assert state.load(file) is None
    state.save(state.State("/here", {"rootfs": "1"}), file)
    assert state.load(file) == state.State("/here", {"rootfs": "1"})
    for text in ("", "[]", '{"owner": 1}', '{"owner": "x", "keys": []}'):
        file.write_text(text)
        assert state.load(file) is None


def test_a_failed_program_is_told_with_its_words() -> None:
    with pytest.raises(LabError, match="failed with 3") as problem:
        command.run([sys.executable, "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)"])
    assert problem.value.remedy == "why"
    with pytest.raises(LabError, match="not on this machine"):
        command.run(["no-such-program-anywhere"])
    with pytest.raises(LabError, match="did not end within"):
        command.run([sys.executable, "-c", "import time; time.sleep(30)"], timeout=0.2)


def test_the_log_of_a_failed_build_is_shown_from_its_end(tmp_path: Path) -> None:
    program = "import sys; [print('line', n) for n in range(100)]; sys.exit(1)"
    with pytest.raises(LabError, match="A build failed with 1") as problem:
        command.run_logged([sys.executable, "-c", program], tmp_path / "log", what="A build", timeout=30)
    assert problem.value.remedy.splitlines()[-1].strip() == "line 99"
    assert "line 5\n" not in problem.value.remedy


def run_wrapper(bundle: Path, *arguments: str, real: str = "/bin/echo") -> str:
    """Run the hosts' runc wrapper with another program in the place of runc."""
    text = (BASE / "usr/local/sbin/runc").read_text(encoding="utf-8").replace('"/usr/sbin/runc"', repr(real))
    script = bundle.parent / "runc.py"
    script.write_text(text)
    return subprocess.run([sys.executable, "-IS", script, *arguments], capture_output=True, text=True, check=True, cwd=bundle).stdout


@pytest.mark.parametrize("arguments", [("create", "--bundle", "{bundle}", "id"), ("--log", "x", "create", "-b", "{bundle}", "id"), ("run", "id")])
def test_a_container_gets_the_hosts_meminfo_once(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps({"mounts": [{"destination": "/proc", "type": "proc"}]}))
    words = [word.format(bundle=bundle) for word in arguments]
    for _time in range(2):
        assert run_wrapper(bundle, *words).split() == words
    mounts = json.loads((bundle / "config.json").read_text())["mounts"]
    assert [mount["destination"] for mount in mounts] == ["/proc", "/proc/meminfo"]
    assert mounts[1]["source"] == "/var/lib/unimem-lab/pool/meminfo"


def test_other_commands_of_runc_pass_untouched(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text("not JSON at all")
    assert run_wrapper(bundle, "state", "create-me").split() == ["state", "create-me"]


def test_the_base_layers_programs_are_programs() -> None:
    for name in ("usr/lib/unimem-lab/init", "usr/lib/unimem-lab/load-images", "usr/lib/unimem-lab/fill-cache", "usr/local/sbin/runc"):
        assert os.access(BASE / name, os.X_OK), name


def test_lab_py_refuses_an_old_python_with_a_sentence(tmp_path: Path) -> None:
    shutil.copy(SOURCE / "lab.py", tmp_path / "lab.py")
    program = "import sys, runpy; sys.version_info = (3, 9, 18); runpy.run_path('lab.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.strip() == "The lab needs Python 3.11 or newer; this is 3.9. Run it with a newer python3."
