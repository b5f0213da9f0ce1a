# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What would be stopped, in which order, and what is not, and why. Pure: a Scene and the wishes in, a Plan out.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._judge import Judge
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size, format_sizes
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tenants import Collector, Refusal, Seen, Tenant, Wishes, process_key, process_title

#: Dropping the page cache is worth it from this share of the pool on; less is what a running system keeps in any case.
CACHE_SHARE = 0.02

#: Refusals that a pattern shrugs off: a glob that happens to match a protected thing means the others.
_SOFT = ("protected",)


class Step(t.NamedTuple):
    """One thing to do. ``key`` names the thing for good, ``target`` names it for people."""

    key: str
    target: str
    layer: str  # unit, container, process, cache
    action: str
    reason: str


@dataclass
class Plan:
    """What is to be done. A ``verdict`` says that nothing is, and why."""

    verdict: str | None = None
    message: str = ""
    tenants: list[Tenant] = field(default_factory=list)
    spared: list[Tenant] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    #: pids of the processes that the driver lists and that may be stopped
    listed: set[int] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    drop_cache: bool = False
    expected: int = 0


def make_plan(scene: Scene, wishes: Wishes, seen: Seen | None = None) -> Plan:
    """Plan one round. With a verdict nothing is done, unless it is None."""
    collector = Collector(scene, wishes, seen or Seen({}))
    tenants, loose = collector.collect()
    for tenant in tenants:
        Judge(collector).judge(tenant)
    plan = Plan(refusals=[*loose, *(refusal for tenant in tenants for refusal in tenant.refusals)])
    able = [tenant for tenant in tenants if not tenant.refusals]
    plan.listed = {process["pid"] for tenant in able for process in tenant.holders}
    memory = scene.facts.get("memory") or {}
    have = memory.get("allocatable")
    if wishes.need > 0 and have is None:
        plan.verdict = "not_permitted"
        plan.message = f"on this node (class {scene.facts.get('class')}) nobody knows what a new process could get, so no need can be aimed at; use need: 0"
        return plan
    total = memory.get("total")
    if total is not None and wishes.need > total:
        plan.verdict = "not_enough"
        need_text, total_text = format_sizes(wishes.need, total)
        plan.message = f"{need_text} are wanted, which is more than the whole pool of {total_text}: no eviction can make that room"
        return plan
    hard = [refusal for refusal in plan.refusals if _is_hard(refusal, wishes)]
    if hard:
        plan.verdict = "not_permitted"
        plan.message = "; ".join(f"{refusal.target}: {refusal.reason}" for refusal in hard)
        return plan
    chosen = able
    if wishes.need > 0:
        # What is on its way back must not cost somebody else's service.
        coming = t.cast(int, have) + (seen.pending if seen else 0)
        chosen = _choose(plan, scene, able, [tenant for tenant in tenants if tenant.refusals], wishes.need, coming)
        plan.spared = [tenant for tenant in able if tenant not in chosen]
    if plan.verdict:
        return plan
    plan.tenants = chosen
    plan.expected = sum(tenant.memory for tenant in chosen)
    plan.drop_cache = wishes.drop_page_cache and cache_helps(memory, wishes.need, plan.expected)
    plan.steps = _steps(chosen, plan.drop_cache)
    if not plan.steps:
        plan.verdict = "nothing_to_do"
        plan.message = _nothing(wishes, have)
    return plan


def _is_hard(refusal: Refusal, wishes: Wishes) -> bool:
    """Whether a refusal ends it all: what was to be stopped in any case is not stopped. With a need the others may do."""
    if wishes.need > 0 and refusal.selector not in [selector.text for selector in wishes.always]:
        return False
    if refusal.code not in _SOFT:
        return True
    selector = next((each for each in wishes.stop if each.text == refusal.selector), None)
    return selector is not None and selector.kind in ("unit", "container") and not selector.is_glob


def _nothing(wishes: Wishes, have: int | None) -> str:
    if wishes.need > 0 and have is not None:
        have_text, need_text = format_sizes(have, wishes.need)
        return f"{have_text} can be had, {need_text} are wanted"
    return "nothing that runs matches"


def _choose(plan: Plan, scene: Scene, able: list[Tenant], refused: list[Tenant], need: int, have: int) -> list[Tenant]:
    """The first tenants, in order, that reach the need; then those are left out again without which it is reached as well."""
    # What the driver does not size is somewhere in the part of the pool that nobody else accounts for.
    hidden = scene.facts.get("unattributed") or 0
    chosen = [tenant for tenant in able if tenant.always]

    def reach(tenants: t.Sequence[Tenant]) -> int:
        return have + sum(tenant.memory for tenant in tenants) + (hidden if any(tenant.unknown for tenant in tenants) else 0)

    for tenant in able:
        if reach(chosen) >= need:
            break
        if tenant not in chosen:
            chosen.append(tenant)
    if reach(chosen) >= need:
        for tenant in [each for each in reversed(chosen[:-1]) if not each.always]:
            rest = [each for each in chosen if each is not tenant]
            if reach(rest) >= need:
                chosen = rest
        return chosen
    missing = need - reach(chosen)
    if refused and reach([*chosen, *refused]) >= need:
        plan.verdict = "not_permitted"
        plan.message = f"{format_size(missing)} are missing, and what would free them is not stopped: " + "; ".join(
            f"{refusal.target}: {refusal.reason}" for tenant in refused for refusal in tenant.refusals
        )
    else:
        plan.verdict = "not_enough"
        wanted, now, freed, lacking = format_sizes(need, have, sum(tenant.memory for tenant in chosen), missing)
        plan.message = f"{wanted} are wanted, {now} can be had now, and all that may be stopped would free {freed}: {lacking} are missing"
    return []


def cache_helps(memory: t.Mapping[str, t.Any], need: int, expected: int = 0) -> bool:
    """Whether dropping the page cache is worth it: there is enough of it, and what CUDA sees free is too little otherwise."""
    reclaimable, total, free = memory.get("reclaimable"), memory.get("total"), memory.get("cuda_free")
    if not reclaimable or not total or reclaimable < CACHE_SHARE * total:
        return False
    return need <= 0 or free is None or free + expected < need


def _steps(tenants: t.Sequence[Tenant], drop_cache: bool) -> list[Step]:
    steps: list[Step] = []
    if drop_cache:
        steps.append(Step("cache", "page cache", "cache", "drop", "file pages count as used for a CUDA process"))
    for tenant in tenants:
        for unit in (*tenant.companions, *tenant.units):
            if unit.starts_at_boot:
                action = "mask" if unit.file_state == "generated" else "disable"
                steps.append(Step(unit.key, unit.name, "unit", action, "the next boot would start it, before the model"))
    for tenant in tenants:
        for unit in tenant.companions:
            steps.append(Step(unit.key, unit.name, "unit", "stop", f"it would start {tenant.units[0].name} again"))
        for unit in tenant.units:
            steps.append(Step(unit.key, unit.name, "unit", "stop", _why(tenant)))
    for tenant in tenants:
        for container in tenant.containers:
            if container.policy not in ("", "no") and not container.auto_remove:
                reason = f"its restart policy '{container.policy}' would start it again"
                steps.append(Step(container.key, container.name, "container", "set_restart_policy_no", reason))
            steps.append(Step(container.key, container.name, "container", "stop", _why(tenant)))
    for tenant in tenants:
        for process in tenant.processes:
            steps.append(Step(process_key(process), process_title(process), "process", "terminate", _why(tenant)))
    return steps


def _why(tenant: Tenant) -> str:
    more = " and more that the driver does not size" if tenant.unknown else ""
    return f"'{tenant.selector.text}' matches; {tenant.title} holds {format_size(tenant.memory)}{more}"
