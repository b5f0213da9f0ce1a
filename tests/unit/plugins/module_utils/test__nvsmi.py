# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _nvsmi
from ansible_collections.unimem.dgx_spark.plugins.module_utils._gpu import Reading, merge_entries
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import Deadline, FakeWorld, RunResult

MIB = 1 << 20
UUID = "GPU-5e1f2f5c-4d7c-4b5e-9a0e-1f2a3b4c5d6e"
GB10 = f"0, {UUID}, 0x2E1210DE, 12.1, 580.142, [N/A], [N/A], [N/A], [N/A], ATS, NVIDIA GB10\n"

TABLE_580 = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.142                Driver Version: 580.142        CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |
| N/A   42C    P8              4W /  N/A  | Not Supported          |      0%      Default |
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A            3421      G   /usr/lib/xorg/Xorg                       43MiB |
|    0   N/A  N/A            6330      C   VLLM::EngineCore                      89093MiB |
|    0   N/A  N/A            7001    C+G   ...lama.cpp-b9536/build/bin/llama-server 512MiB |
|    0   N/A  N/A            7002      C   [Not Found]                               N/A  |
|    0     1    0            7003    M+C   nvidia mps client                      100MiB |
+-----------------------------------------------------------------------------------------+
"""
#: Drivers of the 550 branch had a narrower table.
TABLE_550 = """\
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15    CUDA Version: 12.4     |
| Processes:                                                                            |
|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |
|=======================================================================================|
|    0   N/A  N/A      2081      G   /usr/bin/gnome-shell                           6MiB |
+---------------------------------------------------------------------------------------+
"""
NO_PROCESSES = "| Processes:   |\n|  No running processes found   |\n"


def commands(gpus: RunResult | str = GB10, apps: RunResult | str = "", table: RunResult | str = NO_PROCESSES, **more: RunResult) -> FakeWorld:
    def result(answer: RunResult | str) -> RunResult:
        return RunResult(0, answer) if isinstance(answer, str) else answer

    answers = {_nvsmi.GPU_QUERY: result(gpus), _nvsmi.APP_QUERY: result(apps), _nvsmi.TABLE: result(table)}
    answers.update({{"xml": _nvsmi.XML, "short": _nvsmi.SHORT_GPU_QUERY}[name]: answer for name, answer in more.items()})
    return FakeWorld(commands=answers)


def read(world: FakeWorld) -> Reading:
    reading, hung = _nvsmi.Asked(world, Deadline(world, 10)).finish()
    assert not hung
    return reading


@pytest.mark.parametrize(
    ("token", "number", "code"),
    [
        ("81559", 81559, None),
        (" 89093 MiB", 89093, None),
        ("12.5 MiB", 12, None),
        ("[N/A]", None, 3),
        ("N/A", None, 3),
        ("Not Supported", None, 3),
        ("[Not Supported]", None, 3),
        ("[Insufficient Permissions]", None, 4),
        ("Insufficient Permissions", None, 4),
        ("[Unknown Error]", None, None),
        ("[GPU requires reset]", None, None),
        ("ERR!", None, None),
        ("-5", None, None),
        ("", None, None),
    ],
)
def test_numbers_and_what_stands_in_their_place(token: str, number: int | None, code: int | None) -> None:
    found, problem = _nvsmi.parse_number(token)
    assert found == number
    if number is None:
        assert problem is not None
        assert problem["code"] == code


def test_a_gb10() -> None:
    (device,) = read(commands())["devices"]
    assert (device["name"], device["uuid"], device["compute_capability"], device["addressing_mode"]) == ("NVIDIA GB10", UUID, "12.1", "ATS")
    assert device["pci_device"] == "2e12"
    assert device["memory_total"] is None
    assert device["problems"]["memory_total"]["code"] == 3
    assert device["mig"] is None


@pytest.mark.parametrize(
    ("row", "total", "mig"),
    [
        (f"1, {UUID}, 0x233010DE, 9.0, 570.133.20, 81559, 13500, 68059, Enabled, HMM, NVIDIA H100 80GB HBM3", 81559 * MIB, True),
        (f"1, {UUID}, 0x2E0310DE, 12.1, 580.142, 8128, 199, 7929, [N/A], ATS, NVIDIA N1X", 8128 * MIB, None),
        (f"1, {UUID}, 0x233010DE, 9.0, 570.133.20, 81559, 0, 81559, Disabled, [N/A], NVIDIA, with a comma", 81559 * MIB, False),
    ],
)
def test_gpus_with_numbers(row: str, total: int, mig: bool | None) -> None:
    (device,) = read(commands(row + "\n"))["devices"]
    assert (device["index"], device["memory_total"], device["mig"]) == (1, total, mig)
    assert device["name"] == row.split(", ", 10)[10]


def test_zero_bytes_of_memory_are_none_of_its_own() -> None:
    (device,) = read(commands(GB10.replace("[N/A], [N/A], [N/A]", "0, 0, 0", 1)))["devices"]
    assert device["memory_total"] is None
    assert device["problems"]["memory_used"]["code"] == 3


def test_the_table_has_graphics_processes_that_csv_has_not() -> None:
    apps = f"{UUID}, 6330, 89093, VLLM::EngineCore\n{UUID}, 7001, 512, /home/alice/llama.cpp-b9536/build/bin/llama-server\n{UUID}, 7002, [N/A], [Not Found]\n"
    reading = read(commands(apps=apps, table=TABLE_580))
    processes = {process.pid: process for process in merge_entries(reading["entries"])}
    assert {pid: (process.kinds, process.memory) for pid, process in processes.items()} == {
        3421: (["graphics"], 43 * MIB),
        6330: (["compute"], 89093 * MIB),
        7001: (["compute", "graphics"], 512 * MIB),
        7002: (["compute"], None),
        7003: (["compute"], 100 * MIB),
    }
    assert processes[7001].name == "/home/alice/llama.cpp-b9536/build/bin/llama-server"
    assert processes[7002].name is None
    assert not any(process.partial for process in processes.values())
    assert reading["cuda_version"] == "13.0"


def test_a_process_that_is_only_in_csv() -> None:
    reading = read(commands(apps=f"{UUID}, 6330, 89093, name, with comma\n"))
    assert [(entry["pid"], entry["name"], entry["memory"]) for entry in reading["entries"]] == [(6330, "name, with comma", 89093 * MIB)]


def test_the_narrow_table_of_older_drivers() -> None:
    entries = _nvsmi.parse_table(TABLE_550)
    assert entries is not None
    assert [(entry["pid"], entry["kind"], entry["memory"]) for entry in entries] == [(2081, "graphics", 6 * MIB)]


def test_a_text_without_a_list_of_processes_is_told_from_an_empty_list() -> None:
    assert _nvsmi.parse_table(NO_PROCESSES) == []
    assert _nvsmi.parse_table("Failed to initialize NVML") is None


@pytest.mark.parametrize(
    ("header", "driver", "cuda"),
    [
        ("NVIDIA-SMI 580.142   Driver Version: 580.142   CUDA Version: 13.0", "580.142", "13.0"),
        ("NVIDIA-SMI 610.57.04   KMD Version: 610.57.04   CUDA UMD Version: 13.4", "610.57.04", "13.4"),
    ],
)
def test_versions_of_both_generations(header: str, driver: str, cuda: str) -> None:
    gpus = GB10.replace("580.142", "[N/A]")
    reading = read(commands(gpus, table=f"| {header} |\n{NO_PROCESSES}"))
    assert (reading["driver_version"], reading["cuda_version"]) == (driver, cuda)


def test_a_deprecated_version_loses_its_remark() -> None:
    assert read(commands(GB10.replace("580.142", "610.57.04 [Deprecated; will be removed]")))["driver_version"] == "610.57.04"


REFUSED = RunResult(2, 'Field "addressing_mode" is not a valid field to query.\n\n')
XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>610.57.04 [Deprecated; will be removed]</driver_version><cuda_version>13.4</cuda_version>
  <gpu id="0000000F:01:00.0">
    <product_name>NVIDIA GB10</product_name><uuid>GPU-1</uuid><addressing_mode>ATS</addressing_mode>
    <mig_mode><current_mig>N/A</current_mig></mig_mode><pci><pci_device_id>2E1210DE</pci_device_id></pci>
    <fb_memory_usage><total>N/A</total><used>N/A</used><free>N/A</free></fb_memory_usage>
    <processes>
      <process_info><gpu_instance_id>N/A</gpu_instance_id><pid>3421</pid><type>G</type>
        <process_name>/usr/lib/xorg/Xorg</process_name><used_memory>43 MiB</used_memory></process_info>
      <process_info><pid>x</pid><type>C</type><process_name>bad</process_name><used_memory>1 MiB</used_memory></process_info>
    </processes>
  </gpu>
</nvidia_smi_log>
"""


def test_xml_where_csv_is_refused() -> None:
    reading = read(commands(REFUSED, table=RunResult(0, "nothing"), xml=RunResult(0, XML)))
    (device,) = reading["devices"]
    assert (device["name"], device["addressing_mode"], device["pci_device"], device["memory_total"]) == ("NVIDIA GB10", "ATS", "2e12", None)
    assert [(entry["pid"], entry["kind"], entry["memory"]) for entry in reading["entries"]] == [(3421, "graphics", 43 * MIB)]
    assert (reading["driver_version"], reading["cuda_version"]) == ("610.57.04", "13.4")


def test_the_shortest_query_where_xml_is_refused_too() -> None:
    reading = read(commands(REFUSED, xml=RunResult(1, "?"), short=RunResult(0, f"0, {UUID}, 545.23.08, [N/A], [N/A], [N/A], NVIDIA GB10\n")))
    assert reading["devices"][0]["name"] == "NVIDIA GB10"
    assert reading["devices"][0]["addressing_mode"] is None
    assert reading["driver_version"] == "545.23.08"


def test_graphics_processes_from_xml_where_the_table_cannot_be_read() -> None:
    reading = read(commands(table=RunResult(0, "a table of tomorrow"), xml=RunResult(0, XML)))
    assert [entry["pid"] for entry in reading["entries"]] == [3421]


def test_a_list_that_cannot_be_read_at_all_is_said() -> None:
    reading = read(commands(table=RunResult(255, "", "boom"), apps=RunResult(255, "", "boom")))
    assert "boom" in reading["problems"]["processes.graphics"]["text"]
    assert "boom" in reading["problems"]["processes.compute"]["text"]


@pytest.mark.parametrize("text", ["<nvidia_smi_log", "<other/>", "", '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><nvidia_smi_log>&b;</nvidia_smi_log>'])
def test_xml_that_is_none(text: str) -> None:
    assert _nvsmi.parse_xml(text) is None


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (RunResult(18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159\n"), 18),
        (RunResult(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"), 9),
        (RunResult(12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n"), 12),
        (RunResult(15, "Unable to determine the device handle for GPU0: GPU is lost.  Reboot the system to recover this GPU\n"), 15),
        (RunResult(4, "Failed to initialize NVML: Insufficient Permissions\n"), 4),
        (RunResult(255, "", "Failed to initialize NVML: Unknown Error\n"), None),
        (RunResult(126, "", ""), None),
    ],
)
def test_failures_have_the_codes_of_nvml(result: RunResult, code: int | None) -> None:
    reading = read(commands(result, result, result))
    assert reading["failure"] is not None
    assert reading["failure"]["code"] == code
    assert not reading["absent"]


@pytest.mark.parametrize("rc", [0, 6])
def test_no_devices_is_an_answer(rc: int) -> None:
    none = RunResult(rc, "No devices were found\n")
    reading = read(commands(none, none, none))
    assert (reading["devices"], reading["failure"]) == ([], None)


def test_no_program() -> None:
    reading = read(FakeWorld())
    assert reading["absent"]
    assert reading["failure"] is not None


@pytest.mark.parametrize("which", ["gpus", "apps", "table"])
def test_one_question_that_hangs_is_a_driver_that_hangs(which: str) -> None:
    world = commands(**{which: RunResult(-9, timed_out=True)})
    reading, hung = _nvsmi.Asked(world, Deadline(world, 10)).finish()
    assert hung
    assert reading["failure"] is not None
    assert reading["devices"] == []


#: What a process can call itself: all but a line feed, which ends a line of a table; the other characters that Python takes for line ends too.
HOSTILE = st.text(st.sampled_from("aZ09 ,|[]<>&\"'=:;/.-+()\t\r\x0b\x0c\x1c\x85\u2028\u00e9\U0001f600\ufffd"), max_size=30) | st.sampled_from(
    ["1MiB |", "[N/A]", "N/A", "No running processes found", f"{UUID}, 1, 99999, root", "\u2028GPU-x, 1, 99999, root", "...", "+----+", "Processes:"]
)
SIZES = st.none() | st.integers(0, 10**7)
TYPES = {"C": ["compute"], "G": ["graphics"], "C+G": ["compute", "graphics"], "M+C": ["compute"]}


@st.composite
def machines(draw: st.DrawFn) -> tuple[list[tuple[str, int | None]], list[tuple[int, int, str, int | None, str]]]:
    """GPUs (name, MiB) and processes (gpu, pid, type, MiB, name); a pid is once on a GPU."""
    gpus = draw(st.lists(st.tuples(HOSTILE, SIZES), min_size=1, max_size=3))
    places = draw(st.lists(st.tuples(st.integers(0, len(gpus) - 1), st.integers(1, 400)), max_size=5, unique=True))
    return gpus, [(gpu, pid, draw(st.sampled_from(sorted(TYPES))), draw(SIZES), draw(HOSTILE)) for gpu, pid in places]


def uuid(gpu: int) -> str:
    return f"GPU-{gpu}"


def mib(size: int | None, unit: str = "", none: str = "[N/A]") -> str:
    return none if size is None else f"{size}{unit}"


def as_csv(gpus: list[tuple[str, int | None]]) -> str:
    return "".join(
        f"{n}, {uuid(n)}, 0x2E1210DE, 12.1, 580.142, {mib(size)}, {mib(size and 0)}, {mib(size)}, [N/A], ATS, {name}\n" for n, (name, size) in enumerate(gpus)
    )


def as_apps(processes: list[tuple[int, int, str, int | None, str]]) -> str:
    return "".join(f"{uuid(gpu)}, {pid}, {mib(size)}, {name}\n" for gpu, pid, kind, size, name in processes if "C" in kind)


def as_table(processes: list[tuple[int, int, str, int | None, str]]) -> str:
    rows = "".join(
        f"|  {gpu:>3}   N/A  N/A {pid:>15} {kind:>6}   {name[:38]:<38} {mib(size, 'MiB', 'N/A'):>12} |\n" for gpu, pid, kind, size, name in processes
    )
    return f"| Processes: {' ' * 78}|\n|  GPU   GI   CI  PID  Type |\n|====|\n{rows}+----+\n"


def as_xml(gpus: list[tuple[str, int | None]], processes: list[tuple[int, int, str, int | None, str]]) -> str:
    # XML has no control characters at all.
    def safe(name: str) -> str:
        return escape("".join(sign for sign in name if sign >= " " or sign == "\t"))

    text = "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log><driver_version>580.142</driver_version>"
    for number, (name, size) in enumerate(gpus):
        text += f"<gpu id='x'><product_name>{safe(name)}</product_name><uuid>{uuid(number)}</uuid><addressing_mode>ATS</addressing_mode>"
        total, used = mib(size, " MiB", "N/A"), mib(size and 0, " MiB", "N/A")
        text += f"<fb_memory_usage><total>{total}</total><used>{used}</used><free>{total}</free></fb_memory_usage><processes>"
        for gpu, pid, kind, memory, process in processes:
            if gpu == number:
                text += f"<process_info><pid>{pid}</pid><type>{kind}</type><process_name>{safe(process)}</process_name>"
                text += f"<used_memory>{mib(memory, ' MiB', 'N/A')}</used_memory></process_info>"
        text += "</processes></gpu>"
    return text + "</nvidia_smi_log>"


def expected(processes: list[tuple[int, int, str, int | None, str]]) -> dict[int, tuple[list[str], int | None]]:
    found: dict[int, tuple[set[str], list[int]]] = {}
    for _gpu, pid, kind, size, _name in processes:
        kinds, sizes = found.setdefault(pid, (set(), []))
        kinds.update(TYPES[kind])
        sizes.extend([] if size is None else [size * MIB])
    return {pid: (sorted(kinds), sum(sizes) if sizes else None) for pid, (kinds, sizes) in found.items()}


@settings(max_examples=150, deadline=None)
@given(machines())
def test_whatever_things_are_called_all_three_texts_say_the_same(
    machine: tuple[list[tuple[str, int | None]], list[tuple[int, int, str, int | None, str]]],
) -> None:
    gpus, processes = machine
    refused = RunResult(2, 'Field "addressing_mode" is not a valid field to query.\n')
    by_lines = read(commands(as_csv(gpus), as_apps(processes), as_table(processes)))
    by_xml = read(commands(refused, refused, "", xml=RunResult(0, as_xml(gpus, processes))))
    for reading in (by_lines, by_xml):
        assert [device["memory_total"] for device in reading["devices"]] == [size * MIB if size else None for _name, size in gpus]
        merged = merge_entries(reading["entries"])
        assert {process.pid: (process.kinds, process.memory) for process in merged} == expected(processes)


EDITS = st.lists(
    st.tuples(
        st.integers(0, 2000),
        st.integers(0, 60),
        st.sampled_from(["", "\n", ",", "|", "-1", "99999999999999999999", "MiB", "N/A", "<", "\0", "\u2028", "\u0663"]),
    ),
    min_size=1,
    max_size=4,
)


def edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    """A text with pieces cut out and others put in."""
    for start, length, put in edits:
        place = start % (len(text) + 1)
        text = text[:place] + put + text[place + length :]
    return text


@settings(max_examples=150, deadline=None)
@given(machines(), EDITS, EDITS, EDITS, EDITS, st.sampled_from([0, 1, 2, 255]), st.booleans())
def test_any_text_is_read_without_an_exception_and_nothing_is_negative(
    machine: tuple[list[tuple[str, int | None]], list[tuple[int, int, str, int | None, str]]],
    one: list[tuple[int, int, str]],
    two: list[tuple[int, int, str]],
    three: list[tuple[int, int, str]],
    four: list[tuple[int, int, str]],
    rc: int,
    refuse: bool,
) -> None:
    gpus, processes = machine
    first = RunResult(2, "unrecognized") if refuse else RunResult(rc, edited(as_csv(gpus), one))
    xml = RunResult(0, edited(as_xml(gpus, processes), four))
    reading = read(commands(first, RunResult(rc, edited(as_apps(processes), two)), edited(as_table(processes), three), xml=xml, short=RunResult(rc, "x")))
    for device in reading["devices"]:
        for name in ("memory_total", "memory_used", "memory_free"):
            value = device[name]  # type: ignore[literal-required]
            assert value is None or value >= 0
    for process in merge_entries(reading["entries"]):
        assert process.memory is None or process.memory >= 0
        assert process.pid > 0 and process.kinds and process.gpus


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200), st.text(max_size=80))
def test_any_text_at_all(text: str, other: str) -> None:
    read(commands(text, other, text))
    _nvsmi.parse_xml(text)
    _nvsmi.parse_xml(f"<nvidia_smi_log><gpu><processes><process_info><pid>7</pid>{text}</process_info></processes></gpu></nvidia_smi_log>")
