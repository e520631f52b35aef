"""Libraries to compare with: where they are installed and how their processes are started.

bench/install_peers.sh puts each into a virtual environment of its own, so that no library finds
another's files. Its processes run that environment's Python with this one's packages in sight.
"""

from __future__ import annotations

import os
import site
import sys
from dataclasses import dataclass, field
from pathlib import Path

SHIM_NAME = "libsymmoe_oneccl_shim.so"
# Tells the workers of oneCCL where the shim is.
SHIM_VARIABLE = "SYMMOE_BENCH_ONECCL_SHIM"


@dataclass(frozen=True)
class Peer:
    """A library that brings its own launcher.

    Attributes:
        name: Name of the path and of the folder it is installed in.
        launcher: Options of its mpiexec.
        variables: Environment that makes it do its best.
        crowded: The same, beyond that, when there are more ranks than processors.
        needs: Files that must exist, relative to its folder.
    """

    name: str
    launcher: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    crowded: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ("bin/mpiexec",)


PEERS = {
    peer.name: peer
    for peer in (
        # Left alone it yields by itself when ranks outnumber processors; every wait mode that was
        # tried is slower.
        Peer("intel_mpi"),
        Peer("mpich"),
        Peer(
            "openmpi",
            launcher=("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"),
            variables={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            crowded={"OMPI_MCA_mpi_yield_when_idle": "1"},
        ),
        # Over MPI (libfabric's shared memory is 2 to 9 times slower). With a processor for each
        # rank its worker threads only cost a wake-up. With more ranks than processors the calling
        # thread would spin for whole time slices unless a worker that yields does the work.
        Peer(
            "oneccl",
            variables={
                "CCL_ATL_TRANSPORT": "mpi",
                "CCL_LOG_LEVEL": "error",
                "CCL_WORKER_OFFLOAD": "0",
            },
            crowded={
                "CCL_WORKER_OFFLOAD": "1",
                "CCL_YIELD": "sched_yield",
                "CCL_SPIN_COUNT": "1",
            },
            needs=("bin/mpiexec", f"lib/{SHIM_NAME}"),
        ),
    )
}


def default_folder() -> Path:
    """Where install_peers.sh puts them: beside the packages of this environment."""
    return Path(sys.prefix) / "peers"


def missing(peer: Peer, folder: Path) -> str:
    """Why the peer cannot be started, or ""."""
    for name in ("bin/python", *peer.needs):
        if not (folder / peer.name / name).exists():
            return f"not installed: no {folder / peer.name / name}"
    return ""


def command(peer: Peer, folder: Path, ranks: int) -> list[str]:
    """What comes before `-m symmoe.bench.worker`."""
    home = folder / peer.name
    return [
        str(home / "bin" / "mpiexec"),
        *peer.launcher,
        "-n",
        str(ranks),
        str(home / "bin" / "python"),
    ]


def environment(peer: Peer, folder: Path, ranks: int, cpus: list[int]) -> dict[str, str]:
    """Variables for its processes, on top of those that all workers get."""
    home = folder / peer.name
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    variables = dict(peer.variables)
    if ranks > len(cpus):
        variables |= peer.crowded
        if peer.name == "oneccl":
            # A worker thread belongs beside its rank.
            variables["CCL_WORKER_AFFINITY"] = ",".join(
                str(cpus[rank % len(cpus)]) for rank in range(ranks)
            )
    if peer.name == "oneccl":
        variables[SHIM_VARIABLE] = str(home / "lib" / SHIM_NAME)
    libraries = [str(home / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    # Its own mpi4py first: another one may be installed beside symmoe.
    variables["PYTHONPATH"] = os.pathsep.join(
        [str(home / "lib" / version / "site-packages"), *import_path()]
    )
    return variables


def import_path() -> list[str]:
    """Folders from which a worker can import what this process can, this package first."""
    package = str(Path(__file__).absolute().parents[2])
    inherited = [entry for entry in sys.path if entry and Path(entry).is_dir()]
    packages = [*site.getsitepackages(), site.getusersitepackages()]
    wanted = [entry for entry in inherited if entry in packages or "-packages" in entry]
    asked = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return list(dict.fromkeys([package, *filter(None, asked), *wanted]))
