# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The second node's image after one layer has changed: image_build's way against `docker save | ssh docker load`.

The image is the lab's engine (2.3 GB) with one more layer, of 16 MiB and new in each round; the node that receives has the engine.
Seconds are those of the pipe, and of the module that ships.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from tools import timing
from tools.console import ToolError, call, say
from tools.environments import Environment
from tools.places import ROOT

BASE = "unimem-lab/vllm-cpu-base:0.32.0"
NAME = "unimem-bench/one-layer"
LAYER = 16 << 20
ADDRESS = "192.168.200.13"


def measure(environment: Environment, rounds: int) -> None:
    """Measure in the development environment, which has what runs playbooks."""
    path = f"{ROOT}:{ROOT / 'tests' / 'lab' / 'e2e'}:{environment.env()['PYTHONPATH']}"
    status = call([environment.python, "-m", "tools.benches.image", str(rounds)], {**environment.env(), "PYTHONPATH": path}, ROOT)
    if status != 0:
        raise ToolError(f"the measurement ended with status {status}")


def _run(rounds: int) -> None:
    import json

    from harness import on_host, run_module

    def make(number: int) -> str:
        image = f"{NAME}:{number}"
        script = f"d=$(mktemp -d) && head -c {LAYER} /dev/urandom > $d/layer && printf 'FROM {BASE}\\nCOPY layer /layer\\n' > $d/Dockerfile"
        on_host("spark-01", "sh", "-c", f"{script} && docker build --quiet --tag {image} $d && rm -r $d", timeout=300)
        return image

    def piped(image: str) -> float:
        start = time.monotonic()
        on_host("spark-01", "bash", "-c", f"set -o pipefail; docker save {image} | ssh {ADDRESS} docker load --quiet", timeout=900)
        return time.monotonic() - start

    def ours(image: str) -> tuple[float, int]:
        inspected = json.loads(on_host("spark-01", "docker", "image", "inspect", image).stdout)[0]
        base = json.loads(on_host("spark-02", "docker", "image", "inspect", BASE).stdout)[0]
        key = on_host("spark-02", "cat", "/etc/ssh/ssh_host_ed25519_key.pub").stdout
        arguments = {
            "image": image, "layers": inspected["RootFS"]["Layers"], "layers_there": [base["RootFS"]["Layers"]],
            "peer": {"address": ADDRESS, "host_key": key},
        }
        run = run_module("unimem.dgx_spark.image_ship", json.dumps(arguments), pattern="spark-01")
        if run.rc != 0:
            raise ToolError(f"image_ship failed: {run.failures}")
        (_host, _task, result) = run.results()[-1]
        return float(result["seconds"]), int(result["sent_bytes"])

    if on_host("spark-02", "docker", "image", "inspect", BASE, check=False).returncode != 0:
        piped(BASE)
    seen: dict[str, list[float]] = {"docker save | ssh docker load": [], "image_build": []}
    sent = 0
    for number in range(rounds + 1):
        for name in list(seen)[:: 1 if number % 2 else -1]:
            image = make(2 * number + (name == "image_build"))
            if name == "image_build":
                took, sent = ours(image)
            else:
                took = piped(image)
            if number:
                seen[name].append(took)
            for host in ("spark-01", "spark-02"):
                on_host(host, "docker", "image", "rm", image, check=False)
    base = seen["docker save | ssh docker load"]
    say(f"\n{'second node, one new layer of 16 MiB':<40} {'median s':>9} {'x save|load':>12}    ({rounds} rounds)")
    for name, times in seen.items():
        ratio = statistics.median(theirs / mine for theirs, mine in zip(base, times, strict=True))
        say(f"{name:<40} {statistics.median(times):9.2f} {ratio:12.2f}{timing.at_least(ratio, 5 if name == 'image_build' else None)}")
    say(f"image_build sent {sent / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "lab" / "e2e"))
    _run(int(sys.argv[1]))
