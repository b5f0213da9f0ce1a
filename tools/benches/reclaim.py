# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_process_reclaim adds to the time that services themselves need to end: stopped by it, and by their own means side by side.

On a lab host run two units, a container and a process that each take some seconds to end. The baseline stops all of them at once
with systemctl, docker and kill, and waits until the driver holds nothing of them. The ratio is at most LIMIT.
"""

from __future__ import annotations

import io
import json
import statistics
import subprocess
import tarfile
import time

from tools.console import ToolError, say
from tools.environments import Environment
from tools.places import ROOT

HOST = "spark-02"
LIBRARY = "/usr/local/lib/unimem-bench"
JOURNAL = "/var/lib/unimem/bench.json"
#: Seconds that the services take to end after they were asked to.
ENDS_AFTER = {"bench-first": 5, "bench-second": 3}
PROCESS_ENDS_AFTER = 4
LIMIT = 1.2

PARAMETERS = {
    "state": "freed", "stop": ["unit:bench-*", "container:bench-container", "process:bench-process"], "protect": [], "need": 0, "always": [],
    "kill_leftovers": False, "drop_page_cache": False, "cache_paths": [], "grace": 30, "timeout": 60, "rounds": 3, "restore": {"unit:bench-*": "never"},
    "reason": "any", "journal": JOURNAL,
}  # fmt: skip

_UNIT = "systemd-run --quiet --service-type=notify --unit {0} {1}/hold.py --name {0} --mib 100 --end-after {2}\n"

START = f"""
gb10-sim-ctl set context_bytes=8MiB context_margin=8MiB
{"".join(_UNIT.format(name, LIBRARY, seconds) for name, seconds in ENDS_AFTER.items())}
lines=$(gb10-sim-ctl status | grep -c ' MiB ')
docker run --detach --gpus all --name bench-container unimem-lab/vllm-embeddings:0.20.1 serve x --gpu-memory-utilization 0.03 > /dev/null
systemd-run --scope --quiet --collect --uid spark {LIBRARY}/hold.py --name bench-process --mib 100 --end-after {PROCESS_ENDS_AFTER} --daemon > /run/bench.pid
until [ "$(gb10-sim-ctl status | grep -c ' MiB ')" -ge "$((lines + 4))" ]; do sleep 0.1; done
"""

# What somebody would type who knows what runs there, and the end of each by the driver's own word.
BASELINE = f"""
systemctl stop {" ".join(ENDS_AFTER)} & docker stop bench-container > /dev/null & kill $(cat /run/bench.pid); wait
while kill -0 $(cat /run/bench.pid) 2> /dev/null; do sleep 0.02; done
"""

CLEAN = f"""
{{ systemctl kill --signal=KILL {" ".join(ENDS_AFTER)}; systemctl reset-failed {" ".join(ENDS_AFTER)}; docker rm --force bench-container
kill -KILL $(cat /run/bench.pid); rm -f {JOURNAL} /run/bench.pid; gb10-sim-ctl reset; }} > /dev/null 2>&1; true
"""


def _ssh(script: str, data: bytes = b"") -> bytes:
    done = subprocess.run(["ssh", "-F", str(ROOT / ".lab" / "ssh_config"), HOST, script], input=data, capture_output=True, check=False, timeout=180)
    if done.returncode != 0:
        raise ToolError(f"{HOST}: {done.stderr.decode(errors='replace')[-600:]}")
    return done.stdout


def _install() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted((ROOT / "plugins" / "module_utils").glob("*.py")):
            archive.add(path, f"ansible_collections/unimem/dgx_spark/plugins/module_utils/{path.name}")
        for path in sorted((ROOT / "tests" / "lab" / "e2e" / "node").glob("*.py")):
            archive.add(path, path.name)
    _ssh(f"rm -rf {LIBRARY} && mkdir {LIBRARY} && tar -C {LIBRARY} --no-same-owner -xzf - && echo 3 > /proc/sys/vm/drop_caches", packed.getvalue())


def _seconds(script: str, data: bytes = b"") -> tuple[float, bytes]:
    """How long a script takes on the host, by the host's clock: without the way there."""
    told = _ssh(f'begin=$(date +%s.%N); {{ {script}\n}}; echo; echo "$begin $(date +%s.%N)"', data)
    *answer, times = told.rstrip(b"\n").split(b"\n")
    begin, end = (float(word) for word in times.split())
    return end - begin, b"\n".join(answer)


def measure(environment: Environment, rounds: int) -> None:
    """Print the table. ``environment`` is not needed: both sides run on the host."""
    del environment
    _install()
    asked = json.dumps({"parameters": PARAMETERS}).encode()
    module: list[float] = []
    baseline: list[float] = []
    for number in range(rounds):
        for side in (("baseline", "module"), ("module", "baseline"))[number % 2]:
            try:
                _ssh(START)
                if side == "baseline":
                    baseline.append(_seconds(BASELINE)[0])
                    continue
                took, told = _seconds(f"PYTHONPATH={LIBRARY} /usr/bin/python3 -B {LIBRARY}/reclaim.py", asked)
                result = json.loads(told)
                if result["verdict"] != "freed":
                    raise ToolError(f"the module says {result['verdict']}: {result['msg']}")
                module.append(took)
            finally:
                _ssh(CLEAN)
                time.sleep(0.1)
    ratio = statistics.median(module) / statistics.median(baseline)
    say(f"\ntime to free: two units, a container and a process that take up to {max(ENDS_AFTER.values())} s to end, on {HOST}, {rounds} rounds")
    say(f"{'stopped by':<40} {'median s':>9} {'least':>7} {'most':>7} {'ratio':>7}")
    say(f"{'systemctl, docker and kill, at once':<40} {statistics.median(baseline):9.2f} {min(baseline):7.2f} {max(baseline):7.2f} {1:7.2f}")
    say(f"{'gpu_process_reclaim, proof included':<40} {statistics.median(module):9.2f} {min(module):7.2f} {max(module):7.2f} {ratio:7.2f}")
    if ratio > LIMIT:
        raise ToolError(f"the module takes {ratio:.2f} times as long; it should be at most {LIMIT}")
