# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A log is read once, whatever is in it and however long it is."""

from __future__ import annotations

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _rank_log
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_log import RankLog, parse_stamp, split_frames

STAMP = "2026-11-30T09:12:29.5Z"


def told(*lines: str, keep: int = 100) -> dict:  # type: ignore[type-arg]
    log = RankLog(keep)
    for line in lines:
        log.feed(line)
    return log.told()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:10Z", 10.0),
        ("1970-01-01T00:00:10.25Z", 10.25),
        ("2026-11-30T09:12:29.123456789Z", 1796029949.123456789),
        ("1970-01-01T01:00:00+01:00", 0.0),
        ("1970-01-01T00:00:00-00:30", 1800.0),
        ("2026-11-30 09:12:29Z", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_dockers_time_stamps(text: str, seconds: float | None) -> None:
    assert parse_stamp(text) == pytest.approx(seconds) if seconds is not None else parse_stamp(text) is None


def test_the_first_messages_of_each_level_are_kept_with_their_time() -> None:
    noise = [f"{STAMP} [engine] RuntimeError: Gloo connectFullMesh failed with x"] * 500
    found = told(*noise, "2026-11-30T09:12:31.0Z [engine] torch.AcceleratorError: CUDA error: out of memory")["found"]
    assert len(found) == _rank_log.FINDINGS + 1
    assert found[-1]["cause"] == "cuda_context" and found[-1]["process"] == "engine"
    assert found[-1]["time"] - found[0]["time"] == pytest.approx(1.5)


def test_how_a_rank_ended_is_read_from_its_supervisor_only() -> None:
    result = told(
        f"{STAMP} [engine] 2026-11-30T09:12:29Z ending with status 0: nothing",
        f"{STAMP} [rank] 2026-11-30T09:12:29Z ending with status 137: engine was killed by signal 9",
        f"{STAMP} [rank] 2026-11-30T09:12:40Z ending with status 70: later",
    )
    assert result["end"]["status"] == 137 and result["end"]["reason"] == "engine was killed by signal 9"


def test_when_the_group_was_ready_is_read_from_its_supervisor_only_and_of_its_last_start() -> None:
    ready = f"{STAMP} [rank] 2026-11-30T09:12:29Z the group is ready"
    assert told(f"{STAMP} [engine] 2026-11-30T09:12:29Z the group is ready")["ready"] is None
    at = told(ready)["ready"]
    assert at is not None and told(ready, f"{STAMP} [engine] more")["ready"] == at
    assert told(ready, f"{STAMP} [rank] 2026-11-30T09:12:30Z ending with status 1: engine ended with exit status 1")["ready"] is None
    assert told(ready, f"{STAMP} [rank] 2026-11-30T09:13:00Z rank 1 of 2 (worker spark-02), launch L1")["ready"] is None


def test_what_another_rank_said_is_not_this_ones_cause() -> None:
    result = told(f"{STAMP} [rank] 2026-11-30T09:12:29Z ending with status 70: rank 1 (worker b): asked to stop by signal 15")
    assert result["found"] == [] and result["end"]["status"] == 70


def test_clock_and_memory_are_read() -> None:
    result = told(
        f"{STAMP} [rank] 2026-11-30T09:12:29Z met rank 0; its clock is +2.125 s from this one",
        f"{STAMP} [rank] 2026-11-30T09:12:29Z memory: 5000 MiB available, 100 MiB free, 4900 MiB cached",
    )
    assert result["clock_offset"] == 2.125
    assert [figure / 1024**2 for figure in result["memory"][0][1:]] == [5000, 100, 4900]


def test_the_memory_of_a_long_life_stays_bounded_and_keeps_its_ends() -> None:
    lines = [
        f"2026-11-{1 + number // 1440:02}T{number % 1440 // 60:02}:{number % 60:02}:00Z [rank] 2026-11-30T09:12:29Z memory: {number} MiB available, "
        "1 MiB free, 1 MiB cached"
        for number in range(20000)
    ]
    samples = told(*lines)["memory"]
    assert 100 < len(samples) <= _rank_log.SAMPLES
    assert samples[0][1] < 200 * 1024**2 and samples[-1][1] > 19800 * 1024**2
    assert samples == sorted(samples)


def test_secrets_are_masked_and_lines_cut() -> None:
    key = "hf_" + "a" * 30
    result = told(f"{STAMP} [engine] token={key}", f"{STAMP} [engine] RuntimeError: CUDA error: out of memory api_key={key}", f"{STAMP} [engine] " + "x" * 9000)
    assert key not in str(result)
    assert max(len(line) for line in result["head"] + result["tail"]) < 2100


def test_the_beginning_and_the_end_are_kept() -> None:
    result = told(*[f"{STAMP} [engine] line {number}" for number in range(1000)], keep=40)
    assert len(result["head"]) == 10 and len(result["tail"]) == 30 and result["left_out"] == 960
    assert result["head"][0].endswith("line 0") and result["tail"][-1].endswith("line 999") and result["lines"] == 1000


def test_other_exceptions_are_kept_apart() -> None:
    result = told(
        f"{STAMP} [engine] Traceback (most recent call last):", f"{STAMP} [engine] KeyError: 'layers.0'", f"{STAMP} [engine] torch.x.ShapeError: no (3, 4)"
    )
    assert [entry["line"] for entry in result["exceptions"]] == ["KeyError: 'layers.0'", "torch.x.ShapeError: no (3, 4)"]


def test_a_line_without_a_stamp_has_the_last_ones_time() -> None:
    result = told(f"{STAMP} [engine] a", "RuntimeError: CUDA error: out of memory")
    assert result["found"][0]["time"] == parse_stamp(STAMP)
    assert (result["head"] + result["tail"])[-1] == "RuntimeError: CUDA error: out of memory"


def frame(stream: int, text: str) -> bytes:
    payload = text.encode()
    return bytes([stream, 0, 0, 0]) + len(payload).to_bytes(4, "big") + payload


def test_frames_are_put_together_however_they_arrive() -> None:
    data = frame(1, "one\ntw") + frame(2, "err\n") + frame(1, "o\n") + frame(1, "three")
    for size in (1, 3, 7, len(data)):
        chunks = [data[place : place + size] for place in range(0, len(data), size)]
        assert list(split_frames(chunks, 10**6)) == ["one", "err", "two", "three"]


def test_no_more_than_the_limit_is_read() -> None:
    taken = 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield frame(1, "x" * 1000 + "\n")

    assert len(list(split_frames(endless(), 50_000))) < 60 and taken < 60  # type: ignore[arg-type]


NCCL = [
    "spark-01:7:7 [0] NCCL INFO NCCL version 2.30.7+cuda13.0",
    "spark-01:7:19 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE; OOB enp1s0f0np0:192.168.100.10<0>",
    "spark-01:7:19 [0] NCCL INFO Initialized NET plugin IB",
    "spark-01:7:19 [0] NCCL INFO Assigned NET plugin IB to comm",
    "spark-01:7:19 [0] NCCL INFO Using network IB",
    "spark-01:7:19 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0",
]


def test_the_transport_that_nccl_uses_is_told_once() -> None:
    assert told(*(f"{STAMP} [engine] {line}" for line in NCCL * 3))["transports"] == [{"name": "IB", "address": ""}]
    assert told(f"{STAMP} [engine] INFO NET/Socket is mentioned", f"{STAMP} [engine] {NCCL[1]}")["transports"] == [], "what is there is not yet used"


@pytest.mark.parametrize(
    "line",
    [
        "spark-02:9:9 [0] NCCL INFO Using network Socket",
        "spark-02:9:9 [0] NCCL INFO Assigned NET plugin Socket to comm",
        "spark-02:9:9 [0] NCCL INFO Channel 00 : 1[60] -> 0[60] [receive] via NET/Socket/0",
        "spark-02:9:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0/Shared",
    ],
)
def test_sockets_are_told_with_the_node_whose_process_took_them(line: str) -> None:
    assert told(f"{STAMP} [engine] {line}")["transports"] == [{"name": "Socket", "address": ""}]
    of_ray = f"{STAMP} [engine] (RayWorkerProc pid=248, ip=192.168.100.11) {line} [repeated 2x across cluster]"
    assert told(of_ray)["transports"] == [{"name": "Socket", "address": "192.168.100.11"}]


def test_a_hostile_log_has_not_more_transports_than_are_kept() -> None:
    lines = [f"{STAMP} [engine] h:1:1 [0] NCCL INFO Using network X{number}" for number in range(500)]
    assert len(told(*lines)["transports"]) == _rank_log.TRANSPORTS
