# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The end-to-end tests' two hosts. The lab is brought up once (a no-op where it is up) and each story starts undeployed."""

from __future__ import annotations

from collections.abc import Iterator

import harness
import pytest
from harness import HOSTS, on_host, ranks, run_playbook, unit
from models import SOURCE, TARGET
from stand_ins import StandIns

CONTEXT_MARGIN = 700 * 1024**2


def _lab(*command: str) -> None:
    done = harness.lab(*command)
    if done.returncode != 0:
        pytest.exit(f"lab.py {' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}", returncode=3)


@pytest.fixture(scope="session", autouse=True)
def lab() -> None:
    """Two hosts in the seed's situation."""
    _lab("up")


@pytest.fixture
def full_page_cache() -> None:
    """The page cache that a model copy leaves behind, on the worker."""
    _lab("fill-cache")


@pytest.fixture
def freezer() -> None:
    """A process that no signal ends is one in the freezer of cgroup v1; that of v2 lets KILL through."""
    if on_host("spark-02", "test", "-d", "/sys/fs/cgroup/freezer", check=False).returncode != 0:
        pytest.skip("the hosts have no freezer of cgroup v1")


@pytest.fixture
def wary_driver() -> Iterator[None]:
    """The worker's driver wants more free memory for a context than the lab's usual 1:20.

    The CPU engine has helper processes of 400 MiB, which are not 1:20 of anything and end right before the context is made: with the usual
    margin it would be chance whether the page cache or the context gets that memory.
    """
    on_host("spark-02", "gb10-sim-ctl", "set", f"context_margin={CONTEXT_MARGIN}")
    try:
        yield
    finally:
        on_host("spark-02", "gb10-sim-ctl", "reset")


@pytest.fixture
def strangers() -> Iterator[StandIns]:
    """Services of strangers on the worker, as a test makes them; gone after it."""
    made = StandIns("spark-02")
    made.prepare()
    seed = made.seed()
    try:
        yield made
    finally:
        made.remove()
    assert made.seed() == seed, "a test has evicted the seed's own service and not restored it: all later ones would start from there"


def _nothing_runs() -> bool:
    """Whether the module before has undeployed already: no rank, no lease, and the service that is evicted runs."""
    quiet = all(on_host(host, "test", "!", "-e", "/var/lib/unimem/lease/lease.json", check=False).returncode == 0 and not ranks(host) for host in HOSTS)
    return quiet and unit("spark-02", "vllm-embeddings.service")["ActiveState"] == "active"


@pytest.fixture(scope="module")
def undeployed() -> Iterator[None]:
    """Nothing of ours runs before or after the tests of a module."""
    for _when in ("before", "after"):
        if _when == "before" and _nothing_runs():
            yield
            continue
        run = run_playbook("playbooks/undeploy_qwen.yml")
        if run.rc != 0:
            pytest.fail(f"undeploy_qwen.yml ended with {run.rc}: {run.failures}")
        if _when == "before":
            yield


@pytest.fixture
def stock_pair() -> Iterator[None]:
    """The receiver lets the controller in, and not the source: as two Sparks come out of the box."""
    keys = "/root/.ssh/authorized_keys"
    on_host(TARGET, "cp", "--preserve=all", keys, keys + ".kept")
    theirs = on_host(SOURCE, "sh", "-c", "cat /root/.ssh/id_*.pub").stdout.split()[1]
    on_host(TARGET, "sed", "--in-place", f"\\|{theirs}|d", keys)
    try:
        yield
    finally:
        on_host(TARGET, "mv", keys + ".kept", keys)
