# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.unimem.dgx_spark.plugins.module_utils._verdicts import FIT_VERDICTS, VERDICTS, badness
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _plan_table
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.plugin_utils.plans import facts, plan

TWO = {"spark-01": facts(17.1, 115.8, held=0), "spark-02": facts(3.6, 101.9)}


def test_the_decision_comes_first_then_a_node_a_line() -> None:
    lines = _plan_table.lines(plan(TWO))
    assert lines[0] == "Qwen3.5-122B, 2 ranks, vllm_ray: fits once the page cache is evicted (spark-02 decides)"
    first = lines.index("") + 1
    head, one, two = lines[first : first + 3]
    assert head.split() == ["node", "needs", "can", "get", "spare", "free", "now", "verdict", "to", "be", "stopped"]
    assert one.startswith("spark-01  ") and two.startswith("spark-02 *")
    assert "115.8 GiB" in one and "17.1 GiB" in one
    # under their heads
    assert len({line.index("fits once") for line in (one, two)}) == 1 == len({head.index("verdict"), two.index("fits once")})


def test_what_would_help_is_numbered_in_the_order_of_the_budget() -> None:
    made = plan(TWO, gpu_memory_utilization=0.9)
    lines = _plan_table.lines(made)
    start = lines.index("What would help, the cheapest first:")
    remedies = made["nodes"]["spark-02"]["budget"]["remedies"]
    assert [line.strip() for line in lines[start + 1 : start + 1 + len(remedies)]] == [f"{n}. {entry['message']}" for n, entry in enumerate(remedies, start=1)]
    assert "vllm_embeddings" in next(line for line in lines if line.startswith("spark-02 *"))
    refused = "Started now the engine would refuse, also after the page cache was evicted: it asks 107.7 GiB and sees 101.9 GiB"
    assert any(line.startswith(refused) for line in lines)


def test_parts_add_up_to_the_need() -> None:
    line = next(line for line in _plan_table.lines(plan(TWO)) if line.startswith("A rank needs"))
    total, _colon, rest = line.removeprefix("A rank needs ").partition(":")
    parts = [float(part.split()[-2]) for part in rest.partition(";")[0].split(", ")]
    assert abs(sum(parts) - float(total.split()[0])) < 0.35
    assert "by the spread" in line


def test_one_node_decides_without_a_mark() -> None:
    lines = _plan_table.lines(plan({"spark-02": facts(3.6, 101.9)}, tensor_parallel=1))
    assert lines[0].startswith("Qwen3.5-122B, 1 rank, vllm_ray: does not fit") and "decides" not in lines[0]
    assert not any("*" in line.split("  ")[0] for line in lines[:4])


def test_what_is_not_known_is_said() -> None:
    lines = _plan_table.lines(plan(TWO, weight_bytes=None))
    assert lines[0].endswith("unknown (spark-02 decides)")
    assert any(line.startswith("  ! The size of the weights is unknown") for line in lines)
    assert not any(line.startswith("A rank needs") for line in lines)


def test_names_cannot_write_to_the_screen() -> None:
    made = plan({"a\x1b[2J": facts(3.6, 101.9, name="x\x1b]0;y\x07")}, model="m\nFITS")
    assert all(line.isprintable() for line in _plan_table.lines(made))


# which node decides ----------------------------------------------------------------------------------------------


def test_a_worse_verdict_decides_whatever_the_figures_are() -> None:
    order = list(VERDICTS)
    assert order == ["fits", "fits_after_cache_eviction", "fits_after_stopping", "unknown", "does_not_fit"]
    assert tuple(order[:3]) == FIT_VERDICTS
    for better, worse in zip(order, order[1:], strict=False):
        assert badness({"verdict": better, "need": 1 << 50, "have": 0}) < badness({"verdict": worse, "need": 0, "have": 1 << 50})


def test_within_a_verdict_the_least_rest_decides() -> None:
    assert badness({"verdict": "fits", "need": 10, "have": 20}) > badness({"verdict": "fits", "need": 10, "have": 21})
    assert badness({"verdict": "nonsense", "need": None, "have": None}) == badness({"verdict": "unknown"})


def test_rows_have_what_a_query_needs() -> None:
    found = _plan_table.rows(plan(TWO)["nodes"])
    assert [set(row) for row in found] == [{"name", "verdict", "need", "have", "badness"}] * 2
    assert max(found, key=lambda row: row["badness"])["name"] == "spark-02"


def test_a_tokens_bytes_are_the_most_where_a_window_slides() -> None:
    """All tokens of such a cache together take less than their number times that."""
    one = {"spark-01": facts(110.0, 115.0)}
    assert any("12.0 KiB a token" in line and "at most" not in line for line in _plan_table.lines(plan(one)))
    config = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 18,
        "num_local_experts": 128, "num_experts_per_tok": 4, "intermediate_size": 2880, "vocab_size": 201088, "max_position_embeddings": 131072,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }
    found = plan(one, config=config, weight_bytes=65 * 10**9, context_length=131072, kv_cache_memory=10 * 1024**3)
    assert any("36.0 KiB a token" in line and "at most" in line for line in _plan_table.lines(found))
