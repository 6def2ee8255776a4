"""The performance page: whatever runs are stored in ``data/bench``, as plots and tables. No number of it stands in a file of the book."""
from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from rich.console import Console

from paged_edu.bench import kernels_view, memory_view, page, serve_view, throughput_view
from paged_edu.bench import latency as latency_bench
from paged_edu.bench.throughput_view import name_of, rate
from paged_edu.words import counted

from .plots import plot
from .tables import paragraph, pre, stored, table, where

COMMANDS = {"throughput": "bench throughput", "latency": "bench latency", "fig12": "bench paper", "sharing": "bench memory",
            "rows": "bench perplexity", "serve": "bench serve", "kernels": "bench kernels", "times": "bench kernels"}
"""What a stored file holds -> the command that writes such a one."""


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:,.1f}"


def throughput() -> str:
    """Tokens a second of every stored contest."""
    return "".join(_contest(path, result) for path, result in stored("throughput"))


def _contest(path: str, result: dict[str, Any]) -> str:
    summary = result["throughput"]["summary"]
    first = next(iter(summary))
    rows = []
    for name, its in summary.items():
        speed, ratio = its["tokens_per_s"], its.get("first_against_it")
        rows.append((
            name_of(name), rate(speed["median"]), f"{rate(speed['low'])} to {rate(speed['high'])}", f"{ratio['ratio']:.2f}" if ratio else "",
            _ms(its["ttft_s"]["p50"]) if "ttft_s" in its else "", _ms(its["tpot_s"]["p50"]) if "tpot_s" in its else "",
            f"{its['held']:.0%}" if "held" in its else ""))
    bars = ", ".join(f"{row[0]} {row[1]}" for row in rows)
    return "".join((
        f"<h3>{escape(throughput_view.title(result))}</h3>",
        paragraph(f"{throughput_view.about(result)}, {result['machine'].get('cpu_count', '?')} cores. Stored in {path}.", small=True),
        *(paragraph(line) for line in throughput_view.sentences(result["throughput"])),
        plot(page.speeds(result), f"Output tokens a second, medians: {bars}"),
        table(("system", "tokens/s", "rounds", f"{name_of(first)} over it", "first token, ms", "next token, ms", "slots with a token"), rows,
              "Medians of the rounds; slots with a token: of those that somebody holds"),
        *(plot(figure, str(figure.layout.title.text)) for figure in page.latencies(result)),
    ))


def latency() -> str:
    """One batch at a time: prefill, and milliseconds a token."""
    made = []
    for path, result in stored("latency"):
        summary = result["latency"]["summary"]
        kind = result["options"].get("quantization") or "no quantisation"
        rows = [
            (batch, name_of(name), _ms(its["prefill_s"]["median"]), _ms(its["step_s"]["p50"]), _ms(its["step_s"]["p90"]),
             rate(its["tokens_per_s"]["median"]), f"{its['first_against_it']['ratio']:.2f}" if "first_against_it" in its else "")
            for batch, found in summary.items() for name, its in found.items()]
        made += [
            f"<h3>{escape(latency_bench.title(result))}</h3>",
            paragraph(f"{where(result)}; {kind}. Stored in {path}.", small=True),
            plot(page.tokens(result), "Milliseconds a token: " + "; ".join(f"batch {row[0]}, {row[1]} {row[3]}" for row in rows)),
            table(("batch", "system", "prefill, ms", "a token, ms", "p90", "tokens/s", "speed of the first over it"), rows, "Medians", words=2),
        ]
    return "".join(made)


def serving() -> str:
    """The server against the library, of each stored race; the latencies are those of its last round."""
    made = []
    for path, result in stored("serve"):
        found = result["serve"]["summary"]
        if "race" not in found:
            continue
        threads = counted(result["serve"]["threads"], "thread")
        rows = [(what, *(_ms(found[key][name]) for name in ("mean", "p50", "p90", "p99"))) for key, what in serve_view.ROWS.items() if key in found]
        made += [
            f"<h3>{escape(serve_view.title(result))}</h3>",
            paragraph(f"{where(result)}; {threads}. Stored in {path}.", small=True),
            *(paragraph(line) for line in serve_view.sentences(result)),
            table(("ms", "mean", "p50", "p90", "p99"), rows, "What clients of the last round saw, from when a request came"),
            plot(serve_view.timeline(result), "Each request of the last round: it waits for its first token, and is answered"),
        ]
    return "".join(made)


def profile() -> str:
    """Where a step's time goes, of each stored contest that looked."""
    made = []
    for path, result in stored("profile"):
        parts, against = result["profile"].get("parts", {}), result["profile"].get("against", {})
        if not parts:
            continue
        rows = [(kind, its["steps"], f"{its['seconds']:.1f}", *(f"{share:.1%}" for share in its["shares"].values())) for kind, its in parts.items()]
        names = next(iter(parts.values()))["shares"]
        made.append(table(("steps", "how many", "seconds", *names), rows, f"Shares of the time of a step ({where(result)}; {path})"))
        if against.get("ratio"):
            made.append(paragraph(
                f"With {against['sequences']} sequences decoding, a step takes {against['ratio']:.2f} times what its matrix products alone take."))
    return "".join(made)


def memory() -> list[tuple[str, str]]:
    """What the cache holds under each manager, beside the paper's Fig. 2 and 13."""
    made = []
    for path, result in stored("paper", "sharing"):
        means = ", ".join(f"{memory_view.NAMES[name]} {its['parts']['token_states']['mean']:.0%}" for name, its in result["paper"]["summary"].items())
        made += [
            ("html", paragraph(f"{where(result)}. Stored in {path}.", small=True)),
            ("html", plot(memory_view.figure(result), f"Shares of the cache that hold tokens: {means}")),
            ("markdown", memory_view.readme_section(result)),
        ]
    return made


def kernels() -> str:
    """The attention kernels under a card's roofs, and what the compiler made of them; a sentence where nothing is stored."""
    made = []
    for path, result in [*stored("times"), *stored("resources")]:
        text = io.StringIO()
        kernels_view.show(result, Console(file=text, width=92, highlight=False, color_system=None))
        if "times" in result:
            made.append(plot(kernels_view.figure(result), "Attention kernels under the card's two measured roofs: operations a byte against TFLOP/s"))
        made += [paragraph(f"{where(result)}. Stored in {path}.", small=True), pre(text.getvalue())]
    return "".join(made) or paragraph("No run of the kernels on a GPU is stored with this version, so none is claimed.")


def perplexity() -> str:
    """What 8-bit keys, values and weights cost."""
    return "".join(
        table(("weights", "KV cache", "bytes a block", "perplexity", "times", "other most probable token"), _costs(result),
              f"{result['model']}, {result['windows']} windows of {result['window']:,} tokens of {result['text']} ({where(result)}; {path})", words=2)
        for path, result in stored("rows", "windows"))


def _costs(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for row in result["rows"]:
        yield (row.get("quantization") or "as they are", row["kv_cache_dtype"].replace("auto", "as the weights"), f"{row['bytes_per_block']:,}",
               f"{row['perplexity']:.3f}", f"{row['ratio']:.4f}", f"{row['other_top_token']:.1%}")


def stored_runs() -> str:
    """Every stored file: what it is, where and when."""
    rows = []
    for path, result in stored():
        command = next((command for key, command in COMMANDS.items() if key in result), "bench")
        rounds = result.get("options", {}).get("rounds")
        rows.append((path, f"paged-edu {command}", where(result), counted(rounds, "round") if rounds else ""))
    return table(("file", "written by", "machine and day", ""), rows, "Stored runs", words=4)
