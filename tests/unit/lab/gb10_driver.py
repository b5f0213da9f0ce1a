# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated GB10 driver in a directory of its own, for tests: built, started, asked and stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DRIVER_SOURCES = Path(__file__).parents[2] / "lab" / "driver"
FREEZER = Path("/sys/fs/cgroup/freezer")
DEADLINE = 120.0
MIB = 1 << 20


def wait_until(condition: Callable[[], Any], what: str, deadline: float = DEADLINE) -> Any:
    """Poll until the condition is true and return its value; fail with words after the deadline (seconds)."""
    end = time.monotonic() + deadline
    while not (value := condition()):
        assert time.monotonic() < end, f"after {deadline} s still not: {what}"
        time.sleep(0.01)
    return value


class Client:
    """A process that holds GPU memory: a Python program around gb10_cuda, told line by line what to do."""

    PROGRAM = textwrap.dedent("""
        import sys, gb10_cuda
        kept = []
        for line in sys.stdin:
            try:
                result = eval(line, {"cuda": gb10_cuda, "kept": kept})
            except Exception as error:
                result = f"{type(error).__module__}.{type(error).__name__}: {error}"
            print(repr(result).replace("\\n", " "), flush=True)
    """)

    def __init__(self, driver: Driver, prelude: str = "", argv0: str | None = None) -> None:
        # By its name a Python finds its library; one with another name must be told.
        home = {} if argv0 is None else {"PYTHONHOME": sys.base_prefix}
        self.process = subprocess.Popen(
            [argv0 or sys.executable, "-c", prelude + self.PROGRAM],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**driver.environment, **home, "PYTHONPATH": str(DRIVER_SOURCES)},
        )
        self.pid = self.process.pid

    def do(self, expression: str) -> str:
        """Evaluate an expression of the client (``cuda`` is gb10_cuda, ``kept`` a list); the repr of the result, or of the error's text."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def hold(self, size: int) -> None:
        """Create a context and allocate size bytes beside it."""
        assert self.do("cuda.create_context()").isdigit()
        assert self.do(f"kept.append(cuda.alloc({size}))") == "None"

    def end(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


class Driver:
    """gb10-simd in a directory of its own."""

    def __init__(self, binaries: Path, directory: Path, *arguments: str) -> None:
        self.binaries = binaries
        self.directory = directory
        self.log = directory / "log"
        self.library = directory / "lib" / "libnvidia-ml.so.1"
        self.smi = directory / "bin" / "nvidia-smi"
        for path in (self.library, self.smi):
            path.parent.mkdir()
            path.symlink_to(binaries / path.name)
        self.environment = {**os.environ, "GB10_SIM_DIR": str(directory), "LD_LIBRARY_PATH": str(self.library.parent)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    binaries / "gb10-simd",
                    *("--library", str(self.library), "--smi", str(self.smi), "--proc", str(directory)),
                    *("--set", "context_bytes=8MiB", "--set", "context_margin=8MiB"),
                    *arguments,
                ],
                env=self.environment,
                stderr=log,
            )
        self.clients: list[Client] = []
        wait_until(lambda: self.listens() or self.process.poll() is not None, "the driver listens")
        assert self.process.poll() is None, self.log.read_text()
        # It freezes in a group below its own, and thaws all there when it stops: a driver of a test that runs beside this one does, too.
        self.freezer = FREEZER / f"gb10-test-{self.process.pid}"
        if os.access(FREEZER / "cgroup.procs", os.W_OK):
            self.freezer.mkdir()
            (self.freezer / "cgroup.procs").write_text(str(self.process.pid))

    def listens(self) -> bool:
        """Whether it can be connected to: its socket is there a moment before that."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.directory / "driver.sock")) == 0

    def client(self, prelude: str = "", argv0: str | None = None) -> Client:
        client = Client(self, prelude, argv0)
        self.clients.append(client)
        return client

    def ctl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, DRIVER_SOURCES / "gb10-sim-ctl", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=DEADLINE,
        )

    def set(self, **knobs: object) -> None:
        self.ctl("set", *(f"{name}={value}" for name, value in knobs.items()))

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.ctl("status", "--json").stdout)
        return status

    def nvidia_smi(self, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.smi, *arguments], env={**self.environment, **(environment or {})}, capture_output=True, text=True, check=False, timeout=DEADLINE
        )

    def nvml(self, program: str, **popen: Any) -> Any:
        """What a program (an expression over the real pynvml, as ``p``, initialised) says, as JSON; an NVMLError as {"error": code}."""
        code = textwrap.dedent("""
            import json, sys
            import pynvml as p

            def plain(value):
                if isinstance(value, bytes):
                    return value.decode()
                if hasattr(value, "_fields_"):
                    return {name: getattr(value, name) for name, *_ in value._fields_}
                return vars(value)

            try:
                p.nvmlInit()
                handles = [p.nvmlDeviceGetHandleByIndex(i) for i in range(p.nvmlDeviceGetCount())]
                result = eval(sys.argv[1], {"p": p, "handles": handles, "gpu": handles[0] if handles else None})
            except p.NVMLError as error:
                result = {"error": error.value, "text": str(error)}
            print(json.dumps(result, default=plain))
        """)
        done = subprocess.run(
            [sys.executable, "-c", code, program], env=self.environment, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE, **popen
        )
        return json.loads(done.stdout)

    def resident(self) -> int:
        """VmRSS of the driver in bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the driver has no VmRSS")

    def stop(self) -> int:
        for client in self.clients:
            client.end()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE)
        if self.freezer.exists():
            self.freezer.rmdir()
        return code


@contextmanager
def running_driver(binaries: Path, directory: Path, *arguments: str) -> Iterator[Driver]:
    """A driver for the time of a with block; it must stop by itself on SIGTERM, with success."""
    driver = Driver(binaries, directory, *arguments)
    try:
        yield driver
    finally:
        code = driver.stop()
    assert code == 0, driver.log.read_text()
