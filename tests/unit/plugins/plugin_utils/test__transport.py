# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the ranks use the RDMA devices that the plan found."""

from __future__ import annotations

from typing import Any

from ansible_collections.unimem.dgx_spark.plugins.module_utils._causes import ROOT, find
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._transport import rdma_doubts

RDMA = {"name": "IB", "address": ""}
SOCKETS = {"name": "Socket", "address": ""}


def plan(rdma: bool = True) -> dict[str, Any]:
    return {
        "rdma": rdma,
        "ranks": {
            f"spark-0{rank + 1}": {
                "address": f"192.168.100.1{rank}",
                "container": f"unimem-default-rank{rank}",
                "environment": {"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0"},
            }
            for rank in range(2)
        },
    }


def test_nothing_is_said_of_ranks_that_use_it() -> None:
    for used in (RDMA, {"name": "IBext_v10", "address": ""}):
        assert rdma_doubts(plan(), {"spark-01": [used], "spark-02": [used]}) == {"fallback": {}, "unknown": ""}


def test_a_rank_on_sockets_is_named_with_what_to_look_at() -> None:
    found = rdma_doubts(plan(), {"spark-01": [RDMA], "spark-02": [RDMA, SOCKETS]})
    assert set(found["fallback"]) == {"spark-02"} and found["unknown"] == ""
    for words in ("spark-02 uses sockets (NET/Socket)", "rocep1s0f0,roceP2p1s0f0", "memlock:-1:-1", "IPC_LOCK", "docker logs unimem-default-rank1"):
        assert words in found["fallback"]["spark-02"]


def test_with_ray_the_heads_log_speaks_for_the_others() -> None:
    told = {"spark-01": [RDMA, {"name": "Socket", "address": "192.168.100.11"}], "spark-02": []}
    assert set(rdma_doubts(plan(), told)["fallback"]) == {"spark-02"}


def test_silence_is_no_proof_of_either() -> None:
    found = rdma_doubts(plan(), {"spark-01": [], "spark-02": []})
    assert found["fallback"] == {} and "No rank's NCCL" in found["unknown"]


def test_where_no_rdma_is_expected_nothing_is_said() -> None:
    for told in ({"spark-01": [SOCKETS]}, {"spark-01": []}):
        assert rdma_doubts(plan(rdma=False), told) == {"fallback": {}, "unknown": ""}


def test_the_failure_of_the_strict_option_is_a_known_cause() -> None:
    match = find("NCCL on spark-02 uses sockets (NET/Socket). (tp_launch_rdma_strict: false only says it.)")
    assert match is not None and (match.cause.name, match.cause.level, match.cause.kind) == ("socket_fallback", ROOT, "network")
