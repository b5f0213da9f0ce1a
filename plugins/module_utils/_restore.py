# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put back what a journal says was running: as it was, in the right order, and nothing else.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

Restoring looks at how things are now and does only what is missing, so it does not matter how far the eviction came, or an
earlier restore. An entry is settled when what it describes is seen to be as it was.
"""

from __future__ import annotations

import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container, Engine, EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._journal import RESTORED, SETTLED, Journal, JournalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json
from ansible_collections.unimem.dgx_spark.plugins.module_utils._node import Node, pauses
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ollama import describe_loaded
from ansible_collections.unimem.dgx_spark.plugins.module_utils._outcome import Options, Outcome
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import Selector
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import RUNNING, SystemdError, Unit, explain, is_denied

#: Why things are put back; which entries that concerns is their restore policy's matter.
REASONS = ("any", "failure", "undeploy")

_ENABLED = ("enabled", "alias", "linked", "indirect")


class Restorer:
    """One run of ``state=restored``."""

    def __init__(
        self,
        node: Node,
        journal: Journal,
        options: Options,
        policies: t.Mapping[Selector, str] | None = None,
        reason: str = "any",
        only: t.Sequence[Selector] = (),
    ) -> None:
        self.node = node
        self.journal = journal
        self.options = options
        # A name before a pattern, however they are listed: who names one thing means it.
        self.policies = dict(sorted((policies or {}).items(), key=lambda item: item[0].is_glob))
        self.reason = reason
        self.only = only
        self.outcome = Outcome()
        self.problems: dict[str, list[str]] = {}
        self.deadline = node.monotonic() + options.timeout

    def restore(self) -> Outcome:
        """Put back what the reason and the selectors concern. Fails with ``not_restored`` when something is not as it was."""
        facts = self.node.gather()
        self.outcome.before = dict(facts.get("memory") or {})
        entries = self._concerned()
        units = [entry for entry in entries if entry["kind"] == "unit"]
        containers = self._ordered([entry for entry in entries if entry["kind"] == "container"])
        for entry in units:
            self._guard(entry, self._enable)
        for entry in containers:
            self._guard(entry, self._set_policy)
        # Last stopped, first started. A socket cannot be started while its service runs, and timers and paths start theirs at once.
        sockets = [entry for entry in units if entry.get("role") == "companion" and str(entry["name"]).endswith(".socket")]
        services = [entry for entry in units if entry.get("role") != "companion"]
        others = [entry for entry in units if entry not in sockets and entry not in services]
        self._forget_starts(units)
        for entry in reversed(sockets):
            self._guard(entry, lambda each: self._start_socket(each, services))
        for entry in (*reversed(services), *reversed(others)):
            self._guard(entry, self._start_unit)
        for entry in containers:
            if entry.get("unit") is None:
                self._guard(entry, self._start_container)
        if not self.options.check:
            for entry in (*units, *containers):
                self._guard(entry, self._verify)
            self._mark_restored([entry["key"] for entry in entries if not self.problems.get(entry["key"])])
        return self._end(entries)

    def _mark_restored(self, keys: list[str]) -> None:
        try:
            self.journal.mark(keys, RESTORED, restored_at=self.node.now())
        except JournalError as exc:
            # What is open would be started once more by a later restore, when somebody may have stopped it on purpose.
            self.problems["journal"] = [f"{exc}; all that is not named here is as before, but the journal still counts it as evicted"]

    def _concerned(self) -> list[dict[str, t.Any]]:
        found = []
        named = self._named()
        for entry in self.journal.open_entries:
            if entry["key"] not in named:
                continue
            policy = next((policy for selector, policy in self.policies.items() if selector.matches_entry(entry)), entry.get("restore"))
            if entry["kind"] == "process":
                self._settle(entry, f"process {entry.get('name')} was stopped; a process cannot be restored")
            elif policy == "never":
                self._settle(entry, f"{entry['kind']} {entry.get('name')} stays stopped: its restore policy is 'never'")
            elif self.reason == "failure" and policy == "on_undeploy":
                name = f"{entry['kind']} {entry.get('name')}"
                self.outcome.notes.append(f"{name} stays stopped until the deployment is undone: its restore policy is 'on_undeploy'")
            else:
                found.append(entry)
        return found

    def _named(self) -> set[str]:
        """Keys of what the selectors name, all where there are none; a unit and the container that it runs only come back together."""
        entries = self.journal.open_entries
        named = {entry["key"] for entry in entries if not self.only or any(selector.matches_entry(entry) for selector in self.only)}
        named |= {entry["unit"] for entry in entries if entry["key"] in named and entry.get("unit")}
        return named | {entry["key"] for entry in entries if entry.get("unit") in named}

    def _settle(self, entry: dict[str, t.Any], note: str) -> None:
        self.outcome.notes.append(note)
        if not self.options.check:
            self.journal.mark([entry["key"]], SETTLED, note=note)

    def _guard(self, entry: dict[str, t.Any], step: t.Callable[[dict[str, t.Any]], None]) -> None:
        """One thing that cannot be restored must not keep the others from it."""
        try:
            step(entry)
        except (SystemdError, EngineError) as exc:
            self._problem(entry, str(exc))

    def _problem(self, entry: dict[str, t.Any], text: str) -> None:
        known = self.problems.setdefault(entry["key"], [])
        if text not in known:
            known.append(text)

    def _act(self, entry: dict[str, t.Any], action: str, do: t.Callable[[], None]) -> None:
        row = {"target": entry.get("name"), "layer": entry["kind"], "action": action, "result": "planned", "freed": 0, "round": 1, "key": entry["key"]}
        row["reason"] = f"it was so before '{entry.get('selector')}' was evicted"
        self.outcome.actions.append(row)
        self._show_diff(entry)
        if self.options.check:
            self.outcome.changed = True
            return
        try:
            do()
        except (SystemdError, EngineError) as exc:
            row["result"] = f"failed: {exc}"
            raise
        # What failed has changed nothing that stays.
        self.outcome.changed = True
        row["result"] = "done"

    def _show_diff(self, entry: dict[str, t.Any]) -> None:
        """How the thing is, and how it was, in the words of an eviction's own diff."""
        name, before = f"{entry['kind']} {entry.get('name')}", entry.get("before", {})
        if name in self.outcome.diff_before:
            return
        if entry["kind"] == "unit":
            unit = self._unit(entry)
            # What ``show`` tells of the enablement may be older than the disk.
            now = "gone" if unit is None else f"{unit.active_state}, {self.node.systemd.file_state(entry['name'], entry.get('uid')) or 'no unit file'}"
            then = f"{before.get('active_state')}, {before.get('file_state') or 'no unit file'}"
        else:
            container = self._container(entry)
            now = "gone" if container is None else f"{container.status}, restart {container.policy}"
            then = f"running, restart {before.get('policy') or 'no'}"
        self.outcome.diff_before[name], self.outcome.diff_after[name] = now, then

    def _left(self) -> float:
        return max(1.0, self.deadline - self.node.monotonic())

    # Units

    def _unit(self, entry: dict[str, t.Any]) -> Unit | None:
        return self.node.systemd.show([entry["name"]], entry.get("uid")).get(entry["name"])

    def _enable(self, entry: dict[str, t.Any]) -> None:
        before, name, uid = entry.get("before", {}), entry["name"], entry.get("uid")
        if not before.get("disabled"):
            return
        state = self.node.systemd.file_state(name, uid)
        if _masked_by_us(entry):
            if state.startswith("masked"):
                self._act(entry, "unmask", lambda: self._unmask(name, uid))
            return
        if state not in _ENABLED:
            self._act(entry, "enable", lambda: self.node.systemd.enable(name, uid, self._left()))
        if uid is None and not self.options.check:
            self._fix_links(entry, before.get("links") or {})

    def _unmask(self, name: str, uid: int | None) -> None:
        self.node.systemd.unmask(name, uid, self._left())
        unit = self.node.systemd.show([name], uid).get(name)
        if unit is not None and unit.load_state == "masked":
            # Something else made systemd read its files while the unit was masked; only reading them again helps.
            self.outcome.notes.append(f"systemd had to read its unit files again for {name}: check that containers on this node still see their GPU")
            self.node.systemd.reload(uid, self._left())

    def _fix_links(self, entry: dict[str, t.Any], wanted: t.Mapping[str, str]) -> None:
        """``enable`` makes the links that the unit file asks for; the administrator may have had others."""
        have = self.node.systemd.links(entry["name"], entry.get("uid"))
        for path, target in wanted.items():
            if path not in have:
                self._act(entry, f"link {path}", lambda path=path, target=target: self._link(path, target))  # type: ignore[misc]
            elif have[path] != target:
                # The same link, written another way (relative, for one): exactly as it was is exactly.
                self._link(path, None)
                self._link(path, target)
        for path in have:
            if path not in wanted and wanted:
                self._act(entry, f"unlink {path}", lambda path=path: self._link(path, None))  # type: ignore[misc]

    def _link(self, path: str, target: str | None) -> None:
        try:
            self.node.set_link(path, target)
        except OSError as exc:
            raise SystemdError(f"{path} cannot be {'made' if target else 'removed'}: {exc.strerror}") from exc

    def _forget_starts(self, entries: t.Sequence[dict[str, t.Any]]) -> None:
        for uid in {entry.get("uid") for entry in entries if not self.options.check}:
            names = [entry["name"] for entry in entries if entry.get("uid") == uid]
            try:
                down = [name for name, unit in self.node.systemd.show(names, uid).items() if not unit.running]
            except SystemdError:
                continue  # which each unit's own step says
            if down:
                self.node.systemd.forget_starts(down, uid, self._left())

    def _start_socket(self, entry: dict[str, t.Any], services: t.Sequence[dict[str, t.Any]]) -> None:
        """A service that runs without its socket, because the eviction ended between the two, is stopped for a moment."""
        unit = self._unit(entry)
        if unit is not None and unit.load_state != "not-found" and not unit.running:
            for service in services:
                now = self._unit(service) if service.get("uid") == entry.get("uid") and service["name"] in unit.triggers else None
                if now is not None and now.running:
                    self._act(service, "stop", lambda now=now: self._stop(now))  # type: ignore[misc]
        self._start_unit(entry)

    def _stop(self, unit: Unit) -> None:
        result = self.node.systemd.start_stopping([unit.name], unit.uid, self._left()).finish()
        if result.rc != 0:
            raise SystemdError(f"systemctl stop {unit.name} failed: {explain(result)}", denied=is_denied(result))

    def _start_unit(self, entry: dict[str, t.Any]) -> None:
        if entry.get("before", {}).get("active_state") not in RUNNING:
            return
        unit = self._unit(entry)
        if unit is None or unit.load_state == "not-found":
            self._problem(entry, f"there is no unit {entry['name']} any more; install it again and restore once more")
        elif unit.running:
            return
        elif unit.unstartable and not (unit.load_state == "masked" and _masked_by_us(entry)):
            remedy = f"'systemctl unmask {unit.name}'" if unit.load_state == "masked" else "mend that, or start what brings it along"
            self._problem(entry, f"{unit.name} cannot be started: {unit.unstartable}; {remedy}, and restore once more")
        else:
            self._act(entry, "start", lambda: self._start(entry))

    def _start(self, entry: dict[str, t.Any]) -> None:
        self.node.systemd.start(entry["name"], entry.get("uid"), self._left())
        unit = self._unit(entry)
        if unit is not None and not unit.running and not unit.conditions_met:
            # systemctl does not call that a failure.
            raise SystemdError(f"{unit.name} was not started: its Condition...= lines are not met; 'systemctl status {unit.name}' says which")

    # Containers

    def _engine(self, entry: dict[str, t.Any]) -> Engine:
        engine = self.node.engine(str(entry.get("engine")))
        if engine is None:
            raise EngineError("unreachable", f"no container engine answers at {entry.get('engine')}; start it and restore once more")
        return engine

    def _container(self, entry: dict[str, t.Any]) -> Container | None:
        """The container itself, or the one of its name that its unit has made since."""
        engine = self._engine(entry)
        return engine.inspect(str(entry.get("before", {}).get("id"))) or engine.find(str(entry.get("name")))

    def _set_policy(self, entry: dict[str, t.Any]) -> None:
        before = entry.get("before", {})
        container = self._container(entry)
        if container is None or container.id != before.get("id") or before.get("auto_remove"):
            return
        policy, retries = str(before.get("policy") or "no"), int(before.get("policy_retries") or 0)
        if (container.policy, container.policy_retries if policy == "on-failure" else 0) != (policy, retries if policy == "on-failure" else 0):
            self._act(entry, "set_restart_policy", lambda: self._engine(entry).set_policy(container.id, policy, retries))

    def _start_container(self, entry: dict[str, t.Any]) -> None:
        container = self._container(entry)
        if container is None:
            project, service = entry["before"].get("project"), entry["before"].get("service")
            remedy = f"'docker compose --project-name {project} up -d {service or ''}'".rstrip() if project else "create it again"
            self._problem(entry, f"there is no container {entry.get('name')} any more; {remedy}, and restore once more")
        elif not container.running:
            self._act(entry, "start", lambda: self._engine(entry).start(container.id))

    def _ordered(self, entries: list[dict[str, t.Any]]) -> list[dict[str, t.Any]]:
        """Those that others share a namespace with, or depend on in their compose project, come first."""
        done: list[dict[str, t.Any]] = []
        left = list(reversed(entries))
        while left:
            ready = [entry for entry in left if not any(_needs(entry, other) for other in left if other is not entry)]
            # A circle cannot be started in any order; then the order of the journal has to do.
            done += ready or left
            left = [entry for entry in left if entry not in done]
        return done

    # Whether it is as it was

    def _verify(self, entry: dict[str, t.Any]) -> None:
        if self.problems.get(entry["key"]):
            return
        for pause in pauses(self.node):
            missing = self._missing(entry)
            if not missing:
                return
            if self.node.monotonic() >= self.deadline:
                self._problem(entry, missing)
                return
            self.node.pause(pause)

    def _missing(self, entry: dict[str, t.Any]) -> str:
        before = entry.get("before", {})
        if entry["kind"] == "unit":
            unit = self._unit(entry)
            # One that was between two restarts when it was evicted may be so again.
            wanted = RUNNING if before.get("active_state") == "activating" else ("active", "reloading", "refreshing")
            if before.get("active_state") in RUNNING and (unit is None or unit.active_state not in wanted):
                return f"{entry['name']} is {unit.active_state if unit else 'gone'}, it was {before.get('active_state')}"
        else:
            container = self._container(entry)
            if container is None or not container.running:
                return f"container {entry.get('name')} is {container.status if container else 'gone'}, it was running"
            if container.id == before.get("id") and not before.get("auto_remove") and container.policy != (before.get("policy") or "no"):
                return f"the restart policy of container {entry.get('name')} is '{container.policy}', it was '{before.get('policy')}'"
            if before.get("health") == "healthy" and container.health != "healthy":
                return f"container {entry.get('name')} runs, but its health check says '{container.health}'"
            silent = sorted(set(before.get("inside") or []) - self.node.listening_inside(container.pid))
            if silent:
                return f"container {entry.get('name')} runs, but nothing in it listens on port {', '.join(map(str, silent))} yet"
        silent = sorted(set(before.get("ports") or []) - self.node.listening())
        if silent:
            return f"{entry['kind']} {entry.get('name')} runs, but nothing listens on port {', '.join(map(str, silent))} yet"
        return ""

    def _end(self, entries: list[dict[str, t.Any]]) -> Outcome:
        for entry in entries:
            loaded = entry.get("before", {}).get("loaded")
            if loaded:
                self.outcome.notes.append(f"{entry['kind']} {entry.get('name')} had loaded: {describe_loaded(loaded)}; it loads that again when it is asked")
        facts = self.node.gather() if self.outcome.changed and not self.options.check else None
        self.outcome.after = dict(facts.get("memory") or {}) if facts else self.outcome.before
        if any(self.problems.values()):
            self.outcome.verdict = "not_restored"
            self.outcome.message = "; ".join(text for texts in self.problems.values() for text in texts)
            given_up = [_selector_of(entry) for entry in entries if self.problems.get(entry["key"])]
            if given_up:
                wish = ", ".join(f"'{each}': never" for each in dict.fromkeys(given_up))
                self.outcome.message += f". It stays in the journal; to give it up as it is now: state: restored, restore: {{{wish}}}"
        else:
            self.outcome.verdict = "restored"
            names = ", ".join(str(entry.get("name")) for entry in entries)
            left = ", ".join(str(entry.get("name")) for entry in self.journal.open_entries if entry not in entries)
            would = "would be " if self.options.check else ""
            nothing = "nothing was evicted that this concerns" + ("" if self.journal.entries else f": there is nothing in {self.journal.path}")
            self.outcome.message = f"{would}as before: {names}" if names else nothing
            self.outcome.message += f"; evicted still: {left}" if left and self.only else ""
        return self.outcome


def _selector_of(entry: t.Mapping[str, t.Any]) -> str:
    """A selector that names an entry, and where that can be nothing else."""
    name, kind = str(entry.get("name")), str(entry["kind"])
    # A socket or timer goes with its service, under the selector of that.
    return f"{kind}:{name}" if kind != "unit" or name.endswith(".service") else str(entry.get("selector"))


def _masked_by_us(entry: t.Mapping[str, t.Any]) -> bool:
    """Whether the eviction has masked a unit: one that a generator makes cannot be disabled."""
    before = entry.get("before", {})
    return bool(before.get("disabled")) and before.get("file_state") == "generated"


def _needs(entry: t.Mapping[str, t.Any], other: t.Mapping[str, t.Any]) -> bool:
    before, theirs = entry.get("before", {}), other.get("before", {})
    if theirs.get("id") in (before.get("shares") or []):
        return True
    if not before.get("project") or before.get("project") != theirs.get("project"):
        return False
    return theirs.get("service") in _dependencies(str(before.get("depends_on") or ""))


def _dependencies(label: str) -> list[str]:
    """The services in compose's label ``com.docker.compose.depends_on``: ``db:service_started:false,cache:…`` (or a JSON object)."""
    if label.startswith("{"):
        try:
            told = parse_json(label)
        except ValueError:
            return []
        return [str(name) for name in told] if isinstance(told, dict) else []
    return [part.split(":", 1)[0] for part in label.split(",") if part]
