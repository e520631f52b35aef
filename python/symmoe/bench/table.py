"""The result as text, in the manner of nccl-tests."""

from __future__ import annotations

from .problem import Problem, format_size
from .results import Row

_COLUMNS = (
    f"{'size':>9} {'count':>10} {'type':>5} {'path':>15} {'time':>11} {'algbw':>8} {'busbw':>8}"
    f" {'#wrong':>6} {'limit':>6}"
)
_UNITS = f"{'(B)':>9} {'(elem)':>10} {'':>5} {'':>15} {'(us)':>11} {'(GB/s)':>8} {'(GB/s)':>8}"
_PATH_WIDTH = 10


def _short(path: str) -> str:
    return path if len(path) <= _PATH_WIDTH else path[: _PATH_WIDTH - 1] + "."


def heading(problem: Problem, paths: list[str]) -> str:
    """The lines above a block of rows with the same mode, ranks and type."""
    what = {
        "collective": "partial rows to own rows",
        "combine": "expert output to own rows, the top-k sum inside",
        "topk": "the top-k sum alone; limit: a stream of the same reads and writes",
    }[problem.mode]
    against = "".join(f" {_short(path):>{_PATH_WIDTH}}" for path in paths)
    return (
        f"\n# {problem.mode}, {problem.ranks} ranks, {problem.dtype}: {what}\n"
        f"# {_COLUMNS}  times faster than{'' if against else ' -'}\n"
        f"# {_UNITS} {'':>6} {'':>6}{against}"
    )


def _about_routing(rows: list[Row]) -> list[str]:
    """What a routed row saves, and what became of it, beside a path that moves all rows."""
    text = []
    dense = {row["path"]: row for row in rows}
    for row in rows:
        if row["bytes_moved"] >= row["dense_bytes"] or row["dense_limit_us"] is None:
            continue
        predicted = row["dense_bytes"] / row["bytes_moved"]
        line = (
            f"# {row['path']}: moves {row['bytes_moved'] / 1e6:.2f} MB of"
            f" {row['dense_bytes'] / 1e6:.2f} MB, so {predicted:.2f} times faster predicted"
        )
        if "pull" in dense:
            measured = dense["pull"]["time_us"] / row["time_us"]
            line += f", {measured:.2f} than pull measured, {measured / predicted:.2f} of it"
        text.append(line)
        text.append(
            f"# limits: dense {row['dense_limit_us']:.1f} us, routed {row['limit_us']:.1f} us;"
            f" {row['path']} takes {row['time_us'] / row['dense_limit_us']:.2f} of the dense limit"
        )
    return text


def lines(problem: Problem, rows: list[Row], paths: list[str]) -> str:
    """The rows of one problem."""
    text = []
    if problem.shape:
        text.append(
            f"# {problem.shape}: {problem.tokens} tokens per rank, hidden {problem.hidden},"
            f" top-{problem.topk}" + (f" of {problem.experts}" if problem.experts else "")
        )
    for row in rows:
        limit = "-" if row["limit_ratio"] is None else f"{row['limit_ratio']:.2f}"
        mark = "!" if row["bad_calibration"] else " "
        against = "".join(
            f" {row['times_faster'][path]:>{_PATH_WIDTH}.2f}"
            if path in row["times_faster"]
            else f" {'-':>{_PATH_WIDTH}}"
            for path in paths
        )
        text.append(
            f"  {format_size(row['bytes']):>9} {row['count']:>10} {row['dtype']:>5}"
            f" {row['path']:>15} {row['time_us']:>11.2f} {row['algbw_GBps']:>8.2f}"
            f" {row['busbw_GBps']:>8.2f} {row['wrong']:>6} {limit:>6}{mark}{against}"
        )
    return "\n".join([*text, *_about_routing(rows)])
