# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Whether an endpoint lives, by its tokens, and damped: one that is busy is not dead.

An engine can say that it is healthy for an hour while no token comes. One with a full queue gives no token in time either, and
restarting it for that makes everything worse. So several questions in a row have to fail, and an endpoint that has produced
tokens for others meanwhile lives.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import typing as t
import urllib.error
import urllib.request

from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import Liveness

#: Seconds for the counters, which an engine gives at once or not at all.
_METRICS_SECONDS = 10.0
_MAX_ANSWER = 4 * 1024 * 1024
_PRODUCED = re.compile(r"^(?:vllm|sglang):generation_tokens_total(?:\{[^}\n]{0,2000}\})? ([0-9.eE+]{1,30})", re.MULTILINE)


class Answer(t.NamedTuple):
    """What came of a question. ``produced``: tokens that the engine has made so far for anybody, where it says."""

    alive: bool
    why: str = ""
    produced: float | None = None


Ask = t.Callable[[Liveness, str], Answer]


def ask(wanted: Liveness, key: str) -> Answer:
    """Ask for one token. ``key`` is the API key, empty where none is wanted."""
    body = {"model": wanted.model, "prompt": wanted.prompt, "max_tokens": 1, "temperature": 0}
    try:
        told = parse_json(_open(f"{wanted.url}/v1/completions", key, wanted.timeout, json.dumps(body).encode()))
        if int(told["usage"]["completion_tokens"]) > 0 or told["choices"][0]["text"]:
            return Answer(True)
        why = "the answer has no token"
    except urllib.error.HTTPError as exc:
        exc.close()
        if exc.code < 500:
            # Whoever refuses a question, for its key or its rate, does not hang.
            return Answer(True, f"it answered with HTTP status {exc.code}")
        why = f"HTTP status {exc.code}"
    except urllib.error.URLError as exc:
        why = str(exc.reason)
    except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError) as exc:
        why = f"{type(exc).__name__}: {exc}"[:200]
    return Answer(False, why, _produced(wanted, key))


def _produced(wanted: Liveness, key: str) -> float | None:
    try:
        text = _open(f"{wanted.url}/metrics", key, _METRICS_SECONDS).decode("utf-8", "replace")
        found = [float(number) for number in _PRODUCED.findall(text)]
    except (OSError, http.client.HTTPException, ValueError):
        return None
    return sum(found) if found else None


def _open(url: str, key: str, timeout: float, body: bytes | None = None) -> bytes:
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    # The node's own proxy, if it has one, is not between a node and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, body, headers), timeout=timeout) as answer:
        return t.cast("bytes", answer.read(_MAX_ANSWER))


def _begin(work: t.Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


class Pulse:
    """Questions at their interval, beside whatever else there is to do: ``look`` never waits for an answer.

    ``begin`` starts a piece of work; tests do it at once.
    """

    def __init__(self, question: Ask = ask, begin: t.Callable[[t.Callable[[], None]], None] = _begin) -> None:
        self._ask = question
        self._begin = begin
        self._answers: list[Answer] = []
        self._pending = False
        self._next: float | None = None
        self._produced: float | None = None
        self.missed = 0

    def rest(self) -> None:
        """Begin again: nothing that was missed so far counts, and the next question comes after an interval."""
        self.missed = 0
        self._next = None

    def look(self, wanted: Liveness, key: t.Callable[[], str], now: float) -> tuple[bool, str]:
        """Whether it is dead, and a sentence about the last question if it was answered badly since the last look. ``key`` may raise."""
        said = ""
        if self._answers:
            answer = self._answers.pop()
            self._pending = False
            if self._next is not None:  # else it was asked before a rest
                said = self._judge(answer, wanted)
        if self._next is None:
            self._next = now + wanted.interval
        elif now >= self._next and not self._pending:
            self._next = now + wanted.interval
            known = key()
            self._pending = True
            self._begin(lambda: self._answers.append(self._ask(wanted, known)))
        return self.missed >= wanted.failures, said

    def _judge(self, answer: Answer, wanted: Liveness) -> str:
        before, self._produced = self._produced, answer.produced
        if answer.alive:
            self.missed = 0
            return f"{answer.why}; that counts as alive" if answer.why else ""
        if before is not None and answer.produced is not None and answer.produced > before:
            self.missed = 0
            return f"no token came ({answer.why}), but others got theirs: it is busy, not dead"
        self.missed += 1
        return f"no token came ({answer.why}), {self.missed} of {wanted.failures} times in a row"
