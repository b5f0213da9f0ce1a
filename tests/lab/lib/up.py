# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring the lab up: look, say, install, build what is not in the cache, boot, and leave the seed's situation."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from . import (
    cgroups,
    disk,
    health,
    hostfiles,
    keys,
    layers,
    mounts,
    network,
    nspawn,
    packages,
    plan,
    preflight,
    recipe,
    remote,
    rootfs,
    seed,
    state,
    teardown,
)
from .errors import CannotRunHere, LabError
from .paths import SOURCE, Paths

Say = Callable[[str], None]
#: Seconds for both hosts to start; a first start loads the engine's image into Docker.
BOOT = 900.0


def up(paths: Paths, say: Say, without: frozenset[str] = frozenset()) -> None:
    """Bring the lab up, or see that it is up. Whatever goes wrong, or interrupts it, nothing half made stays on the machine.

    Hosts that are up and well, but of older recipes, go on running until all that is new has been built.
    """
    groups = cgroups.find()
    found = layers.find(SOURCE, without)
    wanted = layers.keys(found, rootfs.key())
    wanted["lab"] = recipe.hash_paths(SOURCE, [SOURCE / "lib"])
    wanted["hosts"] = " ".join(host.name for host in plan.HOSTS)
    standing = _standing(paths, groups, say)
    if standing:
        changed = sorted(name for name in wanted.keys() | standing.keys() if wanted.get(name) != standing.get(name))
        if not changed:
            _renew(paths, say)
            return
        say(f"changed since the hosts were started: {', '.join(changed)}; they will be started anew")
    else:
        _clean(paths, groups, say)
    try:
        root, built = _prepare(paths, groups, found, wanted, say)
    except BaseException:
        _end_builds(paths, groups, keep_groups=bool(standing))
        raise
    try:
        _clean(paths, groups, say)
        _start(paths, groups, root, built, wanted, say)
    except BaseException:
        _abandon(paths, groups, say)
        raise


def prepare(paths: Paths, say: Say, without: frozenset[str] = frozenset()) -> None:
    """Fill the cache with all that the hosts are made of, and start none of them. Hosts that are up are left alone."""
    groups = cgroups.find()
    standing = teardown.exists(groups)
    found = layers.find(SOURCE, without)
    try:
        _prepare(paths, groups, found, layers.keys(found, rootfs.key()), say, start=False)
    finally:
        _end_builds(paths, groups, keep_groups=standing)


def _end_builds(paths: Paths, groups: cgroups.Groups, keep_groups: bool) -> None:
    """Nothing that builds goes on, and nothing of it stays mounted."""
    groups.kill(cgroups.BUILDS)
    mounts.unmount_below([paths.cache])
    if not keep_groups:
        groups.remove()


def _standing(paths: Paths, groups: cgroups.Groups, say: Say) -> dict[str, str] | None:
    """The recipes of this checkout's lab if it is up, complete and well; None otherwise. LabError if it is another checkout's."""
    known = state.load()
    if known is None or not teardown.exists(groups):
        return None
    if known.owner != str(paths.state):
        if not any(groups.processes(host.name) for host in plan.HOSTS):
            return None
        raise LabError(
            f"The lab is up already, for another checkout (its state is in {known.owner}).",
            "Take it down first: 'make lab-down' does, in this checkout as well as in that one.",
        )
    keys.ensure(paths)
    reports = [health.check(paths, groups, host) for host in plan.HOSTS]
    for report in reports:
        say(str(report))
    return None if any(report.problem for report in reports) else known.keys


def _renew(paths: Paths, say: Say) -> None:
    """The hosts are up and well: bring back the seed's situation, unless something is deployed on them."""
    say("the lab is up already")
    deployed = seed.deployment(paths)
    if deployed.running:
        say(f"a deployment is running ({deployed}): the services and the page cache are left as they are")
        return
    for sentence in seed.establish(paths):
        say(sentence)


def _abandon(paths: Paths, groups: cgroups.Groups, say: Say) -> None:
    """Remove what was made, to the end: a second Ctrl-C would only leave half of it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    say("not up: removing what was made")
    for line in teardown.down(paths, groups, say):
        say(f"left behind: {line}")


def _clean(paths: Paths, groups: cgroups.Groups, say: Say) -> None:
    """Remove an earlier lab, whole or broken."""
    if teardown.exists(groups):
        if teardown.leftovers(groups):
            say("removing the hosts of an earlier run")
        if left := teardown.down(paths, groups, say):
            raise LabError(f"An earlier run of the lab could not be removed: {'; '.join(left)}.", "Restart the machine if it stays so.")


def _prepare(
    paths: Paths, groups: cgroups.Groups, found: list[layers.Layer], wanted: dict[str, str], say: Say, start: bool = True
) -> tuple[Path, dict[str, tuple[layers.Layer, Path]]]:
    """Say what will be done, see that it can be, install and build."""
    missing = packages.missing_programs()
    missing += [name for name in packages.missing_packages([name for layer in found for name in layer.packages]) if name not in missing]
    to_build = [layer for layer in found if not layers.output(paths.cache, layer, wanted[layer.name]).is_dir()]
    _announce(paths, missing, to_build, say, start)
    problems = preflight.judge(preflight.look(paths, groups, building=bool(to_build) or not rootfs.directory(paths.cache).is_dir()))
    if problems:
        raise CannotRunHere("\nlab: ".join(str(problem) for problem in problems))
    paths.logs.mkdir(parents=True, exist_ok=True)
    if missing:
        say(f"installing {' '.join(missing)}")
        packages.install(missing, paths.logs / "packages.log")
    return _build(paths, groups, found, wanted, say)


def _start(paths: Paths, groups: cgroups.Groups, root: Path, built: dict[str, tuple[layers.Layer, Path]], wanted: dict[str, str], say: Say) -> None:
    """Boot the hosts and leave the seed's situation."""
    keys.ensure(paths)
    _boot(paths, groups, root, built, say)
    for sentence in seed.establish(paths):
        say(sentence)
    state.save(state.State(str(paths.state), wanted))
    for host in plan.HOSTS:
        report = health.check(paths, groups, host)
        if report.problem:
            raise LabError(str(report), f"Its console is in {paths.logs / (host.name + '.log')}.")
        say(str(report))


def _announce(paths: Paths, missing: list[str], to_build: list[layers.Layer], say: Say, start: bool) -> None:
    """Say what will be installed and made, before anything is."""
    if missing:
        say(f"will install on this machine, starting no service: {' '.join(missing)}")
    root = rootfs.directory(paths.cache)
    if not root.is_dir():
        say(f"will make the hosts' root file system in {root} (Debian {rootfs.SUITE}, about 0.7 GB, some minutes)")
    for layer in to_build:
        say(f"will build the layer {layer.name} into {paths.cache / 'layers'}")
    if not start:
        return
    hosts = ", ".join(f"{host.name} ({' '.join(host.addresses)})" for host in plan.HOSTS)
    say(f"will start {hosts}: {plan.POOL / plan.GIB:.0f} GiB of memory each, disks and keys in {paths.state}")
    say(
        f"will make, until lab-down: the network interface {plan.MACHINE_LINK} ({plan.MACHINE_ADDRESS}), "
        f"the network namespaces {' '.join(host.netns for host in plan.HOSTS)}, control groups {plan.NAME}, mounts below {plan.RUN}"
    )


def _build(
    paths: Paths, groups: cgroups.Groups, found: list[layers.Layer], wanted: dict[str, str], say: Say
) -> tuple[Path, dict[str, tuple[layers.Layer, Path]]]:
    """The root file system and the layers, from the cache where it has them."""
    groups.create(cgroups.BUILDS)

    def join() -> None:
        groups.join(cgroups.BUILDS)

    begin = time.monotonic()
    fresh = not rootfs.directory(paths.cache).is_dir()
    root = rootfs.build(paths.cache, paths.cache / "logs" / "rootfs.log", join)
    if fresh:
        say(f"root file system made in {time.monotonic() - begin:.0f} s")
    built: dict[str, tuple[layers.Layer, Path]] = {}
    for layer in found:
        begin = time.monotonic()
        fresh = not layers.output(paths.cache, layer, wanted[layer.name]).is_dir()
        needs = {name: built[name][1] for name in layer.needs}
        output = layers.build(layer, wanted[layer.name], cache=paths.cache, rootfs=root, needs=needs, before_exec=join)
        built[layer.name] = (layer, output)
        layers.prune(paths.cache, layer, output)
        if fresh:
            say(f"layer {layer.name} built in {time.monotonic() - begin:.0f} s")
    return root, built


def _boot(paths: Paths, groups: cgroups.Groups, root: Path, built: dict[str, tuple[layers.Layer, Path]], say: Say) -> None:
    """Make network, memory and disks, start the hosts, and wait until they have started their units."""
    begin = time.monotonic()
    plan.RUN.mkdir(mode=0o700)
    driver_unit = next((layer.driver_unit for layer, _ in built.values() if layer.driver_unit), "")
    groups.create(cgroups.HELPERS)
    network.create()
    for host in plan.HOSTS:
        groups.create(host.name, memory=plan.POOL)
        lowers = [tree for layer, output in reversed(built.values()) for tree in layers.trees(layer, output, host.name)]
        disk.attach(paths, host, [*lowers, root])
        hostfiles.write_all(paths, host)
        nspawn.start_pool(groups, host, paths.logs / f"{host.name}-pool.log", driver_unit)
        nspawn.boot(groups, host, disk.docker(paths, host), paths.logs / f"{host.name}.log")
    for host in plan.HOSTS:
        word = remote.wait_booted(paths, host, BOOT)
        if word != "running":
            report = health.check(paths, groups, host)
            raise LabError(f"{host.name} started with problems: {report.problem or word}.", f"Its console is in {paths.logs / (host.name + '.log')}.")
        say(f"{host.name} is up after {time.monotonic() - begin:.0f} s")
