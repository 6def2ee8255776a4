"""`paged-edu bench paper`: the paper's experiments, small, on the real engine: a real model, its KV cache, its scheduler, on whatever machine it is.

Lengths are those of Paper Fig. 11, scaled to ``max_model_len`` positions, and the pool is the paper's, scaled likewise. How fast the machine is,
is measured first; request rates are relative to that, and so is how much is measured: all of it is meant to fit ``seconds_budget``.
"""
from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import lengths
from ..checks import integer, number, one_of, writable_file
from ..terminal import note
from .machine import machine

if TYPE_CHECKING:
    from .paper_figures import Advance, Begin, Part, Setting

FIGURES = {"fig2": "memory", "fig12": "fig12", "fig13": "memory", "fig15": "fig15", "fig18b": "fig18b", "fig19": "fig19"}
"""Figure -> the measurement that it is drawn from; two of them share one."""
SHARES = {"memory": 0.12, "fig12": 0.44, "fig15": 0.2, "fig18b": 0.18, "fig19": 0.06}
"""Of the time."""
SECONDS, QUICK_SECONDS = 220.0, 30.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure. Raises ValueError with the value and its limits."""

    only: str = "all"
    """"all", or names of `FIGURES` with commas between them."""
    quick: bool = False
    seconds_budget: float | None = None
    """Seconds that all of it may take; None: `SECONDS`, or `QUICK_SECONDS`. Every measurement has a smallest size: a slow machine may need longer."""
    model: str = "tiny-shakespeare"
    device: str = "auto"
    dtype: str = "auto"
    dataset: str = "sharegpt"
    max_model_len: int | None = None
    """Positions that lengths and pool are scaled to (Fig. 15 and 19: unscaled); None: 128, or 64 of a quick run."""
    block_size: int = 2
    """Slots of a block where the block size isn't what is compared. 16 of the paper's 2048 positions would be 1 of 128."""
    seed: int = 0

    def __post_init__(self) -> None:
        _ = self.figures
        if self.seconds_budget is not None:
            number("--seconds-budget", self.seconds_budget, 1, 1e6)
        one_of("--dataset", self.dataset, lengths.DATASETS)
        one_of("--dtype", self.dtype, ("auto", "float32", "float64", "float16", "bfloat16"))
        integer("--max-model-len", self.positions, 32, 2**20)
        integer("--block-size", self.block_size, 1, min(256, self.positions))
        integer("--seed", self.seed, 0, 2**32)

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures that were asked for, in the paper's order."""
        if self.only == "all":
            return tuple(FIGURES)
        names = [name.strip() for name in self.only.split(",")]
        for name in names:
            one_of("--only", name, FIGURES)
        return tuple(name for name in FIGURES if name in names)

    @property
    def parts(self) -> tuple[str, ...]:
        """The measurements that they need."""
        return tuple(dict.fromkeys(FIGURES[name] for name in self.figures))

    @property
    def seconds(self) -> float:
        return self.seconds_budget if self.seconds_budget is not None else QUICK_SECONDS if self.quick else SECONDS

    @property
    def positions(self) -> int:
        return self.max_model_len if self.max_model_len is not None else 64 if self.quick else 128

    def setting(self) -> Setting:
        """The same for the experiments, which don't know of each other."""
        from .paper_figures import Setting

        return Setting(self.model, self.device, self.dtype, self.dataset, self.positions, self.block_size, self.seed, self.quick)


def measurements() -> dict[str, Callable[[Setting, Part, Advance, Begin], None]]:
    """The function of each measurement."""
    from . import paper_figures as figures
    from .paper_swap import fig19

    return {"memory": figures.fig2_fig13, "fig12": figures.fig12, "fig15": figures.fig15, "fig18b": figures.fig18b, "fig19": fig19}


def measure(
    options: Options, result: dict[str, Any], advance: Advance = lambda count: None, begin: Begin = lambda what, total: None,
) -> dict[str, Any]:
    """Everything that was asked for, into ``result``, which holds whatever was measured if somebody interrupts it.

    ``begin`` is called with the name of each part and how many requests and rounds it has, ``advance`` with 1 for each of them.
    """
    from .paper_figures import measure_speed

    versions = {name: version(name) for name in ("numpy", "torch")}
    chosen = asdict(options) | {"seconds_budget": options.seconds, "max_model_len": options.positions}
    result |= {"options": chosen, "machine": machine() | versions, "complete": False, "speed": {}}
    setting = options.setting()
    measure_speed(setting, result["speed"], advance, begin)
    start, planned, parts = time.monotonic(), 0.0, list(options.parts)
    for i, name in enumerate(parts):
        spent = time.monotonic() - start
        pace = min(2.0, max(0.5, spent / planned)) if planned else 1.0      # of the machine, against what it was in the first seconds
        share = max(0.0, options.seconds - spent) * SHARES[name] / sum(SHARES[later] for later in parts[i:]) / pace
        result[name] = {}
        own = replace(setting, seconds_per_request=result["speed"]["seconds_per_request"], share=share)
        measurements()[name](own, result[name], advance, begin)
        planned += share
    result["complete"] = True
    return result


def run(options: Options, json_file: Path | None = None, load: Path | None = None) -> int:
    """Measure (or load what an earlier run wrote), print, write JSON. Ctrl-C: what was measured so far is printed and written; exit code 130."""
    from . import paper_view

    if json_file is not None:
        writable_file("--json", json_file)
    if load is not None:
        changed = [field.name for field in fields(options) if getattr(options, field.name) != field.default and field.name != "only"]
        if changed or json_file is not None:
            flag = changed[0].replace("_", "-") if changed else "json"
            raise ValueError(f"--load shows what was measured before: --{flag} has no meaning beside it")
        paper_view.show(paper_view.loaded(load), options.figures)
        return 0
    result: dict[str, Any] = {}
    try:
        _with_progress(options, result)
    except KeyboardInterrupt:
        note("interrupted")
        _keep(result, json_file)
        if any(name in result for name in options.parts):
            paper_view.show(result, options.figures)
        return 130
    except Exception:
        _keep(result, json_file)
        raise
    if json_file is not None:
        _write(result, json_file)
    paper_view.show(result, options.figures)
    return 0


def _keep(result: dict[str, Any], json_file: Path | None) -> None:
    """What there is of a run that did not come to its end: written where a file was asked for, and said."""
    there = [name for name in SHARES if result.get(name, {}).get("rows")]
    if not there:
        note("nothing had been measured yet")
    elif json_file is None:
        note(f"measured so far: {', '.join(there)}")
    else:
        _write(result, json_file)
        note(f"measured so far: {', '.join(there)}; written to {json_file}")


def _write(result: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _with_progress(options: Options, result: dict[str, Any]) -> None:
    from tqdm import tqdm

    with tqdm(dynamic_ncols=True, disable=None, leave=False) as bar:
        def begin(what: str, total: int) -> None:
            bar.reset(total)
            bar.set_description(what)
            if bar.disable:                                 # no terminal: a sign of life a part
                print(f"measuring: {what}", file=sys.stderr, flush=True)

        measure(options, result, bar.update, begin)
