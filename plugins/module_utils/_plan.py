# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What would be stopped, in which order, and what is not, and why. Pure: a Scene and the wishes in, a Plan out.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

The unit of thought is the tenant: what has to be stopped together, because its parts stop with each other or start each
other again. A tenant is stopped as a whole or not at all. In doubt it is not, and the refusal says why.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container
from ansible_collections.unimem.dgx_spark.plugins.module_utils._protect import protected_unit
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Member, Scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import Selector
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import Unit, unit_key

#: Units that start a service again, and can be stopped and started themselves.
COMPANIONS = (".socket", ".timer", ".path")

#: Dropping the page cache is worth it from this share of the pool on; less is what a running system keeps in any case.
CACHE_SHARE = 0.02

RESTORE_POLICIES = ("on_failure", "on_undeploy", "never")

#: Refusals that a pattern shrugs off: a glob that happens to match a protected thing means the others.
_SOFT = ("protected",)


_MUST_BE_NEVER = "its restore policy would have to be 'never'"


class Refusal(t.NamedTuple):
    """Something that matched and is not stopped."""

    target: str
    code: str  # protected, takes_along, revived, lost, rights, unknown, refuses
    reason: str
    selector: str
    permit: str | None = None  # the selector that would have to be listed too


class Step(t.NamedTuple):
    """One thing to do. ``key`` names the thing for good, ``target`` names it for people."""

    key: str
    target: str
    layer: str  # unit, container, process, cache
    action: str
    reason: str


@dataclass
class Wishes:
    """What the user asked for."""

    stop: list[Selector] = field(default_factory=list)
    protect: list[Selector] = field(default_factory=list)
    need: int = 0
    #: those of ``stop`` whose matches are stopped even where the need does not ask for it
    always: list[Selector] = field(default_factory=list)
    drop_page_cache: bool = False
    #: when what a selector matches is put back; ``never``: it may be lost
    restore: dict[Selector, str] = field(default_factory=dict)

    def policy(self, selector: Selector) -> str:
        """When what this selector matches is put back."""
        return self.restore.get(selector, "on_failure")


@dataclass
class Tenant:
    """What has to be stopped together."""

    key: str
    selector: Selector
    always: bool = False
    units: list[Unit] = field(default_factory=list)
    companions: list[Unit] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    processes: list[dict[str, t.Any]] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    holders: list[dict[str, t.Any]] = field(default_factory=list)
    memory: int = 0
    unknown: bool = False
    policy: str = "on_failure"
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its name for people."""
        if self.units:
            return self.units[0].name
        if self.containers:
            return f"container {self.containers[0].name}"
        return process_title(self.processes[0]) if self.processes else self.key


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


class Seen(t.NamedTuple):
    """What earlier rounds of the same run did."""

    #: identities (pid, start time) that belonged to what was stopped
    belonged: t.Mapping[tuple[int, int], Selector]
    #: keys of containers that their engine says have ended
    ended: t.Collection[str] = ()
    #: bytes of what was stopped that are not back in the pool yet
    pending: int = 0


def process_title(process: t.Mapping[str, t.Any]) -> str:
    """A process for people: name and pid."""
    return f"{process.get('name') or 'process'} (pid {process.get('pid')})"


def process_key(process: t.Mapping[str, t.Any]) -> str:
    """The key of a process in the journal and in plans; with the boot id of the scene it is its identity."""
    return f"process:{process.get('pid')}:{process.get('start_time')}"


def permit_selector(scene: Scene, process: t.Mapping[str, t.Any]) -> str | None:
    """The selector that would have to be listed for this process to be stopped; None where nothing would permit it."""
    if process.get("protected"):
        return None
    member = scene.members.get(process["pid"])
    if member is None or member.protected or member.runtime in ("kubernetes", "crio"):
        return None
    container = scene.containers.get(member.container or "")
    if container is not None:
        wrapper = next(iter(scene.wrappers(container.key)), None)
        return f"unit:{scene.units[wrapper].name}" if wrapper else f"container:{container.name}"
    if member.container is not None:
        return None
    unit = scene.units.get(member.unit or "")
    if unit is not None:
        return None if protected_unit(unit.name) else f"unit:{unit.name}"
    return f"process:{member.name}"


def _matches_member(selector: Selector, member: Member) -> bool:
    """Whether a selector for processes or users matches a process of this node."""
    if selector.kind == "user":
        return selector.matches_user(member.user, member.uid)
    return selector.matches_process_name(member.name, (member.argv[0] if member.argv else None, member.executable))


class _Collector:
    """Finds the tenants that the wishes match. The rules are in the methods, one a rule."""

    def __init__(self, scene: Scene, wishes: Wishes, seen: Seen) -> None:
        self.scene = scene
        self.wishes = wishes
        self.seen = seen
        self.units: dict[str, Selector] = {}
        self.containers: dict[str, Selector] = {}
        self.processes: dict[int, Selector] = {}
        self.loose: list[Refusal] = []

    def collect(self) -> tuple[list[Tenant], list[Refusal]]:
        """The tenants in the order of the selectors, each with its refusals, and refusals that belong to none."""
        for selector in self.wishes.stop:
            self._match(selector)
        for process in self.scene.holders:
            origin = self.seen.belonged.get((process["pid"], process.get("start_time") or -1))
            if origin is not None:
                self.processes.setdefault(process["pid"], origin)
        self._add_wrappers()
        tenants = self._grow()
        for tenant in tenants:
            self._measure(tenant)
            self._judge(tenant)
        order = {selector.text: index for index, selector in enumerate(self.wishes.stop)}
        tenants.sort(key=lambda tenant: order.get(tenant.selector.text, len(order)))
        return tenants, self.loose

    # What matches

    def _match(self, selector: Selector) -> None:
        scene = self.scene
        if selector.kind == "unit":
            for unit in scene.units.values():
                if any(selector.matches_unit(name) for name in (unit.name, *unit.names)):
                    self._match_unit(unit, selector)
        elif selector.kind == "container":
            for container in scene.containers.values():
                if selector.matches_container(container.name, container.id):
                    self.containers.setdefault(container.key, selector)
        else:
            for process in scene.holders:
                if self._matches_process(selector, process):
                    self._match_process(process, selector)

    def _match_unit(self, unit: Unit, selector: Selector) -> None:
        if unit.running:
            self.units.setdefault(unit.key, selector)
        for key in self.scene.wraps.get(unit.key, []):
            self.containers.setdefault(key, selector)
        if not unit.running:
            # What a dead unit left behind (KillMode=process): only what the driver lists.
            left = {member.pid for member in self.scene.of_unit(unit.key) if not member.container}
            for process in self.scene.holders:
                if process["pid"] in left:
                    self.processes.setdefault(process["pid"], selector)

    def _matches_process(self, selector: Selector, process: t.Mapping[str, t.Any]) -> bool:
        member = self.scene.members.get(process["pid"])
        if selector.kind == "user":
            return selector.matches_user(process.get("user"), member.uid if member else process.get("uid"))
        if member is None or process.get("start_time") != member.start_time:
            return selector.matches(process)
        return _matches_member(selector, member)

    def _match_process(self, process: dict[str, t.Any], selector: Selector) -> None:
        """A process stands for its owner if that is a service or container all of whose GPU processes match."""
        member = self.scene.members.get(process["pid"])
        if member is None or (member.container is None and not self._running_unit(member.unit)):
            self.processes.setdefault(process["pid"], selector)
            return
        if member.container is not None and member.container not in self.scene.containers:
            where = f"container {member.container.split(':')[1][:12]}" + (f" of {member.runtime}" if member.runtime else "")
            why = "Kubernetes would start it again; scale it down in the cluster" if member.runtime in ("kubernetes", "crio") else self._unasked()
            self.loose.append(Refusal(process_title(process), "unknown", f"it is in {where}: {why}", selector.text))
            return
        owner = member.container or t.cast(str, member.unit)
        selectors = [one for one in self.wishes.stop if one.kind in ("process", "user")]
        mates = [each for each in self.scene.holders if self._owner(each) == owner]
        others = [each for each in mates if not any(self._matches_process(one, each) for one in selectors)]
        if others:
            name = self.scene.containers[owner].name if member.container else self.scene.units[owner].name
            listed = ", ".join(process_title(each) for each in others)
            reason = f"it belongs to {name}, which also has {listed}, and nobody listed that"
            self.loose.append(Refusal(process_title(process), "takes_along", reason, selector.text, permit_selector(self.scene, process)))
            return
        (self.containers if member.container else self.units).setdefault(owner, selector)

    def _running_unit(self, key: str | None) -> bool:
        return key is not None and key in self.scene.units and self.scene.units[key].running

    def _owner(self, process: t.Mapping[str, t.Any]) -> str | None:
        member = self.scene.members.get(process["pid"])
        return None if member is None else member.container or member.unit

    def _unasked(self) -> str:
        return "; ".join(self.scene.problems) or "no engine that can be asked knows it (a second or rootless engine?)"

    def _add_wrappers(self) -> None:
        """A unit that runs nothing but listed containers would start them again, so it is stopped first."""
        for key, selector in list(self.containers.items()):
            for wrapper in self.scene.wrappers(key):
                inner = self.scene.wraps[wrapper]
                own = [process for process in self.scene.holders if self._owner(process) == wrapper]
                if all(each in self.containers for each in inner) and not own:
                    self.units.setdefault(wrapper, selector)

    # What belongs together

    def _grow(self) -> list[Tenant]:
        tenants: list[Tenant] = []
        home: dict[str, Tenant] = {}
        seeds = [*((key, selector) for key, selector in self.units.items()), *((key, selector) for key, selector in self.containers.items())]
        for key, selector in seeds:
            reach = self._reach(key)
            tenant = next((home[each] for each in reach if each in home), None)
            if tenant is None:
                tenant = Tenant(key=key, selector=selector, policy=self.wishes.policy(selector))
                tenants.append(tenant)
            for each in reach:
                if each in home and home[each] is not tenant:
                    other = home[each]
                    tenants.remove(other)
                    for moved in [name for name, where in home.items() if where is other]:
                        home[moved] = tenant
                home[each] = tenant
        for tenant in tenants:
            self._fill(tenant, [key for key, where in home.items() if where is tenant])
        for pid, selector in self.processes.items():
            process = next((each for each in self.scene.holders if each["pid"] == pid), None)
            if process is not None and self._owner(process) not in home:
                always = selector in self.wishes.always
                tenants.append(Tenant(key=process_key(process), selector=selector, always=always, processes=[process], policy="never"))
        return tenants

    def _reach(self, key: str) -> list[str]:
        """All that stops with a unit or container, or that has to be stopped for it to stay stopped."""
        found = [key]
        for each in found:
            more: list[str] = []
            unit = self.scene.unit(each)
            if unit is not None:
                names = (*unit.dependents, *(name for name in unit.triggered_by if name.endswith(COMPANIONS)))
                more = [self._key(name, unit.uid) for name in names]
                more = [name for name in more if (known := self.scene.unit(name)) is not None and known.running]
                more += [name for name in self.scene.wraps.get(each, []) if name in self.scene.containers]
            elif each in self.scene.containers:
                container = self.scene.containers[each]
                more = [other.key for other in self.scene.containers.values() if container.id in other.shares]
                more += self.scene.wrappers(each)
            found.extend(name for name in more if name not in found)
        return found

    def _key(self, name: str, uid: int | None) -> str:
        """The key of a unit by any of its names."""
        key = unit_key(name, uid)
        if self.scene.unit(key) is not None:
            return key
        return next((unit.key for unit in (*self.scene.units.values(), *self.scene.others.values()) if unit.uid == uid and name in unit.names), key)

    def _fill(self, tenant: Tenant, keys: t.Sequence[str]) -> None:
        for key in keys:
            unit = self.scene.unit(key)
            if unit is not None:
                (tenant.companions if unit.name.endswith(COMPANIONS) else tenant.units).append(unit)
            elif key in self.scene.containers:
                tenant.containers.append(self.scene.containers[key])
        # What was asked for first, then what goes along.
        tenant.units.sort(key=lambda unit: (unit.key not in self.units, unit.key != tenant.key))
        selectors = {each for each in (self.units.get(key) or self.containers.get(key) for key in keys) if each is not None}
        tenant.always = any(selector in self.wishes.always for selector in selectors)
        policies = {self.wishes.policy(selector) for selector in selectors}
        # May be lost only if all who listed a part of it say so.
        tenant.policy = next((policy for policy in RESTORE_POLICIES if policy in policies), tenant.policy)

    def _measure(self, tenant: Tenant) -> None:
        keys = {unit.key for unit in tenant.units} | {container.key for container in tenant.containers}
        pids = {process["pid"] for process in tenant.processes}
        tenant.members = [member for member in self.scene.members.values() if member.unit in keys or member.container in keys or member.pid in pids]
        inside = {member.pid for member in tenant.members}
        tenant.holders = [process for process in self.scene.holders if process["pid"] in inside]
        known = [process["memory"] for process in tenant.holders if process.get("memory") is not None]
        tenant.unknown = len(known) < len(tenant.holders)
        tenant.memory = sum(known)
        if self.scene.facts.get("class") in ("unified", "none", "unresponsive"):
            tenant.memory += sum(member.rss for member in tenant.members)

    # What speaks against it

    def _judge(self, tenant: Tenant) -> None:
        for unit in tenant.units:
            self._judge_unit(tenant, unit)
        for unit in tenant.companions:
            self._judge_companion(tenant, unit)
        for container in tenant.containers:
            self._judge_container(tenant, container)
        for process in tenant.processes:
            self._judge_process(tenant, process)
        for member in tenant.members:
            if member.protected:
                self._refuse(tenant, f"{member.name} (pid {member.pid})", "protected", f"it is never stopped: {member.protected}")
        for process in tenant.holders:
            if process.get("protected") and self.scene.members[process["pid"]].protected is None and tenant.processes:
                self._refuse(tenant, process_title(process), "protected", f"it is never stopped: {process['protected']}")
        self._judge_protect(tenant)

    def _refuse(self, tenant: Tenant, target: str, code: str, reason: str, permit: str | None = None) -> None:
        tenant.refusals.append(Refusal(target, code, reason, tenant.selector.text, permit))

    def _judge_unit(self, tenant: Tenant, unit: Unit) -> None:
        listed = unit.key in self.units
        reason = protected_unit(unit.name)
        if reason:
            self._refuse(tenant, unit.name, "protected", f"it is never stopped: {reason}")
        elif not unit.name.endswith(".service"):
            self._refuse(tenant, unit.name, "takes_along", f"stopping {tenant.units[0].name} would stop {unit.name} as well, which is no service")
        elif not listed:
            self._judge_unlisted(tenant, unit)
        if unit.refuses_stop:
            self._refuse(tenant, unit.name, "refuses", "its unit file forbids stopping it by hand (RefuseManualStop=yes)")
        for name in unit.upheld_by:
            keeper = self.scene.unit(self._key(name, unit.uid))
            if keeper is not None and keeper.running and keeper.key not in {each.key for each in tenant.units}:
                permit = f"unit:{name}" if name.endswith(".service") else None
                self._refuse(tenant, unit.name, "revived", f"{name} would start it again at once (Upholds=)", permit)
        if unit.transient and tenant.policy != "never":
            self._refuse(tenant, unit.name, "lost", f"it is a transient unit (systemd-run): once stopped it is gone and cannot be restored; {_MUST_BE_NEVER}")
        if self.scene.euid != 0 and unit.uid != self.scene.euid:
            reason = "stopping a unit of the system needs root (become: true)" if unit.uid is None else "only root or its user may stop it"
            self._refuse(tenant, unit.name, "rights", reason)

    def _judge_unlisted(self, tenant: Tenant, unit: Unit) -> None:
        first = tenant.units[0]
        inner = [self.scene.containers[key] for key in self.scene.wraps.get(unit.key, []) if key in self.scene.containers]
        unlisted = [container.name for container in inner if container.key not in self.containers]
        if inner and first is unit:
            what = f"it also runs {', '.join(unlisted)}" if unlisted else "it has GPU processes of its own"
            self._refuse(tenant, unit.name, "takes_along", f"{unit.name} would start the container again, and {what}, which nobody listed", f"unit:{unit.name}")
        else:
            self._refuse(tenant, unit.name, "takes_along", f"stopping {first.name} would stop {unit.name} as well, and nobody listed that", f"unit:{unit.name}")

    def _judge_companion(self, tenant: Tenant, unit: Unit) -> None:
        inside = {each.name for each in tenant.units}
        for each in tenant.units:
            inside.update(each.names)
        foreign = [name for name in unit.triggers if name not in inside]
        if foreign:
            reason = f"it would have to be stopped, since it starts {tenant.units[0].name}, but it starts {', '.join(foreign)} too"
            self._refuse(tenant, unit.name, "takes_along", reason)

    def _judge_container(self, tenant: Tenant, container: Container) -> None:
        wrappers = [unit for unit in tenant.units if container.key in self.scene.wraps.get(unit.key, [])]
        if container.key not in self.containers and not any(unit.key in self.units for unit in wrappers):
            first = tenant.containers[0].name if tenant.containers[0] is not container else tenant.title
            reason = f"stopping {first} would take {container.name} along, and nobody listed that"
            self._refuse(tenant, container.name, "takes_along", reason, f"container:{container.name}")
        if container.orchestrator:
            self._refuse(tenant, container.name, "revived", f"{container.orchestrator} rules over it and would start it again; scale it down there")
        if container.status == "paused":
            self._refuse(tenant, container.name, "refuses", "it is paused, so that it cannot act on being stopped; unpause it first")
        if container.auto_remove and not wrappers and tenant.policy != "never":
            reason = f"it was started with --rm and no unit recreates it: stopping it would remove it; {_MUST_BE_NEVER}"
            self._refuse(tenant, container.name, "lost", reason)
        for member in tenant.members:
            if member.container == container.key and member.runtime in ("kubernetes", "crio"):
                self._refuse(tenant, container.name, "revived", "it belongs to a Kubernetes pod; scale it down in the cluster")
                break

    def _judge_process(self, tenant: Tenant, process: dict[str, t.Any]) -> None:
        member = self.scene.members.get(process["pid"])
        if self.scene.identity(process) is None or member is None:
            reason = "the driver lists it, but /proc does not show it (another PID namespace?), so it cannot be identified"
            self._refuse(tenant, process_title(process), "unknown", reason)
        elif self.wishes.restore.get(tenant.selector, "never") != "never":
            reason = f"it belongs to no unit and no container, so once stopped it cannot be restored; {_MUST_BE_NEVER}"
            self._refuse(tenant, process_title(process), "lost", reason)
        elif self.scene.euid not in (0, member.uid):
            reason = f"it belongs to {process.get('user') or member.uid}; signalling it needs root (become: true)"
            self._refuse(tenant, process_title(process), "rights", reason)
        elif member.runtime in ("kubernetes", "crio"):
            self._refuse(tenant, process_title(process), "revived", "it belongs to a Kubernetes pod; scale it down in the cluster")
        elif member.container is not None and member.container not in self.seen.ended:
            # To its engine a signal from outside is a crash, after which the restart policy holds.
            self._refuse(tenant, process_title(process), "unknown", f"it is in a container that cannot be stopped: {self._unasked()}")

    def _judge_protect(self, tenant: Tenant) -> None:
        for selector in self.wishes.protect:
            names = [unit.name for unit in (*tenant.units, *tenant.companions) if any(selector.matches_unit(name) for name in (unit.name, *unit.names))]
            names += [container.name for container in tenant.containers if selector.matches_container(container.name, container.id)]
            names += [process_title(process) for process in tenant.holders if self._matches_process(selector, process)]
            names += [f"{member.name} (pid {member.pid})" for member in tenant.members if _matches_member(selector, member)]
            if selector.kind == "unit":
                # A process whose owner the facts place in that unit (a container run by it, for one).
                names += [process_title(process) for process in tenant.holders if selector.matches(process)]
            for name in dict.fromkeys(names):
                self._refuse(tenant, name, "protected", f"'{selector.text}' protects it")


def make_plan(scene: Scene, wishes: Wishes, seen: Seen | None = None) -> Plan:
    """Plan one round. With a verdict nothing is done, unless it is None."""
    tenants, loose = _Collector(scene, wishes, seen or Seen({})).collect()
    plan = Plan(refusals=[*loose, *(refusal for tenant in tenants for refusal in tenant.refusals)])
    able = [tenant for tenant in tenants if not tenant.refusals]
    plan.listed = {process["pid"] for tenant in able for process in tenant.holders}
    memory = scene.facts.get("memory") or {}
    have = memory.get("allocatable")
    if wishes.need > 0 and have is None:
        plan.verdict = "not_permitted"
        plan.message = f"on this node (class {scene.facts.get('class')}) nobody knows what a new process could get, so no need can be aimed at; use need: 0"
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
        return f"{format_size(have)} can be had, {format_size(wishes.need)} are wanted"
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
        plan.message = (
            f"{format_size(need)} are wanted, {format_size(have)} can be had now, and all that may be stopped would free "
            f"{format_size(sum(tenant.memory for tenant in chosen))}: {format_size(missing)} are missing"
        )
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
