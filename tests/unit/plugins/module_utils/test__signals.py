# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _signals
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import Identity, SignalError, Signaller, read_identity
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld, LiveWorld

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this Python has no pidfd_open")


@pytest.fixture
def child() -> subprocess.Popen[bytes]:
    """A process that ends at TERM, and says when it is ready."""
    made = subprocess.Popen([sys.executable, "-c", "print('ready', flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert made.stdout is not None and made.stdout.readline() == b"ready\n"
    yield made
    made.kill()
    made.communicate()


@pytest.fixture
def stubborn() -> subprocess.Popen[bytes]:
    code = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); input()"
    made = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert made.stdout is not None and made.stdout.readline() == b"ready\n"
    yield made
    made.kill()
    made.communicate()


def test_term_is_delivered_and_its_end_is_seen_at_once(child: subprocess.Popen[bytes]) -> None:
    world = LiveWorld()
    identity = read_identity(world, child.pid)
    assert identity is not None
    with Signaller(world).open(identity) as handle:
        assert not handle.wait(0)
        handle.send(signal.SIGTERM)
        started = time.monotonic()
        assert handle.wait(600)
        assert time.monotonic() - started < 60
        # A zombie now: it holds nothing, and nothing can be sent to it.
        assert handle.state() is None and read_identity(world, child.pid) is None
        with pytest.raises(SignalError) as caught:
            handle.send(signal.SIGKILL)
        assert caught.value.code == "gone"
    assert child.wait() == -signal.SIGTERM


def test_kill_ends_what_ignores_term(stubborn: subprocess.Popen[bytes]) -> None:
    world = LiveWorld()
    identity = read_identity(world, stubborn.pid)
    assert identity is not None
    with Signaller(world).open(identity) as handle:
        handle.send(signal.SIGTERM)
        assert not handle.wait(0.2)
        assert handle.state() in ("S", "R")
        handle.send(signal.SIGKILL)
        assert handle.wait(10)
    assert stubborn.wait() == -signal.SIGKILL


@pytest.mark.parametrize("other", [{"start_time": 1}, {"boot_id": "another boot"}])
def test_pid_of_another_process_is_left_alone(child: subprocess.Popen[bytes], other: dict[str, object]) -> None:
    world = LiveWorld()
    identity = read_identity(world, child.pid)
    assert identity is not None
    with pytest.raises(SignalError) as caught:
        Signaller(world).open(identity._replace(**other))
    assert caught.value.code == "not_the_same"
    assert child.poll() is None


def test_identity_is_compared_again_right_before_each_signal(child: subprocess.Popen[bytes]) -> None:
    class Changing(LiveWorld):
        later = False

        def read_text(self, path: str, timeout: float | None = None) -> str | None:
            text = super().read_text(path, timeout)
            if self.later and text and path == f"/proc/{child.pid}/stat":
                fields = text.split()
                fields[-31] = "1"  # field 22 of 52
                return " ".join(fields)
            return text

    world = Changing()
    identity = read_identity(world, child.pid)
    assert identity is not None
    with Signaller(world).open(identity) as handle:
        world.later = True
        with pytest.raises(SignalError) as caught:
            handle.send(signal.SIGKILL)
        assert caught.value.code == "not_the_same"
    assert child.poll() is None


def test_pidfd_is_opened_before_the_identity_is_read(child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The other order has a gap in which the pid can be used again."""
    order: list[str] = []
    world = LiveWorld()
    identity = read_identity(world, child.pid)
    real_open, real_check = os.pidfd_open, _signals._check

    def opening(pid: int) -> int:
        order.append("open")
        return real_open(pid)

    def checking(*arguments: object) -> None:
        order.append("check")
        real_check(*arguments)

    monkeypatch.setattr(os, "pidfd_open", opening)
    monkeypatch.setattr(_signals, "_check", checking)
    assert identity is not None
    Signaller(world).open(identity).close()
    assert order == ["open", "check"]


def test_process_that_is_gone() -> None:
    made = subprocess.Popen(["true"])
    world = LiveWorld()
    identity = read_identity(world, made.pid) or Identity("", made.pid, 1)
    made.wait()
    with pytest.raises(SignalError) as caught:
        Signaller(world).open(identity)
    assert caught.value.code == "gone"


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming somebody else needs root")
def test_process_of_somebody_else_is_not_permitted(child: subprocess.Popen[bytes]) -> None:
    world = LiveWorld()
    identity = read_identity(world, child.pid)
    assert identity is not None
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setuid(65534)
            with Signaller(world).open(identity) as handle:
                handle.send(signal.SIGTERM)
        except SignalError as exc:
            status = 0 if exc.code == "not_permitted" else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert child.poll() is None


def test_zombies_have_no_identity() -> None:
    fields = "1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0"
    for state, expected in (("S", Identity("boot", 7, 4242)), ("Z", None), ("X", None)):
        world = FakeWorld(files={"/proc/7/stat": f"7 (a) b (c) {state} {fields}", "/proc/sys/kernel/random/boot_id": "boot\n"})
        assert read_identity(world, 7) == expected


def test_python_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(SignalError) as caught:
        Signaller(LiveWorld()).open(Identity("", 1, 1))
    assert caught.value.code == "unsupported"
