"""A model of the paths on H100, H200 and B200, beside the figures that others have published.

    python bench/model_gpu.py [--json FILE] [--hidden 8192] [--topk 8] [--tokens 64,256,1024,4096]

Nothing is measured here. The formulas, and what is an assumption in them, are in
symmoe.bench.path_model; the published rows, each with its source, in symmoe.bench.published. Every
line says what it is: "model" or "published". Two tables per machine and number of ranks: from
partial rows ("rows"), and from expert output with the top-k sum ("sum").
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from symmoe.bench.device.limit import rates_of
from symmoe.bench.path_model import (
    LINK_OF,
    PATHS,
    Link,
    Work,
    errors,
    fit,
    predict_published,
    predict_us,
)
from symmoe.bench.published import MEBI, PUBLISHED

RANKS = (2, 4, 8)
BF16_BYTES = 2
COMPARED = ("direct", "staged")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hidden", type=int, default=8192, help="elements per row, bf16")
    parser.add_argument("--topk", type=int, default=8, help="experts per token")
    parser.add_argument("--tokens", default="64,256,1024,4096", help="per rank, comma-separated")
    parser.add_argument("--json", type=Path, help="write all of it there as well")
    return parser.parse_args(arguments)


def modelled(hidden: int, topk: int, tokens: list[int]) -> list[dict[str, Any]]:
    """A row per machine, ranks, tokens, and whether the sum is part of it."""
    links = fit()
    rows = []
    for machine, fitted in LINK_OF.items():
        rates = rates_of(machine)
        assert rates is not None
        for ranks in RANKS:
            for with_sum in (False, True):
                for count in tokens:
                    nbytes = count * ranks * hidden * BF16_BYTES
                    work = Work(ranks, nbytes, topk, with_sum)
                    times = {path: predict_us(path, work, links[fitted], rates) for path in PATHS}
                    rows.append(
                        {
                            "kind": "model",
                            "machine": machine,
                            "ranks": ranks,
                            "tokens": count,
                            "nbytes": nbytes,
                            "of": "sum" if with_sum else "rows",
                            "us": times,
                        }
                    )
    return rows


def compared() -> list[dict[str, Any]]:
    """Each published row, and what the model says of it where it says something."""
    links = fit()
    rows = []
    for row in PUBLISHED:
        entry: dict[str, Any] = {"kind": "published", **vars(row), "model_us": None, "error": None}
        if row.path in COMPARED:
            entry["model_us"] = predict_published(row, links)
            entry["error"] = entry["model_us"] / row.time_us - 1.0
        rows.append(entry)
    return rows


def summary() -> dict[str, float]:
    """Errors against the published direct and staged rows, as shares of the published time."""
    inside = [abs(error) for error in errors()]
    outside = [abs(error) for error in errors(left_out=True)]
    return {
        "rows": len(inside),
        "median_error": statistics.median(inside),
        "max_error": max(inside),
        "median_error_left_out": statistics.median(outside),
        "max_error_left_out": max(outside),
    }


def _constants(name: str, link: Link) -> str:
    return (
        f"model      constants of {name}: start {link.start_us:.1f} us, link"
        f" {link.rate / 1e3:.0f} GB/s, a call at least {link.floor_us:.1f} us,"
        f" a copy at least {link.copy_us:.1f} us"
    )


def _cell(value: float | None) -> str:
    return f"{value:8.1f}" if value is not None else f"{'-':>8}"


def lines(result: dict[str, Any]) -> list[str]:
    """The tables as text, each line with what it is."""
    shown = [_constants(name, Link(**link)) for name, link in result["constants"].items()]
    head = "".join(f"{path:>8}" for path in PATHS)
    shown.append(f"model      {'GPU':5}{'ranks':>6}{'of':>6}{'tokens':>8}{'MiB':>9}{head}   (us)")
    for row in result["rows"]:
        cells = "".join(_cell(row["us"][path]) for path in PATHS)
        shown.append(
            f"model      {row['machine']:5}{row['ranks']:>6}{row['of']:>6}{row['tokens']:>8}"
            f"{row['nbytes'] / MEBI:9.2f}{cells}"
        )
    for row in result["published"]:
        said = f"published  {row['machine']:5}{row['ranks']:>6}{row['path']:>8}"
        said += f"{row['nbytes'] / MEBI:6.1f} MiB {row['time_us']:7.1f} us ({row['timed']})"
        if row["model_us"] is not None:
            said += f"; model {row['model_us']:7.1f} us, error {row['error']:+6.1%}"
        shown.append(f"{said}  {row['source']}")
    found = result["summary"]
    shown.append(
        f"model      error against the {found['rows']} published direct and staged rows it was"
        f" fitted to: median {found['median_error']:.1%}, max {found['max_error']:.1%}; each row by"
        f" constants fitted without it: median {found['median_error_left_out']:.1%}, max"
        f" {found['max_error_left_out']:.1%}"
    )
    shown.append(
        "model      nobody has timed pull, routed and fused on a GPU yet: their lines are guesses"
    )
    return shown


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables, and writes them where asked to."""
    options = parse(arguments)
    result: dict[str, Any] = {
        "model": True,
        "constants": {name: vars(link) for name, link in fit().items()},
        "rows": modelled(
            options.hidden, options.topk, [int(count) for count in options.tokens.split(",")]
        ),
        "published": compared(),
        "summary": summary(),
    }
    print("\n".join(lines(result)))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
