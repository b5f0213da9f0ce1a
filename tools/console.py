# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Saying what is done, running it, and summing up steps: what ran, what failed, what could not run."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PASSED, FAILED, NOT_RUN = "passed", "FAILED", "NOT RUN"


class ToolError(Exception):
    """Something a person has to do first; the message is one sentence with the remedy."""


@dataclass(frozen=True)
class Outcome:
    """How one step ended. `note` says why it failed or did not run."""

    name: str
    state: str
    seconds: float = 0.0
    note: str = ""


def say(text: str) -> None:
    """Print one line at once, so that it stands before the output of the commands that follow."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def call(argv: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> int:
    """Run a command with its output going straight to the terminal; return its exit status."""
    words = [str(word) for word in argv]
    say("+ " + shlex.join(words))
    try:
        return subprocess.run(words, check=False, env={**os.environ, **(env or {})}, cwd=cwd, stdin=subprocess.DEVNULL).returncode
    except FileNotFoundError as exc:
        raise ToolError(f"{words[0]} is not on this machine: {exc.strerror}") from exc


def need(argv: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Like call(), for a command that must succeed."""
    status = call(argv, env, cwd)
    if status != 0:
        raise ToolError(f"{Path(str(argv[0])).name} ended with status {status}; its output is above")


def need_quietly(argv: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Like need(), for a command whose output matters only when it fails."""
    words = [str(word) for word in argv]
    say("+ " + shlex.join(words))
    done = subprocess.run(words, check=False, env={**os.environ, **(env or {})}, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        say(done.stdout + done.stderr)
        raise ToolError(f"{Path(words[0]).name} ended with status {done.returncode}; its output is above")


def step(name: str, work: Callable[[], int]) -> Outcome:
    """Run one step, timed. A ToolError fails the step with its sentence; anything else is a bug and is raised."""
    say(f"\n=== {name}")
    start = time.monotonic()
    try:
        status = work()
        note = "" if status == 0 else f"exit status {status}"
    except ToolError as exc:
        status, note = 1, str(exc)
        say(f"error: {exc}")
    return Outcome(name, PASSED if status == 0 else FAILED, time.monotonic() - start, note)


def not_run(name: str, why: str) -> Outcome:
    """A step that this machine cannot run. It stays visible: in the output where it would have been, and in the summary."""
    say(f"\n=== {name}\n!!! NOT RUN: {why}")
    return Outcome(name, NOT_RUN, 0.0, why)


@contextmanager
def beside(work: Callable[[], list[Outcome]]) -> Iterator[Callable[[], list[Outcome]]]:
    """Run steps in a process of their own while the block runs; what it is given waits for them, prints all they said, and returns their outcomes."""
    fork = multiprocessing.get_context("fork")
    outcomes, told = fork.Pipe(duplex=False)
    with tempfile.TemporaryFile() as said:

        def apart() -> None:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            # Python's own streams need not be those two: whoever captures this process has put others in their place.
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
            told.send(work())

        def finished() -> list[Outcome]:
            told.close()
            ended: list[Outcome] | None
            try:
                ended = outcomes.recv()
            except EOFError:
                ended = None
            process.join()
            said.seek(0)
            shutil.copyfileobj(said, sys.stdout.buffer)
            sys.stdout.flush()
            if ended is None:
                raise RuntimeError("steps that ran beside others have not ended in order; why is said above")
            return ended

        sys.stdout.flush()
        process = fork.Process(target=apart)
        process.start()
        try:
            yield finished
        finally:
            if process.is_alive():
                process.terminate()
            process.join()


def summary(outcomes: Sequence[Outcome]) -> int:
    """Print the table of all steps and the closing count; return the exit status."""
    width = max([len(outcome.name) for outcome in outcomes] + [4])
    say("\n" + "=" * 100)
    for outcome in outcomes:
        took = "" if outcome.state == NOT_RUN else f"{outcome.seconds:7.1f} s"
        say(f"{outcome.name:<{width}}  {outcome.state:<8} {took:>10}  {outcome.note}".rstrip())
    count = {state: sum(outcome.state == state for outcome in outcomes) for state in (PASSED, FAILED, NOT_RUN)}
    if count[NOT_RUN]:
        say(f"\n!!! {count[NOT_RUN]} step(s) did NOT run on this machine; the table above says why.")
    say(f"total {sum(outcome.seconds for outcome in outcomes):.0f} s")
    say(f"{count[PASSED]} passed, {count[FAILED]} failed, {count[NOT_RUN]} skipped")
    return 1 if count[FAILED] or not count[PASSED] else 0


def main(work: Callable[[], int]) -> None:
    """Entry point of every tool: a ToolError becomes one line on stderr and status 2."""
    # Asked to end, a tool ends what it started, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = work()
    except ToolError as exc:
        sys.stderr.write(f"error: {exc}\n")
        status = 2
    except KeyboardInterrupt:
        status = 130
    raise SystemExit(status)
