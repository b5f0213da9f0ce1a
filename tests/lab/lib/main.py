# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of the lab."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from . import cgroups, disk, health, keys, lock, plan, preflight, remote, seed, state, teardown, up
from .errors import CannotRunHere, LabError
from .paths import Paths

EXIT_PROBLEM = 1
EXIT_INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="lab.py", description="Two simulated DGX Sparks in one Linux machine.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    start = commands.add_parser("up", help="bring the lab up, or see that it is up and well")
    start.add_argument("--fresh", action="store_true", help="throw the hosts' disks away first")
    start.add_argument("--without", action="append", default=[], metavar="LAYER", help="leave a layer out (repeatable)")
    early = commands.add_parser("prepare", help="install and build what up would, and start nothing; up is quick then")
    early.add_argument("--without", action="append", default=[], metavar="LAYER", help="leave a layer out (repeatable)")
    stop = commands.add_parser("down", help="take the lab down and see that nothing is left of it")
    stop.add_argument("--wipe", action="store_true", help="throw the hosts' disks away as well (keys and the cache stay)")
    commands.add_parser("status", help="say how the hosts are; 0 when both are well")
    shell = commands.add_parser("ssh", help="a command on a host, or a shell there")
    shell.add_argument("host", choices=[host.name for host in plan.HOSTS])
    shell.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    commands.add_parser("fill-cache", help=f"fill the page cache of {plan.SEED_HOST.name} again")
    commands.add_parser("seed", help="start the seed's services and fill the page cache")
    return top


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    options = parser().parse_args(arguments)
    paths = Paths.from_environment()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:  # nohup stays what it is
            signal.signal(number, _interrupt)
    try:
        return COMMANDS[options.command](paths, options)
    except LabError as problem:
        print(f"lab: {problem}", file=sys.stderr)
        return problem.status
    except KeyboardInterrupt:
        print("lab: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def say(sentence: str) -> None:
    print(f"lab: {sentence}")


def need_root() -> None:
    problems = preflight.judge(preflight.Machine(user=os.geteuid()))
    if problems:
        raise CannotRunHere(problems[0].problem, problems[0].remedy)


def command_up(paths: Paths, options: argparse.Namespace) -> int:
    need_root()
    begin = time.monotonic()
    with lock.held(plan.LOCK, "up"):
        if options.fresh:
            _down(paths)
            disk.wipe(paths)
        up.up(paths, say, frozenset(options.without))
    say(f"up in {time.monotonic() - begin:.0f} s; 'ansible-playbook -i inventory/lab.yml' works now, and so does 'ssh -F {paths.ssh_config} spark-01'")
    return 0


def command_prepare(paths: Paths, options: argparse.Namespace) -> int:
    need_root()
    begin = time.monotonic()
    with lock.held(plan.LOCK, "prepare"):
        up.prepare(paths, say, frozenset(options.without))
    say(f"all that the hosts are made of is in {paths.cache} after {time.monotonic() - begin:.0f} s")
    return 0


def _down(paths: Paths) -> None:
    groups = cgroups.find()
    known = state.load()
    if known and known.owner != str(paths.state):
        say(f"this lab was started by another checkout (its state is in {known.owner})")
    if not teardown.exists(groups):
        say("the lab is not up")
    if left := teardown.down(paths, groups, say):
        raise LabError(f"Of the lab there is still: {'; '.join(left)}.", "Run lab.py down again; if that does not help, restart the machine.")


def command_down(paths: Paths, options: argparse.Namespace) -> int:
    need_root()
    with lock.held(plan.LOCK, "down"):
        _down(paths)
        if options.wipe:
            disk.wipe(paths)
    say("down; nothing of it is left on the machine" + ("" if options.wipe else f" but the hosts' disks and keys in {paths.state}"))
    return 0


def command_status(paths: Paths, _options: argparse.Namespace) -> int:
    need_root()
    groups = cgroups.find()
    if not teardown.exists(groups):
        say("the lab is not up")
        return EXIT_PROBLEM
    reports = [health.check(paths, groups, host) for host in plan.HOSTS]
    for report in reports:
        say(str(report))
    complete = state.load() is not None
    if not complete:
        say("it was not brought up completely")
    return 0 if complete and not any(report.problem for report in reports) else EXIT_PROBLEM


def command_ssh(paths: Paths, options: argparse.Namespace) -> int:
    if not paths.ssh_config.exists():
        raise LabError(f"There is no {paths.ssh_config}: the lab was never up in this checkout.", "Bring it up first: lab.py up.")
    argv = remote.command(paths, plan.host(options.host), options.words)
    os.execvp(argv[0], argv)


def command_fill_cache(paths: Paths, _options: argparse.Namespace) -> int:
    need_root()
    say(seed.fill_cache(paths))
    return 0


def command_seed(paths: Paths, _options: argparse.Namespace) -> int:
    need_root()
    keys.ensure(paths)
    for sentence in seed.establish(paths):
        say(sentence)
    return 0


COMMANDS = {
    "up": command_up,
    "prepare": command_prepare,
    "down": command_down,
    "status": command_status,
    "ssh": command_ssh,
    "fill-cache": command_fill_cache,
    "seed": command_seed,
}
