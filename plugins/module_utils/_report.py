# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What a deployment found, did and measured, for people (lines) and for machines (data).

Everything comes from facts and results that the play holds already: nothing is read here, and what is missing is left out.
"""

from __future__ import annotations

import copy
import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import is_rank_of
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size
from ansible_collections.unimem.dgx_spark.plugins.module_utils._verdicts import words as verdict_words

#: What an engine prints, and the class that people call it by. The first that is found in the earliest log decides.
CAUSES: tuple[tuple[str, str], ...] = (
    ("CUDA error: out of memory", "memory"),
    ("CUDA out of memory", "memory"),
    ("Free memory on device", "memory"),
    ("KV cache is needed, which is larger", "memory"),
    ("memory capacity is unbalanced", "memory"),
    ("Address already in use", "port"),
    ("address already in use", "port"),
    ("DistStoreError", "network"),
    ("NCCL error", "network"),
    ("Gloo connectFullMesh failed", "network"),
    ("Connection refused", "network"),
    ("No such file or directory", "model"),
    ("is not a valid model", "model"),
    ("Timed out", "timeout"),
)


def without_ranks(facts: Mapping[str, t.Any], deployment: str) -> dict[str, t.Any]:
    """The facts as they would be without this deployment's own ranks.

    What the driver says that they hold is given back to the pool. What their processes hold beside that (a serving process, Ray) is
    not known to the facts, so the result is on the safe side.
    """
    result = copy.deepcopy(dict(facts))
    processes = result.get("processes") or []
    held = sum(int(process.get("memory") or 0) for process in processes if is_rank_of(process, deployment))
    result["processes"] = [process for process in processes if not is_rank_of(process, deployment)]
    memory = result.get("memory") or {}
    total = memory.get("total")
    for figure in ("free", "available", "cuda_free", "allocatable"):
        if memory.get(figure) is not None:
            memory[figure] = int(memory[figure]) + held if total is None else min(int(memory[figure]) + held, int(total))
    return result


def holders(facts: Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    """Who holds memory at the driver: one entry an owner, the largest first. Memory nobody can size stays null."""
    owners: dict[tuple[str, str], dict[str, t.Any]] = {}
    for process in facts.get("processes") or []:
        owner = process.get("owner") or {}
        kind = str(owner.get("kind") or "process")
        name = str(owner.get("unit") or owner.get("name") or process.get("name") or process.get("pid"))
        if kind == "container":
            name = str(owner.get("name") or name)
        if kind == "process":
            name = f"{process.get('name')} ({process.get('pid')})"
        entry = owners.setdefault((kind, name), {"kind": kind, "name": name, "memory": 0})
        size = process.get("memory")
        entry["memory"] = None if size is None or entry["memory"] is None else entry["memory"] + int(size)
    return sorted(owners.values(), key=lambda entry: -(entry["memory"] or 0))


def node_report(host: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What a host's variables say of a run: small, without anything that is not about memory, budget, eviction or failure."""
    facts = host.get("ansible_facts") or {}
    eviction = host.get("deploy_eviction") or {}
    moments = {"before": host.get("deploy_before"), "at_launch": host.get("deploy_at_launch"), "after": facts.get("gpu_memory")}
    failure = host.get("deploy_failure") or {}
    return {
        "moments": {
            name: {"memory": dict(found.get("memory") or {}), "holders": holders(found), "class": found.get("class")}
            for name, found in moments.items()
            if isinstance(found, Mapping)
        },
        "budget": dict(host.get("deploy_budget") or {}),
        "actions": [dict(action) for action in eviction.get("actions") or []],
        "eviction": eviction.get("message"),
        "failure": {"task": str(failure.get("task") or ""), "message": str(failure.get("message") or "")} if failure else None,
        "trouble": [str(entry) for entry in host.get("deploy_trouble") or []],
        "log": [str(line) for line in host.get("tp_launch_logs") or []],
    }


def _size(value: t.Any) -> str:
    return "unknown" if value is None else format_size(int(value))


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as what is in them: the first to the left, the figures to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows
    ]


def _pool_lines(node: Mapping[str, t.Any]) -> list[str]:
    """The pool before the run, at the launch and after it, and who held what."""
    moments = {name: node["moments"][name] for name in ("before", "at_launch", "after") if name in node["moments"]}
    if not moments:
        return ["  its memory could not be read"]
    titles = {"before": "before", "at_launch": "at the launch", "after": "after"}
    figures = (("free", "free"), ("page cache", "page_cache"), ("a new CUDA process can get", "allocatable"))
    rows = [["pool of " + _size(next(iter(moments.values()))["memory"].get("total")), *(titles[name] for name in moments)]]
    for title, key in figures:
        rows.append(["  " + title, *(_size(moment["memory"].get(key)) for moment in moments.values())])
    names: list[tuple[str, str]] = []
    for moment in moments.values():
        names += [(entry["kind"], entry["name"]) for entry in moment["holders"] if (entry["kind"], entry["name"]) not in names]
    for kind, name in names:
        cells = []
        for moment in moments.values():
            found = [entry for entry in moment["holders"] if (entry["kind"], entry["name"]) == (kind, name)]
            cells.append(_size(found[0]["memory"]) if found else "-")
        rows.append([f"  held by {kind} {name}", *cells])
    return ["  " + line for line in _table(rows)]


def _budget_lines(node: Mapping[str, t.Any]) -> list[str]:
    budget = node["budget"]
    if not budget:
        return []
    lines = [f"  predicted: a rank needs {_size(budget.get('need'))}, {verdict_words(budget.get('verdict'))}"]
    moments = node["moments"]
    launch, after = moments.get("at_launch"), moments.get("after")
    taken = budget.get("will_take")
    if launch and after and taken is not None and launch["memory"].get("available") is not None:
        measured = int(launch["memory"]["available"]) - int(after["memory"]["available"])
        if measured > 0:
            error = 100.0 * (int(taken) - measured) / measured
            lines.append(f"  measured:  it took {_size(measured)}; predicted {_size(taken)} ({error:+.1f} %)")
    return lines


def _action_lines(node: Mapping[str, t.Any]) -> list[str]:
    lines = []
    for action in node["actions"]:
        why = f" ({action['reason']})" if action.get("reason") else ""
        lines.append(f"  {action.get('action')} {action.get('layer')} {action.get('target')}: {action.get('result')}{why}")
    return lines or ["  nothing was stopped"]


def classify(nodes: Mapping[str, Mapping[str, t.Any]]) -> dict[str, t.Any] | None:
    """The class of a failure and the line that shows it, from the ranks' logs: by the earliest time stamp, memory before anything else.

    A rank that runs out of memory is drowned by the others' complaints about the network, so that memory wins over an earlier line.
    """
    found = []
    for name, node in nodes.items():
        for line in node["log"]:
            stamp = line.split(" ", 1)[0]
            for words, kind in CAUSES:
                if words in line:
                    found.append((0 if kind == "memory" else 1, stamp, name, kind, line.split(" ", 1)[-1].strip()))
                    break
    if not found:
        return None
    _rank, _stamp, name, kind, line = min(found)
    return {"class": kind, "node": name, "line": line}


def _failure_cause(nodes: Mapping[str, Mapping[str, t.Any]], unreachable: Sequence[str], known: Mapping[str, t.Any] | None) -> str:
    if unreachable:
        return f"out of reach: {', '.join(unreachable)}. What ran there could not be stopped or restored from here"
    own = [(name, node["failure"]) for name, node in nodes.items() if node["failure"] and node["failure"]["message"]]
    if known:
        return f"{known['class']}: {known['node']} says: {known['line']}"
    if own:
        name, failure = own[0]
        return f"{name}: {failure['message']} (in the task '{failure['task']}')"
    return "a task failed; its own message is above"


def deploy_report(nodes: Mapping[str, Mapping[str, t.Any]], common: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """``lines`` for people, ``data`` for machines and, for a failure, its ``cause`` in a sentence.

    ``nodes`` maps each host to its node_report; ``common`` has model, engine, check, failed, unreachable, group and result.
    """
    result = dict(common.get("result") or {})
    group = dict(common.get("group") or {})
    unreachable = [str(name) for name in common.get("unreachable") or []]
    failed = bool(common.get("failed"))
    where = ", ".join(nodes)
    cause = ""
    known = classify(nodes) if failed else None
    if failed:
        cause = _failure_cause(nodes, unreachable, known)
        lines = [f"FAILED: {cause}"]
    elif common.get("check"):
        lines = [f"{common.get('model')} with {common.get('engine')} on {where}: looked at, nothing changed"]
    elif group.get("answers"):
        lines = [f"{common.get('model')} with {common.get('engine')} on {where}: it ran already as wanted and answers; nothing changed"]
    else:
        lines = [f"{common.get('model')} with {common.get('engine')} on {where}: deployed"]
    for name, node in nodes.items():
        lines += ["", name, *_pool_lines(node)]
        # Beside a group that runs already nothing was predicted for a launch, and nothing was to be stopped.
        if not group.get("answers"):
            lines += [*_budget_lines(node), *_action_lines(node)]
        lines += [f"  trouble: {entry}" for entry in node["trouble"]]
        if failed and node["failure"] and node["failure"]["message"]:
            lines.append(f"  failed: {node['failure']['message'].splitlines()[0]}")
    if result.get("completion"):
        pool = result.get("kv_pool") or {}
        predicted = next((node["budget"].get("kv_tokens") for node in nodes.values() if node["budget"]), None)
        lines += ["", f"launch    {result.get('launch_id')}, {len(result.get('ranks') or [])} ranks"]
        if pool.get("tokens") is not None:
            said = "" if predicted is None else f"; predicted {int(predicted):,}"
            lines.append(f"KV pool   {int(pool['tokens']):,} tokens, as the engine says{said}")
        lines += [
            f"endpoint  {result.get('endpoint')}",
            f"prompt    {result['completion'].get('prompt')}",
            f"tokens    {result['completion'].get('tokens')}: {str(result['completion'].get('text')).strip()}",
        ]
    return {
        "lines": lines,
        "cause": cause,
        "data": {
            "failed": failed,
            "cause": cause,
            "class": known["class"] if known else None,
            "model": common.get("model"),
            "engine": common.get("engine"),
            "unreachable": unreachable,
            "nodes": {name: dict(node) for name, node in nodes.items()},
            "launch": result,
        },
    }
