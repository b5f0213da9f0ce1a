# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""rank_persist from its parameters to its result: what has to lie and run on the node, and what of it does not yet."""

from __future__ import annotations

import sys
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _persist_agent
from ansible_collections.unimem.dgx_spark.plugins.module_utils._agent_archive import ArchiveError, build_archive, check_agent
from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineError, find_engines
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import (
    ARCHIVE,
    DIRECTORY,
    RECORD_FILE,
    Liveness,
    PersistError,
    PersistStore,
    Record,
    parse_record,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist_units import PersistUnits, let_go, unit_text
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_engines import Rank, RankEngine, find_ranks
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import SizeError, parse_size
from ansible_collections.unimem.dgx_spark.plugins.module_utils._unit_files import UNIT_DIRECTORY
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld, World


class Host(t.NamedTuple):
    """The machine. Tests put an invented one in its place."""

    world: World
    engines: t.Callable[[], t.Sequence[RankEngine]]
    directory: str = DIRECTORY
    unit_directory: str = UNIT_DIRECTORY
    #: Runs the agent once, and says what is wrong with it.
    prove: t.Callable[[t.Sequence[str]], str | None] = lambda command: None


def run_module(params: t.Mapping[str, t.Any], check: bool) -> tuple[dict[str, t.Any], str | None]:
    """Do what the module's parameters ask on this machine. Returns the result and, if it failed, what went wrong."""
    world = LiveWorld()
    return run(Host(world, lambda: find_engines(world)[0], prove=lambda command: check_agent(world, command)), params, check)


def run(host: Host, params: t.Mapping[str, t.Any], check: bool) -> tuple[dict[str, t.Any], str | None]:
    """As run_module, on any host."""
    deployment = params["deployment"]
    result: dict[str, t.Any] = {"changed": False, "unit": ""}
    try:
        store = PersistStore(deployment, host.directory)
        units = PersistUnits(host.world, deployment, host.unit_directory)
        result["unit"] = units.name
        result["diff"] = {"before": _shown(store, units), "after": ""}
        if params["state"] == "present":
            _keep(host, store, units, params, check, result)
        elif check:
            result["changed"] = store.exists() or units.exists()
        else:
            result["changed"] = let_go(host.world, deployment, host.directory, host.unit_directory)
    except (ArchiveError, EngineError, PersistError) as exc:
        return result, str(exc)
    return result, None


def _keep(host: Host, store: PersistStore, units: PersistUnits, params: t.Mapping[str, t.Any], check: bool, result: dict[str, t.Any]) -> None:
    ranks = find_ranks(host.engines(), params["deployment"])
    if check and len([rank for rank in ranks if rank.row["running"]]) != 1:
        # The launch that is to be kept would have come before.
        result["changed"] = True
        result["diff"]["after"] = f"{units.name} would be made\n"
        return
    record = _record(ranks, params)
    archive = build_archive(_persist_agent)
    command = [sys.executable or "/usr/bin/python3", "-I", "-B", store.path(ARCHIVE), record.deployment]
    text = unit_text(record.deployment, command, store.path(RECORD_FILE), record.tries, record.stop_seconds)
    same = {
        "record": store.text() == record.text(),
        "archive": store.archive() == archive,
        "unit": units.text() == text and units.enabled(),
        "runs": units.exists() and units.active(),
    }
    result["changed"] = not all(same.values())
    result["diff"]["after"] = record.text() + text + "runs\n"
    if check or all(same.values()):
        return
    if not same["record"] and _launch(store) != record.launch_id:
        # What keeps an older launch has nothing to keep any more, and how often that one failed says nothing of this one.
        if units.exists():
            units.stop()
        store.forget_tries()
    store.save_archive(archive)
    wrong = host.prove(command)
    if wrong:
        raise PersistError(f"the node cannot keep the rank: '{' '.join(command)} check' {wrong}")
    store.save(record)
    if not same["unit"]:
        units.write(text)
    if not units.active():
        units.start()


def _record(ranks: t.Sequence[Rank], params: t.Mapping[str, t.Any]) -> Record:
    """The one rank of the deployment that runs here, and what was told of it."""
    running = [rank for rank in ranks if rank.row["running"]]
    if len(running) != 1:
        raise PersistError(f"deployment {params['deployment']} has {len(running)} ranks that run on this node, and one is what can be kept")
    rank = running[0]
    if params["tries"] < 1:
        raise PersistError(f"tries: {params['tries']} is too small; it must be at least 1")
    try:
        floor = parse_size(params["floor"], "floor") if params["floor"] else 0
    except SizeError as exc:
        raise PersistError(str(exc)) from exc
    peers = [address for address in params["addresses"] if address != params["address"]]
    if params["address"] not in params["addresses"]:
        raise PersistError(f"address: {params['address']} is not among the addresses {', '.join(params['addresses'])}")
    return Record(
        deployment=params["deployment"],
        launch_id=str(rank.row["launch_id"]),
        container=rank.id,
        name=rank.name,
        rank=int(rank.row["rank"]),
        address=params["address"],
        head=params["addresses"][0],
        control_port=params["control_port"],
        peers=peers,
        probe_port=params["probe_port"],
        tries=params["tries"],
        stop_seconds=params["stop_timeout"],
        floor=floor,
        liveness=_liveness(params["liveness"]) if rank.row["rank"] == 0 and params["liveness"] else None,
    )


def _liveness(told: t.Mapping[str, t.Any]) -> Liveness:
    for name, least in (("interval", 5), ("timeout", 1), ("failures", 1)):
        if told[name] < least:
            raise PersistError(f"liveness.{name}: {told[name]} is too small; it must be at least {least}")
    return Liveness(
        url=told["url"].rstrip("/"),
        model=told["model"],
        prompt=told["prompt"],
        interval=float(told["interval"]),
        timeout=float(told["timeout"]),
        failures=told["failures"],
        key_variable=told["key_variable"] or "",
    )


def _launch(store: PersistStore) -> str:
    try:
        return parse_record(store.text()).launch_id
    except PersistError:
        return ""


def _shown(store: PersistStore, units: PersistUnits) -> str:
    """What is there, for the diff. What cannot be read is replaced all the same."""
    if not (store.exists() or units.exists()):
        return ""
    return store.text() + units.text() + ("runs\n" if units.active() else "does not run\n")
