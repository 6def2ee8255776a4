"""Which backend is chosen, and why "triton" is refused; nothing of it needs Triton."""
from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings

import pytest
import torch

from paged_edu import attention
from paged_edu.attention import backends, cpu

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch):
    """Whether Triton seems to be installed: it does, until ``installed(False)`` says otherwise."""
    find = importlib.util.find_spec

    def pretend(there: bool) -> None:
        spec = object() if there else None
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: spec if name == "triton" else find(name, *rest))

    pretend(True)
    return pretend


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch):
    """A process that can't import numba, and has not warned of it yet."""
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "paged_edu.attention.cpu_kernels", raising=False)
    monkeypatch.delattr(attention, "cpu_kernels", raising=False)
    for function in (cpu.why_not_here, backends._warn_once):
        function.cache_clear()
    yield
    for function in (cpu.why_not_here, backends._warn_once):
        function.cache_clear()


@pytest.mark.parametrize(("dtype", "name"), [
    (torch.float32, "cpu"), (torch.bfloat16, "cpu"), (torch.float16, "reference"), (torch.float64, "reference"),
])
def test_auto_on_a_cpu_is_compiled_where_it_can_be(dtype: torch.dtype, name: str, interpreter: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.choose("auto", CPU, dtype, 64).name == name


def test_without_numba_auto_is_the_reference_and_says_so_once(no_numba) -> None:
    with pytest.warns(UserWarning, match=r"slower than compiled code would be: numba can't be imported \(pip install numba\)") as caught:
        assert [backends.choose("auto", CPU, torch.float32, 64).name for _ in range(3)] == ["reference"] * 3
    assert len(caught) == 1


def test_without_numba_nobody_gets_the_compiled_one(no_numba) -> None:
    with pytest.raises(ValueError, match=r"attention_backend='cpu' can't be used: numba can't be imported \(pip install numba\)"):
        backends.choose("cpu", CPU, torch.float32, 64)


@pytest.mark.parametrize(("device", "dtype", "reason"), [
    (CUDA, torch.float32, "it runs on a CPU, not on cuda"), (CPU, torch.float64, "it computes in float32 and bfloat16, not float64"),
    (CPU, torch.float16, "it computes in float32 and bfloat16, not float16"),
])
def test_the_compiled_one_is_refused_for_what_it_cannot(device: torch.device, dtype: torch.dtype, reason: str) -> None:
    with pytest.raises(ValueError, match=f"attention_backend='cpu' can't be used: {reason}"):
        backends.choose("cpu", device, dtype, 64)


@pytest.mark.parametrize("head_dim", [16, 64, 80, 256])
def test_auto_on_a_gpu_is_triton(head_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert backends.choose("auto", CUDA, dtype, head_dim).name == "triton"


def test_auto_on_a_gpu_without_triton_warns(installed) -> None:
    """known fault B84"""
    installed(False)
    with pytest.warns(UserWarning, match="slower than the kernels would be: triton is not installed"):
        assert backends.choose("auto", CUDA, torch.float16, 64).name == "reference"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.choose("auto", CPU, torch.float32, 64).name == "cpu"
        assert backends.choose("auto", CUDA, torch.float64, 64).name == "reference"


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.float32, 64), (torch.float16, 256)])
def test_triton_under_its_interpreter(interpreter: None, dtype: torch.dtype, head_dim: int) -> None:
    assert backends.choose("triton", CPU, dtype, head_dim).name == "triton"


@pytest.mark.parametrize("value", [None, "0", "false", ""])
def test_refused_on_a_cpu_without_the_interpreter(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if value is not None:
        monkeypatch.setenv("TRITON_INTERPRET", value)
    with pytest.raises(ValueError, match=r"attention_backend='triton' can't be used: device cpu has no Triton; .*TRITON_INTERPRET=1"):
        backends.choose("triton", CPU, torch.float32, 64)


@pytest.mark.parametrize(("dtype", "head_dim", "reason"), [
    (torch.float64, 64, "float32, float16 and bfloat16, not float64"), (torch.bfloat16, 64, "interpreter computes bfloat16 wrongly"),
    (torch.float32, 257, "heads of up to 256 numbers, not 257"),
])
def test_refused_for_what_the_kernels_cannot(interpreter: None, dtype: torch.dtype, head_dim: int, reason: str) -> None:
    with pytest.raises(ValueError, match=f"attention_backend='triton' can't be used: .*{reason}"):
        backends.choose("triton", CPU, dtype, head_dim)


@pytest.mark.parametrize(("platform", "advice"), [("linux", "pip install triton"), ("darwin", "no wheels for darwin")])
def test_refused_where_triton_is_not_installed(
    interpreter: None, installed, platform: str, advice: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """known fault B84"""
    installed(False)
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(ValueError, match=rf"can't be used: triton is not installed \({advice}\)"):
        backends.choose("triton", CPU, torch.float32, 64)


IMPORT_ALL = """
import importlib, importlib.util, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(name)

if {blocked}:
    sys.meta_path.insert(0, Absent())
import paged_edu, paged_edu.attention, paged_edu.engine.build, paged_edu.cli
for module in pkgutil.iter_modules(paged_edu.attention.__path__):
    if module.name not in ("cpu_kernels", "cpu_numbers"):       # they need numba, and are imported when they are used
        importlib.import_module("paged_edu.attention." + module.name)
print("triton" in sys.modules, "numba" in sys.modules)
print("paged_edu.attention.triton" in sys.modules, any(m.startswith("paged_edu.kernels.") for m in sys.modules))
"""


@pytest.mark.parametrize("blocked", [True, False])
def test_importing_needs_no_triton_and_no_numba(blocked: bool) -> None:
    """known fault B84: nothing imports Triton, numba or the kernels before somebody attends with them."""
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL.format(blocked=blocked)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False False\nTrue False\n"
