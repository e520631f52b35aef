"""The result as a picture: time over size, one line per path, one panel per number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import BenchError
from .problem import format_size
from .results import Row

# One colour per path, the same in every picture (Okabe and Ito's, told apart by everybody).
_COLOURS = {
    "pull": "#0072B2",
    "staged": "#56B4E9",
    "topk": "#999999",
    "gloo": "#D55E00",
    "gloo_allreduce": "#E69F00",
    "intel_mpi": "#009E73",
    "mpich": "#CC79A7",
    "openmpi": "#8B5A2B",
    "oneccl": "#B8A800",
}
_OTHER_COLOURS = ("#444444", "#AA3377", "#228833", "#4477AA")
_LABELS = {
    "pull": "symmoe, zero staging",
    "staged": "symmoe, staged",
    "topk": "top-k sum alone",
    "gloo": "torch gloo reduce-scatter",
    "gloo_allreduce": "torch gloo all-reduce",
    "intel_mpi": "Intel MPI",
    "mpich": "MPICH",
    "openmpi": "Open MPI",
    "oneccl": "oneCCL",
}


def check_plot_possible() -> None:
    """Raises BenchError, before anything is measured, where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise BenchError(
            "--plot needs matplotlib: pip install 'symmoe[plot]' (or leave --plot out)"
        ) from None


def _panel(axes: Any, rows: list[Row], title: str) -> None:
    paths = list(dict.fromkeys(row["path"] for row in rows))
    spare = iter(_OTHER_COLOURS * len(paths))
    for path in paths:
        points = sorted((row["bytes"], row["time_us"]) for row in rows if row["path"] == path)
        own = path in ("pull", "staged")
        axes.plot(
            [size for size, _ in points],
            [time for _, time in points],
            label=_LABELS.get(path, path),
            color=_COLOURS.get(path) or next(spare),
            marker="o",
            markersize=4,
            linewidth=2.4 if path == "pull" else 1.5,
            linestyle="-" if own else (0, (5, 1.5)),
            zorder=3 if own else 2,
        )
    limits = {row["bytes"]: row["limit_us"] for row in rows if row["limit_us"] is not None}
    if limits:
        sizes = sorted(limits)
        axes.plot(
            sizes,
            [limits[size] for size in sizes],
            label="limit of the memory",
            color="black",
            linewidth=1.2,
            linestyle=":",
        )
    ticks = sorted({row["bytes"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [format_size(size) for size in ticks], rotation=45, fontsize=8)
    axes.minorticks_off()
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("output per rank, bytes")
    axes.grid(True, color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw(rows: list[Row], file: Path, machine: dict[str, Any]) -> None:
    """Writes the picture. Panels: a column for each number of ranks, a row for each type or model.

    Raises:
        BenchError: matplotlib is missing.
    """
    check_plot_possible()
    from matplotlib.figure import Figure

    def group(row: Row) -> tuple[str, str]:
        return row["dtype"], row["shape"]

    ranks = sorted({row["ranks"] for row in rows})
    groups = list(dict.fromkeys(group(row) for row in rows))
    figure = Figure(figsize=(5.6 * len(ranks) + 0.6, 4.4 * len(groups) + 1.2), dpi=130)
    grid = figure.subplots(len(groups), len(ranks), squeeze=False, sharey="row")
    for line, (dtype, shape) in enumerate(groups):
        for column, count in enumerate(ranks):
            chosen = [r for r in rows if group(r) == (dtype, shape) and r["ranks"] == count]
            title = ", ".join(filter(None, [f"{count} ranks", dtype, shape]))
            _panel(grid[line][column], chosen, title)
        grid[line][0].set_ylabel("time, µs (median)")
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    what = {
        "collective": "Reduce-scatter of partial rows",
        "combine": "Combine: top-k sum and reduce-scatter",
        "topk": "Top-k sum",
    }[rows[0]["mode"]]
    height = figure.get_figheight()
    figure.suptitle(f"{what} on {machine['cpus']} processors, {machine['processor']}", fontsize=12)
    figure.legend(
        handles.values(), handles.keys(), loc="lower center", ncols=4, frameon=False, fontsize=9
    )
    figure.tight_layout(rect=(0, 0.75 / height, 1, 1))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
