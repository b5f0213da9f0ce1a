# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What belongs together: the wishes' matches on a node, grouped into tenants. Pure: a Scene and the wishes in, Tenants out.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

The unit of thought is the tenant: what has to be stopped together, because its parts stop with each other or start each
other again. A tenant is stopped as a whole or not at all. Whether it may be is ``_judge``'s matter.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container
from ansible_collections.unimem.dgx_spark.plugins.module_utils._permits import Permit, permit_of
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Member, Scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import Selector
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import DEAD_STATES
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import Unit, unit_key

#: Units that start a service again, and can be stopped and started themselves.
COMPANIONS = (".socket", ".timer", ".path")

#: What is missing where a container engine may not be asked.
ENGINE_RIGHTS = "root (become: true), or a user in the engine's group"

RESTORE_POLICIES = ("on_failure", "on_undeploy", "never")


#: What is missing where something is not stopped, by the code of the refusal.
_LACKS = {
    "protected": "nothing would permit it",
    "takes_along": "it would have to be listed too",
    "revived": "what starts it again would have to be stopped first",
    "lost": "its entry would have to say 'restore: never'",
    "rights": "root (become: true)",
    "unknown": "it would have to be known better",
    "refuses": "it would have to allow it",
}


class Refusal(t.NamedTuple):
    """Something that matched and is not stopped."""

    target: str
    code: str  # protected, takes_along, revived, lost, rights, unknown, refuses
    reason: str
    selector: str
    permit: Permit | None = None  # the entry that would have to be there
    missing: str = ""  # what else would have to be so, where the code does not say it

    @property
    def lacks(self) -> str:
        """What is missing for it to be stopped, in words."""
        return self.missing or _LACKS[self.code]


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
    def keys(self) -> set[str]:
        """The keys of all its parts, as actions and the journal have them."""
        units = {unit.key for unit in (*self.units, *self.companions)}
        return units | {container.key for container in self.containers} | {process_key(process) for process in self.processes}

    @property
    def title(self) -> str:
        """Its name for people."""
        if self.units:
            return self.units[0].name
        if self.containers:
            return f"container {self.containers[0].name}"
        return process_title(self.processes[0]) if self.processes else self.key


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


def matches_member(selector: Selector, member: Member) -> bool:
    """Whether a selector for processes or users matches a process of this node."""
    if selector.kind == "user":
        return selector.matches_user(member.user, member.uid)
    return selector.matches_process_name(member.name, (member.argv[0] if member.argv else None, member.executable))


class Collector:
    """Finds the tenants that the wishes match. The rules are in the methods, one a rule."""

    def __init__(self, scene: Scene, wishes: Wishes, seen: Seen) -> None:
        self.scene = scene
        self.wishes = wishes
        self.seen = seen
        self.units: dict[str, Selector] = {}
        self.containers: dict[str, Selector] = {}
        self.processes: dict[int, Selector] = {}
        # A zombie holds nothing and takes no signal; what the driver still lists for it is the driver's matter.
        self.holders = [process for process in scene.holders if process.get("state") not in DEAD_STATES]
        self.loose: list[Refusal] = []

    def collect(self) -> tuple[list[Tenant], list[Refusal]]:
        """The tenants in the order of the selectors, each with its refusals, and refusals that belong to none."""
        for selector in self.wishes.stop:
            self._match(selector)
        for process in self.holders:
            origin = self.seen.belonged.get((process["pid"], process.get("start_time") or -1))
            if origin is not None:
                self.processes.setdefault(process["pid"], origin)
        self._add_wrappers()
        tenants = self._grow()
        for tenant in tenants:
            self._measure(tenant)
        tenants = [tenant for tenant in tenants if tenant.holders or tenant.processes or self._is_named(tenant)]
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
            found = [container for container in scene.containers.values() if selector.matches_container(container.name, container.id)]
            for container in found:
                self.containers.setdefault(container.key, selector)
            if not found and scene.closed:
                # Not to be confused with: there is none.
                reason = f"nobody knows whether there is such a container: {'; '.join(scene.closed)}"
                self.loose.append(Refusal(selector.text, "rights", reason, selector.text, missing=ENGINE_RIGHTS))
        else:
            for process in self.holders:
                if self._is_meant(selector, process):
                    self._match_process(process, selector)

    def _match_unit(self, unit: Unit, selector: Selector) -> None:
        if unit.running:
            self.units.setdefault(unit.key, selector)
        for key in self.scene.wraps.get(unit.key, []):
            self.containers.setdefault(key, selector)
        if not unit.running:
            # What a dead unit left behind (KillMode=process): only what the driver lists.
            left = {member.pid for member in self.scene.of_unit(unit.key) if not member.container}
            for process in self.holders:
                if process["pid"] in left:
                    self.processes.setdefault(process["pid"], selector)

    def matches_process(self, selector: Selector, process: t.Mapping[str, t.Any]) -> bool:
        """Whether a selector for processes or users matches a process that the driver lists."""
        member = self.scene.members.get(process["pid"])
        if selector.kind == "user":
            return selector.matches_user(process.get("user"), member.uid if member else process.get("uid"))
        if member is None or process.get("start_time") != member.start_time:
            return selector.matches(process)
        return matches_member(selector, member)

    def _is_meant(self, selector: Selector, process: t.Mapping[str, t.Any]) -> bool:
        """Whether a match is meant to be stopped. What only draws (a viewer, a browser) is meant by its name alone, never as somebody's."""
        if set(process.get("kinds") or ()) == {"graphics"} and (selector.kind == "user" or selector.is_wide):
            return False
        return self.matches_process(selector, process)

    def _is_named(self, tenant: Tenant) -> bool:
        """Whether anything of a tenant is named. A pattern that matches everything means what the driver lists, as with processes."""
        if self.scene.facts.get("class") == "none":
            return True
        return any(
            any(selector.matches_unit(name) for unit in tenant.units for name in (unit.name, *unit.names))
            or any(selector.matches_container(container.name, container.id) for container in tenant.containers)
            for selector in self.wishes.stop
            if not selector.is_wide
        )

    def _match_process(self, process: dict[str, t.Any], selector: Selector) -> None:
        """A process stands for its owner if that is a service or container all of whose GPU processes match."""
        member = self.scene.members.get(process["pid"])
        if member is None or (member.container is None and not self._running_unit(member.unit)):
            self.processes.setdefault(process["pid"], selector)
            return
        if member.container is not None and member.container not in self.scene.containers:
            where = f"container {member.container.split(':')[1][:12]}" + (f" of {member.runtime}" if member.runtime else "")
            why = "Kubernetes would start it again; scale it down in the cluster" if member.runtime in ("kubernetes", "crio") else self.unasked()
            missing = "" if member.runtime in ("kubernetes", "crio") else ENGINE_RIGHTS if self.scene.closed else "its engine would have to answer"
            self.loose.append(Refusal(process_title(process), "unknown", f"it is in {where}: {why}", selector.text, missing=missing))
            return
        owner = member.container or t.cast(str, member.unit)
        selectors = [one for one in self.wishes.stop if one.kind in ("process", "user")]
        mates = [each for each in self.holders if self._owner(each) == owner]
        others = [each for each in mates if not any(self._is_meant(one, each) for one in selectors)]
        if others:
            name = self.scene.containers[owner].name if member.container else self.scene.units[owner].name
            listed = ", ".join(process_title(each) for each in others)
            reason = f"it belongs to {name}, which also has {listed}, and nobody listed that"
            self.loose.append(Refusal(process_title(process), "takes_along", reason, selector.text, permit_of(self.scene, process)))
            return
        (self.containers if member.container else self.units).setdefault(owner, selector)

    def _running_unit(self, key: str | None) -> bool:
        return key is not None and key in self.scene.units and self.scene.units[key].running

    def _owner(self, process: t.Mapping[str, t.Any]) -> str | None:
        member = self.scene.members.get(process["pid"])
        return None if member is None else member.container or member.unit

    def unasked(self) -> str:
        """Why no engine could be asked about a container."""
        return "; ".join(self.scene.closed) or "no engine that can be asked knows it (a second or rootless engine?)"

    def _add_wrappers(self) -> None:
        """A unit that runs nothing but listed containers would start them again, so it is stopped first."""
        for key, selector in list(self.containers.items()):
            for wrapper in self.scene.wrappers(key):
                inner = self.scene.wraps[wrapper]
                own = [process for process in self.holders if self._owner(process) == wrapper]
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
            process = next((each for each in self.holders if each["pid"] == pid), None)
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
                more = [self.key_of(name, unit.uid) for name in names]
                more += [key for key in (self.key_of(name, unit.uid) for name in unit.needs) if self._goes_unneeded(key, found)]
                # What upholds it goes along only where it is listed itself.
                more += [key for key in (self.key_of(name, unit.uid) for name in unit.upheld_by) if key in self.units]
                more = [name for name in more if (known := self.scene.unit(name)) is not None and known.running]
                more += [name for name in self.scene.wraps.get(each, []) if name in self.scene.containers]
            elif each in self.scene.containers:
                container = self.scene.containers[each]
                more = [other.key for other in self.scene.containers.values() if container.id in other.shares]
                more += self.scene.wrappers(each)
            found.extend(name for name in more if name not in found)
        return found

    def _goes_unneeded(self, key: str, stopping: t.Sequence[str]) -> bool:
        """Whether a unit stops because nothing that needs it runs any more (StopWhenUnneeded=), once these are stopped."""
        unit = self.scene.unit(key)
        if unit is None or not unit.goes_unneeded:
            return False
        needing = [self.key_of(name, unit.uid) for name in unit.needed_by]
        return not any((known := self.scene.unit(each)) is not None and known.running and each not in stopping for each in needing)

    def key_of(self, name: str, uid: int | None) -> str:
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
        tenant.holders = [process for process in self.holders if process["pid"] in inside]
        known = [process["memory"] for process in tenant.holders if process.get("memory") is not None]
        tenant.unknown = len(known) < len(tenant.holders)
        tenant.memory = sum(known)
        if self.scene.facts.get("class") in ("unified", "none", "unresponsive"):
            tenant.memory += sum(member.rss for member in tenant.members)
