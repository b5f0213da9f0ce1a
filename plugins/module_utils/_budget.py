# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The decision: does one rank of a model fit on a node, what must be evicted or stopped for it, what would the engine say.

Everything here is arithmetic on what the other modules read; nothing is started, stopped or written.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _engine_check as checks
from ansible_collections.unimem.dgx_spark.plugins.module_utils._divisibility import check_split, sizes_that_divide
from ansible_collections.unimem.dgx_spark.plugins.module_utils._engine_check import Check, Version, parse_version
from ansible_collections.unimem.dgx_spark.plugins.module_utils._hazards import fragmentation, watchdogs
from ansible_collections.unimem.dgx_spark.plugins.module_utils._kv import (
    SGLANG_STATE_RATIO,
    KvSettings,
    Plan,
    bytes_per_token,
    state_per_sequence,
    vllm_plan,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_config import MAX_CONTEXT, SLIDING, Model, parse_model
from ansible_collections.unimem.dgx_spark.plugins.module_utils._overheads import CONTEXT_FREE, Terms, overhead_terms
from ansible_collections.unimem.dgx_spark.plugins.module_utils._pool import Pool, memory_of, read_pool
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems
from ansible_collections.unimem.dgx_spark.plugins.module_utils._remedies import Outlook, Situation, remedies
from ansible_collections.unimem.dgx_spark.plugins.module_utils._request import Request
from ansible_collections.unimem.dgx_spark.plugins.module_utils._safetensors import Tensor
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size
from ansible_collections.unimem.dgx_spark.plugins.module_utils._stop_set import Owner, cheapest, permitted, stoppable_owners
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tensors import expected_tensors
from ansible_collections.unimem.dgx_spark.plugins.module_utils._verdicts import AFTER_EVICTION, AFTER_STOPPING, DOES_NOT_FIT, FIT_VERDICTS, FITS, UNKNOWN
from ansible_collections.unimem.dgx_spark.plugins.module_utils._weights import Split, Weights, weights_of

_KV_BYTES: t.Final = {"bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
#: vLLM's API server on a device of 70 GiB or more (get_batch_defaults in vllm/engine/arg_utils.py); on CPUs 2048 a rank.
_BATCHED_GPU: t.Final = 8192
_BATCHED_CPU: t.Final = 2048
_MAX_RECOMMENDED_SEQS: t.Final = 256
#: Above this share vLLM itself warns and GB10 systems have locked up; never recommended.
_MAX_UTILIZATION: t.Final = 0.92
#: Problems after which weights or pool cannot be known.
_UNKNOWING: t.Final = ("config_", "weights_unknown", "weights_implausible", "safetensors_", "index_", "model_", "pool_", "driver_un")


def compute(request: Request) -> dict[str, t.Any]:
    """Return the budget of *request*: the dict that the module returns as RV(budget)."""
    return _Budget(request).result()


class _Budget:
    def __init__(self, request: Request, like: _Budget | None = None) -> None:
        """:param like: a budget of the same model, whose reading of it is taken over."""
        self.request = request
        self.problems = Problems()
        self.assumptions: list[str] = []
        self.version: Version = parse_version(request.engine_version)
        self.sglang = request.engine == "sglang"
        self.pool: Pool = read_pool(request.gpu_memory, self.problems, self.assumptions)
        self.like = like
        self.model: Model | None = like.model if like else parse_model(request.config, self.problems, request.hf_quant)
        #: What the model's layers make of each setting: plan, bytes a token, bytes a sequence.
        self.layouts: dict[KvSettings, tuple[Plan | None, int, int]] = like.layouts if like else {}
        self.listing: t.Callable[[], list[Tensor]] = like.listing if like else functools.lru_cache(maxsize=1)(self._expected)
        self.weights: Weights | None = None
        self.context = request.context_length or 0
        self.tokens = request.max_num_batched_tokens or 0
        self.kv_bytes = 2
        self.plan: Plan | None = None
        self.per_token = 0
        self.per_sequence = 0
        #: Pool bytes for the context and concurrency asked for: attention and state.
        self.demand_kv = 0
        self.demand_state = 0
        self.terms: dict[str, int | None] = {}
        self.need: int | None = None
        self.outside = 0
        self.verdict = UNKNOWN
        self.stop: list[Owner] = []

    # putting it together ---------------------------------------------------------------------------------------

    def decide(self) -> Outlook:
        """Find the verdict; all that result() adds is said beside it."""
        if self.model is not None:
            self._read_model(self.model)
        self.terms = self._terms()
        self.need = None if self.terms["weights"] is None else sum(value for value in self.terms.values() if value is not None)
        self.outside = self._outside(self.terms)
        self.verdict = self._verdict(self.terms, self.need, self.outside)
        return Outlook(self.verdict, self.need)

    def _doubtful_options(self) -> None:
        """What was asked for and cannot count."""
        request = self.request
        other = "gpu_memory_utilization" if self.sglang else "mem_fraction_static"
        if getattr(request, other) is not None:
            own = "mem_fraction_static" if self.sglang else "gpu_memory_utilization"
            self.problems.add("option_of_another_engine", f"{other} is not an option of {request.engine} and was not counted; its own is {own}.")
        if request.engine_version and self.version.number is None:
            text = f"engine_version {self.version.text} is no release whose rules are known (a container's date, a development version)"
            self.problems.add("engine_version_unknown", f"{text}; those of the newest known release were taken.")

    def result(self) -> dict[str, t.Any]:
        request = self.request
        self._doubtful_options()
        self.decide()
        terms, need, outside, verdict = self.terms, self.need, self.outside, self.verdict
        freed = sum(owner.memory for owner in self.stop)
        room = None if self.pool.allocatable is None else self.pool.allocatable + freed
        recommend = self._recommend(terms, need, outside, room)
        cache = self._cache_pool(terms, recommend)
        concurrency = self._concurrency(cache)
        check = self._engine_check(terms, outside, recommend, cache)
        shortfall = max(0, need - self.pool.allocatable) if need is not None and self.pool.allocatable is not None else None
        low, high = self._uncertainty(need)
        self._last_problems(need, verdict, freed, concurrency)
        self._hazards(need, verdict, freed)
        found_remedies = self._remedies()
        self._say_floor(need, verdict)
        budget: dict[str, t.Any] = {
            "verdict": verdict,
            "fits": verdict in FIT_VERDICTS,
            "need": need,
            "have": self.pool.allocatable,
            "shortfall": shortfall,
            "terms": terms,
            "kv_bytes_per_token": self.per_token if self.model else None,
            "recurrent_state_bytes_per_sequence": self.per_sequence if self.model else None,
            "kv_tokens": int(concurrency * self.context) if concurrency is not None else None,
            "max_concurrency": round(concurrency, 4) if concurrency is not None else None,
            "stop": [owner.as_dict() for owner in self.stop],
            "engine_check": check,
            "recommend": recommend,
            "will_take": self._will_take(terms, need, outside),
            "floor": self._floor(),
            "room": self._room(terms, need, outside),
            "uncertainty": {"need_low": low, "need_high": high},
            "kv_layout": self._layout(cache),
            "remedies": found_remedies,
            "context_length": self.context or None,
            "concurrency": request.concurrency,
            "weights_source": self.weights.source if self.weights else None,
            "assumptions": self.assumptions,
            "problems": self.problems.as_list(),
        }
        return budget

    def _read_model(self, model: Model) -> None:
        request = self.request
        self.kv_bytes = self._kv_element(model)
        self._read_context(model)
        if not self.tokens:
            self.tokens = _BATCHED_CPU * request.tensor_parallel if self.version.cpu else _BATCHED_GPU
            self.assumptions.append(f"max_num_batched_tokens is not given; {self.tokens} is the engine's default.")
        if request.speculative_tokens and not model.mtp_layers:
            self.problems.add(
                "drafter_unknown",
                "speculative_tokens is set, but the config names no drafter (MTP) of its own; a separate drafter's memory is not counted.",
            )
        settings = KvSettings(
            tensor_parallel=request.tensor_parallel,
            pipeline_parallel=request.pipeline_parallel,
            kv_bytes=self.kv_bytes,
            speculative_tokens=request.speculative_tokens,
            prefix_caching=request.prefix_caching,
            max_batched_tokens=self.tokens,
            # asynchronous scheduling keeps two batches in flight (seen in 0.32.0)
            batches_in_flight=2 if self.version.at_least((0, 32, 0), False) and request.pipeline_parallel == 1 else 1,
            recurrent_bytes=self._recurrent_element(model),
            cpu=self.version.cpu,
        )
        check_split(model, request.tensor_parallel, request.pipeline_parallel, request.expert_parallel, self.sglang, self.problems)
        split = Split(request.tensor_parallel, request.pipeline_parallel, request.expert_parallel, request.speculative_tokens > 0, request.language_model_only)
        if self.like is not None and self._ranks() == self.like._ranks():
            self.weights = self.like.weights
        else:
            self.weights = weights_of(model, request.checkpoint, request.weight_bytes, split, self.problems, self.assumptions, self.listing)
        if request.pipeline_parallel > len(model.layers):
            return
        if settings not in self.layouts:
            plan = None if self.sglang else vllm_plan(model, settings)
            self.layouts[settings] = plan, bytes_per_token(model, settings), state_per_sequence(model, settings)
        self.plan, self.per_token, self.per_sequence = self.layouts[settings]
        if self.plan is not None:
            blocks = self.plan.blocks_per_request(self.context) * request.concurrency
            states = self.plan.state_blocks() * request.concurrency
            self.demand_kv = (blocks - states) * self.plan.block_bytes
            self.demand_state = states * self.plan.block_bytes
            return
        self.demand_kv = self.per_token * self.context * request.concurrency
        self.demand_state = self.per_sequence * request.concurrency
        if self.per_sequence and request.prefix_caching and not request.max_num_seqs:
            # rest_memory is cut by mamba_full_memory_ratio, so the smaller part must be large enough
            whole = max(self.demand_state * (1 + SGLANG_STATE_RATIO) / SGLANG_STATE_RATIO, self.demand_kv * (1 + SGLANG_STATE_RATIO))
            self.demand_state = int(whole * SGLANG_STATE_RATIO / (1 + SGLANG_STATE_RATIO))
            self.demand_kv = int(whole) - self.demand_state
        if any(layer.attention and layer.attention.kind == SLIDING for layer in model.layers):
            self.assumptions.append("SGLang's pool for sliding-window layers is not modelled; they are counted as full attention.")

    def _expected(self) -> list[Tensor]:
        return expected_tensors(self.model) if self.model else []

    def _ranks(self) -> tuple[int, int]:
        return self.request.tensor_parallel, self.request.pipeline_parallel

    def _read_context(self, model: Model) -> None:
        if not self.context:
            self.context = model.max_positions or 4096
            self.assumptions.append(f"context_length is not given; {self.context} is taken{' from the config' if model.max_positions else ''}.")
        elif model.max_positions and self.context > model.max_positions:
            self.problems.add(
                "context_beyond_model",
                f"context_length {self.context} is more than the {model.max_positions} positions of the config; engines refuse that unless told otherwise.",
            )
        if self.request.max_num_seqs and self.request.max_num_seqs < self.request.concurrency:
            self.problems.add(
                "concurrency_beyond_seqs", f"max_num_seqs {self.request.max_num_seqs} is below the concurrency of {self.request.concurrency} asked for."
            )

    def _kv_element(self, model: Model) -> int:
        """Bytes of a cached element; auto follows the checkpoint where the engine does."""
        wanted = self.request.kv_cache_dtype
        if wanted != "auto":
            return _KV_BYTES[wanted]
        if model.quantization.kv_cache == "fp8" and not self.sglang and self.version.at_least((0, 12, 0), False):
            self.assumptions.append("kv_cache_dtype auto: the checkpoint asks for an fp8 KV cache and this vLLM follows it.")
            return 1
        if model.quantization.kv_cache == "fp8":
            self.assumptions.append(
                "kv_cache_dtype auto: the checkpoint asks for an fp8 KV cache, which not every engine follows; the larger dtype of the model is counted."
            )
        return model.dtype_bytes

    def _recurrent_element(self, model: Model) -> int | None:
        """Bytes of an element of the recurrent state where that is not the model's own choice."""
        wanted = self.request.mamba_ssm_cache_dtype
        if wanted != "auto":
            return 4 if wanted == "float32" else 2
        if self.version.cpu and self.request.avx512_bf16 and any(layer.state for layer in model.layers):
            # check_and_update_config in vllm/platforms/cpu.py, for its accelerated kernels
            self.assumptions.append("This CPU has AVX512_BF16, for which vLLM keeps recurrent state in float32.")
            return 4
        return None

    def _terms(self) -> dict[str, int | None]:
        request = self.request
        weights = self.weights.rank if self.weights else 0
        self.overheads: Terms = overhead_terms(
            engine=request.engine,
            cpu=self.version.cpu,
            head=request.node_role == "head",
            ranks=request.tensor_parallel * request.pipeline_parallel,
            batched_tokens=self.tokens or _BATCHED_GPU,
            eager=request.eager,
            weights=weights,
            overrides=request.overheads,
            object_store=request.ray_object_store_memory,
        )
        self.assumptions.extend(self.overheads.assumptions)
        self._shared_memory()
        kv, state = self.demand_kv, self.demand_state
        if request.kv_cache_memory is not None and self.model is not None:
            # the engine takes all of it; what of it holds state is what the requests need
            state = min(state, request.kv_cache_memory)
            kv = request.kv_cache_memory - state
        overheads = self.overheads
        activations = overheads.activations[1]
        own = weights + activations + (overheads.graphs[1] if self._graphs_inside() else 0)
        filled = self._fills_share()
        if filled:
            # vLLM gives all of its share that is left to the KV cache
            kv = max(kv, self._asked() - own - state)
        peak = overheads.load_peak[1] - (activations + overheads.graphs[1] + kv + state)
        if peak > 0:
            activations += peak
            self.assumptions.append("While loading, buffers and compilers take more than a running engine does; that peak is counted in activations.")
        host, reserve = overheads.host_process[1], request.reserve
        if filled:
            reserve = 0
            self.assumptions.append("gpu_memory_utilization decides what is left for the system, so no reserve is added to the need.")
        if not self.pool.unified:
            host = reserve = 0
            self.assumptions.append("The GPU has memory of its own: host processes and the system's reserve do not draw on it.")
        return {
            "weights": self.weights.rank if self.weights else None,
            "kv_cache": kv,
            "recurrent_state": state,
            "activations": activations,
            "graphs": overheads.graphs[1],
            "cuda_context": overheads.cuda_context[1],
            "communication": overheads.communication[1],
            "host_process": host,
            "reserve": reserve,
        }

    def _shared_memory(self) -> None:
        """What of the pool the container's /dev/shm may take, and what of that is counted."""
        request = self.request
        if request.shm_size is None or not self.pool.unified:
            return
        # Between nodes NCCL uses none of it; what vLLM's ranks of one node share was seen with 25 to 250 MB after kills.
        inside = "the engine's message queues"
        if request.engine == "vllm_ray":
            inside = f"Ray's object store of {format_size(request.ray_object_store_memory)} and {inside}"
            if request.ray_object_store_memory > request.shm_size:
                self.problems.add(
                    "object_store_beyond_shm",
                    f"Ray's object store of {format_size(request.ray_object_store_memory)} is larger than /dev/shm of {format_size(request.shm_size)}; "
                    "Ray then keeps it in files below /tmp, which are slow.",
                )
        self.assumptions.append(
            f"/dev/shm of the rank's container is of the same pool and may grow to {format_size(request.shm_size)}. That is a limit: counted, in "
            f"host_process, is what fills it, {inside}; what anything else puts there is not."
        )

    def _outside(self, terms: t.Mapping[str, int | None]) -> int:
        """What is taken beside the share that the engine counts as its own."""
        outside = sum(terms[name] or 0 for name in ("cuda_context", "communication", "host_process"))
        if self.sglang:
            # static memory is weights and pools only
            return outside + (terms["activations"] or 0) + (terms["graphs"] or 0)
        if not self._graphs_inside():
            # graphs were captured after the KV cache had been sized, and not counted
            outside += terms["graphs"] or 0
        return outside

    def _own(self, terms: t.Mapping[str, int | None]) -> int:
        """What vLLM takes off its share before the KV cache."""
        own = (terms["weights"] or 0) + (terms["activations"] or 0)
        return own + (terms["graphs"] or 0) if self._graphs_inside() else own

    def _graphs_inside(self) -> bool:
        """Since 0.20.2 vLLM takes its estimate for graphs off its share (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS)."""
        return self.version.at_least((0, 20, 2))

    def _fills_share(self) -> bool:
        """Whether an explicit utilization alone sizes the KV cache."""
        return self._asked() > 0 and self.request.kv_cache_memory is None

    # the verdict -----------------------------------------------------------------------------------------------

    def _asked(self) -> int:
        """The share that vLLM takes by an explicit utilization; 0 where it does not decide."""
        utilization, total = self.request.gpu_memory_utilization, self.pool.total
        if self.sglang or utilization is None or total is None or (self.version.cpu and self.request.kv_cache_memory is not None):
            return 0
        return checks.asked_by_utilization(total, utilization)

    def _fits_at(self, free: int, terms: t.Mapping[str, int | None], need: int, outside: int) -> bool:
        """Whether need and the engine's own checks pass with *free* bytes; more never makes it false."""
        if need > free:
            return False
        asked = self._asked()
        if asked and asked + outside > free:
            return False
        if self.sglang and not self._balanced(free):
            return False
        fraction = self.request.mem_fraction_static
        if self.sglang and fraction is not None:
            before = self._before_load(free, terms)
            static = (terms["weights"] or 0) + self.demand_kv + self.demand_state
            return int(before * fraction) >= static
        return True

    def _floor(self) -> int:
        """What has to remain beside the need: only where a utilization, and no reserve, decides what does."""
        return self.request.floor if self.pool.unified and self._fills_share() else 0

    def _leaves_floor(self, room: int, need: int) -> bool:
        """Whether enough remains available with *room* bytes, page cache evicted; more never makes it false."""
        floor = self._floor()
        return not floor or room - need >= floor

    def _room(self, terms: t.Mapping[str, int | None], need: int | None, outside: int) -> int | None:
        """The least that a process must be able to get for a fit: the need, the floor, and what the engine's own checks ask beside; None where nothing does.

        Found by halving, since what fits with some memory fits with more.
        """
        total = self.pool.total
        if need is None or total is None or self.verdict == UNKNOWN or self.problems.errors():
            return None

        def fits(free: int) -> bool:
            return self._leaves_floor(free, need) and self._fits_at(free, terms, need, outside)

        low, high = need, total
        if low > high or not fits(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle + 1, high)
        return high

    def _balanced(self, free: int) -> bool:
        """Whether this node has so much, with *free* bytes, that SGLang takes its ranks for alike. Of the node with less: the other one is not at fault."""
        others = [figure for figure in (_available_of(peer) for peer in self.request.peers) if figure is not None]
        own = self._available_at(free)
        return own is None or not others or own >= checks.SGLANG_BALANCE * max(others)

    def _available_at(self, free: int) -> int | None:
        """What SGLang reads as available when *free* bytes are: page cache counts, so only what is stopped adds to it."""
        own = self.pool.available if self.pool.available is not None else self.pool.allocatable
        return None if own is None else own + max(0, free - (self.pool.allocatable or 0))

    def _verdict(self, terms: t.Mapping[str, int | None], need: int | None, outside: int) -> str:
        """The verdict; fills *stop*."""
        errors = self.problems.errors()
        if need is None or self.pool.allocatable is None or self.model is None or any(error.code.startswith(_UNKNOWING) for error in errors):
            return UNKNOWN
        self._check_share(terms)
        if self.problems.errors():
            return DOES_NOT_FIT
        free, allocatable = self.pool.free_now or 0, self.pool.allocatable
        if self._leaves_floor(allocatable, need):
            if self._fits_at(free, terms, need, outside):
                return FITS
            if self._fits_at(allocatable, terms, need, outside):
                return AFTER_EVICTION
        if not self.request.stoppable:
            return DOES_NOT_FIT
        owners = stoppable_owners(self._processes(), self.request.stoppable)
        if any(not owner.known for owner in owners):
            self.assumptions.append("The driver does not say how much memory some stoppable processes hold; they count as nothing.")
        chosen = cheapest(owners, lambda freed: self._leaves_floor(allocatable + freed, need) and self._fits_at(allocatable + freed, terms, need, outside))
        self.stop = chosen or []
        return AFTER_STOPPING if chosen else DOES_NOT_FIT

    def _processes(self) -> t.Any:
        return self.request.gpu_memory.get("processes") if isinstance(self.request.gpu_memory, dict) else None

    def _check_share(self, terms: t.Mapping[str, int | None]) -> None:
        """Whether the engine's share holds what was asked for; no stopping would change that."""
        request, demand = self.request, self.demand_kv + self.demand_state
        if request.kv_cache_memory is not None:
            share, name = request.kv_cache_memory, "kv_cache_memory"
        elif self._fills_share():
            share, name = self._asked() - self._own(terms), f"gpu_memory_utilization {request.gpu_memory_utilization:g}"
        else:
            return
        if share < demand + self._null_block():
            self.problems.error(
                "kv_cache_too_small",
                f"{name} leaves {format_size(max(0, share))} for the KV cache; "
                f"{request.concurrency} x {self.context} tokens need {format_size(demand + self._null_block())}.",
            )

    def _null_block(self) -> int:
        """vLLM holds one block back (get_kv_cache_configs, seen in 0.32.0)."""
        return self.plan.block_bytes if self.plan and self.version.at_least((0, 32, 0)) else 0

    # what the engine would say ---------------------------------------------------------------------------------

    def _cache_pool(self, terms: t.Mapping[str, int | None], recommend: t.Mapping[str, t.Any]) -> int | None:
        """Bytes that the engine will have for KV cache and state."""
        if self.model is None:
            return None
        request = self.request
        if request.kv_cache_memory is not None:
            return request.kv_cache_memory
        if self.weights is not None:
            if self._fills_share():
                return max(0, self._asked() - self._own(terms))
            if self.sglang and request.mem_fraction_static is not None and self.pool.allocatable is not None:
                before = self._before_load(self.pool.allocatable, terms)
                return max(0, int(before * request.mem_fraction_static) - self.weights.rank)
        recommended = recommend.get("kv_cache_memory_bytes")
        return recommended if isinstance(recommended, int) else self.demand_kv + self.demand_state

    def _concurrency(self, cache: int | None) -> float | None:
        if cache is None or not self.context:
            return None
        if self.plan is not None:
            return self.plan.max_concurrency(cache, self.context)
        tokens = float("inf")
        slots = float("inf")
        if self.per_sequence and self.per_token:
            if self.request.prefix_caching and not self.request.max_num_seqs:
                states = int(cache * SGLANG_STATE_RATIO / (1 + SGLANG_STATE_RATIO))
            else:
                states = min(cache, self.per_sequence * (self.request.max_num_seqs or self.request.concurrency))
            slots, cache = states // self.per_sequence, cache - states
        elif self.per_sequence:
            slots = cache // self.per_sequence
        if self.per_token:
            tokens = cache // self.per_token / self.context
        found = min(tokens, slots)
        return found if math.isfinite(found) else None

    def _engine_check(self, terms: t.Mapping[str, int | None], outside: int, recommend: t.Mapping[str, t.Any], cache: int | None) -> dict[str, t.Any]:
        pool, request = self.pool, self.request
        found: list[Check] = []
        available = pool.available if pool.available is not None else pool.allocatable
        free = pool.free_now
        if available is None or free is None:
            return {"passes_now": None, "asked": None, "seen": None, "rule": "the node's free memory is not known", "checks": []}
        weights = terms["weights"] or 0
        if self.sglang:
            fraction = request.mem_fraction_static if request.mem_fraction_static is not None else recommend["mem_fraction_static"]
            before = self._before_load(available, terms)
            if fraction is not None:
                found.append(checks.sglang_static_check(fraction, before, weights, self.demand_kv + self.demand_state))
            others = [figure for figure in (_available_of(peer) for peer in request.peers) if figure is not None]
            if others:
                found.append(checks.sglang_balance_check(available, others))
        elif self.version.cpu and request.kv_cache_memory is not None:
            rule = "kv_cache_memory_bytes <= available memory after the load (vllm/v1/worker/cpu_worker.py)"
            left = max(0, available - weights)
            found.append(Check("cpu_kv_cache", request.kv_cache_memory, left, left, rule, "a smaller KV cache"))
        else:
            utilization = request.gpu_memory_utilization if request.gpu_memory_utilization is not None else recommend["gpu_memory_utilization"]
            if utilization is None:
                utilization = checks.default_utilization(self.version)
            if pool.total is not None:
                found.extend(checks.utilization_check(pool.total, utilization, available, free, outside, self.version))
        if self.plan is not None and cache is not None and self.weights is not None and self.context:
            one = self.plan.blocks_per_request(self.context) * self.plan.block_bytes
            found.append(checks.kv_check(one + self._null_block(), cache, self.context))
        if terms["cuda_context"]:
            found.append(checks.context_check(max(CONTEXT_FREE.value, terms["cuda_context"] or 0), free, pool.allocatable or free))
        if not found:
            return {"passes_now": None, "asked": None, "seen": None, "rule": "no start-up check of this engine could be simulated", "checks": []}
        first = found[0]
        return {
            "passes_now": all(check.passes_now for check in found),
            "passes_after_cache_eviction": all(check.passes_after_cache_eviction for check in found),
            "asked": first.asked,
            "seen": first.seen,
            "rule": first.rule,
            "checks": [check.as_dict() for check in found],
        }

    def _layout(self, cache: int | None) -> dict[str, t.Any] | None:
        """The allocator's numbers as the engine's log prints them."""
        plan = self.plan
        if plan is None or not plan.groups:
            return None
        blocks = plan.num_blocks(cache or 0)
        needed = plan.blocks_per_request(self.context)
        if checks.tokens_are_concurrency(self.version):
            logged = int(blocks / needed * self.context) if needed else 0
        else:
            logged = blocks // len(plan.groups) * plan.block_size
        padding = (plan.page - plan.state_page) / plan.state_page * 100 if plan.state_page else 0.0
        return {
            "block_size": plan.block_size,
            "block_bytes": plan.block_bytes,
            "page_bytes": plan.page,
            "state_padding_percent": round(padding, 2),
            "group_size": plan.group_size,
            "groups": [{"kind": group.kind, "layers": group.layers, "block_size": group.block_size} for group in plan.groups],
            "blocks_per_request": needed,
            "num_blocks": blocks,
            "pool_bytes": cache,
            "kv_tokens_logged": logged,
        }

    # recommendations -------------------------------------------------------------------------------------------

    def _recommend(self, terms: t.Mapping[str, int | None], need: int | None, outside: int, room: int | None) -> dict[str, t.Any]:
        nothing: dict[str, t.Any] = {
            "gpu_memory_utilization": None,
            "kv_cache_memory_bytes": None,
            "mem_fraction_static": None,
            "max_model_len": None,
            "max_num_seqs": None,
        }
        if need is None or room is None or self.model is None:
            return nothing
        request = self.request
        kv_now = (terms["kv_cache"] or 0) + (terms["recurrent_state"] or 0)
        # the reserve is kept in what is recommended, also where an explicit utilization leaves none
        spare = room - (need - kv_now) + (terms["reserve"] or 0) - self._reserve()
        demand = self.demand_kv + self.demand_state + self._null_block()
        if request.kv_cache_memory is not None and demand <= request.kv_cache_memory <= spare:
            spare = request.kv_cache_memory
        if spare <= 0:
            return nothing
        cache = self.plan.num_blocks(spare) * self.plan.block_bytes if self.plan else spare
        result = dict(nothing)
        result["max_model_len"] = self._longest(spare, request.concurrency)
        result["max_num_seqs"] = self._sequences(cache)
        if not self.sglang:
            result["kv_cache_memory_bytes"] = cache
            result["gpu_memory_utilization"] = self._utilization(terms, outside, room, cache)
            return result
        before = self._before_load(room, terms)
        if before > 0:
            static = (terms["weights"] or 0) + cache
            result["mem_fraction_static"] = min(0.9, math.floor(static / before * 100) / 100)
        return result

    def _utilization(self, terms: t.Mapping[str, int | None], outside: int, room: int, cache: int) -> float | None:
        """The share that leaves the reserve and still covers what the engine takes; with KV bytes set, no more than that."""
        total = self.pool.total
        if not total:
            return None
        least = (self._own(terms) + min(cache, self.demand_kv + self.demand_state + self._null_block())) / total
        most = math.floor((room - outside - self._reserve()) / total * 100) / 100
        most = min(most, _MAX_UTILIZATION)
        if self.request.kv_cache_memory is not None:
            # the check before the load goes by utilization even when the KV cache is given in bytes
            most = min(most, math.ceil((self._own(terms) + cache) / total * 100) / 100)
            return most if most > 0 else None
        return most if most >= least else None

    def _reserve(self) -> int:
        return self.request.reserve if self.pool.unified else 0

    def _longest(self, spare: int, requests: int) -> int:
        limit = max(self.context, self.model.max_positions if self.model else 0, 1)
        if self.plan is not None:
            return self.plan.max_length(max(0, spare), requests, min(limit, MAX_CONTEXT))
        if not self.per_token:
            return limit
        return max(0, min(limit, (spare - self.demand_state) // (self.per_token * requests)))

    def _sequences(self, cache: int) -> int:
        wanted = self.request.max_num_seqs or _MAX_RECOMMENDED_SEQS
        if self.plan is not None and self.plan.groups:
            # the least a running sequence holds: one block of every attention group and its states
            least = self.plan.blocks_per_request(1)
            return max(1, min(wanted, self.plan.num_blocks(cache) // least))
        if self.per_sequence:
            return max(1, min(wanted, int(cache * SGLANG_STATE_RATIO / (1 + SGLANG_STATE_RATIO)) // self.per_sequence))
        return wanted

    def _will_take(self, terms: t.Mapping[str, int | None], need: int | None, outside: int) -> int | None:
        """What this rank will really take of the node: SGLang fills its static share too."""
        if need is None:
            return None
        taken = need - (terms["reserve"] or 0)
        fraction, allocatable = self.request.mem_fraction_static, self.pool.allocatable
        if self.sglang and fraction is not None and allocatable is not None:
            taken = max(taken, int(self._before_load(allocatable, terms) * fraction) + outside)
        return taken

    @staticmethod
    def _before_load(free: int, terms: t.Mapping[str, int | None]) -> int:
        """What is still free when SGLang measures before the load: context, NCCL and host processes are there already."""
        return max(0, free - sum(terms[name] or 0 for name in ("cuda_context", "communication", "host_process")))

    def _uncertainty(self, need: int | None) -> tuple[int | None, int | None]:
        if need is None:
            return None, None
        spreads = [self.overheads.activations, self.overheads.graphs, self.overheads.cuda_context, self.overheads.communication]
        if self.pool.unified:
            spreads.append(self.overheads.host_process)
        # the highest figures were not seen together: deviations are added by their squares
        low = math.sqrt(sum((value - least) ** 2 for least, value, _most in spreads))
        high = math.sqrt(sum((most - value) ** 2 for _least, value, most in spreads))
        return need - int(low), need + int(high)

    # sentences -------------------------------------------------------------------------------------------------

    def _last_problems(self, need: int | None, verdict: str, freed: int, concurrency: float | None) -> None:
        pool, request = self.pool, self.request
        if need is None or pool.allocatable is None:
            return
        if verdict in FIT_VERDICTS and self._fills_share():
            left = pool.allocatable + freed - need
            if left < request.reserve:
                self.problems.add(
                    "little_left_for_system",
                    f"At gpu_memory_utilization {request.gpu_memory_utilization:g} vLLM fills its share with KV cache. {format_size(max(0, left))} remain "
                    f"for the system, below the reserve of {format_size(request.reserve)}; set kv_cache_memory or a lower utilization.",
                )
        if verdict == AFTER_EVICTION and pool.free_now is not None:
            self.problems.add(
                "page_cache_in_the_way",
                f"Only {format_size(pool.free_now)} are free now, {format_size(pool.allocatable)} after the page cache is evicted; "
                "before that the CUDA context or the load can fail.",
            )
        totals = [figure for figure in (memory_of(peer, "total") for peer in request.peers) if figure]
        own_total = memory_of(request.gpu_memory, "total")
        if own_total and any(abs(total - own_total) > own_total // 100 for total in totals):
            self.problems.add("nodes_differ", "The nodes' memory differs by more than 1 %: a utilization means another amount on each; prefer kv_cache_memory.")
        if self.sglang and totals:
            others = [figure for figure in (_available_of(peer) for peer in request.peers) if figure is not None]
            own = self._available_at(pool.allocatable + freed) or 0
            if others and min([own, *others]) < checks.SGLANG_BALANCE * max([own, *others]):
                self.problems.add("ranks_unbalanced", "Available memory differs by more than a tenth between the nodes; SGLang refuses to start then.")
        if concurrency is not None and self.model is not None and not self.per_token and not self.per_sequence:
            self.problems.add("no_cache", "This model has neither KV cache nor state that is known.")

    def _hazards(self, need: int | None, verdict: str, freed: int) -> None:
        """What can end the launch all the same, of a plan that fits."""
        facts, allocatable = self.request.gpu_memory, self.pool.allocatable
        taken = self._will_take(self.terms, need, self.outside)
        if verdict not in FIT_VERDICTS or taken is None or allocatable is None or not self.pool.unified:
            return
        crumbs = None if self.version.cpu else fragmentation(facts, taken - (self.terms["host_process"] or 0), allocatable + freed)
        if crumbs is not None:
            self.problems.add("memory_fragmented", crumbs)
        for text in watchdogs(facts, allocatable + freed - taken):
            self.problems.add("watchdog_above_floor", text)

    def _say_floor(self, need: int | None, verdict: str) -> None:
        """Where it is the floor that a plan fails at: how much remains, and what would do."""
        pool, floor = self.pool, self._floor()
        if verdict != DOES_NOT_FIT or need is None or not floor or pool.allocatable is None or not pool.total or self.problems.errors():
            return
        room = pool.allocatable + sum(owner.memory for owner in stoppable_owners(self._processes(), self.request.stoppable))
        if not 0 <= room - need < floor:
            return
        most = min(_MAX_UTILIZATION, math.floor((room - self.outside - floor) / pool.total * 100) / 100)
        holds = most * pool.total >= self._own(self.terms) + self.demand_kv + self.demand_state + self._null_block()
        would = f"gpu_memory_utilization {most:g} would leave it" if most > 0 and holds else "no gpu_memory_utilization leaves it and holds what is asked for"
        self.problems.error(
            "below_memory_floor",
            f"At gpu_memory_utilization {self.request.gpu_memory_utilization:g} vLLM fills its share with KV cache, and {format_size(room - need)} remain of "
            f"the {format_size(room)} that can be had: below the memory floor of {format_size(floor)}, at which the ranks are killed; {would}.",
        )

    def _remedies(self) -> list[dict[str, t.Any]]:
        """What would help, the cheapest first; each was tried with a budget of its own."""
        pool, request = self.pool, self.request
        if self.need is None or pool.allocatable is None or self.model is None or self.verdict in (FITS, UNKNOWN):
            return []
        need, allocatable, outside, terms = self.need, pool.allocatable, self.outside, self.terms

        def evaluate(**changes: t.Any) -> Outlook:
            return _Budget(dataclasses.replace(request, stoppable=(), **changes), self).decide()

        others: list[Owner] = []
        if self.verdict == DOES_NOT_FIT and not self.problems.errors():
            others = (
                cheapest(
                    permitted(self._processes()),
                    lambda freed: self._leaves_floor(allocatable + freed, need) and self._fits_at(allocatable + freed, terms, need, outside),
                )
                or []
            )
        demand = self.demand_kv + self.demand_state + self._null_block()
        advice = self._recommend(terms, need, outside, allocatable)
        return remedies(
            Situation(
                request=request,
                verdict=self.verdict,
                need=need,
                evictable=allocatable - (pool.free_now or 0),
                context=self.context,
                halvable=self.kv_bytes == 2 and self.per_token > 0,
                utilization=self._utilization(terms, outside, allocatable, demand),
                cache=demand,
                fraction=advice["mem_fraction_static"],
                sizes=sizes_that_divide(self.model, request.expert_parallel, self.sglang),
                stages=len(self.model.layers),
                stop=self.stop,
                others=others,
                evaluate=evaluate,
            )
        )


def _available_of(facts: t.Any) -> int | None:
    value = memory_of(facts, "available")
    return value if value is not None else memory_of(facts, "allocatable")
