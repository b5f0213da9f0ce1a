# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.unimem.dgx_spark.plugins.module_utils._gpu import (
    Device,
    Entry,
    Hardware,
    classify,
    classify_device,
    cuda_version,
    merge_entries,
    new_device,
    new_reading,
    parse_assignments,
    pci_device_id,
    read_hardware,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld

GIB = 1 << 30
NOTHING = Hardware(product=None, unified=[], gpu_present=False)
SPARK = Hardware(product="NVIDIA DGX Spark", unified=["/etc/dgx-release: DGX_NAME=DGX Spark"], gpu_present=True)


def device(code: int | None = 3, memory: int | None = None, **fields: t.Any) -> Device:
    """A GPU that reports this memory, or this error of NVML instead."""
    made = new_device(0)
    made["memory_total"] = memory
    if memory is None:
        made["problems"]["memory_total"] = {"code": code, "text": "no memory"}
    made.update(fields)  # type: ignore[typeddict-item]
    return made


@pytest.mark.parametrize(
    ("gpu", "hardware", "klass"),
    [
        # Not supported, and one more sign
        (device(name="NVIDIA GB10", addressing_mode="ATS", pci_device="2e12"), NOTHING, "unified"),
        (device(name="NVIDIA Thor", mig=False), NOTHING, "unified"),
        (device(name="Orin (nvgpu)"), NOTHING, "unified"),
        (device(name="NVIDIA Graphics Device", pci_device="2e12"), NOTHING, "unified"),
        (device(name="NVIDIA Graphics Device", addressing_mode="ATS"), NOTHING, "unified"),
        (device(name="NVIDIA Graphics Device", integrated=True), NOTHING, "unified"),
        (device(name="NVIDIA Graphics Device"), SPARK, "unified"),
        # One sign alone proves nothing
        (device(name="NVIDIA Graphics Device"), NOTHING, "discrete"),
        (device(name="NVIDIA Graphics Device", addressing_mode="ATS", numa_node=1), NOTHING, "discrete"),
        (device(name="NVIDIA GH200 480GB", addressing_mode="ATS"), NOTHING, "discrete"),
        (device(name="NVIDIA A100", mig=True), NOTHING, "discrete"),
        (device(name="NVIDIA A100", mig=True, addressing_mode="ATS"), SPARK, "discrete"),
        (device(code=4, name="NVIDIA RTX A6000", addressing_mode="ATS"), NOTHING, "discrete"),
        (device(code=15, name="NVIDIA RTX A6000"), SPARK, "discrete"),
        (device(code=None, name="NVIDIA RTX A6000"), SPARK, "discrete"),
        # A GB10 whose memory cannot be read for another reason is still one
        (device(code=4, name="NVIDIA GB10"), NOTHING, "unified"),
        # Numbers
        (device(memory=80 * GIB, name="NVIDIA H100", addressing_mode="HMM"), NOTHING, "discrete"),
        (device(memory=96 * GIB, name="NVIDIA GH200 480GB", addressing_mode="ATS"), NOTHING, "coherent"),
        (device(memory=96 * GIB, name="NVIDIA Graphics Device", addressing_mode="ATS"), NOTHING, "coherent"),
        (device(memory=96 * GIB, name="NVIDIA Graphics Device", numa_node=1), NOTHING, "coherent"),
        (device(memory=24 * GIB, name="NVIDIA RTX 4090"), SPARK, "discrete"),
        # The pool, or a carve-out of it, reported as if it were the GPU's own
        (device(memory=119 * GIB, name="NVIDIA GB10", addressing_mode="ATS"), NOTHING, "unified"),
        (device(memory=8 * GIB, name="NVIDIA N1X", pci_device="2e03"), NOTHING, "unified"),
        (device(memory=8 * GIB, name="NVIDIA N1X", integrated=True), NOTHING, "unified"),
    ],
)
def test_class_of_a_gpu(gpu: Device, hardware: Hardware, klass: str) -> None:
    found, evidence = classify_device(gpu, hardware)
    assert found == klass
    assert evidence


def test_a_gb10_beside_a_discrete_gpu_makes_a_unified_machine() -> None:
    second = {**device(memory=24 * GIB, name="NVIDIA RTX PRO 4000 Blackwell"), "index": 1}
    reading = {**new_reading(), "devices": [device(name="NVIDIA GB10"), second]}
    klass, evidence, classes = classify(reading, NOTHING)  # type: ignore[arg-type]
    assert (klass, classes) == ("unified", {0: "unified", 1: "discrete"})
    assert any(line.startswith("GPU 1 is discrete") for line in evidence)


def test_a_driver_that_answers_zero_gpus_is_believed_over_a_release_file() -> None:
    assert classify(new_reading(), SPARK)[0] == "none"


def test_without_its_driver_a_spark_is_still_unified() -> None:
    failed = new_reading({"code": 18, "text": "mismatch"})
    assert classify(failed, SPARK)[:2] == ("unified", ["mismatch", *SPARK.unified])
    assert classify(failed, Hardware(None, SPARK.unified, gpu_present=False))[0] == "none"
    assert classify(failed, Hardware(None, [], gpu_present=True))[0] == "none"
    assert classify(failed, NOTHING)[0] == "none"


def entry(pid: int, kind: str = "compute", memory: int | None = 100, gpu: int = 0, instance: int | None = None, name: str | None = None) -> Entry:
    return Entry(gpu=gpu, pid=pid, kind=kind, memory=memory, name=name, instance=instance)


def test_a_process_in_both_lists_holds_its_memory_once() -> None:
    (process,) = merge_entries([entry(7, "graphics", 100), entry(7, "compute", 100)])
    assert (process.kinds, process.memory, process.partial) == (["compute", "graphics"], 100, False)


def test_a_process_on_two_gpus_holds_two_memories() -> None:
    (process,) = merge_entries([entry(7, gpu=0), entry(7, gpu=1, memory=50)])
    assert (process.memory, process.gpus) == (150, [0, 1])


def test_instances_of_one_gpu_are_places_of_their_own() -> None:
    (process,) = merge_entries([entry(7, instance=1), entry(7, instance=2), entry(7, instance=2)])
    assert process.memory == 200


def test_unknown_memory_is_not_zero() -> None:
    unknown, known, part = merge_entries([entry(1, memory=None), entry(2, memory=0), entry(3, memory=None), entry(3, gpu=1)])
    assert unknown.memory is None
    assert known.memory == 0
    assert (part.memory, part.partial) == (100, True)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.builds(
            entry,
            st.integers(-1, 4),
            st.sampled_from(["compute", "graphics"]),
            st.none() | st.integers(-5, 10**12),
            st.integers(0, 1),
            st.none() | st.integers(0, 1),
        ),
        max_size=12,
    )
)
def test_merged_processes_are_unique_and_add_up(entries: list[Entry]) -> None:
    merged = merge_entries(entries)
    assert [process.pid for process in merged] == sorted({one["pid"] for one in entries if one["pid"] > 0})
    for process in merged:
        mine = [one["memory"] for one in entries if one["pid"] == process.pid and one["memory"] is not None and one["memory"] >= 0]
        assert process.kinds
        if process.memory is None:
            assert not mine
        else:
            assert max(mine) <= process.memory <= sum(mine)


@pytest.mark.parametrize(
    ("value", "expected"), [("0x2E1210DE", "2e12"), ("2E1210DE", "2e12"), (0x2E1210DE, "2e12"), ("0x12345678", None), ("x", None), (None, None), (0, None)]
)
def test_pci_ids(value: str | int | None, expected: str | None) -> None:
    assert pci_device_id(value) == expected


@pytest.mark.parametrize(("number", "expected"), [(13000, "13.0"), (12080, "12.8"), (0, None), (None, None), (-1, None)])
def test_cuda_versions(number: int | None, expected: str | None) -> None:
    assert cuda_version(number) == expected


def test_assignments() -> None:
    assert parse_assignments("A=1\nB=\"two words\"\nA='3'\n# C=4\nnot one\n=5\n") == {"A": "3", "B": "two words"}


@pytest.mark.parametrize(
    ("files", "product", "signs", "present"),
    [
        (
            {
                "/sys/class/dmi/id/sys_vendor": "ASUSTeK COMPUTER INC.\n",
                "/sys/class/dmi/id/product_name": "GX10\n",
                "/sys/bus/pci/devices/000f:01:00.0/vendor": "0x10de\n",
                "/sys/bus/pci/devices/000f:01:00.0/class": "0x030000\n",
                "/sys/bus/pci/devices/000f:01:00.0/device": "0x2e12\n",
            },
            "ASUSTeK COMPUTER INC. GX10",
            ["PCI device 10de:2e12 at 000f:01:00.0"],
            True,
        ),
        ({"/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0"}, "NVIDIA Jetson AGX Orin Developer Kit", ["device tree model"], True),
        ({"/etc/nv_tegra_release": "# R36\n"}, None, ["/etc/nv_tegra_release"], True),
        ({"/etc/dgx-release": 'DGX_NAME="DGX Spark"\n'}, "DGX Spark", ["/etc/dgx-release"], False),
        ({"/etc/dgx-release": 'DGX_NAME="DGX Spark"\n', "/proc/driver/nvidia/version": "NVRM"}, "DGX Spark", ["/etc/dgx-release"], True),
        ({"/etc/dgx-release": 'DGX_NAME="DGX Server"\n'}, "DGX Server", [], False),
        # NVIDIA's network adapters and audio functions are no GPUs
        (
            {"/sys/bus/pci/devices/0:1/vendor": "0x10de\n", "/sys/bus/pci/devices/0:1/class": "0x040300\n", "/sys/bus/pci/devices/0:1/device": "0x2e12\n"},
            None,
            [],
            False,
        ),
        ({"/sys/class/dmi/id/product_name": "To Be Filled By O.E.M.\n"}, None, [], False),
    ],
)
def test_signs_that_need_no_driver(files: dict[str, str], product: str | None, signs: list[str], present: bool) -> None:
    hardware = read_hardware(FakeWorld(files))
    assert hardware.product == product
    assert hardware.gpu_present is present
    assert len(hardware.unified) == len(signs)
    assert all(found.startswith(sign) for found, sign in zip(hardware.unified, signs))
