# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program that is process 1 of a rank, run as it runs there: real processes, real sockets, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.tests.unit.ports import free_port

PROGRAM = Path(__file__).resolve().parents[4] / "roles" / "tp_launch" / "files" / "rank_supervisor.py"
WAIT = 120.0  # seconds; a bound for a loaded machine, no test waits that long when all is well

# In the environment of everything that a test starts, so that it is found again whoever its parent is by then.
MARK = "UNIMEM_TEST_RANKS"

# Each ends by itself: what a test run that was killed itself has left is not there for ever.
STAY = "import time; print('staying', flush=True); time.sleep(600)"
# A server that says 200 to whatever is asked: an engine's health.
SERVE = (
    "import http.server, signal, sys\n"
    "signal.alarm(600)\n"
    "class H(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self): self.send_response(200); self.end_headers()\n"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()\n"
)


def python(name: str, code: str, *arguments: str, kind: str = "service", **extra: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "argv": [sys.executable, "-u", "-c", code, *arguments], "env": {}, **extra}


class Ranks:
    """The ranks of a group as processes of this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.control = free_port()
        self.health = free_port()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def ready_file(self, rank: int) -> Path:
        return self.directory / f"ready-{rank}" / "ready"

    def log(self, rank: int) -> str:
        return (self.directory / f"log-{rank}").read_text(encoding="utf-8")

    def start(self, rank: int, world: int, *steps: dict[str, Any], env: dict[str, str] | None = None, **changes: Any) -> subprocess.Popen[bytes]:
        plan = {
            "rank": rank,
            "world": world,
            "role": "head a" if rank == 0 else "worker b",
            "control": {"address": "127.0.0.1", "port": self.control},
            "steps": list(steps),
            "ready": {"url": f"http://127.0.0.1:{self.health}/health"},
            "ready_file": str(self.ready_file(rank)),
            "start_timeout": 60,
            "join_timeout": 60,
            "grace": 5,
            "secrets": ["API_KEY"],
            **changes,
        }
        path = self.directory / f"rank-{rank}.json"
        path.write_text(json.dumps(plan), encoding="utf-8")
        environment = {
            **os.environ,
            MARK: str(self.directory),
            "UNIMEM_LAUNCH_ID": "launch-1",
            "UNIMEM_GROUP_TOKEN": "tok-en",
            "API_KEY": "s3cret-key",
            **(env or {}),
        }
        with open(self.directory / f"log-{rank}", "wb") as log:
            process = subprocess.Popen([sys.executable, str(PROGRAM), str(path)], stdout=log, stderr=subprocess.STDOUT, env=environment)
        self.processes[rank] = process
        return process

    def serve(self, name: str = "engine") -> dict[str, Any]:
        return python(name, SERVE, str(self.health))

    def until(self, condition: Any, what: str) -> None:
        end = time.monotonic() + WAIT
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(f"--- rank {rank}\n{self.log(rank)}" for rank in self.processes)
                raise AssertionError(f"not within {WAIT} s: {what}\n{logs}")
            time.sleep(0.05)

    def end(self, rank: int) -> int:
        process = self.processes[rank]
        self.until(lambda: process.poll() is not None, f"rank {rank} ends")
        return int(process.returncode)

    def wait_ready(self, *ranks: int) -> None:
        for rank in ranks:
            self.until(self.ready_file(rank).exists, f"rank {rank} is ready")

    def left(self) -> list[int]:
        """Processes of these ranks that still run: a rank that was killed, as `docker kill` does, cannot end its own."""
        mark = f"{MARK}={self.directory}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def end_all(self) -> None:
        """End all that was started, whatever has become of it."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        end = time.monotonic() + WAIT
        # Again and again: what is just being started is not in the first list. A process that has ended has no environment.
        while left := self.left():
            if time.monotonic() > end:
                raise AssertionError(f"processes {left} of {self.directory} cannot be ended")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    group = Ranks(tmp_path)
    try:
        yield group
    finally:
        group.end_all()


def test_a_group_becomes_ready_and_stops_together(ranks: Ranks) -> None:
    ranks.start(0, 2, ranks.serve())
    ranks.start(1, 2, python("engine", STAY))
    ranks.wait_ready(0, 1)
    ranks.processes[0].send_signal(signal.SIGTERM)
    assert ranks.end(0) == 143
    assert ranks.end(1) == 70
    assert "rank 0 (head a): asked to stop by signal 15" in ranks.log(1)
    assert not ranks.ready_file(0).exists()
    assert not ranks.ready_file(1).exists()


def test_a_worker_that_dies_ends_the_head_at_once(ranks: Ranks) -> None:
    ranks.start(0, 2, ranks.serve())
    ranks.start(1, 2, python("engine", "import sys; print('CUDA out of memory'); sys.exit(3)"))
    assert ranks.end(1) == 3
    assert ranks.end(0) == 70
    assert "rank 1 (worker b): engine ended with exit status 3" in ranks.log(0)
    assert "[engine] CUDA out of memory" in ranks.log(1)


def test_a_worker_that_died_before_the_head_was_there_is_told_of(ranks: Ranks) -> None:
    """Else the head would wait for it until the join timeout."""
    worker = ranks.start(1, 2, python("engine", "import sys; sys.exit(3)"))
    ranks.until(lambda: "ending with status 3" in ranks.log(1), "the worker ends")
    assert worker.poll() is None
    ranks.start(0, 2, ranks.serve())
    assert ranks.end(1) == 3
    assert ranks.end(0) == 70


def test_a_head_that_died_before_the_worker_was_there_is_told_of(ranks: Ranks) -> None:
    ranks.start(0, 2, python("engine", "import sys; sys.exit(4)"))
    ranks.until(lambda: "ending with status 4" in ranks.log(0), "the head ends")
    ranks.start(1, 2, python("engine", STAY))
    assert ranks.end(0) == 4
    assert ranks.end(1) == 70


def test_a_killed_container_is_noticed_by_the_others(ranks: Ranks) -> None:
    """SIGKILL of the supervisor itself, as `docker kill` does: nothing can be said any more, the connection just ends."""
    ranks.start(0, 2, ranks.serve())
    ranks.start(1, 2, python("engine", STAY))
    ranks.wait_ready(0, 1)
    ranks.processes[1].kill()
    assert ranks.end(0) == 71
    assert "rank 1 is lost: its connection ended" in ranks.log(0)


def test_a_killed_process_is_said_with_its_signal(ranks: Ranks) -> None:
    ranks.start(0, 1, ranks.serve(), python("other", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert ranks.end(0) == 137
    assert "other was killed by signal 9" in ranks.log(0)


def test_an_engine_that_ends_well_is_still_not_there(ranks: Ranks) -> None:
    ranks.start(0, 1, python("engine", "pass"))
    assert ranks.end(0) == 1


def test_what_a_process_leaves_behind_goes_too(ranks: Ranks) -> None:
    """The engine core that outlives its parent: it is killed with the rank."""
    spawn = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); time.sleep(600)"
    process = ranks.start(0, 1, python("engine", spawn), ranks.serve("server"))
    ranks.wait_ready(0)
    ranks.until(lambda: len(ranks.left()) == 4, "supervisor, engine, server and orphan run")
    process.send_signal(signal.SIGTERM)
    assert ranks.end(0) == 143
    ranks.until(lambda: ranks.left() == [], "all are gone")


def test_an_orphan_ends_the_rank_when_its_parent_dies_and_goes_with_it(ranks: Ranks) -> None:
    """The API server is killed and its engine core still holds the memory: the rank says how the first one ended."""
    spawn = (
        "import os, signal, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ranks.start(0, 2, ranks.serve("server"), python("engine", spawn))
    ranks.start(1, 2, python("engine", STAY))
    assert ranks.end(0) == 137
    assert ranks.end(1) in (70, 72)  # it may not have joined before rank 0 was gone
    ranks.until(lambda: ranks.left() == [], "nothing of either rank is left")


def test_all_processes_of_a_rank_end_with_the_one_that_died(ranks: Ranks) -> None:
    ranks.start(0, 1, python("store", STAY), ranks.serve("server"), python("engine", "import time, sys; time.sleep(0.3); sys.exit(5)"))
    assert ranks.end(0) == 5
    assert "engine ended with exit status 5" in ranks.log(0)
    ranks.until(lambda: ranks.left() == [], "store and server are gone")


def test_steps_in_order_with_a_gate_and_a_port(ranks: Ranks, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    note = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + ' ')"
    listening = "import socket, sys, time; s = socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); time.sleep(600)"
    port = free_port()
    ranks.start(
        0,
        1,
        python("store", listening, str(port)),
        {"name": "store-port", "kind": "tcp", "address": "127.0.0.1", "port": port, "timeout": 30},
        python("gate", note, str(trace), "gate", kind="gate", timeout=30),
        python("server", note + "; exec(sys.argv[4])", str(trace), "server", str(ranks.health), SERVE.replace("sys.argv[1]", "sys.argv[3]")),
    )
    ranks.wait_ready(0)
    assert trace.read_text(encoding="utf-8").split() == ["gate", "server"]


def test_a_gate_that_fails_starts_nothing_more(ranks: Ranks) -> None:
    ranks.start(0, 1, python("store", STAY), python("gate", "import sys; sys.exit(7)", kind="gate", timeout=30), ranks.serve("never"))
    assert ranks.end(0) == 7
    assert "never started" not in ranks.log(0)


def test_a_gate_that_hangs_is_bounded(ranks: Ranks) -> None:
    ranks.start(0, 1, python("gate", STAY, kind="gate", timeout=0.5), ranks.serve())
    assert ranks.end(0) == 72
    assert "gate did not succeed in time" in ranks.log(0)


def test_a_port_that_never_opens_is_bounded(ranks: Ranks) -> None:
    step = {"name": "ray-head", "kind": "tcp", "address": "127.0.0.1", "port": free_port(), "timeout": 0.5}
    ranks.start(0, 1, step, ranks.serve())
    assert ranks.end(0) == 72
    assert "did not open in time" in ranks.log(0)


def test_a_service_that_dies_while_a_gate_waits_ends_the_rank(ranks: Ranks) -> None:
    ranks.start(0, 1, python("ray", "import time, sys; time.sleep(0.5); sys.exit(9)"), python("gate", STAY, kind="gate", timeout=60))
    assert ranks.end(0) == 9


def test_an_engine_that_never_answers_is_bounded(ranks: Ranks) -> None:
    ranks.start(0, 1, python("engine", STAY), start_timeout=2)
    assert ranks.end(0) == 72
    assert "the engine was not ready" in ranks.log(0)


def test_a_rank_that_never_comes_is_bounded(ranks: Ranks) -> None:
    ranks.start(0, 2, ranks.serve(), join_timeout=2)
    assert ranks.end(0) == 72
    assert "not all ranks had met" in ranks.log(0)


def test_a_head_that_never_comes_is_bounded(ranks: Ranks) -> None:
    ranks.start(1, 2, python("engine", STAY), join_timeout=2)
    assert ranks.end(1) == 72


def test_health_without_all_ranks_is_not_ready(ranks: Ranks) -> None:
    ranks.start(0, 2, ranks.serve())
    end = time.monotonic() + 3  # the server is up within one
    while time.monotonic() < end:
        assert not ranks.ready_file(0).exists()
        time.sleep(0.1)
    ranks.start(1, 2, python("engine", STAY))
    ranks.wait_ready(0, 1)


@pytest.mark.parametrize("other", [{"UNIMEM_GROUP_TOKEN": "guessed"}, {"UNIMEM_LAUNCH_ID": "launch-0"}])
def test_a_rank_of_another_launch_is_kept_out(ranks: Ranks, other: dict[str, str]) -> None:
    ranks.start(0, 2, ranks.serve(), join_timeout=4)
    ranks.start(1, 2, python("engine", STAY), env=other, join_timeout=3)
    assert ranks.end(1) in (70, 72)
    assert ranks.end(0) == 72
    assert not ranks.ready_file(0).exists()
    assert "rank 1 joined" not in ranks.log(0)


def test_nonsense_on_the_control_port_harms_nobody(ranks: Ranks) -> None:
    ranks.start(0, 2, ranks.serve())
    ranks.until(lambda: "rank 0 of 2" in ranks.log(0), "rank 0 runs")
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", b'{"rank": 1, "proof": "00"}\n', b"[]\n", b"\xff" * 70000 + b"\n"):

        def send(data: bytes = noise) -> bool:
            with contextlib.suppress(OSError):
                with socket.create_connection(("127.0.0.1", ranks.control), timeout=2) as connection:
                    connection.sendall(data)
                return True
            return False

        ranks.until(send, "the control port is open")
    ranks.start(1, 2, python("engine", STAY))
    ranks.wait_ready(0, 1)


def test_secrets_are_masked_in_all_output(ranks: Ranks) -> None:
    ranks.start(0, 1, python("engine", "import os, sys; print('key', os.environ['API_KEY'], 'and', os.environ['UNIMEM_GROUP_TOKEN']); sys.exit(4)"))
    assert ranks.end(0) == 4
    assert "[engine] key *** and ***" in ranks.log(0)
    assert "s3cret-key" not in ranks.log(0)


def test_a_program_that_is_not_there(ranks: Ranks) -> None:
    ranks.start(0, 1, {"name": "engine", "kind": "service", "argv": ["/no/such/vllm", "serve"], "env": {}})
    assert ranks.end(0) == 127
    assert "engine cannot be started: No such file or directory: /no/such/vllm" in ranks.log(0)


def test_a_stubborn_process_is_killed_after_the_grace(ranks: Ranks) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + STAY
    process = ranks.start(0, 1, ranks.serve("server"), python("engine", stubborn), grace=1)
    ranks.wait_ready(0)
    ranks.until(lambda: "[engine] staying" in ranks.log(0), "it runs")
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert ranks.end(0) == 143
    assert time.monotonic() - begin >= 1.0
    ranks.until(lambda: ranks.left() == [], "all are gone")


def test_a_process_that_ends_in_order_has_its_time(ranks: Ranks) -> None:
    """TERM only to the service itself, and its own last words come through before the rank ends."""
    orderly = (
        "import signal, sys, time\n"
        "def end(*_): time.sleep(0.5); print('in order', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('staying', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = ranks.start(0, 1, ranks.serve("server"), python("engine", orderly), grace=20)
    ranks.wait_ready(0)
    ranks.until(lambda: "[engine] staying" in ranks.log(0), "it runs")
    process.send_signal(signal.SIGTERM)
    assert ranks.end(0) == 143
    assert "[engine] in order" in ranks.log(0)


def test_a_stop_while_a_gate_waits_leaves_nothing(ranks: Ranks) -> None:
    process = ranks.start(0, 1, python("ray", STAY), python("gate", STAY, kind="gate", timeout=60), ranks.serve("never"))
    ranks.until(lambda: "[gate] staying" in ranks.log(0), "the gate runs")
    process.send_signal(signal.SIGTERM)
    assert ranks.end(0) == 143
    assert "never started" not in ranks.log(0)
    ranks.until(lambda: ranks.left() == [], "gate and service are gone")


def test_a_fault_of_the_program_itself_ends_the_whole_group(ranks: Ranks, tmp_path: Path) -> None:
    """The ready file cannot be written: the group must not go on without its supervisor."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    ranks.start(0, 2, ranks.serve(), ready_file=str(tmp_path / "file" / "ready"))
    ranks.start(1, 2, python("engine", STAY))
    assert ranks.end(0) == 77
    assert ranks.end(1) == 70
    assert "FileExistsError" in ranks.log(0) and "FileExistsError" in ranks.log(1)
    ranks.until(lambda: ranks.left() == [], "nothing of either rank is left")


def test_what_a_test_leaves_is_found_and_ended(tmp_path: Path) -> None:
    """The tests' own cleaning, after the worst that a test can do: kill a supervisor and forget its processes."""
    group = Ranks(tmp_path)
    try:
        process = group.start(0, 1, group.serve(), python("engine", "import os, time; os.setsid() if os.getsid(0) != os.getpid() else None; time.sleep(600)"))
        group.wait_ready(0)
        process.kill()
        process.wait()
        assert len(group.left()) == 2
    finally:
        group.end_all()
    assert group.left() == []


def file(**changes: Any) -> dict[str, Any]:
    """A rank's file that can be used, with these changes; None takes an entry away."""
    plan = {
        "rank": 0,
        "world": 1,
        "role": "head a",
        "control": {"address": "127.0.0.1", "port": 29400},
        "steps": [{"name": "engine", "kind": "service", "argv": ["true"], "env": {}}],
        "ready": {"url": "http://127.0.0.1:1/health"},
        "ready_file": "",
        "start_timeout": 1,
        "join_timeout": 1,
        "grace": 1,
        "secrets": [],
        **changes,
    }
    return {key: value for key, value in plan.items() if value is not None}


@pytest.mark.parametrize(
    "plan",
    [
        "",
        "[]",
        "{}",
        file(steps=[]),
        file(steps=None),
        file(steps=["vllm serve"]),
        file(steps=[{"name": "engine", "kind": "service", "argv": []}]),
        file(steps=[{"name": "engine", "kind": "service", "argv": "vllm serve"}]),
        file(steps=[{"name": "engine", "kind": "daemon", "argv": ["true"]}]),
        file(steps=[{"name": "engine", "kind": "service", "argv": ["true"], "env": ["A=1"]}]),
        file(steps=[{"kind": "service", "argv": ["true"]}]),
        file(steps=[{"name": "port", "kind": "tcp", "address": "127.0.0.1", "port": 0}]),
        file(steps=[{"name": "gate", "kind": "gate", "argv": ["true"], "timeout": "soon"}]),
        file(rank=1),
        file(rank=-1),
        file(world=0),
        file(grace=None),
        file(start_timeout="long"),
        file(ready=None),
        file(world=2, control=None),
        file(world=2, control={"address": "127.0.0.1", "port": 99999}),
    ],
    ids=str,
)
def test_a_file_that_says_nonsense_starts_nothing(tmp_path: Path, plan: Any) -> None:
    path = tmp_path / "rank.json"
    path.write_text(plan if isinstance(plan, str) else json.dumps(plan), encoding="utf-8")
    environment = {**os.environ, "UNIMEM_GROUP_TOKEN": "tok-en"}
    done = subprocess.run([sys.executable, str(PROGRAM), str(path)], capture_output=True, text=True, timeout=WAIT, check=False, env=environment)
    assert done.returncode == 78
    assert "cannot be used" in done.stderr
    assert done.stdout == ""


def test_a_file_that_can_be_used_is_used(tmp_path: Path) -> None:
    """What the cases above are changes of."""
    path = tmp_path / "rank.json"
    path.write_text(json.dumps(file()), encoding="utf-8")
    done = subprocess.run([sys.executable, str(PROGRAM), str(path)], capture_output=True, text=True, timeout=WAIT, check=False)
    assert done.returncode == 1 and "engine ended with exit status 0" in done.stdout


def test_no_file_at_all(tmp_path: Path) -> None:
    for arguments in ([], [str(tmp_path / "absent.json")]):
        done = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=WAIT, check=False)
        assert done.returncode == 78


@pytest.mark.parametrize("token", [None, ""])
def test_a_group_without_a_token_is_refused(tmp_path: Path, token: str | None) -> None:
    """With an empty token, whoever reaches the control port could be a rank."""
    path = tmp_path / "rank.json"
    path.write_text(json.dumps(file(world=2)), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "UNIMEM_GROUP_TOKEN"}
    if token is not None:
        environment["UNIMEM_GROUP_TOKEN"] = token
    done = subprocess.run([sys.executable, str(PROGRAM), str(path)], capture_output=True, text=True, timeout=WAIT, check=False, env=environment)
    assert done.returncode == 78
    assert "UNIMEM_GROUP_TOKEN" in done.stderr


# --- what a diagnosis is made of -------------------------------------------------------------------------------------------


def test_the_ranks_compare_their_clocks_when_they_meet(ranks: Ranks) -> None:
    ranks.start(0, 2, ranks.serve())
    ranks.start(1, 2, python("engine", STAY))
    ranks.wait_ready(0, 1)
    said = re.search(r"met rank 0; its clock is ([+-]\d+\.\d{3}) s from this one", ranks.log(1))
    assert said is not None, ranks.log(1)
    assert abs(float(said[1])) < 5.0, "both are this machine's"


def test_the_nodes_memory_is_said_from_the_start(ranks: Ranks) -> None:
    ranks.start(0, 1, ranks.serve())
    ranks.wait_ready(0)
    said = re.search(r"\[rank\] \S{20} memory: (\d+) MiB available, (\d+) MiB free, (\d+) MiB cached", ranks.log(0))
    assert said is not None, ranks.log(0)
    assert int(said[1]) > 0


def test_a_progress_bar_is_passed_on_while_it_moves_and_not_at_every_step(ranks: Ranks) -> None:
    code = (
        "import sys, time\n"
        "for step in range(300):\n"
        "    sys.stdout.write(f'\\rloading {step} of 300'); sys.stdout.flush(); time.sleep(0.01)\n"
        "sys.stdout.write('\\rloading 300 of 300\\n'); print('next', flush=True)\n"
        "time.sleep(600)\n"
    )
    ranks.start(0, 1, python("engine", code))
    ranks.until(lambda: "[engine] next" in ranks.log(0), "the bar is at its end")
    lines = [line for line in ranks.log(0).splitlines() if "loading" in line]
    assert lines[-1] == "[engine] loading 300 of 300"
    assert 3 <= len(lines) < 30, lines
    assert "\r" not in ranks.log(0)


def test_lines_that_end_as_on_windows_are_one_line_each(ranks: Ranks) -> None:
    ranks.start(0, 1, python("engine", "print('one\\r\\n\\r\\ntwo\\r', flush=True); import time; time.sleep(600)"))
    ranks.until(lambda: "[engine] two" in ranks.log(0), "both lines are there")
    assert [line for line in ranks.log(0).splitlines() if line.startswith("[engine] ") and line != "[engine] "] == ["[engine] one", "[engine] two"]
