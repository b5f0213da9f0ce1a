# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""How far a rank is, in words, from the lines of its log. Each engine's file says by what its stages are known."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Sequence

from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._launch_plan import engines, find_engine

#: What rank_supervisor.py says before an engine does.
_SUPERVISOR = (
    (r"^\[rank\] \S{20} rank [0-9]{1,6} of ", "has started"),
    (r"^\[rank\] \S{20} (?:\S{1,40}: )waiting for ", "waits for rank 0"),
    (r"^\[rank\] \S{20} ray started", "starts Ray"),
    (r"^\[rank\] \S{20} ray-nodes started", "waits until all nodes have joined Ray"),
    (r"^\[rank\] \S{20} engine started", "starts the engine"),
    (r"^\[rank\] \S{20} the group is ready", "is ready"),
    (r"^\[rank\] \S{20} ending with status", "ends"),
)
_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\S{1,40} ")


def stage(lines: Sequence[str], engine: str) -> str:
    """The last stage that the lines tell of, with its percentage where it has one; an empty text where they tell of none."""
    return _last(lines, [(re.compile(pattern), words) for pattern, words in (*_SUPERVISOR, *find_engine(engine).STAGES)])


def _last(lines: Sequence[str], known: Sequence[tuple[re.Pattern[str], str]]) -> str:
    for line in reversed(lines):
        text = _STAMP.sub("", line)
        for pattern, words in known:
            found = pattern.search(text)
            if found is not None:
                percent = found.groupdict().get("percent")
                return f"{words}, {percent} %" if percent is not None else words
    return ""


def reached(lines: Sequence[str]) -> tuple[int, str]:
    """The last stage of an engine that the lines tell of, whichever engine it is and whatever its supervisor says after it: its number, from 0 up,
    and its words; -1 and an empty text where they tell of none.
    """
    stages = [(number, pattern, words) for engine in engines().values() for number, (pattern, words) in enumerate(engine.STAGES)]
    for line in reversed(lines):
        for number, pattern, words in stages:
            said = _last([line], [(re.compile(pattern), words)])
            if said:
                return number, said
    return -1, ""


def memory_of(samples: Sequence[Sequence[t.Any]]) -> int | None:
    """Available bytes by the last reading of rank_info's ``memory``."""
    return int(samples[-1][1]) if samples else None


def look(told: t.Mapping[str, t.Any], launch: str, engine: str) -> dict[str, t.Any]:
    """What rank_info said of this node's rank of a launch, for who waits for it: ``ready``, ``ended``, ``status``, ``progress``,
    ``words`` and ``transports``.
    """
    ranks = [rank for rank in told.get("ranks") or [] if rank.get("launch_id") == launch]
    if not ranks:
        reason = told.get("engine")
        # An engine that does not answer for a moment (a restart) is no rank that has ended.
        why = reason or "its container is gone"
        return {"ready": False, "ended": not reason, "status": why, "progress": "", "words": why, "transports": []}
    rank = ranks[0]
    log = rank.get("log") or {}
    progress = stage([*(log.get("head") or []), *(log.get("tail") or [])], engine)
    running = rank.get("running") or rank.get("status") in ("created", "running")
    end = log.get("end") or {}
    status = str(rank.get("status"))
    if not running:
        status += f", status {rank.get('exit_status')}" + (f": {end['reason']}" if end.get("reason") else "")
    words = f"rank {rank.get('rank')} {progress}" if running and progress else f"rank {rank.get('rank')}: {status}"
    left = memory_of(log.get("memory") or [])
    if left is not None and running:
        words += f"; {format_size(left)} of memory available"
    return {
        "ready": bool(rank.get("ready")),
        "ended": not running,
        "status": status,
        "progress": progress,
        "words": words,
        "transports": list(log.get("transports") or []),
    }
