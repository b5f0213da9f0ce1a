# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run programs: argv lists only, a deadline each, and an error that says what went wrong."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .errors import LabError

#: Lines of a failed program's output that are worth showing.
TAIL = 20


def run(
    argv: Sequence[str | Path],
    *,
    check: bool = True,
    timeout: float = 60,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to the end and return rc, stdout and stderr; raises LabError when ``check`` and it failed, or was too slow."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            input="" if stdin is None else stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            cwd=cwd,
            env={**os.environ, **env} if env else None,
            check=False,
        )
    except FileNotFoundError as problem:
        raise LabError(f"The program {words[0]} is not on this machine.", f"It was needed for: {' '.join(words)}") from problem
    except subprocess.TimeoutExpired as problem:
        raise LabError(f"'{' '.join(words)}' did not end within {timeout:g} seconds.") from problem
    if check and done.returncode != 0:
        raise LabError(f"'{' '.join(words)}' failed with {done.returncode}.", tail(done.stderr or done.stdout))
    return done


def run_logged(
    argv: Sequence[str | Path],
    log: Path,
    *,
    what: str,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    before_exec: Callable[[], None] | None = None,
) -> None:
    """Run a long program with its output in ``log``; raises LabError with the end of the log when it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [str(word) for word in argv]
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **env} if env else None,
            preexec_fn=before_exec,
        )
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired as problem:
        raise LabError(f"{what} did not end within {timeout:g} seconds.", f"Its output is in {log}.") from problem
    finally:
        process.kill()  # does nothing to one that has ended; its children are in a control group of ours
    if status != 0:
        end = tail(log.read_text(encoding="utf-8", errors="replace"))
        raise LabError(f"{what} failed with {status}; the whole output is in {log}.", end)


def tail(text: str) -> str:
    """The last lines of an output, indented as a remedy is."""
    return "\n  ".join(text.strip().splitlines()[-TAIL:])
