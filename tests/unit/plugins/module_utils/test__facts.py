# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import importlib.util
import json
import sys
import types
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _facts, _nvsmi
from ansible_collections.unimem.dgx_spark.plugins.module_utils._facts import gather
from ansible_collections.unimem.dgx_spark.plugins.module_utils._meminfo import FIGURES
from ansible_collections.unimem.dgx_spark.plugins.module_utils._recording import ReplayWorld
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld, ProbeResult, RunResult

NODES = Path(__file__).parents[2] / "nodes"
NAMES = sorted(path.parent.name for path in NODES.glob("*/node.json"))
GIB = 1 << 30
MIB = 1 << 20
KEYS = {
    "class",
    "class_evidence",
    "product",
    "memory",
    "gpus",
    "processes",
    "process_memory",
    "unattributed",
    "fragmentation",
    "guards",
    "versions",
    "boot_id",
    "sources",
}
GPU_KEYS = {"index", "uuid", "name", "compute_capability", "driver_version", "memory_total", "memory_used", "memory_free", "addressing_mode", "mig"}
PROCESS_KEYS = {"pid", "start_time", "kinds", "memory", "name", "command", "executable", "user", "state", "gpus", "protected", "owner"}
OWNER_KEYS = {"kind", "name", "id", "unit", "restarted_by", "runtime", "project", "pod", "user"}
#: Attributes of dictionaries: a template that says facts.items gets the method and not the key.
UNUSABLE_KEYS = set(dir(dict))


def facts_of(name: str) -> dict[str, t.Any]:
    return gather(ReplayWorld(str(NODES / name)))


def written() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("written_nodes", NODES / "written.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def check_shape(facts: dict[str, t.Any]) -> None:
    """What holds for the facts of every machine."""
    assert set(facts) == KEYS
    assert tuple(facts["memory"]) == FIGURES
    reasons = facts["sources"]["reasons"]
    for name, value in facts["memory"].items():
        assert value is not None or f"memory.{name}" in reasons
        assert value is None or value >= 0
    for gpu in facts["gpus"]:
        assert set(gpu) == GPU_KEYS
        for field in ("uuid", "name", "compute_capability", "memory_total", "addressing_mode", "mig"):
            assert gpu[field] is not None or f"gpus.{gpu['index']}.{field}" in reasons, field
    for process in facts["processes"]:
        assert set(process) == PROCESS_KEYS
        assert set(process["owner"]) == OWNER_KEYS
        assert process["owner"]["kind"] in ("unit", "user_unit", "container", "desktop", "process")
        assert process["kinds"]
        assert set(process["kinds"]) <= {"compute", "graphics"}
        assert process["memory"] is not None or f"processes.{process['pid']}.memory" in reasons
        assert process["start_time"] is not None or f"processes.{process['pid']}" in reasons
    assert len({process["pid"] for process in facts["processes"]}) == len(facts["processes"])
    known = [process["memory"] for process in facts["processes"] if process["memory"] is not None]
    if facts["process_memory"] is None:
        assert not facts["processes"]
        assert "process_memory" in reasons
    else:
        assert facts["process_memory"] == sum(known)
    assert facts["unattributed"] is None or facts["unattributed"] >= 0
    assert facts["unattributed"] is not None or "unattributed" in reasons
    assert facts["class"] in ("unified", "coherent", "discrete", "none", "unresponsive")
    assert (facts["memory"]["cuda_free"] is None) or facts["class"] == "unified"
    assert facts["class_evidence"]
    assert facts["sources"]["gpu"] in ("pynvml", "nvidia-smi", "none")
    assert all(isinstance(reason, str) and reason for reason in reasons.values())
    json.dumps(facts)


def check_keys(value: t.Any) -> None:
    if isinstance(value, dict):
        assert not UNUSABLE_KEYS & set(value)
        for inner in value.values():
            check_keys(inner)
    elif isinstance(value, list):
        for inner in value:
            check_keys(inner)


@pytest.mark.parametrize("name", NAMES)
def test_every_node_has_the_whole_shape(name: str) -> None:
    facts = facts_of(name)
    check_shape(facts)
    check_keys(facts)


@pytest.mark.parametrize("name", NAMES)
def test_no_secret_of_a_node_gets_out(name: str) -> None:
    text = json.dumps(gather(ReplayWorld(str(NODES / name)), raw=True))
    for secret in ("hf_abcdefghijklmnopqrstuvwx", "sk-1234567890abcdef1234", "pass1234"):
        assert secret not in text


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_of_a_node_gives_the_same_facts(name: str, tmp_path: Path) -> None:
    raw = gather(ReplayWorld(str(NODES / name)), raw=True).pop("raw")
    (tmp_path / "node.json").write_text(json.dumps(raw))
    again = gather(ReplayWorld(str(tmp_path)), raw=True)
    assert again.pop("raw") == raw
    assert again == facts_of(name)


def test_the_nodes_on_disk_are_the_written_ones() -> None:
    module = written()
    nodes = [make() for make in module.NODES]
    assert sorted(node.name for node in nodes) == NAMES
    for node in nodes:
        assert (NODES / node.name / "node.json").read_text(encoding="utf-8") == module.text_of(node), f"run {NODES.name}/written.py"


@pytest.mark.parametrize(
    ("name", "klass", "source", "product"),
    [
        ("spark-2025-idle", "unified", "nvidia-smi", "NVIDIA DGX Spark"),
        ("spark-2026-idle", "unified", "pynvml", "NVIDIA DGX Spark"),
        ("spark-2026-loaded", "unified", "pynvml", "NVIDIA DGX Spark"),
        ("spark-2026-desktop", "unified", "nvidia-smi", "NVIDIA DGX Spark"),
        ("spark-2025-cache-full", "unified", "pynvml", "NVIDIA DGX Spark"),
        ("spark-container", "unified", "pynvml", "NVIDIA DGX Spark"),
        ("spark-610-smi", "unified", "nvidia-smi", "NVIDIA DGX Spark"),
        ("spark-590-pools", "unified", "pynvml", "NVIDIA DGX Spark"),
        ("spark-mismatch", "unified", "none", "NVIDIA DGX Spark"),
        ("spark-hung", "unresponsive", "none", "NVIDIA DGX Spark"),
        ("jetson-thor", "unified", "nvidia-smi", "NVIDIA Jetson AGX Thor Developer Kit"),
        ("jetson-orin", "unified", "nvidia-smi", "NVIDIA Jetson AGX Orin Developer Kit"),
        ("gh200", "coherent", "pynvml", "Supermicro ARS-111GL-NHR"),
        ("discrete-mig", "discrete", "pynvml", "Dell Inc. PowerEdge XE8545"),
        ("no-gpu", "none", "none", None),
    ],
)
def test_class_and_source(name: str, klass: str, source: str, product: str | None) -> None:
    facts = facts_of(name)
    assert (facts["class"], facts["sources"]["gpu"], facts["product"]) == (klass, source, product)


def test_totals_of_the_firmwares() -> None:
    assert facts_of("spark-2025-idle")["memory"]["total"] == 125513720 * 1024
    assert facts_of("spark-2026-idle")["memory"]["total"] == 127600524 * 1024


def test_the_three_numbers_that_are_called_free() -> None:
    memory = facts_of("spark-2025-cache-full")["memory"]
    assert memory["cuda_free"] == memory["free"] < 44 * GIB
    assert memory["available"] == memory["allocatable"] > 116 * GIB
    assert 72 * GIB < memory["reclaimable"] < memory["page_cache"] < 74 * GIB


def test_the_worker_of_the_seed() -> None:
    facts = facts_of("seed-worker")
    memory = facts["memory"]
    assert memory["total"] / GIB == pytest.approx(119.7, abs=0.05)
    assert memory["cuda_free"] / GIB == pytest.approx(3.6, abs=0.1)
    assert memory["allocatable"] / GIB == pytest.approx(101.9, abs=0.1)
    embeddings, stray = facts["processes"]
    assert embeddings["memory"] == 11981 * MIB
    assert embeddings["owner"]["kind"] == "container"
    assert embeddings["owner"]["name"] == "vllm_embeddings"
    assert embeddings["owner"]["unit"] == "vllm-embeddings.service"
    assert embeddings["owner"]["restarted_by"] == "systemd (vllm-embeddings.service, Restart=always); docker (restart policy always)"
    assert embeddings["protected"] is None
    assert stray["owner"]["kind"] == "process"
    assert stray["command"] == "/usr/bin/python3 serve.py --hf-token ********"
    assert facts["process_memory"] == (11981 + 200) * MIB
    assert facts["unattributed"] < 200 * MIB


def test_a_desktop_is_protected_and_a_model_started_in_it_is_not() -> None:
    facts = facts_of("spark-2026-desktop")
    by_name = {process["name"]: process for process in facts["processes"]}
    assert {name: process["owner"]["kind"] for name, process in by_name.items()} == {
        "Xorg": "desktop",
        "gnome-shell": "desktop",
        "firefox": "desktop",
        "llama-server": "process",
    }
    assert {name for name, process in by_name.items() if process["protected"]} == {"Xorg", "gnome-shell", "firefox"}
    assert by_name["llama-server"]["kinds"] == ["compute", "graphics"]
    assert by_name["llama-server"]["memory"] == 20480 * MIB
    assert by_name["firefox"]["command"].endswith("https://********@example.org/")
    assert {guard["name"]: guard["thresholds"] for guard in facts["guards"]} == {
        "systemd-oomd": {"SwapUsedLimit": "90%", "DefaultMemoryPressureLimit": "60%", "DefaultMemoryPressureDurationSec": "20s"},
        "earlyoom": {"mem_percent": "2", "swap_percent": "80", "prefer": "VLLM|sglang"},
    }


def test_memory_that_nobody_holds_is_unattributed() -> None:
    facts = facts_of("spark-590-pools")
    assert facts["processes"] == []
    assert facts["process_memory"] == 0
    assert facts["unattributed"] == pytest.approx(60 * GIB, rel=1e-6)
    assert facts["versions"]["driver_pools"] is True


def test_memory_that_is_held_is_not() -> None:
    facts = facts_of("spark-2026-loaded")
    assert facts["process_memory"] == 89093 * MIB
    assert facts["unattributed"] == pytest.approx(88.2 * GIB - 89093 * MIB, rel=1e-3)
    (process,) = facts["processes"]
    assert process["name"] == "VLLM::EngineCore"
    assert process["owner"]["project"] == "llm"
    assert process["owner"]["restarted_by"] == "docker (restart policy unless-stopped)"


def test_in_a_container_an_empty_list_is_unknown_and_not_none() -> None:
    facts = facts_of("spark-container")
    assert facts["processes"] == []
    assert facts["process_memory"] is None
    assert "PID namespace" in facts["sources"]["reasons"]["processes"]
    assert facts["unattributed"] == pytest.approx(88 * GIB, rel=1e-3)


@pytest.mark.parametrize("name", ["spark-hung", "spark-mismatch"])
def test_without_an_answer_the_processes_are_unknown_and_the_pool_is_not(name: str) -> None:
    facts = facts_of(name)
    assert facts["gpus"] == []
    assert facts["process_memory"] is None
    assert facts["sources"]["reasons"]["processes"].startswith("unknown, not none")
    assert facts["memory"]["allocatable"] is not None


def test_without_a_gpu_there_are_no_processes() -> None:
    facts = facts_of("no-gpu")
    assert (facts["processes"], facts["process_memory"]) == ([], 0)
    assert "processes" not in facts["sources"]["reasons"]


def test_an_orin_lists_no_processes_whatever_runs() -> None:
    facts = facts_of("jetson-orin")
    assert facts["process_memory"] is None
    assert "nvgpu" in facts["sources"]["reasons"]["processes"]


def test_a_gpu_with_memory_of_its_own() -> None:
    for name, free in (("gh200", 75371 * MIB), ("discrete-mig", 68059 * MIB)):
        facts = facts_of(name)
        assert facts["memory"]["allocatable"] == free
        assert facts["memory"]["cuda_free"] is None
        assert facts["gpus"][0]["memory_free"] == free


def test_a_divided_gpu_and_its_pod() -> None:
    facts = facts_of("discrete-mig")
    assert facts["gpus"][0]["mig"] is True
    assert [process["owner"]["runtime"] for process in facts["processes"]] == ["kubernetes", "kubernetes"]
    assert all("Kubernetes pod" in process["protected"] for process in facts["processes"])


def test_without_root_what_cannot_be_seen_is_said() -> None:
    facts = facts_of("spark-unprivileged")
    reasons = facts["sources"]["reasons"]
    container, unsized, unseen = facts["processes"]
    assert container["owner"]["name"] == "3f4e8d0c5b6a"
    assert reasons["processes.6330.owner"] == "/run/docker.sock: permission denied"
    assert reasons["processes.6330.executable"] == "permission denied"
    assert unsized["memory"] is None
    assert "does not say" in reasons["unattributed"]
    assert (unseen["pid"], unseen["start_time"]) == (7777, None)
    assert unseen["protected"]
    assert "hidepid" in reasons["processes.7777"]
    assert "without root" in reasons["privileges"]
    assert facts["process_memory"] == (89093 + 512) * MIB


def test_the_newest_generation_by_xml() -> None:
    facts = facts_of("spark-610-smi")
    assert facts["versions"]["driver"] == facts["gpus"][0]["driver_version"] == "610.57.04"
    assert facts["versions"]["cuda"] == "13.4"
    assert [(process["pid"], process["memory"]) for process in facts["processes"]] == [(6330, 89093 * MIB)]


def test_both_sources_tell_the_same() -> None:
    """One machine, read by pynvml and by nvidia-smi."""
    module = written()
    by_pynvml = module.spark_2026_desktop()
    by_smi = module.spark_2026_desktop()
    by_pynvml.probes["pynvml"] = module.reading([module.gb10()], module.DESKTOP, driver="580.159.03")
    found = []
    for node in (by_pynvml, by_smi):
        document = node.document()
        found.append(gather(_replay(document)))
    first, second = found
    assert (first["sources"]["gpu"], second["sources"]["gpu"]) == ("pynvml", "nvidia-smi")
    for key in KEYS - {"sources", "class_evidence"}:
        assert first[key] == second[key], key


def _replay(document: dict[str, t.Any]) -> FakeWorld:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "node.json").write_text(json.dumps(document))
        return ReplayWorld(directory)


class Slow(FakeWorld):
    """A machine whose clock runs with each command: what is asked later has less time."""

    def __init__(self, **fields: t.Any) -> None:
        self.now = 0.0
        self.asked: list[tuple[str, float]] = []
        super().__init__(clock=lambda: self.now, **fields)

    def start(self, argv: t.Sequence[str], timeout: float) -> t.Any:
        self.asked.append((argv[0], timeout))
        return super().start(argv, timeout)

    def start_probe(self, name: str, function: t.Any, timeout: float) -> t.Any:
        self.asked.append((name, timeout))
        self.now += 6.0
        return super().start_probe(name, function, timeout)


def test_nvidia_smi_gets_what_pynvml_left_of_the_deadline() -> None:
    world = Slow()
    gather(world, timeout=10.0)
    assert world.asked[0] == ("pynvml", 10.0)
    assert {left for name, left in world.asked if name == "nvidia-smi"} == {4.0}


@pytest.mark.parametrize("pynvml", [True, False])
def test_the_driver_works_while_everything_else_is_read(monkeypatch: pytest.MonkeyPatch, pynvml: bool) -> None:
    """Whoever is asked: pynvml, or nvidia-smi where there is no pynvml that would have to be waited for first."""

    class Ordered(Slow):
        def process_table(self) -> dict[int, str]:
            self.asked.append(("/proc", 0.0))
            return super().process_table()

    monkeypatch.setattr(_facts, "installed", lambda: pynvml)
    world = Ordered()
    facts = gather(world)
    names = [name for name, _left in world.asked]
    assert names.index("/proc") == (1 if pynvml else 4) and names[0] == "pynvml" and names.count("nvidia-smi") == 3
    monkeypatch.setattr(_facts, "installed", lambda: not pynvml)
    assert gather(Ordered()) == facts


def test_a_driver_that_hangs_pynvml_is_not_asked_again() -> None:
    world = Slow(probes={"pynvml": ProbeResult(error="no answer within 10 s", timed_out=True)})
    facts = gather(world)
    assert facts["class"] == "unresponsive"
    assert [name for name, _left in world.asked] == ["pynvml"]


def test_a_driver_that_hangs_nvidia_smi() -> None:
    hung = RunResult(-9, timed_out=True)
    facts = gather(FakeWorld(commands={_nvsmi.GPU_QUERY: hung, _nvsmi.APP_QUERY: hung, _nvsmi.TABLE: hung}))
    check_shape(facts)
    assert (facts["class"], facts["sources"]["gpu"]) == ("unresponsive", "none")
    assert "did not answer" in facts["sources"]["reasons"]["gpus"]


def test_a_broken_child_leaves_nvidia_smi() -> None:
    gb10 = "0, GPU-1, 0x2E1210DE, 12.1, 580.142, [N/A], [N/A], [N/A], [N/A], ATS, NVIDIA GB10\n"
    commands = {_nvsmi.GPU_QUERY: RunResult(0, gb10), _nvsmi.APP_QUERY: RunResult(0), _nvsmi.TABLE: RunResult(0, "| Processes: |\n")}
    facts = gather(FakeWorld(commands=commands, probes={"pynvml": ProbeResult(error="the child process for pynvml ended with status -11 and no answer")}))
    assert (facts["class"], facts["sources"]["gpu"]) == ("unified", "nvidia-smi")
    assert "status -11" in facts["sources"]["reasons"]["sources.pynvml"]


def test_a_gpu_that_its_driver_does_not_list() -> None:
    """GSP firmware that does not start, for one: the driver is loaded, answers, and has no device."""
    none = RunResult(6, "No devices were found\n")
    commands = {_nvsmi.GPU_QUERY: none, _nvsmi.APP_QUERY: none, _nvsmi.TABLE: none}
    facts = gather(FakeWorld({"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.142\n"}, commands=commands))
    assert (facts["class"], facts["gpus"], facts["process_memory"]) == ("none", [], 0)
    assert facts["sources"]["reasons"]["gpus"].endswith("and the driver lists none")


def test_a_machine_of_which_nothing_can_be_read() -> None:
    facts = gather(FakeWorld())
    check_shape(facts)
    assert facts["class"] == "none"
    assert set(facts["memory"].values()) == {None}
    assert "/proc/meminfo: no such file" in facts["sources"]["reasons"]["memory.total"]


def mangled(text: str, cuts: list[tuple[int, int, str]]) -> str:
    for start, length, put in cuts:
        place = start % (len(text) + 1)
        text = text[:place] + put + text[place + length :]
    return text


CUTS = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 40), st.sampled_from(["", "\n", "0", "N/A", "-1", ")", ":", ",", "99999999999"])), max_size=4)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_a_damaged_machine_is_still_described(name: str, data: st.DataObject) -> None:
    """Any text that was read can be cut or garbled, or be gone: no exception, sums that add up, nothing negative."""
    world = ReplayWorld(str(NODES / name))
    files = dict(world.files)
    for path in data.draw(st.lists(st.sampled_from(sorted(files)), max_size=3, unique=True)):
        if data.draw(st.booleans()):
            del files[path]
        else:
            files[path] = mangled(files[path], data.draw(CUTS))
    world.files = files
    world.commands = {
        argv: RunResult(data.draw(st.sampled_from([result.rc, 1])), mangled(result.stdout, data.draw(CUTS)), result.stderr, result.timed_out, result.missing)
        for argv, result in world.commands.items()
    }
    check_shape(gather(world))
