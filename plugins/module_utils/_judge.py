# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What speaks against stopping a tenant: one rule a method, each with a reason for people and, where there is one, the remedy.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

In doubt a tenant is not stopped.
"""

from __future__ import annotations

import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container
from ansible_collections.unimem.dgx_spark.plugins.module_utils._permits import Permit, permit_container, permit_of, permit_unit
from ansible_collections.unimem.dgx_spark.plugins.module_utils._protect import protected_unit
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Member
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import Unit
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tenants import (
    ENGINE_RIGHTS,
    Collector,
    Refusal,
    Tenant,
    matches_member,
    process_title,
)

_POD = "it belongs to a Kubernetes pod; scale it down in the cluster"
_BY_HAND = "it would have to be stopped by hand first"
_MUST_BE_NEVER = "its restore policy would have to be 'never'"


class Judge:
    """The rules, for the tenants that a Collector has found. Refusals are added to the tenants."""

    def __init__(self, found: Collector) -> None:
        self.found = found
        self.scene = found.scene
        self.wishes = found.wishes

    def judge(self, tenant: Tenant) -> None:
        """Add all that speaks against stopping this one."""
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

    def _refuse(self, tenant: Tenant, target: str, code: str, reason: str, permit: Permit | None = None, missing: str = "") -> None:
        tenant.refusals.append(Refusal(target, code, reason, tenant.selector.text, permit, missing))

    def _lost(self, tenant: Tenant) -> Permit:
        """The entry as it would have to be for a thing that cannot be put back."""
        return Permit(tenant.selector.text, "never", "always" if tenant.always else "if_needed")

    def _judge_unit(self, tenant: Tenant, unit: Unit) -> None:
        listed = unit.key in self.found.units
        reason = protected_unit(unit.name)
        if reason:
            self._refuse(tenant, unit.name, "protected", f"it is never stopped: {reason}")
        elif not unit.name.endswith(".service"):
            reason = f"stopping {tenant.units[0].name} would stop {unit.name} as well, which is no service"
            self._refuse(tenant, unit.name, "takes_along", reason, missing=_BY_HAND)
        elif not listed:
            self._judge_unlisted(tenant, unit)
        if unit.refuses_stop:
            reason = "its unit file forbids stopping it by hand (RefuseManualStop=yes)"
            self._refuse(tenant, unit.name, "refuses", reason, missing="its unit file would have to allow it")
        for name in unit.upheld_by:
            keeper = self.scene.unit(self.found.key_of(name, unit.uid))
            if keeper is not None and keeper.running and keeper.key not in {each.key for each in tenant.units}:
                permit = permit_unit(self.scene, keeper) if name.endswith(".service") and protected_unit(name) is None else None
                self._refuse(tenant, unit.name, "revived", f"{name} would start it again at once (Upholds=)", permit)
        self._judge_return(tenant, unit)
        if unit.transient and tenant.policy != "never":
            reason = f"it is a transient unit (systemd-run): once stopped it is gone and cannot be restored; {_MUST_BE_NEVER}"
            self._refuse(tenant, unit.name, "lost", reason, self._lost(tenant))
        if self.scene.euid != 0 and unit.uid != self.scene.euid:
            reason = "stopping a unit of the system needs root (become: true)" if unit.uid is None else "only root or its user may stop it"
            self._refuse(tenant, unit.name, "rights", reason, missing="" if unit.uid is None else "root (become: true), or that user")

    def _judge_return(self, tenant: Tenant, unit: Unit) -> None:
        """What could not be started again must not be stopped, unless it may be lost. A mask of an eviction goes when it is restored."""
        reason = "" if unit.load_state == "masked" and unit.key in self.scene.evicted else unit.unstartable
        if reason and tenant.policy != "never":
            reason = f"{reason}: once stopped it cannot be started again; mend that first, or {_MUST_BE_NEVER}"
            self._refuse(tenant, unit.name, "lost", reason, self._lost(tenant))

    def _judge_unlisted(self, tenant: Tenant, unit: Unit) -> None:
        first = tenant.units[0]
        inner = [self.scene.containers[key] for key in self.scene.wraps.get(unit.key, []) if key in self.scene.containers]
        unlisted = [container.name for container in inner if container.key not in self.found.containers]
        if inner and first is unit:
            what = f"it also runs {', '.join(unlisted)}" if unlisted else "it has GPU processes of its own"
            reason = f"{unit.name} would start the container again, and {what}, which nobody listed"
        else:
            reason = f"stopping {first.name} would stop {unit.name} as well, and nobody listed that"
        self._refuse(tenant, unit.name, "takes_along", reason, permit_unit(self.scene, unit))

    def _judge_companion(self, tenant: Tenant, unit: Unit) -> None:
        self._judge_return(tenant, unit)
        inside = {each.name for each in tenant.units}
        for each in tenant.units:
            inside.update(each.names)
        foreign = [name for name in unit.triggers if name not in inside]
        if foreign:
            reason = f"it would have to be stopped, since it starts {tenant.units[0].name}, but it starts {', '.join(foreign)} too"
            self._refuse(tenant, unit.name, "takes_along", reason, missing=_BY_HAND)

    def _judge_container(self, tenant: Tenant, container: Container) -> None:
        wrappers = [unit for unit in tenant.units if container.key in self.scene.wraps.get(unit.key, [])]
        if container.key not in self.found.containers and not any(unit.key in self.found.units for unit in wrappers):
            first = tenant.containers[0].name if tenant.containers[0] is not container else tenant.title
            reason = f"stopping {first} would take {container.name} along, and nobody listed that"
            self._refuse(tenant, container.name, "takes_along", reason, permit_container(container))
        if container.orchestrator:
            reason = f"{container.orchestrator} rules over it and would start it again; scale it down there"
            self._refuse(tenant, container.name, "revived", reason, missing=f"{container.orchestrator} would have to scale it down")
        if container.status == "paused":
            reason = "it is paused, so that it cannot act on being stopped; unpause it first"
            self._refuse(tenant, container.name, "refuses", reason, missing="it would have to be unpaused")
        recreated = any(container.key in self.scene.makes.get(unit.key, []) for unit in wrappers)
        if container.auto_remove and not recreated and tenant.policy != "never":
            reason = f"it was started with --rm and no unit recreates it: stopping it would remove it; {_MUST_BE_NEVER}"
            self._refuse(tenant, container.name, "lost", reason, self._lost(tenant))
        for member in tenant.members:
            if member.container == container.key and member.runtime in ("kubernetes", "crio"):
                self._refuse(tenant, container.name, "revived", _POD, missing="the cluster would have to scale it down")
                break

    def _judge_process(self, tenant: Tenant, process: dict[str, t.Any]) -> None:
        member = self.scene.members.get(process["pid"])
        if self.scene.identity(process) is None or member is None:
            reason = "the driver lists it, but /proc does not show it (another PID namespace?), so it cannot be identified"
            self._refuse(tenant, process_title(process), "unknown", reason, missing="/proc would have to show it: run this on the host itself")
        elif (process.get("owner") or {}).get("kind") == "process" and (process.get("owner") or {}).get("restarted_by"):
            reason = f"{process['owner']['restarted_by']} would start it again; have it stopped there (supervisorctl stop, pm2 stop, sv down and the like)"
            self._refuse(tenant, process_title(process), "revived", reason)
        elif self.wishes.restore.get(tenant.selector, "never") != "never":
            reason = f"it belongs to no unit and no container, so once stopped it cannot be restored; {_MUST_BE_NEVER}"
            self._refuse(tenant, process_title(process), "lost", reason, self._lost(tenant))
        elif self.scene.euid not in (0, member.uid):
            reason = f"it belongs to {process.get('user') or member.uid}; signalling it needs root (become: true)"
            self._refuse(tenant, process_title(process), "rights", reason)
        elif member.runtime in ("kubernetes", "crio"):
            self._refuse(tenant, process_title(process), "revived", _POD, missing="the cluster would have to scale it down")
        elif member.container is not None and member.container not in self.found.seen.ended:
            # To its engine a signal from outside is a crash, after which the restart policy holds.
            reason = f"it is in a container that cannot be stopped: {self.found.unasked()}"
            missing = ENGINE_RIGHTS if self.scene.closed else "its engine would have to answer"
            self._refuse(tenant, process_title(process), "unknown", reason, missing=missing)
        else:
            self._judge_offspring(tenant, process)

    def _judge_offspring(self, tenant: Tenant, process: dict[str, t.Any]) -> None:
        """Processes that a bare one started end with it, or are left behind with what they hold: those with GPU memory must be listed too."""
        listed = {each["pid"]: each for each in self.found.holders}
        for member in self.scene.offspring(process["pid"]):
            if member.protected:
                self._refuse(tenant, f"{member.name} (pid {member.pid})", "protected", f"{process_title(process)} has started it: {member.protected}")
            elif member.pid in listed and member.pid not in self.found.processes and not self._stops_otherwise(member):
                child = listed[member.pid]
                reason = f"{process_title(process)} has started it and would take it along or leave it behind, and nobody listed it"
                self._refuse(tenant, process_title(child), "takes_along", reason, permit_of(self.scene, child))

    def _stops_otherwise(self, member: Member) -> bool:
        """Whether a process is in a unit or container of its own: what started it has no say in its life."""
        return member.container is not None or member.unit is not None

    def _judge_protect(self, tenant: Tenant) -> None:
        for selector in self.wishes.protect:
            names = [unit.name for unit in (*tenant.units, *tenant.companions) if any(selector.matches_unit(name) for name in (unit.name, *unit.names))]
            names += [container.name for container in tenant.containers if selector.matches_container(container.name, container.id)]
            names += [process_title(process) for process in tenant.holders if self.found.matches_process(selector, process)]
            names += [f"{member.name} (pid {member.pid})" for member in tenant.members if matches_member(selector, member)]
            if selector.kind == "unit":
                # A process whose owner the facts place in that unit (a container run by it, for one).
                names += [process_title(process) for process in tenant.holders if selector.matches(process)]
            for name in dict.fromkeys(names):
                missing = f"'{selector.text}' would have to be taken out of what is protected (policy: never)"
                self._refuse(tenant, name, "protected", f"'{selector.text}' protects it", missing=missing)
