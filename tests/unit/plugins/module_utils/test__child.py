# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._child import MAX_OUTPUT, find_program, start_command, start_function


def deadline(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


def gone(pid: int, within: float = 5.0) -> bool:
    """Whether a process has ended (a zombie, which only its parent can see, has too)."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_output_error_and_status_of_a_command() -> None:
    child = start_command([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"], deadline())
    assert child is not None
    outcome = child.finish()
    assert (outcome.rc, outcome.stdout, outcome.stderr, outcome.timed_out) == (7, b"out\n", b"err\n", False)


def test_no_program() -> None:
    assert start_command(["no-such-program-anywhere"], deadline()) is None
    assert find_program("sh") is not None


def test_more_output_than_a_pipe_holds() -> None:
    child = start_command([sys.executable, "-c", f"print('x' * {MAX_OUTPUT + 100000})"], deadline())
    assert child is not None
    outcome = child.finish()
    assert (outcome.rc, len(outcome.stdout)) == (0, MAX_OUTPUT)


def test_the_locale_is_c() -> None:
    child = start_command([sys.executable, "-c", "import os; print(os.environ['LC_ALL'])"], deadline())
    assert child is not None
    assert child.finish().stdout == b"C\n"


def test_a_command_that_ignores_term_is_ended_with_its_children_at_the_deadline(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        f"open({str(tmp_path)!r} + '/' + ('child' if child == 0 else 'parent'), 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    started = time.monotonic()
    child = start_command([sys.executable, "-c", script], deadline(1.0))
    assert child is not None
    outcome = child.finish()
    assert outcome.timed_out
    assert time.monotonic() - started < 60  # it sleeps ten minutes
    for name in ("parent", "child"):
        assert gone(int((tmp_path / name).read_text()))


def test_a_child_that_cannot_be_killed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # A process stuck in a driver does not die of SIGKILL: the signal is swallowed here, for the kernel does the same.
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: killed.append(group))
    started = time.monotonic()
    child = start_command([sys.executable, "-c", "import time; time.sleep(600)"], deadline(0.3))
    assert child is not None
    outcome = child.finish()
    elapsed = time.monotonic() - started
    monkeypatch.undo()
    assert killed == [child.pid]
    os.killpg(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    assert outcome.timed_out
    assert elapsed < 60  # it sleeps ten minutes


def test_a_function_answers_as_json() -> None:
    outcome = start_function(lambda: {"pid": os.getpid(), "session": os.getsid(0)}, deadline()).finish()
    assert outcome.rc == 0
    assert str(os.getpid()).encode() not in outcome.stdout


def test_a_function_that_raises_says_so() -> None:
    def broken() -> dict[str, int]:
        raise RuntimeError("no such thing")

    assert start_function(broken, deadline()).finish().stdout == b'{"error": "RuntimeError: no such thing"}'


def test_a_function_that_dies_has_no_answer() -> None:
    outcome = start_function(lambda: os.kill(os.getpid(), signal.SIGSEGV) or {}, deadline()).finish()
    assert (outcome.rc, outcome.stdout, outcome.timed_out) == (-signal.SIGSEGV, b"", False)


def test_a_function_that_hangs_is_left_at_the_deadline() -> None:
    started = time.monotonic()
    outcome = start_function(lambda: time.sleep(600) or {}, deadline(0.3)).finish()
    assert outcome.timed_out
    assert time.monotonic() - started < 60  # it sleeps ten minutes


def test_a_function_prints_nothing_into_its_parents_output(capfd: pytest.CaptureFixture[str]) -> None:
    def noisy() -> dict[str, bool]:
        os.write(2, b"noise")
        return {"stdin": os.read(0, 10) == b""}

    outcome = start_function(noisy, deadline()).finish()
    assert (outcome.stdout, outcome.stderr) == (b'{"data": {"stdin": true}}', b"noise")
    assert capfd.readouterr() == ("", "")


def test_a_child_that_is_left_behind_holds_none_of_our_descriptors(tmp_path: Path) -> None:
    """Else the ssh channel of a module stays open for as long as the driver hangs."""
    script = f"""
import sys, time
sys.path[:0] = {sys.path!r}
import os
os.killpg = lambda group, number: None
from ansible_collections.unimem.dgx_spark.plugins.module_utils._child import start_function
child = start_function(lambda: time.sleep(600) or {{}}, time.monotonic() + 0.2)
print(child.pid, child.finish().timed_out, flush=True)
"""
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    elapsed = time.monotonic() - started
    pid, timed_out = done.stdout.split()
    assert timed_out == "True"
    assert elapsed < 60, "the output was held open by the child that was left behind"
    os.kill(int(pid), signal.SIGKILL)
