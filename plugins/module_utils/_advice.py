# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is missing for a process to be stopped: the entries to list, or what no entry would change. Pure.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

Nobody guesses here: the entries are tried with the rules that will be asked when they are listed.
"""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.unimem.dgx_spark.plugins.module_utils._judge import Judge
from ansible_collections.unimem.dgx_spark.plugins.module_utils._permits import Permit, permit_of
from ansible_collections.unimem.dgx_spark.plugins.module_utils._protect import protected_unit
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import Selector, SelectorError, parse_selector
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tenants import Collector, Refusal, Seen, Wishes, process_title

#: Each entry may show what else would have to be listed.
_MOST_TRIES = 8


class Advice(t.NamedTuple):
    """``permits``: the entries that would do, with the rights where ``missing`` says so. ``missing``: why it is not stopped now."""

    permits: list[Permit]
    missing: str


def advise(scene: Scene, wishes: Wishes, seen: Seen, process: t.Mapping[str, t.Any]) -> Advice:
    """What would have to be so for this process of the driver's list to be stopped."""
    added: dict[Selector, Permit] = {}
    reasons: list[str] = []
    for _try in range(_MOST_TRIES):
        collector = Collector(scene, _with(wishes, added), seen)
        tenants, loose = collector.collect()
        tenant = next((each for each in tenants if any(holder["pid"] == process["pid"] for holder in each.holders)), None)
        if tenant is None:
            told = [refusal for refusal in loose if refusal.target == process_title(process)]
            wanted = [permit for permit in (permit_of(scene, process),) if permit is not None]
            _note(reasons, [refusal.reason for refusal in told] or (["it is not listed"] if wanted else [_why_never(collector, process)]))
        else:
            Judge(collector).judge(tenant)
            if not tenant.refusals:
                return Advice(list(added.values()), "; ".join(reasons))
            _note(reasons, [_about(refusal, process) for refusal in tenant.refusals])
            wanted = [refusal.permit for refusal in tenant.refusals if refusal.permit is not None]
            if any(refusal.permit is None and refusal.code != "rights" for refusal in tenant.refusals):
                return Advice([], "; ".join(reasons))
        if not _add(added, wishes, wanted):
            only_rights = tenant is not None and all(refusal.code == "rights" for refusal in tenant.refusals)
            return Advice(list(added.values()) if only_rights else [], "; ".join(reasons))
    return Advice([], "; ".join(reasons))


def _with(wishes: Wishes, added: t.Mapping[Selector, Permit]) -> Wishes:
    """The wishes as they would be with these entries."""
    stop = [*wishes.stop, *(selector for selector in added if selector not in wishes.stop)]
    return replace(wishes, stop=stop, restore={**wishes.restore, **{selector: permit.restore for selector, permit in added.items()}})


def _add(added: dict[Selector, Permit], wishes: Wishes, wanted: t.Sequence[Permit]) -> bool:
    """Add entries; whether any says more than what is listed already."""
    new = False
    for permit in wanted:
        try:
            selector = parse_selector(permit.selector)
        except SelectorError:
            continue  # a name that no selector can hold
        listed = added[selector].restore if selector in added else wishes.policy(selector) if selector in wishes.stop else None
        if listed is None or (listed != permit.restore and permit.restore == "never"):
            added[selector] = permit
            new = True
    return new


def _note(reasons: list[str], more: t.Sequence[str]) -> None:
    reasons.extend(reason for reason in more if reason and reason not in reasons)


def _about(refusal: Refusal, process: t.Mapping[str, t.Any]) -> str:
    return refusal.reason if refusal.target == process_title(process) else f"{refusal.target}: {refusal.reason}"


def _why_never(collector: Collector, process: t.Mapping[str, t.Any]) -> str:
    """Why there is no entry that would permit stopping a process."""
    member = collector.scene.members.get(process["pid"])
    if member is None:
        return "/proc does not show it (another PID namespace?), so that it cannot be identified"
    if member.protected:
        return f"it is never stopped: {member.protected}"
    if member.runtime in ("kubernetes", "crio"):
        return "it belongs to a Kubernetes pod; scale it down in the cluster"
    if member.container is not None:
        return f"it is in a container that cannot be stopped: {collector.unasked()}"
    name = collector.scene.units[member.unit].name if member.unit in collector.scene.units else ""
    return f"it is never stopped: {protected_unit(name)}" if name else "nothing would permit stopping it"
