# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import http.server
import json
import threading
import typing as t
from collections.abc import Iterator

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._liveness import Answer, Pulse, ask
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import Liveness

GOOD = {"choices": [{"text": " Paris"}], "usage": {"completion_tokens": 1}}


class Engine:
    """An endpoint that answers what a test says."""

    def __init__(self) -> None:
        self.status: int = 200
        self.body: t.Any = GOOD
        self.metrics = ""
        self.asked: list[tuple[str, str | None, t.Any]] = []
        self.hang = threading.Event()
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _send(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def do_GET(self) -> None:
                self._send(200, engine.metrics)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                engine.asked.append((self.path, self.headers.get("Authorization"), body))
                if engine.status == 0:
                    engine.hang.wait(10)
                    return
                self._send(engine.status, engine.body if isinstance(engine.body, str) else json.dumps(engine.body))

            def log_message(self, *_values: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def wanted(self) -> Liveness:
        return Liveness(f"http://127.0.0.1:{self.server.server_address[1]}", "m", "The capital of France is", 60.0, 0.5, 3, "KEY")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    made = Engine()
    try:
        yield made
    finally:
        made.hang.set()
        made.server.shutdown()
        made.server.server_close()


def test_a_token_is_life(engine: Engine) -> None:
    assert ask(engine.wanted, "") == Answer(True)
    path, key, body = engine.asked[0]
    assert (path, key) == ("/v1/completions", None)
    assert body == {"model": "m", "prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
    ask(engine.wanted, "s3cret")
    assert engine.asked[1][1] == "Bearer s3cret"


def test_a_token_without_text_is_life_too(engine: Engine) -> None:
    engine.body = {"choices": [{"text": ""}], "usage": {"completion_tokens": 1}}
    assert ask(engine.wanted, "").alive


@pytest.mark.parametrize("status", [400, 401, 404, 429])
def test_whoever_refuses_does_not_hang(engine: Engine, status: int) -> None:
    engine.status = status
    answer = ask(engine.wanted, "")
    assert answer.alive and str(status) in answer.why


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (500, GOOD, "HTTP status 500"),
        (503, GOOD, "HTTP status 503"),
        (200, {"choices": [{"text": ""}], "usage": {"completion_tokens": 0}}, "no token"),
        (200, {"choices": []}, "KeyError"),
        (200, "nonsense", "ValueError|JSONDecodeError"),
        (200, [], "TypeError"),
        (0, GOOD, "timed out"),
    ],
)
def test_no_token_is_none(engine: Engine, status: int, body: t.Any, why: str) -> None:
    engine.status, engine.body = status, body
    engine.metrics = 'vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+01\nvllm:generation_tokens_total{engine="1"} 5\nvllm:other 9\n'
    answer = ask(engine.wanted, "")
    assert not answer.alive and any(part in answer.why for part in why.split("|")), answer
    assert answer.produced == 20.0


def test_nobody_there(engine: Engine) -> None:
    engine.server.shutdown()
    engine.server.server_close()
    answer = ask(engine.wanted, "")
    assert not answer.alive and "refused" in answer.why and answer.produced is None


class Asked:
    """Answers one after the other; the last one stays."""

    def __init__(self, *answers: Answer) -> None:
        self.left = list(answers)
        self.times = 0
        self.keys: list[str] = []

    def __call__(self, wanted: Liveness, key: str) -> Answer:
        self.times += 1
        self.keys.append(key)
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


WANTED = Liveness("http://x", "m", "p", 60.0, 120.0, 3)
DEAD = Answer(False, "HTTP status 500")


def looks(pulse: Pulse, seconds: int) -> tuple[int | None, list[str]]:
    """When it was found dead, and what was said until then."""
    said = []
    for now in range(0, seconds, 5):
        dead, words = pulse.look(WANTED, lambda: "key", float(now))
        said += [words] if words else []
        if dead:
            return now, said
    return None, said


def test_three_in_a_row() -> None:
    asked = Asked(DEAD)
    dead, said = looks(Pulse(asked, lambda work: work()), 1000)
    assert dead == 185 and asked.times == 3 and asked.keys == ["key"] * 3
    assert said[-1] == "no token came (HTTP status 500), 3 of 3 times in a row"


def test_one_answer_in_between_begins_anew() -> None:
    asked = Asked(DEAD, DEAD, Answer(True), DEAD, DEAD, Answer(True))
    assert looks(Pulse(asked, lambda work: work()), 2000)[0] is None and asked.times > 20


def test_busy_is_not_dead() -> None:
    answers = [Answer(False, "timed out", float(tokens)) for tokens in range(0, 4000, 100)]
    dead, said = looks(Pulse(Asked(*answers), lambda work: work()), 2000)
    assert dead is None and "busy, not dead" in said[-1]
    stuck = looks(Pulse(Asked(Answer(False, "timed out", 700.0)), lambda work: work()), 2000)
    assert stuck[0] == 185


def test_nothing_is_asked_while_an_answer_is_awaited_and_a_rest_forgets() -> None:
    works: list[t.Callable[[], None]] = []
    pulse = Pulse(Asked(DEAD), works.append)
    assert looks(pulse, 1000) == (None, []) and len(works) == 1
    pulse.rest()
    works.pop()()
    assert pulse.look(WANTED, lambda: "", 2000.0) == (False, "") and pulse.missed == 0
    pulse.look(WANTED, lambda: "", 2060.0)
    assert len(works) == 1
