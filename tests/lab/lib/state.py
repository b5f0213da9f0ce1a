# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a running lab remembers: whose it is and from which recipes it was made. Written last, so it says 'complete'."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from . import plan
from .keys import write

FILE = plan.RUN / "state.json"


@dataclass(frozen=True)
class State:
    """``owner``: the LAB_DIR of the checkout that started it. ``keys``: the hash of each part."""

    owner: str
    keys: dict[str, str]


def save(state: State, file: Path = FILE) -> None:
    write(file, json.dumps(asdict(state)) + "\n")


def load(file: Path = FILE) -> State | None:
    """The state, or None when no lab was brought up completely (or the file is not ours)."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return State(owner=str(data["owner"]), keys={str(name): str(key) for name, key in data["keys"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
