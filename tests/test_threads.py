"""One thread for small models: only where nobody has chosen a number, only on the CPU, only below the limit."""
import os
import subprocess
import sys

import pytest
import torch

from paged_edu import LLM, demo, threads
from paged_edu.engine.fake_runner import FakeRunner

PARAMETERS = 2_964_480
"""Of the embedded model."""


@pytest.fixture(scope="module")
def llm():
    with LLM("tiny-shakespeare", num_gpu_blocks_override=8) as llm:
        yield llm


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """A machine of two cores on which nobody has chosen a number of threads."""
    before = torch.get_num_threads()
    for name in threads.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_own_choices", lambda: {2})
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_small_model_gets_one_thread(llm):
    assert threads.one_thread_for_small_models(llm)
    assert torch.get_num_threads() == 1
    assert not threads.one_thread_for_small_models(llm)                 # it has one


def test_the_limit_counts_each_parameter_once(llm):
    assert not threads.one_thread_for_small_models(llm, below=PARAMETERS)
    assert torch.get_num_threads() == 2
    assert threads.one_thread_for_small_models(llm, below=PARAMETERS + 1)


@pytest.mark.parametrize("name", threads.ENVIRONMENT)
def test_a_number_in_the_environment_stays(llm, monkeypatch, name):
    monkeypatch.setenv(name, "2")
    assert not threads.one_thread_for_small_models(llm)
    assert torch.get_num_threads() == 2


def test_a_number_set_in_torch_stays(llm):
    torch.set_num_threads(3)
    assert not threads.one_thread_for_small_models(llm)
    assert torch.get_num_threads() == 3


def test_what_runs_no_model_on_the_cpu_stays(llm, monkeypatch):
    monkeypatch.setattr(llm.engine.runner, "device", torch.device("cuda"))
    assert not threads.one_thread_for_small_models(llm)
    monkeypatch.setattr(llm.engine, "runner", FakeRunner(8, 16))
    assert not threads.one_thread_for_small_models(llm)
    assert torch.get_num_threads() == 2


def test_the_demo_asks_for_it():
    with demo.load():
        assert torch.get_num_threads() == 1


def test_torchs_own_number_is_known_here():
    """In a process of its own: there nobody has changed it."""
    code = "import torch; from paged_edu import threads; n = torch.get_num_threads(); print(n == 1 or n in threads._own_choices())"
    environment = {name: value for name, value in os.environ.items() if name not in threads.ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "True\n"
