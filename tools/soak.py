# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make soak`: the long tests. The lab's stories several times over on the same hosts, and the tests marked `soak`.

What it looks for is what one round cannot show: something left behind by a deployment that spoils a later one.
"""

from __future__ import annotations

import argparse

from tools import environments, lab
from tools.console import PASSED, ToolError, main, step, summary


def _run() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often the lab's stories are told (default: 3)")
    rounds = parser.parse_args().rounds
    if rounds < 1:
        raise ToolError("--rounds is a number from 1 up")
    environment = environments.development()
    outcomes = [step("lab, up", lambda: lab.control(environment, "up"))]
    try:
        if outcomes[0].state == PASSED:
            for number in range(1, rounds + 1):
                outcomes.append(step(f"round {number} of {rounds}", lambda: lab.end_to_end(environment, "-m", "not soak")))
            outcomes.append(step("tests marked soak", lambda: lab.marked(environment, "soak")))
    finally:
        outcomes.append(step("lab, down", lambda: lab.control(environment, "down")))
    return summary(outcomes)


if __name__ == "__main__":
    main(_run)
