# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Wait until a Ray cluster consists of exactly the nodes of this launch, each with its GPUs.

Runs in the head's container, before the engine: with fewer nodes the engine's placement group would wait for half an
hour, and with a node under another address than the engine's (L1) for ever. Arguments: the cluster's address, the GPUs
of each node, then the nodes' addresses. Needs the image's own Ray; the time limit is the caller's.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import typing as t


def missing(nodes: t.Iterable[t.Mapping[str, t.Any]], gpus: float, wanted: t.Collection[str]) -> tuple[list[str], list[str]]:
    """Of ``ray.nodes()``: the wanted addresses not yet there with their GPUs, and addresses nobody wanted."""
    alive = {str(node["NodeManagerAddress"]): float(node.get("Resources", {}).get("GPU", 0)) for node in nodes if node.get("Alive")}
    return [address for address in wanted if alive.get(address, -1.0) < gpus], sorted(set(alive) - set(wanted))


def has_token_authentication(version: str) -> bool:
    """Whether this Ray can ask for the token that RAY_AUTH_TOKEN has."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is None or (int(match[1]), int(match[2])) >= (2, 52)


def main(argv: t.Sequence[str]) -> int:
    """Connect, look until it is so."""
    import ray

    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    log = logging.getLogger("ray_gate")
    if not has_token_authentication(ray.__version__):
        log.warning("Ray %s cannot ask for a token (2.52 and later can): whoever reaches its ports on any network can run code here", ray.__version__)
    address, gpus, wanted = argv[1], float(argv[2]), list(argv[3:])
    ray.init(address=address, logging_level=logging.WARNING, log_to_driver=False)
    said = None
    while True:
        lacking, foreign = missing(ray.nodes(), gpus, wanted)
        if foreign:
            log.error("the Ray cluster at %s has nodes that are not of this launch: %s", address, ", ".join(foreign))
            return 1
        if not lacking:
            log.info("the Ray cluster has all %d nodes with %g GPU each", len(wanted), gpus)
            ray.shutdown()
            return 0
        if lacking != said:
            log.info("waiting for %s to join with %g GPU", ", ".join(lacking), gpus)
            said = lacking
        time.sleep(0.5)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
