# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What a deployment found, did and measured, for people (lines) and for machines (data).

Everything comes from facts and results that the play holds already: nothing is read here, and what is missing is left out.
"""

from __future__ import annotations

import json
import re
import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import is_rank_of
from ansible_collections.unimem.dgx_spark.plugins.module_utils._verdicts import words as verdict_words
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._diagnosis import diagnose, page
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._html_report import measured, render
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._load_progress import stage
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._text import size, table

#: What rank_info returned for a host, as it is taken over.
READINGS = ("ranks", "engine", "journal", "docker", "links", "disks", "ports", "clock")


def without_ranks(facts: Mapping[str, t.Any], deployment: str, at_best: bool = False) -> dict[str, t.Any]:
    """The facts as they would be without this deployment's own ranks.

    What the driver says that they hold is given back to the pool. What their processes hold beside that (a serving process, Ray) is
    not known to the facts, so the result is on the safe side. `at_best` is on the other one: all of the pool is free but for what
    the driver lists for others, so that what does not fit then never will.
    """
    # Not a deep copy: what a template hands over is slow to copy, and only the two parts that change are made anew.
    result = dict(facts)
    processes = result.get("processes") or []
    held = sum(int(process.get("memory") or 0) for process in processes if is_rank_of(process, deployment))
    result["processes"] = [process for process in processes if not is_rank_of(process, deployment)]
    memory = result["memory"] = dict(result.get("memory") or {})
    total = memory.get("total")
    others = sum(int(process.get("memory") or 0) for process in result["processes"])
    for figure in ("free", "available", "cuda_free", "allocatable"):
        if memory.get(figure) is not None and at_best and total is not None:
            memory[figure] = max(int(memory[figure]), int(total) - others)
        elif memory.get(figure) is not None:
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
        held = process.get("memory")
        entry["memory"] = None if held is None or entry["memory"] is None else entry["memory"] + int(held)
    return sorted(owners.values(), key=lambda entry: -(entry["memory"] or 0))


def node_report(host: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What a host's variables say of a run: without anything that is not about memory, budget, eviction, ranks or failure."""
    facts = host.get("ansible_facts") or {}
    eviction = host.get("deploy_eviction") or {}
    moments = {"before": host.get("deploy_before"), "at_launch": host.get("deploy_at_launch"), "after": facts.get("gpu_memory")}
    failure = host.get("deploy_failure") or {}
    readings = host.get("tp_launch_readings") or {}
    return {
        "moments": {
            name: {"memory": dict(found.get("memory") or {}), "holders": holders(found), "class": found.get("class")}
            for name, found in moments.items()
            if isinstance(found, Mapping)
        },
        "budget": dict(host.get("deploy_budget") or {}),
        "actions": [dict(action) for action in eviction.get("actions") or []],
        "eviction": eviction.get("message"),
        "trajectory": [list(entry) for entry in eviction.get("trajectory") or []],
        "times": dict(host.get("deploy_times") or {}),
        "readings_at": readings.get("read_at"),
        "fired": dict(host.get("deploy_fired") or {}),
        "failure": {"task": str(failure.get("task") or ""), "message": str(failure.get("message") or "")} if failure else None,
        "trouble": [str(entry) for entry in host.get("deploy_trouble") or []],
        "doubts": [str(entry) for entry in host.get("tp_launch_doubts") or []],
        "facts": {name: dict(found) for name, found in moments.items() if isinstance(found, Mapping)},
        **{name: readings[name] for name in READINGS if name in readings},
    }


def _pool_lines(node: Mapping[str, t.Any]) -> list[str]:
    """The pool before the run, at the launch and after it, and who held what."""
    moments = {name: node["moments"][name] for name in ("before", "at_launch", "after") if name in node["moments"]}
    if not moments:
        return ["  its memory could not be read"]
    titles = {"before": "before" if len(moments) > 1 else "now", "at_launch": "at the launch", "after": "after"}
    figures = (("free", "free"), ("page cache", "page_cache"), ("a new CUDA process can get", "allocatable"))
    rows = [["pool of " + size(next(iter(moments.values()))["memory"].get("total")), *(titles[name] for name in moments)]]
    for title, key in figures:
        rows.append(["  " + title, *(size(moment["memory"].get(key)) for moment in moments.values())])
    names: list[tuple[str, str]] = []
    for moment in moments.values():
        names += [(entry["kind"], entry["name"]) for entry in moment["holders"] if (entry["kind"], entry["name"]) not in names]
    for kind, name in names:
        cells = []
        for moment in moments.values():
            found = [entry for entry in moment["holders"] if (entry["kind"], entry["name"]) == (kind, name)]
            cells.append(size(found[0]["memory"]) if found else "-")
        rows.append([f"  held by {kind} {name}", *cells])
    return ["  " + line for line in table(rows)]


def _budget_lines(node: Mapping[str, t.Any]) -> list[str]:
    budget = node["budget"]
    if not budget:
        return []
    lines = [f"  predicted: a rank needs {size(budget.get('need'))}, {verdict_words(budget.get('verdict'))}"]
    lines += [f"  doubtful:  {problem.get('message')}" for problem in budget.get("problems") or []]
    pair = measured(node)
    if pair is not None:
        taken, took = pair
        lines.append(f"  measured:  it took {size(took)}; predicted {size(taken)} ({100.0 * (taken - took) / took:+.1f} %)")
    return lines


def _action_lines(node: Mapping[str, t.Any]) -> list[str]:
    lines = []
    for action in node["actions"]:
        why = f" ({action['reason']})" if action.get("reason") else ""
        lines.append(f"  {action.get('action')} {action.get('layer')} {action.get('target')}: {action.get('result')}{why}")
    return lines or ["  nothing was stopped"]


def _small(node: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """A node's report without what has a file of its own: whole facts, and the lines of logs."""
    result = {name: value for name, value in node.items() if name not in ("facts", "journal")}
    result["ranks"] = [
        {**rank, "log": {name: value for name, value in (rank.get("log") or {}).items() if name not in ("head", "tail")}} for rank in node.get("ranks") or []
    ]
    return result


def _json(value: t.Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, default=str) + "\n"


def _files(nodes: Mapping[str, Mapping[str, t.Any]], lines: Sequence[str], data: Mapping[str, t.Any]) -> dict[str, str]:
    """What a diagnosis keeps, by relative path: the first page, everything for machines, and for each node what it said."""
    files = {"00-cause.txt": "\n".join(lines) + "\n", "report.json": _json(data)}
    for name, node in nodes.items():
        place = file_name(name)
        for moment, facts in (node.get("facts") or {}).items():
            files[f"{place}/memory-{moment}.json"] = _json(facts)
        for rank in node.get("ranks") or []:
            log = rank.get("log") or {}
            between = [f"... {log['left_out']} lines left out ..."] if log.get("left_out") else []
            known = [f"... it could not be read: {log['reason']}"] if log.get("reason") else []
            base = f"{place}/{file_name(str(rank.get('container') or 'rank'))}"
            files[f"{base}.log"] = "\n".join([*(log.get("head") or []), *between, *(log.get("tail") or []), *known]) + "\n"
            files[f"{base}.json"] = _json({key: value for key, value in rank.items() if key != "log"})
        journal = node.get("journal") or {}
        if journal.get("lines"):
            files[f"{place}/journal.log"] = "\n".join(journal["lines"]) + "\n"
    return files


def file_name(name: str) -> str:
    """A name from outside as one part of a path: never empty, hidden, a way up, or with a slash in it."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", str(name))[:100].lstrip(".")
    return plain or "_"


def deploy_report(nodes: Mapping[str, Mapping[str, t.Any]], common: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """``lines`` for people, ``data`` for machines and, for a failure, its ``cause`` in a sentence.

    ``nodes`` maps each host to its node_report; ``common`` has model, engine, check, failed, unreachable, group, result, steps and at (when it ended).
    """
    result = dict(common.get("result") or {})
    group = dict(common.get("group") or {})
    unreachable = [str(name) for name in common.get("unreachable") or []]
    failed = bool(common.get("failed"))
    if common.get("check") or (group.get("answers") and not failed):
        # Nothing was launched, so what is there now is what was there before, and nothing was measured.
        nodes = {name: {**node, "moments": {moment: found for moment, found in node["moments"].items() if moment == "before"}} for name, node in nodes.items()}
    where = ", ".join(nodes)
    cause = ""
    diagnosis: dict[str, t.Any] | None = None
    if failed:
        diagnosis = diagnose(nodes, unreachable)
        cause = diagnosis["sentence"] or "a task failed; its own message is above"
        lines = [f"FAILED: {cause}", "", *page(diagnosis, nodes)]
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
            lines += [f"  doubtful: {entry}" for entry in node.get("doubts") or []]
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
    data = {
        "failed": failed,
        "cause": cause,
        "class": diagnosis["class"] if diagnosis else None,
        "diagnosis": diagnosis,
        "model": common.get("model"),
        "engine": common.get("engine"),
        "unreachable": unreachable,
        "nodes": {name: _small(node) for name, node in nodes.items()},
        "launch": result,
    }
    shown = render(nodes, common, lines, diagnosis, common.get("at"))
    return {"lines": lines, "cause": cause, "data": data, "html": shown, "files": {**_files(nodes, lines, data), "report.html": shown}}


def group_lines(nodes: Mapping[str, Mapping[str, t.Any]], unreachable: Sequence[str], answer: Mapping[str, t.Any], engine: str) -> tuple[str, list[str]]:
    """Of a deployment as it is found: one word for it, and how each rank is.

    The word is ``answers``, ``starting``, ``silent`` (all ranks run and no token comes back), ``incomplete`` (ranks missing, ended, or of several
    launches), ``absent`` or ``unknown`` (no node can be asked).
    ``answer`` has ``text`` (what came back for a prompt, or nothing) and ``why`` (why nothing did).
    """
    ranks = [(name, rank) for name, node in nodes.items() for rank in node.get("ranks") or []]
    lines = []
    for name, rank in sorted(ranks, key=lambda entry: (int(entry[1].get("rank", -1)), entry[0])):
        log = rank.get("log") or {}
        how = stage([*(log.get("head") or []), *(log.get("tail") or [])], engine) if rank.get("running") else ""
        ended = "" if rank.get("running") else f", status {rank.get('exit_status')}"
        health = f", {rank['health']}" if rank.get("health") else ""
        lines.append(f"rank {rank.get('rank')} on {name}: {rank.get('status')}{ended}{health}, launch {rank.get('launch_id')}" + (f"; it {how}" if how else ""))
    running = [rank for _name, rank in ranks if rank.get("running")]
    launches = {rank.get("launch_id") for _name, rank in ranks}
    expected = len(nodes) + len([name for name in unreachable if name not in nodes])
    if not ranks:
        state = "absent" if any(name not in unreachable for name in nodes) else "unknown"
    elif len(running) < expected or len(ranks) != len(running) or len(launches) > 1:
        state = "incomplete"
    elif answer.get("text"):
        state = "answers"
    elif all(rank.get("ready") for rank in running):
        state = "silent"
    else:
        state = "starting"
    return state, lines


#: How each of group_lines' words reads.
STATES = {
    "answers": "it answers: all of its ranks run, and tokens came back",
    "starting": "it is starting: all of its ranks run, and it is not ready yet",
    "silent": "all of its ranks run and say that they are ready, and no token comes back",
    "incomplete": "it is not whole: ranks are missing, have ended, or are of several launches",
    "absent": "no rank of it is there",
    "unknown": "whether it has ranks is not known, since no node can be reached",
}


def diagnose_report(nodes: Mapping[str, Mapping[str, t.Any]], common: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Of a deployment as it is found, whatever its state: ``state``, ``lines``, ``cause``, ``data`` and ``files`` as deploy_report has them.

    ``common`` has name, engine, unreachable and answer (see group_lines).
    """
    unreachable = [str(name) for name in common.get("unreachable") or []]
    answer = dict(common.get("answer") or {})
    state, ranks = group_lines(nodes, unreachable, answer, str(common.get("engine")))
    diagnosis = diagnose(nodes, unreachable)
    lines = [f"deployment {common.get('name')}: {STATES[state]}"]
    if answer.get("why") and state in ("silent", "starting", "incomplete"):
        lines.append(f"its endpoint: {answer['why']}")
    lines += ["", *ranks] if ranks else []
    # What is found in the logs of a group that answers has not kept it from answering.
    cause = "" if state in ("answers", "starting") else str(diagnosis["sentence"])
    if cause:
        lines += ["", f"The cause: {cause}", "", *page(diagnosis, nodes)]
    elif unreachable:
        lines += ["", f"out of reach: {', '.join(unreachable)}"]
    for name, node in nodes.items():
        lines += ["", name, *_pool_lines(node)]
        if node.get("engine") and not cause:  # else the first page has it already
            lines.append(f"  its container engine could not be asked: {node['engine']}")
        for port, found in sorted((node.get("ports") or {}).items()):
            if found.get("why"):
                lines.append(f"  port {port} is taken: {'; '.join(found.get('users') or []) or found['why']}")
        lines += [f"  {disk['path']} has {size(disk['free'])} of {size(disk['total'])} left" for disk in node.get("disks") or []]
        lines += [f"  {link['name']} is down" for link in node.get("links") or [] if not (link.get("up") and link.get("carrier"))]
    data = {
        "deployment": common.get("name"),
        "state": state,
        "cause": cause,
        "class": diagnosis["class"] if cause else None,
        "diagnosis": diagnosis,
        "engine": common.get("engine"),
        "unreachable": unreachable,
        "answer": answer,
        "nodes": {name: _small(node) for name, node in nodes.items()},
    }
    return {"state": state, "lines": lines, "cause": cause, "data": data, "files": _files(nodes, lines, data)}
