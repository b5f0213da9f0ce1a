# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_process_reclaim from its parameters to its result: checks, the lock, the journal, and the words for a failure.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._journal import Journal, JournalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lock import LockError, NodeLock, lock_directory
from ansible_collections.unimem.dgx_spark.plugins.module_utils._node import LiveNode, Node
from ansible_collections.unimem.dgx_spark.plugins.module_utils._outcome import SUCCESS, Options, Outcome
from ansible_collections.unimem.dgx_spark.plugins.module_utils._reclaim import Reclaimer
from ansible_collections.unimem.dgx_spark.plugins.module_utils._restore import Restorer
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import parse_selectors, refuse_wide
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size, parse_size
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tenants import RESTORE_POLICIES, Wishes


def run_module(params: t.Mapping[str, t.Any], check: bool) -> tuple[dict[str, t.Any], str | None]:
    """Do what the module's parameters ask on this machine. Returns the result and, if it failed, what went wrong.

    Raises ValueError with a sentence for parameters that cannot be meant.
    """
    return run(LiveNode(), params, check, lock_directory())


def run(node: Node, params: t.Mapping[str, t.Any], check: bool, locks: str) -> tuple[dict[str, t.Any], str | None]:
    """As run_module, on any Node and with the lock in any directory."""
    state = params["state"]
    wishes = _wishes(params)
    options = _options(params, check)
    try:
        journal = Journal(params["journal"])
    except JournalError as exc:
        raise ValueError(str(exc)) from exc
    if state == "report":
        unread: JournalError | None = None
        try:
            journal.load()
        except JournalError as exc:
            unread = exc
        outcome = Reclaimer(node, journal, wishes, options).report()
        if unread is not None:
            outcome.notes.append(str(unread))
            if outcome.would in ("freed", "nothing_to_do"):
                # Who looks first, on all nodes, must not hear of it after something was stopped on another one.
                outcome.would, outcome.message = "not_permitted", f"{unread}{_advice(unread)}"
        return _finish(outcome, journal)
    try:
        if check:
            return _finish(_act(node, params, wishes, options, journal), journal)
        who = {"pid": os.getpid(), "user": os.environ.get("SUDO_USER") or os.environ.get("USER"), "state": state, "journal": journal.path, "since": node.now()}
        with NodeLock(locks, who):
            return _finish(_act(node, params, wishes, options, journal), journal)
    except (JournalError, LockError) as exc:
        if isinstance(exc, LockError):
            with contextlib.suppress(JournalError):
                journal.load()  # what is evicted is known all the same
        memory = dict(node.gather().get("memory") or {})
        return _finish(Outcome(verdict="not_permitted", message=f"{exc}; nothing was touched{_advice(exc)}", before=memory, after=memory), journal)


def _advice(exc: JournalError | LockError) -> str:
    return ". It takes root (become: true), or a session of that user and a journal in a directory of its own" if exc.denied else ""


def _act(node: Node, params: t.Mapping[str, t.Any], wishes: Wishes, options: Options, journal: Journal) -> Outcome:
    journal.load()
    if params["state"] == "freed":
        return Reclaimer(node, journal, wishes, options).free()
    return Restorer(node, journal, options, wishes.restore, params["reason"], wishes.stop).restore()


def _wishes(params: t.Mapping[str, t.Any]) -> Wishes:
    need = parse_size(params["need"], "need")
    stop = parse_selectors(params["stop"])
    restore = {}
    for text, policy in (params["restore"] or {}).items():
        if policy not in RESTORE_POLICIES:
            raise ValueError(f"restore: {text}: {policy!r} is none of {', '.join(RESTORE_POLICIES)}")
        restore[parse_selectors([text])[0]] = policy
    always = parse_selectors(params["always"])
    if params["state"] != "restored":
        refuse_wide(always, 0)
        stop.extend(selector for selector in always if selector not in stop)
        refuse_wide(stop, need)
        stray = [selector.text for selector in restore if selector not in stop]
        if stray:
            raise ValueError(f"restore: {', '.join(stray)} is not listed in 'stop'")
    return Wishes(
        stop=stop,
        protect=parse_selectors(params["protect"]),
        need=need,
        always=always,
        drop_page_cache=params["drop_page_cache"],
        restore=restore,
    )


def _options(params: t.Mapping[str, t.Any], check: bool) -> Options:
    for name, least in (("grace", 0), ("timeout", 1), ("rounds", 1)):
        if params[name] < least:
            raise ValueError(f"{name}: {params[name]} is too small; it must be at least {least}")
    return Options(
        kill_leftovers=params["kill_leftovers"],
        cache_paths=[_absolute(path) for path in params["cache_paths"]],
        grace=float(params["grace"]),
        timeout=float(params["timeout"]),
        rounds=params["rounds"],
        check=check,
    )


def _absolute(path: str) -> str:
    if not os.path.isabs(path):
        raise ValueError(f"cache_paths: {path!r} is not an absolute path")
    return path


def _finish(outcome: Outcome, journal: Journal) -> tuple[dict[str, t.Any], str | None]:
    outcome.evicted = [
        {
            "kind": entry["kind"],
            "name": entry.get("name"),
            "selector": entry.get("selector"),
            "restore": entry.get("restore"),
            "state": entry["state"],
            "at": entry.get("at"),
            "loaded": entry.get("before", {}).get("loaded", []),
        }
        for entry in journal.open_entries
    ]
    result = outcome.as_result(journal.path)
    if outcome.verdict in SUCCESS:
        return result, None
    return result, _failure(outcome)


def _failure(outcome: Outcome) -> str:
    """One paragraph: the verdict, the reason, who holds what, and the line that would permit stopping it."""
    parts = [f"{outcome.verdict}: {outcome.message}."]
    if outcome.verdict != "not_restored":
        for row in outcome.held_by:
            owner = row.get("owner") or {}
            holder = f"{owner.get('kind')} {owner.get('name')}" if owner.get("kind") not in (None, "process") else "process"
            size = "an unknown amount" if row.get("memory") is None else format_size(row["memory"])
            text = f"{holder}: {row.get('name')} (pid {row.get('pid')}) holds {size}"
            if row.get("listed"):
                text += "; it is listed and may be stopped"
            elif row.get("missing"):
                text += f"; {row['missing']}"
            if row.get("inventory"):
                text += f"; to permit stopping it: {' and '.join(row['inventory'].splitlines())}"
            parts.append(text + ".")
        evicted = [f"{row['kind']} {row['name']}" for row in outcome.evicted if row["kind"] != "process"]
        if evicted:
            parts.append(f"Evicted now: {', '.join(evicted)}; 'state: restored' puts back what is to be put back.")
    return " ".join(parts)
