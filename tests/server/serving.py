"""A server in a thread of this process, on a free port of 127.0.0.1, and one in a process of its own; what must be left when both are done."""
from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import openai
from async_driving import fake
from test_engine import empty

from paged_edu.core.plan import Branch
from paged_edu.engine.fake_runner import FakeRunner
from paged_edu.server.run import bound, make_server
from paged_edu.server.service import Service
from paged_edu.server.settings import Settings

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}{{ m.role|upper }}:\n{{ m.content }}\n\n"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:\n{% endif %}"
)
TALK = [{"role": "user", "content": "Speak, I charge thee."}]


class Served(SimpleNamespace):
    """``url``, ``service``, ``engine`` (an `AsyncEngine`), and clients."""

    def openai(self, **options):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="not-needed", max_retries=0, timeout=60, **options)

    def http(self, **options):
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def post(self, path, body, **options):
        with self.http() as client:
            return client.post(path, json=body, **options)

    def metric(self, name):
        """The value of a line of /metrics, by its name and labels."""
        with self.http() as client:
            for line in client.get("/metrics").text.splitlines():
                if line.startswith(name + " "):
                    return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name}")

    def between_steps(self, work=lambda core: None):
        """What ``work`` returns, called in the engine's thread."""
        return self.engine._thread.call(lambda: work(self.engine._thread.engine)).result(timeout=60)

    def nothing_left(self, seconds=20.0):
        """Until every block is back; the last clients may have gone a moment ago."""
        until = time.monotonic() + seconds
        while not (self.service.in_flight == 0 and self.between_steps(empty)):
            assert time.monotonic() < until, (self.service.in_flight, self.between_steps(lambda core: core.scheduler.requests))
            time.sleep(0.01)
        self.between_steps(lambda core: core.scheduler.manager.check())
        assert self.engine.num_unfinished_requests == 0


@contextmanager
def serving(engine, *, close=True, **settings):
    """``engine`` behind HTTP. At the end nothing may be left of any request; ``close``: the engine is closed too."""
    chosen = Settings(**{"port": 0} | settings)
    service = Service(engine, chosen)
    server, sock = make_server(service), bound(chosen)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        served = Served(url=f"http://127.0.0.1:{sock.getsockname()[1]}", service=service, engine=engine, server=server)
        yield served
        served.nothing_left()
    finally:
        server.should_exit = True
        thread.join(30)
        service.close()
        if close:
            engine.close()
    assert not thread.is_alive()


@contextmanager
def process(*argv, env=None):
    """``paged-edu serve`` in a process of its own; it is killed if it does not end by itself after SIGTERM."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PAGED_EDU_SERVE_")}
    child = subprocess.Popen(
        [sys.executable, "-m", "paged_edu", "serve", "--port", "0", *argv], stderr=subprocess.PIPE, text=True, env=variables | (env or {}),
    )
    lines = []
    try:
        for line in child.stderr:
            lines.append(line)
            if found := re.search(r" at (http://\S+)/v1", line):
                break
        else:
            raise AssertionError(f"it did not start: {lines}")
        reader = threading.Thread(target=lambda: lines.extend(child.stderr))
        reader.start()
        yield Served(url=found[1], child=child, lines=lines, reader=reader)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(60)
            finally:
                child.kill()
        child.wait()
        child.stderr.close()


class Scripts(FakeRunner):
    """A runner that says ``scripts[branch]``, token by token, and the last one of them again after that."""

    def __init__(self, *args):
        super().__init__(*args)
        self.scripts = [[1]]

    def execute(self, output, sampling=None):
        super().execute(output, sampling)
        branches = {}
        for item in output.scheduled:
            for sample in range(item.num_samples):
                branch = item.branch + sample
                script = self.scripts[branch % len(self.scripts)]
                place = min(item.seq_len - self.prompt_len, len(script) - 1)
                branches.setdefault(item.request_id, []).append(Branch(item.seq_id, (script[place],)))
        from paged_edu.core.plan import StepResult

        return StepResult({request_id: tuple(rows) for request_id, rows in branches.items()})

    prompt_len = 3


def scripted(monkeypatch, scripts, tokenizer, *, eos=(), num_blocks=64, block_size=4, max_model_len=256):
    """An `AsyncEngine` that says ``scripts`` after a prompt of three tokens."""
    from paged_edu import Engine
    from paged_edu.core.paged import PagedKVManager
    from paged_edu.core.scheduler import Scheduler, SchedulerConfig

    runner = Scripts(num_blocks, block_size, len(tokenizer))
    runner.scripts = [tokenizer(script)["input_ids"] if isinstance(script, str) else list(script) for script in scripts]
    scheduler = Scheduler(SchedulerConfig(max_model_len, 16, 64), PagedKVManager(num_blocks, block_size))
    return fake(monkeypatch, Engine(scheduler, runner, tokenizer, vocab_size=len(tokenizer), eos_token_ids=eos))


def events(text):
    """The data of server-sent events, each of which must be one line ``data: ...`` and an empty one."""
    assert text.endswith("\n\n")
    found = text[:-2].split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event and "\r" not in event for event in found), found
    return [event.removeprefix("data: ") for event in found]
