# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""A program that stands for `hf`: what it does is prepared in a file, one step a call. The real one is in tests/unit/roles/model_sync.

A step has `out`, `err`, `status`, `sleep` (seconds), `files` (path to text, written at the end) and `kill` (a signal to itself).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

_PROGRAM = """#!{python}
import json, os, sys, time
base = {base!r}
with open(os.path.join(base, "calls"), "a") as calls:
    calls.write(json.dumps({{"argv": sys.argv[1:], "env": dict(os.environ), "uid": os.getuid()}}) + "\\n")
if sys.argv[1:] == ["version"]:
    print({version!r})
    sys.exit(0)
kind = "dry" if "--dry-run" in sys.argv else "real"
steps = json.load(open(os.path.join(base, kind)))
step = steps.pop(0) if len(steps) > 1 else steps[0]
json.dump(steps, open(os.path.join(base, kind), "w"))
sys.stdout.write(step.get("out", ""))
sys.stderr.write(step.get("err", ""))
sys.stdout.flush()
time.sleep(step.get("sleep", 0))
for path, text in step.get("files", {{}}).items():
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if text.startswith("-> "):
        os.symlink(text[3:], path)
    else:
        open(path, "wb").write(text.encode("latin-1"))
if step.get("kill"):
    os.kill(os.getpid(), step["kill"])
sys.exit(step.get("status", 0))
"""


class FakeHf:
    """The program, and what it was called with."""

    def __init__(self, base: Path, version: str = "version: 2.4.0") -> None:
        self.base = base
        base.mkdir()
        self.path = base / "hf"
        self.path.write_text(_PROGRAM.format(python=sys.executable, base=str(base), version=version))
        self.path.chmod(0o755)
        self.dry({"out": "[dry-run] Will download 6 files (out of 6) totalling 9.0M."})
        self.real({})

    def dry(self, *steps: dict[str, Any]) -> None:
        (self.base / "dry").write_text(json.dumps(steps))

    def real(self, *steps: dict[str, Any]) -> None:
        """The last one stays."""
        (self.base / "real").write_text(json.dumps(steps))

    @property
    def calls(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in (self.base / "calls").read_text().splitlines()]
        except OSError:
            return []

    @property
    def kinds(self) -> list[str]:
        """What it was called for, in order."""
        return ["version" if call["argv"] == ["version"] else "dry" if "--dry-run" in call["argv"] else "real" for call in self.calls]


def as_files(base: Path) -> dict[str, str]:
    """A tree on disk, as a step has it."""
    found = {}
    for folder, _folders, names in os.walk(base):
        for name in names:
            path = os.path.join(folder, name)
            found[path] = "-> " + os.readlink(path) if os.path.islink(path) else Path(path).read_bytes().decode("latin-1")
    return found
