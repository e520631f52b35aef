"""Benchmark of symmoe beside other libraries: `symmoe bench`, or `python -m symmoe.bench`.

- `arguments`: the command line; `sweep`: the run; `results`, `table`, `plot`: what comes out.
- `problem`, `shapes`, `pattern`: what is computed, and inputs whose sums are known.
- `workers`, `channel`, `peers`: the processes of each path, asleep while others have their turn.
- `worker`, `turn`, `backend`, `backends/`: inside such a process.
- `limit`, `calibration`: the time that the memory allows.
- `path_model`, `published`: what paths on GPUs would take, and what others have published.
"""

from .backend import Backend, Place, PrivateMemory, rewrite
from .cli import add_arguments, main, run
from .errors import BenchError
from .problem import Problem

__all__ = [
    "Backend",
    "BenchError",
    "Place",
    "PrivateMemory",
    "Problem",
    "add_arguments",
    "main",
    "rewrite",
    "run",
]
