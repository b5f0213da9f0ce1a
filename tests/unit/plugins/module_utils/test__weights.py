# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pathlib
import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_config import Model, parse_model
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems
from ansible_collections.unimem.dgx_spark.plugins.module_utils._safetensors import Checkpoint, Tensor, read_checkpoint
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tensors import expected_tensors
from ansible_collections.unimem.dgx_spark.plugins.module_utils._weights import Split, Weights, part_of, rank_bytes, sum_weights, weights_of
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import _configs as configs
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils._checkpoints import qwen35_122b_fp8, write_checkpoint

GIB = 1024**3
GB = 10**9


def model_of(config: dict[str, t.Any]) -> Model:
    model = parse_model(config, Problems())
    assert model is not None
    return model


def given(config: dict[str, t.Any], total: int | None, split: Split) -> tuple[Weights, set[str], list[str]]:
    problems, assumptions = Problems(), t.cast("list[str]", [])
    model = model_of(config)
    size = total if total is not None else sum(tensor.size * tensor.copies for tensor in expected_tensors(model))
    found = weights_of(model, None, size, split, problems, assumptions)
    assert found is not None
    return found, {entry["code"] for entry in problems.as_list()}, assumptions


TP2 = Split(tensor_parallel=2)


@pytest.fixture(scope="module", name="sparse")
def fixture_sparse(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The mission's checkpoint: 39 shards of 127.15 GB with real headers, which take a few megabytes of disk."""
    directory = tmp_path_factory.mktemp("qwen")
    total = write_checkpoint(directory, qwen35_122b_fp8(), 39, configs.qwen35_122b(quantized=True))
    assert total / GB == pytest.approx(127.15, abs=0.02)
    return directory


@pytest.fixture(scope="module", name="checkpoint")
def fixture_checkpoint(sparse: pathlib.Path) -> Checkpoint:
    problems = Problems()
    checkpoint = read_checkpoint(str(sparse), problems)
    assert sum(tensor.copies for tensor in checkpoint.tensors) > 70000
    # the experts of a layer are one entry
    assert len(checkpoint.tensors) < 2000
    assert checkpoint.complete
    assert not problems.as_list()
    return checkpoint


@pytest.mark.parametrize(
    ("split", "gib"),
    [
        (TP2, 58.07),
        (Split(tensor_parallel=2, language_model_only=True), 57.64),
        (Split(), 116.05),
        (Split(tensor_parallel=2, speculative=True), 59.25),
        # expert parallel holds 128 whole experts of 256: the same bytes
        (Split(tensor_parallel=2, expert_parallel=True), 58.07),
    ],
)
def test_the_mission_model_from_its_headers(checkpoint: Checkpoint, split: Split, gib: float) -> None:
    problems = Problems()
    found = weights_of(model_of(configs.qwen35_122b(quantized=True)), checkpoint, None, split, problems, [])
    assert found is not None
    assert found.rank / GIB == pytest.approx(gib, abs=0.01)
    assert found.source == "safetensors headers"
    assert not problems.as_list()


def test_replicated_parts_of_the_mission_model(checkpoint: Checkpoint) -> None:
    """Routers, shared-expert gates, norms, and the vision tower's embeddings: 85.5 MB on each rank."""
    found = sum_weights(checkpoint.tensors, model_of(configs.qwen35_122b(quantized=True)), TP2)
    assert found.replicated / 10**6 == pytest.approx(85.5, abs=2.0)


@pytest.mark.parametrize("total", [int(127.15 * GB), int(118.42 * GIB), int(118.4 * GIB)])
def test_the_mission_model_from_a_total(total: int) -> None:
    """The config tells that vision (0.90 GB) and MTP (2.54 GB) are in it, and that MTP is not loaded."""
    found, codes, _assumptions = given(configs.qwen35_122b(quantized=True), total, TP2)
    assert found.rank / GIB == pytest.approx(58.07, abs=0.02)
    assert not codes
    found, _codes, _assumptions = given(configs.qwen35_122b(quantized=True), total, Split(tensor_parallel=2, language_model_only=True))
    assert found.rank / GIB == pytest.approx(57.64, abs=0.02)


def test_listing_agrees_with_the_headers() -> None:
    """The shapes that a config leads to, against the checkpoint written out by hand."""
    listed = sum(tensor.size * tensor.copies for tensor in expected_tensors(model_of(configs.qwen35_122b(quantized=True))))
    assert listed / GB == pytest.approx(127.15, abs=0.02)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "ignore": ["lm_head", "model.embed_tokens"]}
NVFP4 = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "group_size": 16,
    "ignore": ["lm_head", "*.self_attn*", "*.linear_attn*", "*.mlp.shared_expert*", "model.visual*", "mtp*"],
}
#: hf_quant_config.json of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4: attention, and the Mamba layers before it, stay
NEMOTRON_NVFP4 = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "group_size": 16,
    "exclude_modules": ["lm_head", "*.mixer.conv1d"]
    + [f"backbone.layers.{index}.mixer.{name}" for index in (5, 12, 19, 26, 33, 42) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    + [f"backbone.layers.{index}.mixer.{name}" for index in (4, 11, 18, 25, 32, 41) for name in ("in_proj", "out_proj")],
}
FP8_122B = configs.qwen35_122b(quantized=True)["quantization_config"]
#: What the engines logged as weights of a rank. Sources: djangodevreng/dgx-spark-benchmarks@5636536 (35B), TechSara registry
#: 2026-10-03 (NVFP4), conselara.dev/notes/dgx-spark-benchmarks (235B), vllm-project/vllm#39682 (30B online fp8),
#: al-engr.com (MiniMax, SGLang), forums.developer.nvidia.com 361819/29 (int4 AutoRound, 67 GB).
LOGGED: list[tuple[str, dict[str, t.Any], int | None, Split, float]] = [
    ("Qwen3.6-35B bf16", configs.qwen35_35b(), None, Split(language_model_only=True), 64.69),
    ("Qwen3.6-35B fp8", configs.variant(configs.qwen35_35b(), quantization_config=FP8_122B), None, Split(language_model_only=True), 33.85),
    # excluded modules as in nvidia/Qwen3.5-122B-A10B-NVFP4; the figure is the one of the text model
    ("Qwen3.6-35B nvfp4", configs.variant(configs.qwen35_35b(), quantization_config=NVFP4), None, Split(tensor_parallel=2, language_model_only=True), 10.66),
    ("Nemotron-3-Nano-30B nvfp4", configs.variant(configs.NEMOTRON_NANO, quantization_config=NEMOTRON_NVFP4), None, Split(), 18.21),
    (
        "Qwen3-235B gptq",
        configs.ARCHITECTURES["Qwen/Qwen3-235B-A22B"][0] | {"moe_intermediate_size": 1536, "vocab_size": 151936, "quantization_config": GPTQ},
        None,
        TP2,
        57.64,
    ),
    (
        "Qwen3-30B online fp8",
        configs.ARCHITECTURES["Qwen/Qwen3-30B-A3B"][0]
        | {"moe_intermediate_size": 768, "vocab_size": 151936, "quantization_config": {"quant_method": "fp8", "ignore": ["lm_head", "embed_tokens", "gate"]}},
        None,
        TP2,
        14.53,
    ),
    ("MiniMax-M2.7 nvfp4, 141 GB", configs.MINIMAX_M27, 141 * GB, TP2, 67.0),
    ("Qwen3.5-122B int4, 67 GB", configs.qwen35_122b(), 67 * GB, Split(), 62.65),
]


@pytest.mark.parametrize("row", LOGGED, ids=[row[0] for row in LOGGED])
def test_logged_weights(row: tuple[str, dict[str, t.Any], int | None, Split, float]) -> None:
    _name, config, total, split, logged = row
    found, _codes, _assumptions = given(config, total, split)
    assert found.rank / GIB == pytest.approx(logged, rel=0.02)


def share(name: str, shape: tuple[int, ...], split: Split = TP2, config: dict[str, t.Any] | None = None, dtype_bytes: int = 2) -> tuple[float, bool]:
    size = dtype_bytes
    for length in shape:
        size *= length
    found, replica = rank_bytes(Tensor(name, shape, size), model_of(config or configs.dense("llama", 4, 1024, 16, 4, 64)), split)
    return found / size, replica


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (1024, 1024), (0.5, False)),
        ("model.layers.0.self_attn.o_proj.weight", (1024, 1024), (0.5, False)),
        ("model.layers.0.self_attn.k_proj.weight", (256, 1024), (0.5, False)),
        ("model.layers.0.mlp.down_proj.weight_scale_inv", (8, 8), (0.5, False)),
        ("model.layers.0.mlp.down_proj.qweight", (128, 1024), (0.5, False)),
        ("model.layers.0.input_layernorm.weight", (1024,), (1.0, True)),
        ("model.layers.0.mlp.gate.weight", (8, 1024), (1.0, True)),
        ("model.layers.0.mlp.gate_proj.weight", (4096, 1024), (0.5, False)),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", (576, 1024), (1.0, True)),
        ("model.layers.0.self_attn.indexer.wq_b.weight", (64, 1024), (1.0, True)),
        ("model.layers.0.self_attn.kv_b_proj.weight", (1024, 512), (0.5, False)),
        ("model.layers.0.mlp.shared_expert_gate.weight", (1, 1024), (1.0, True)),
        ("model.visual.patch_embed.proj.weight", (64, 3, 2, 16, 16), (1.0, True)),
        ("model.visual.blocks.0.attn.qkv.weight", (192, 64), (0.5, False)),
        ("lm_head.weight", (128256, 1024), (0.5, False)),
    ],
)
def test_rules_by_name(name: str, shape: tuple[int, ...], expected: tuple[float, bool]) -> None:
    assert share(name, shape) == expected


def test_kv_heads_fewer_than_ranks_are_replicated() -> None:
    config = configs.dense("llama", 4, 1024, 16, 2, 64)
    assert share("model.layers.0.self_attn.k_proj.weight", (128, 1024), Split(tensor_parallel=8), config) == (0.5, True)
    # a fused projection: 16 query heads shared by 8, two KV heads kept by each
    fused, _replica = share("model.layers.0.self_attn.qkv_proj.weight", (20 * 64, 1024), Split(tensor_parallel=8), config)
    assert fused == pytest.approx((2 + 2 * 1) / 20)


def test_vocabulary_is_padded() -> None:
    """1001 rows become 1024 (a multiple of 64), 512 of them on each of two ranks."""
    found, _replica = share("model.embed_tokens.weight", (1001, 1024))
    assert found == pytest.approx(512 / 1001)


def test_experts_in_one_tensor_and_alone() -> None:
    config = configs.dense("qwen3_moe", 4, 1024, 16, 4, 64, num_experts=6)
    split = Split(tensor_parallel=4, expert_parallel=True)
    # six experts over four ranks: the fullest rank has two
    assert share("model.layers.0.mlp.experts.gate_up_proj", (6, 64, 1024), split, config)[0] == pytest.approx(2 / 6)
    assert share("model.layers.0.mlp.experts.1.up_proj.weight", (64, 1024), split, config)[0] == 1.0
    assert share("model.layers.0.mlp.experts.2.up_proj.weight", (64, 1024), split, config)[0] == 0.0
    assert share("model.layers.0.mlp.experts.2.up_proj.weight", (64, 1024), Split(tensor_parallel=4), config)[0] == 0.25


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.layers.3.self_attn.q_proj.weight", "text"),
        ("model.layers.4.self_attn.q_proj.weight", "mtp"),
        ("mtp.layers.0.mlp.up_proj.weight", "mtp"),
        ("model.mtp.fc.weight", "mtp"),
        ("model.visual.blocks.0.norm1.weight", "vision"),
        ("vision_tower.vision_model.embeddings.patch_embedding.weight", "vision"),
        ("multi_modal_projector.linear_1.weight", "vision"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "skipped"),
        ("lm_head.weight", "text"),
    ],
)
def test_parts(name: str, part: str) -> None:
    assert part_of(name, model_of(configs.dense("llama", 4, 1024, 16, 4, 64))) == part


def test_tied_embeddings_count_once() -> None:
    tensors = [Tensor("model.embed_tokens.weight", (1024, 64), 1024 * 64 * 2), Tensor("lm_head.weight", (1024, 64), 1024 * 64 * 2)]
    tied = sum_weights(tensors, model_of(configs.dense("llama", 4, 64, 4, 4, tie_word_embeddings=True)), Split())
    loose = sum_weights(tensors, model_of(configs.dense("llama", 4, 64, 4, 4)), Split())
    assert (tied.rank, loose.rank) == (131072, 262144)


def test_pipeline_stage_with_most_counts() -> None:
    model = model_of(configs.dense("llama", 4, 64, 4, 4))
    tensors = [Tensor(f"model.layers.{index}.mlp.up_proj.weight", (64, 64), 1000) for index in range(4)]
    tensors += [Tensor("model.embed_tokens.weight", (64, 64), 10), Tensor("lm_head.weight", (64, 64), 500)]
    assert sum_weights(tensors, model, Split(pipeline_parallel=2)).rank == 2500


def test_float32_checkpoints_are_cast() -> None:
    assumptions: list[str] = []
    checkpoint = Checkpoint([Tensor("model.embed_tokens.weight", (64, 64), 64 * 64 * 4, "F32")], complete=True)
    found = weights_of(model_of(configs.dense("llama", 4, 64, 4, 4)), checkpoint, None, Split(), Problems(), assumptions)
    assert found is not None
    assert found.rank == 64 * 64 * 2
    assert any("float32" in text for text in assumptions)


def test_a_total_that_the_config_does_not_explain_is_counted_whole() -> None:
    found, codes, assumptions = given(configs.qwen35_122b(), 67 * GB, TP2)
    assert found.rank > 67 * GB // 2
    assert not codes
    assert "all of it is counted as loaded" in assumptions[0]


def test_a_total_that_cannot_be_is_a_problem() -> None:
    """118 GiB typed as 118 GB would pass; 118 MB does not."""
    _found, codes, _assumptions = given(configs.qwen35_122b(), 118 * 10**6, TP2)
    assert codes == {"weights_implausible"}


def test_no_size_is_unknown() -> None:
    problems = Problems()
    assert weights_of(model_of(configs.qwen35_122b()), Checkpoint(), None, TP2, problems, []) is None
    assert [error.code for error in problems.errors()] == ["weights_unknown"]


def test_equal_experts_are_counted_together() -> None:
    """Expert parallel: of 6 experts in separate tensors the fullest of four ranks holds two."""
    model = model_of(configs.dense("qwen3_moe", 1, 64, 4, 4, num_experts=6))
    tensors = [Tensor(f"model.layers.0.mlp.experts.{index}.up_proj.weight", (10, 10), 100) for index in range(6)]
    assert sum_weights(tensors, model, Split(tensor_parallel=4, expert_parallel=True)).rank == 200
    assert sum_weights(tensors, model, Split(tensor_parallel=2)).rank == 300
    assert sum_weights(tensors, model, Split()).rank == 600
