# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _overheads as overheads
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import GIB


def terms(**changes: object) -> overheads.Terms:
    wanted = {"engine": "vllm_ray", "cpu": False, "head": True, "ranks": 2, "batched_tokens": 8192, "eager": False, "weights": 58 * GIB, "overrides": {}}
    wanted.update(changes)
    return overheads.overhead_terms(**wanted)  # type: ignore[arg-type]


def test_every_constant_has_a_spread_and_a_source() -> None:
    found = [value for value in vars(overheads).values() if isinstance(value, overheads.Constant)]
    assert len(found) >= 10
    for constant in found:
        assert constant.low <= constant.value <= constant.high
        assert len(constant.source) > 20


def test_constants_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        overheads.RAY.value = 0  # type: ignore[misc]


def test_head_and_worker_differ_by_the_api_server() -> None:
    assert terms().host_process[1] - terms(head=False).host_process[1] == overheads.API_SERVER.value


def test_ray_costs_on_every_node() -> None:
    assert terms(head=False).host_process[1] == overheads.RAY.value
    assert terms(head=False, engine="vllm_mp").host_process[1] == 0


def test_one_rank_needs_no_communication() -> None:
    assert terms(ranks=1).communication == (0, 0, 0)
    assert terms().communication[1] > 0


def test_eager_has_no_graphs() -> None:
    assert terms(eager=True).graphs == (0, 0, 0)


def test_cpu_has_neither_context_nor_graphs() -> None:
    found = terms(cpu=True)
    assert (found.cuda_context, found.graphs, found.communication, found.load_peak) == ((0, 0, 0),) * 4
    assert found.activations[1] > 0


#: (batched tokens, GiB left over in a public start-up log) at the sources named in _overheads
@pytest.mark.parametrize(("tokens", "left"), [(2048, 2.4), (4096, 4.62), (8192, 3.58), (32768, 13.5), (65536, 18.3)])
def test_activations_against_logs(tokens: int, left: float) -> None:
    """Activations, context and communication together: the log's remainder is inside of the stated spread."""
    found = terms(batched_tokens=tokens, weights=23 * GIB)
    low, value, high = (sum(part[index] for part in (found.activations, found.cuda_context, found.communication)) / GIB for index in range(3))
    assert low <= left <= high
    assert abs(value - left) < 4.5


def test_activations_grow_with_tokens() -> None:
    values = [terms(batched_tokens=tokens).activations[1] for tokens in (1024, 2048, 8192, 16384, 32768, 65536)]
    assert values == sorted(set(values))


def test_measured_figures_replace_constants() -> None:
    measured = {"activations": 1, "graphs": 2, "cuda_context": 3, "communication": 4, "host_process": 5, "ray": 6}
    found = terms(overrides=measured)
    assert found.activations == (1, 1, 1)
    assert found.graphs == (2, 2, 2)
    assert found.cuda_context == (3, 3, 3)
    assert found.communication == (4, 4, 4)
    assert found.host_process == (11, 11, 11)
    assert found.load_peak == (0, 0, 0)
    assert terms(overrides=measured, engine="vllm_mp").host_process == (5, 5, 5)
    assert "activations" in found.assumptions[0]


def test_one_measured_figure_leaves_the_rest() -> None:
    assert terms(overrides={"graphs": 7}).activations == terms().activations


def test_a_larger_object_store_of_ray_is_counted() -> None:
    small, large = terms(object_store=GIB), terms(object_store=4 * GIB)
    assert [most - least for least, most in zip(small.host_process, large.host_process)] == [3 * GIB] * 3
    assert terms(object_store=GIB // 4).host_process == small.host_process, "less was not seen to save anything"
    assert terms(engine="vllm_mp", object_store=4 * GIB).host_process == terms(engine="vllm_mp").host_process
    assert terms(overrides={"ray": GIB}, object_store=4 * GIB).host_process[1] == terms(overrides={"ray": GIB}).host_process[1], "what was measured stands"
