# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""No text of a process, a driver or a recorded node may cost more than its length: any user chooses a command line, and root reads it."""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
import signal
import time
import typing as t
from collections.abc import Callable, Iterator

import pytest

from ansible_collections.unimem.dgx_spark.plugins import module_utils
from ansible_collections.unimem.dgx_spark.plugins.module_utils._causes import find
from ansible_collections.unimem.dgx_spark.plugins.module_utils._fragmentation import parse_buddyinfo
from ansible_collections.unimem.dgx_spark.plugins.module_utils._guards import parse_oomd
from ansible_collections.unimem.dgx_spark.plugins.module_utils._hub import About, parse_dry_run, sentence
from ansible_collections.unimem.dgx_spark.plugins.module_utils._mask import is_secret_name, mask_argv, mask_command
from ansible_collections.unimem.dgx_spark.plugins.module_utils._meminfo import parse_meminfo
from ansible_collections.unimem.dgx_spark.plugins.module_utils._nvsmi import APP_FIELDS, GPU_FIELDS, failure_of, parse_compute_apps, parse_gpus, parse_table
from ansible_collections.unimem.dgx_spark.plugins.module_utils._owners import cgroup_base, parse_systemctl_show
from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import parse_stat, parse_uid
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_log import RankLog
from ansible_collections.unimem.dgx_spark.plugins.module_utils._versions import driver_pools, kernel_module_version
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import RunResult, parse_response

LENGTH = 40_000
#: CPU seconds after which a pattern is interrupted: an exponential one would never end.
BOUND = 10.0
#: CPU seconds below which nothing is compared: what takes no longer at this length cannot be felt, whatever its order.
FELT = 0.05
#: A text four times as long takes four times as long where the cost is linear, and sixteen times where it is quadratic.
STEPS, MOST = 4, 8

#: All of them: whoever writes a pattern should not have to think of a list.
MODULES = tuple(sorted(found.name for found in pkgutil.walk_packages(module_utils.__path__, f"{module_utils.__name__}.") if not found.ispkg))

#: What a text is made of: each piece alone, many times, is the worst that one of the patterns can be given, or nearly it.
PIECES = (
    *(" ", "\t", "\n", " \n", "\n \n", "\n\n "),
    *("a", "A", "aA", "0", "1 ", "1.", "a.", "A1", "-", "--", "-a", "-a ", "- ", "a ", '"', "'", '-a "', "'a ", "a,"),
    *("a=", "a= ", "a:", 'a="', 'a"=', '"a": ', 'a" ,', "=", ":", ";a", "?a", "&a=", "://", "a://", "a://@", "@", "://a@"),
    *("hf_", "-hf_a", "sk-", "-sk-", "-eyJ", "-eyJaaaaaaaa", ".eyJaaaaaaaa.", "xoxb-", "gho_", "AIza", "AKIA"),
    *("bearer ", "bearer\t\t", "basic a", "cookie", "cookie ", "cookie:", "cookie: ", "authorization : "),
    *("[", "[Deprecated", " [Deprecated", "[N/A] ", "1MiB", "1 MiB ", "|", "| "),
    *("libnvidia-ml.so", "libnvidia-ml.so not ", "driver/", "CUDA Version: ", "CUDA Version: 1", "Driver Version: 1.1."),
    *("NVRM version:", "NVRM version: ", " 1111.1", "\nNVRM version: ", "EnableSystemMemoryPools:\n", "Uid:\t0"),
    *("soft_threshold_a", "soft_threshold_a = ", "\nsoft_threshold_a", "Node 0, zone ", " 1", "compact_a", "compact_a 1\n"),
    *("bind on address ('", "attempt to bind on address ('a', 1", "Tried to allocate ", "Memory on the node (", "running low on memory(", "port: 1 "),
    *("Connect to ", "connectFullMesh remote=[", "Link ", "a: Link ", "No such file or directory: '", "rsync error: ", "error: argument "),
    *("rank 1 is lost:", "KV cache is needed", "memory capacity is unbalanced=", "Killed process 1 (a)", "sending SIGTERM to process 1 uid 0 \""),
    *("client socket has timed out after 1ms while ", "model ", "nohang ", "ssh: connect to host ", "gloo/transport/", "ibv_reg_mr", "seq len (1), (1"),
    *("aError: ", "a.aError", "2026-01-01T", "[a] ", "status 1: "),
    *("app-", ".scope", "machine-", "pod", "abcdef01-", "user@1", "docker-", "/docker-", "Jetson"),
)
#: What must stand before the pieces for some patterns to go on at all.
PREFIXES = ("", "| 0 N/A N/A 1 C ", "Node 0, zone Normal ", "a: ", "a", "NVRM version: ", "soft_threshold_a = x", "cookie", "machine-")
SUFFIXES = ("", "!")


class _TooLong(Exception):
    pass


def _stop(_signal: int, _frame: t.Any) -> None:
    raise _TooLong


def _seconds(run: Callable[[str], object], text: str) -> float:
    """CPU time of one run, so that a busy machine makes little difference; a run that would not end is interrupted."""
    before = signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, BOUND)
    started = time.process_time()
    try:
        run(text)
        return time.process_time() - started
    except _TooLong:
        return math.inf
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _linear(run: Callable[[str], object], what: str, text: Callable[[int], str]) -> None:
    """Compares two lengths in the same run, best of several, since other processes disturb: no bound in seconds, which another machine would not keep."""
    long, short = text(LENGTH), text(LENGTH // STEPS)
    took = _seconds(run, long)
    if took > FELT:
        assert took < math.inf, f"more than {BOUND} s for {LENGTH} characters: {what}"
        growth = math.inf
        for _attempt in range(3):
            growth = min(growth, min(_seconds(run, long) for _round in range(2)) / min(_seconds(run, short) for _round in range(3)))
            if growth < MOST:
                return
        raise AssertionError(f"{STEPS} times the length costs {growth:.1f} times the time ({took:.2f} s for {LENGTH} characters): {what}")


def _patterns() -> Iterator[tuple[str, re.Pattern[t.Any]]]:
    for name in MODULES:
        module = importlib.import_module(name)
        for attribute, value in vars(module).items():
            rows = value if isinstance(value, tuple) else ()
            found = [value, *(cell for row in rows if isinstance(row, tuple) for cell in row)]
            yield from ((f"{name.removeprefix(module_utils.__name__ + '.')}.{attribute}", pattern) for pattern in found if isinstance(pattern, re.Pattern))


def _texts(prefixes: tuple[str, ...] = PREFIXES) -> Iterator[tuple[str, Callable[[int], str]]]:
    """What each text is, and the function that makes it of a length."""

    def maker(prefix: str, piece: str, suffix: str) -> Callable[[int], str]:
        return lambda length: prefix + piece * (length // len(piece)) + suffix

    for piece in PIECES:
        for prefix in prefixes:
            for suffix in SUFFIXES:
                yield f"{prefix!r} {piece!r}... {suffix!r}", maker(prefix, piece, suffix)


PATTERNS = list(_patterns())


def test_the_patterns_are_found() -> None:
    names = {name for name, _pattern in PATTERNS}
    assert {"_mask._PAIR", "_mask._SHAPES", "_nvsmi._PROCESS_ROW", "_nvsmi._FAILURES", "_owners._MACHINE", "_versions._KERNEL_MODULE"} <= names


@pytest.mark.parametrize("pattern", [pytest.param(pattern, id=f"{name}-{number}") for number, (name, pattern) in enumerate(PATTERNS)])
def test_a_pattern_is_linear(pattern: re.Pattern[t.Any]) -> None:
    as_bytes = isinstance(pattern.pattern, bytes)
    for what, text in _texts(("",)):
        _linear(lambda given: pattern.sub(b"" if as_bytes else "", given.encode() if as_bytes else given), what, text)


def _feed(text: str) -> object:
    log = RankLog(40)
    for process in ("rank", "engine"):
        log.feed(f"2026-11-30T09:12:29.5Z [{process}] " + text.replace("\n", " "))
    return log.told()


READERS: dict[str, Callable[[str], object]] = {
    "mask_command": mask_command,
    "mask_argv": lambda text: mask_argv(["curl", "--api-key", text, text]),
    "is_secret_name": is_secret_name,
    "parse_buddyinfo": parse_buddyinfo,
    "parse_oomd": parse_oomd,
    "parse_meminfo": parse_meminfo,
    "parse_table": lambda text: parse_table("Processes:\n" + text),
    "parse_table row": lambda text: parse_table("Processes:\n" + text + " |"),
    "parse_gpus": lambda text: parse_gpus(",".join(["0", *[text[: LENGTH // len(GPU_FIELDS)]] * (len(GPU_FIELDS) - 1)]), GPU_FIELDS),
    "parse_compute_apps": lambda text: parse_compute_apps(",".join(["GPU-0", "7", *[text] * (len(APP_FIELDS) - 2)]), []),
    "failure_of": lambda text: failure_of(RunResult(1, text, "")),
    "parse_systemctl_show": parse_systemctl_show,
    "cgroup_base": lambda text: cgroup_base("0::/" + text),
    "parse_stat": lambda text: parse_stat(f"1 ({text}) S 1 {text}"),
    "parse_uid": lambda text: parse_uid("Uid:\t0\t" + text),
    "driver_pools": driver_pools,
    "kernel_module_version": kernel_module_version,
    "find": find,
    "parse_dry_run": parse_dry_run,
    "sentence of hf": lambda text: sentence(About("org/x", "", "/x"), 1, text),
    "RankLog": _feed,
    "parse_response": lambda text: parse_response(text.encode()),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_is_linear_and_never_raises(reader: str) -> None:
    for what, text in _texts(PREFIXES if reader in ("parse_table row", "parse_buddyinfo", "parse_meminfo", "kernel_module_version") else ("",)):
        _linear(READERS[reader], what, text)
