# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What would make a model fit, in the order of what it costs: nothing, less service, accuracy, another setting, somebody's service, hardware.

No remedy is a guess: each is tried with a budget of its own, and only what leads to a fit without stopping anything is named
(but for those that are about stopping, whose set the verdict has found already).
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.unimem.dgx_spark.plugins.module_utils._request import Request
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size
from ansible_collections.unimem.dgx_spark.plugins.module_utils._stop_set import Owner
from ansible_collections.unimem.dgx_spark.plugins.module_utils._verdicts import AFTER_EVICTION, AFTER_STOPPING, DOES_NOT_FIT, FITS

#: A context length is named in whole thousands of this.
_ROUND: t.Final = 1024
#: More nodes than anybody has: the search ends here.
_MOST_RANKS: t.Final = 64


class Outlook(t.NamedTuple):
    """A verdict and its need in bytes."""

    verdict: str
    need: int | None

    @property
    def good(self) -> bool:
        """Whether it fits without stopping anything."""
        return self.verdict in (FITS, AFTER_EVICTION)


@dataclass(frozen=True)
class Situation:
    """What does not fit, and how to try something else."""

    request: Request
    verdict: str
    need: int
    #: Bytes of page cache that eviction gives back.
    evictable: int
    context: int
    #: Whether the KV cache can be kept in half the bytes.
    halvable: bool
    #: The utilization, KV bytes and static fraction that would hold what was asked for; None: there is none.
    utilization: float | None
    cache: int
    fraction: float | None
    #: Tensor-parallel sizes that the model divides over.
    sizes: t.Sequence[int]
    #: The most pipeline stages.
    stages: int
    stop: t.Sequence[Owner]
    #: Owners that would suffice and that nobody permitted to stop.
    others: t.Sequence[Owner]
    #: The budget of the same request with some of its fields replaced and nothing stopped.
    evaluate: t.Callable[..., Outlook]


def remedies(now: Situation) -> list[dict[str, t.Any]]:
    """Return the remedies, the cheapest first, each with C(action), C(frees) (bytes or None), C(settings) and C(message)."""
    found: list[dict[str, t.Any]] = []
    if now.evictable > 0:
        found.append(_entry("evict_page_cache", now.evictable, {}, f"Evict the page cache: {format_size(now.evictable)} become free."))
    if now.verdict == AFTER_EVICTION:
        return found
    less = [entry for entry in (_fewer(now), _shorter(now), _half(now), *_other_share(now)) if entry]
    if not less:
        less = [entry for entry in (_together(now),) if entry]
    found += less
    if now.verdict == AFTER_STOPPING:
        found += [_entry("stop_owner", owner.memory, {}, f"Stop {_named(owner)}, allowed by {owner.selector}.") for owner in now.stop]
    for owner in now.others:
        text = f"Permit to stop {_named(owner)}: stoppable has to name {owner.selector}."
        found.append(_entry("permit_stop", owner.memory, {"stoppable": [owner.selector]}, text))
    ranks = _more_ranks(now) if now.verdict == DOES_NOT_FIT else None
    return [*found, ranks] if ranks else found


def _entry(action: str, frees: int | None, settings: dict[str, t.Any], message: str) -> dict[str, t.Any]:
    return {"action": action, "frees": frees, "settings": settings, "message": message}


def _tried(now: Situation, action: str, settings: dict[str, t.Any], message: str) -> dict[str, t.Any] | None:
    """The remedy of other *settings*, where they lead to a fit."""
    outlook = now.evaluate(**settings)
    if not outlook.good or outlook.need is None:
        return None
    return _entry(action, max(0, now.need - outlook.need), settings, f"{message} A rank then needs {format_size(outlook.need)}.")


def _most(low: int, high: int, good: t.Callable[[int], bool]) -> int | None:
    """The largest number in [low, high] that is *good*, of which all smaller ones are; None: not even low."""
    best = None
    while low <= high:
        middle = (low + high) // 2
        if good(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


def _fewer(now: Situation) -> dict[str, t.Any] | None:
    count = _most(1, now.request.concurrency - 1, lambda number: now.evaluate(concurrency=number).good)
    if count is None:
        return None
    many = "1 request" if count == 1 else f"{count} requests"
    return _tried(now, "fewer_sequences", {"concurrency": count}, f"Plan for {many} of full length at a time (concurrency {count}).")


def _shorter(now: Situation) -> dict[str, t.Any] | None:
    length = _most(1, now.context - 1, lambda number: now.evaluate(context_length=number).good)
    if length is None:
        return None
    length = length // _ROUND * _ROUND or length
    return _tried(now, "shorter_context", {"context_length": length}, f"Plan for requests of at most {length} tokens (context_length {length}).")


def _half(now: Situation) -> dict[str, t.Any] | None:
    if not now.halvable:
        return None
    return _tried(now, "fp8_kv_cache", {"kv_cache_dtype": "fp8"}, "Keep the KV cache in 8 bits (kv_cache_dtype fp8), at some loss of accuracy.")


def _other_share(now: Situation) -> list[dict[str, t.Any] | None]:
    """Another size of the engine's own pool, for the same requests."""
    request = now.request
    found: list[dict[str, t.Any] | None] = []
    given, wanted = request.gpu_memory_utilization, now.utilization
    if given is not None and wanted is not None and wanted != given:
        action = "lower_utilization" if wanted < given else "higher_utilization"
        found.append(_tried(now, action, {"gpu_memory_utilization": wanted}, f"Set gpu_memory_utilization to {wanted:g}; it holds what is asked for."))
    if request.kv_cache_memory is not None and request.kv_cache_memory != now.cache:
        action = "smaller_kv_cache" if now.cache < request.kv_cache_memory else "larger_kv_cache"
        text = f"Set kv_cache_memory to {now.cache} ({format_size(now.cache)}), just what the requests need."
        found.append(_tried(now, action, {"kv_cache_memory": now.cache}, text))
    if request.mem_fraction_static is not None and now.fraction is not None and now.fraction != request.mem_fraction_static:
        found.append(_tried(now, "other_fraction", {"mem_fraction_static": now.fraction}, f"Set mem_fraction_static to {now.fraction:g}."))
    return found


def _together(now: Situation) -> dict[str, t.Any] | None:
    """Where nothing of that is enough by itself: all of it."""
    settings: dict[str, t.Any] = {}
    parts = []
    if now.request.concurrency > 1:
        settings["concurrency"] = 1
        parts.append("one request at a time (concurrency 1)")
    if now.halvable:
        settings["kv_cache_dtype"] = "fp8"
        parts.append("a KV cache in 8 bits (kv_cache_dtype fp8)")
    if len(parts) == 2 and now.evaluate(**settings).good:
        return _tried(now, "together", settings, f"Together: {' and '.join(parts)}.")
    length = _most(1, now.context - 1, lambda number: now.evaluate(**{**settings, "context_length": number}).good) if parts else None
    if length is None:
        return None
    length = length // _ROUND * _ROUND or length
    settings["context_length"] = length
    return _tried(now, "together", settings, f"Together: {', '.join(parts)} and at most {length} tokens (context_length {length}).")


def _more_ranks(now: Situation) -> dict[str, t.Any] | None:
    """The fewest ranks, on nodes like this one, with which it fits."""
    request = now.request
    tensor, pipeline = request.tensor_parallel, request.pipeline_parallel
    wanted = [(size, pipeline) for size in now.sizes if size * pipeline <= _MOST_RANKS and size != tensor]
    if tensor in now.sizes:
        wanted += [(tensor, count) for count in range(pipeline + 1, min(now.stages, _MOST_RANKS // tensor) + 1)]
    # as near to what was asked for as it can be: more ranks first, of tensor parallelism first
    wanted.sort(key=lambda pair: (pair[0] * pair[1] < tensor * pipeline, abs(pair[0] * pair[1] - tensor * pipeline), pair[1]))

    def changed(size: int, count: int) -> dict[str, t.Any]:
        settings = {"tensor_parallel": size, "pipeline_parallel": count}
        return {name: value for name, value in settings.items() if value != getattr(request, name)}

    # where not even the most ranks help, something else is in the way
    if not wanted or not now.evaluate(**changed(*max(wanted, key=lambda pair: pair[0] * pair[1]))).good:
        return None
    for size, count in wanted:
        settings = changed(size, count)
        if now.evaluate(**settings).good:
            action = "more_ranks" if size * count > tensor * pipeline else "other_ranks"
            text = " and ".join(f"{name} {value}" for name, value in settings.items())
            return _tried(now, action, settings, f"Split the model over {size * count} {'rank' if size * count == 1 else 'ranks'} ({text}).")
    return None


def _named(owner: Owner) -> str:
    return f"{owner.kind} {owner.name} ({format_size(owner.memory)})"
