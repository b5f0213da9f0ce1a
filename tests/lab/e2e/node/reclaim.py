#!/usr/bin/python3
# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
# mypy: disable-error-code="import-not-found"
"""gpu_process_reclaim's own code on a lab host: parameters as JSON on standard input, the result as JSON on standard output.

Without Ansible between, a call takes half a second, and can be watched: ``die_at`` ends this process by SIGKILL right after the
N-th thing that it did to the journal or to the node. That is put around the code here; there is nothing of it in the product.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineApi
from ansible_collections.unimem.dgx_spark.plugins.module_utils._journal import Journal
from ansible_collections.unimem.dgx_spark.plugins.module_utils._node import LiveNode
from ansible_collections.unimem.dgx_spark.plugins.module_utils._reclaim_run import run_module
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import ProcessHandle
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import Systemd


class Counter:
    """Counts what was done, and ends the process after one of it."""

    def __init__(self, die_at: int | None) -> None:
        self.die_at = die_at
        self.done: list[str] = []

    def happened(self, what: str) -> None:
        self.done.append(what)
        if len(self.done) == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, owner: type, name: str, counts: t.Callable[..., bool] = lambda *_arguments: True) -> None:
        """Count each call of a method once it has returned or raised."""
        method = getattr(owner, name)

        @functools.wraps(method)
        def counted(this: t.Any, *arguments: t.Any, **options: t.Any) -> t.Any:
            try:
                return method(this, *arguments, **options)
            finally:
                if counts(*arguments):
                    self.happened(f"{name} {' '.join(str(each) for each in arguments[:3])}"[:120])

        setattr(owner, name, counted)


def main() -> None:
    asked = json.load(sys.stdin)
    counter = Counter(asked.get("die_at"))
    counter.watch(Journal, "write")
    counter.watch(Systemd, "_act")
    counter.watch(Systemd, "start_stopping")
    counter.watch(EngineApi, "_call", lambda method, path, *_rest: method == "POST" and "/wait" not in path)
    counter.watch(ProcessHandle, "send")
    counter.watch(LiveNode, "set_link")
    counter.watch(LiveNode, "drop_cache")
    result, failure = run_module(asked["parameters"], asked.get("check", False))
    json.dump({**result, "failed": failure is not None, "msg": failure or "", "done": counter.done}, sys.stdout)


if __name__ == "__main__":
    main()
