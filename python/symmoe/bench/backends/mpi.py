"""MPI libraries, through mpi4py. Their processes are started by their own mpiexec."""

from __future__ import annotations

from mpi4py import MPI

from ..backend import PrivateMemory
from ..errors import BenchError
from ..problem import Problem


class _Mpi(PrivateMemory):
    """`MPI_Reduce_scatter_block` with MPI_SUM.

    MPI has no bfloat16; some libraries bring their own type for it. Asking a library for a type
    it does not have can abort it, so each is asked only from the release on that is known to
    have it, and the type's name is checked.
    """

    vendor = ""
    # Handle, name and first release of the library's bfloat16, if it has one.
    bf16: tuple[int, str, tuple[int, ...]] | None = None

    def setup(self) -> None:
        """Checks that the ranks that mpiexec started are the ones that were asked for."""
        found, self._version = MPI.get_vendor()
        if found != self.vendor:
            library = MPI.Get_library_version()
            raise BenchError(f"mpi4py loaded {found} instead of {self.vendor}: {library}")
        self._comm = MPI.COMM_WORLD
        if (self._comm.rank, self._comm.size) != (self.place.rank, self.place.world):
            raise BenchError(
                f"rank {self._comm.rank} of {self._comm.size} in MPI, but started as rank "
                f"{self.place.rank} of {self.place.world}"
            )

    def _datatype(self, dtype: str) -> MPI.Datatype | None:
        if dtype == "fp32":
            return MPI.FLOAT
        if dtype != "bf16" or self.bf16 is None or tuple(self._version) < self.bf16[2]:
            return None
        handle, name, _ = self.bf16
        datatype = MPI.Datatype.fromhandle(handle)
        return datatype if datatype.Get_name() == name else None

    def unsupported(self, problem: Problem) -> str:
        """Element types that this library cannot add."""
        if self._datatype(problem.dtype) is not None:
            return ""
        version = ".".join(map(str, self._version))
        return f"{self.vendor} {version} has no sum of {problem.dtype}"

    def allocate(self, problem: Problem) -> None:
        """Ordinary tensors, seen as MPI buffers."""
        super().allocate(problem)
        datatype = self._datatype(problem.dtype)

        def view(address: int, count: int) -> list[object]:
            nbytes = count * problem.element_bytes
            return [MPI.buffer.fromaddress(address, nbytes), datatype]

        self._send = view(self._rows.data_ptr(), self._rows.numel())
        self._receive = view(self._out.data_ptr(), self._out.numel())

    def call(self) -> None:
        """The collective, into the output."""
        self._comm.Reduce_scatter_block(self._send, self._receive)

    def release(self) -> None:
        """Drops the tensors and what looks at them."""
        del self._send, self._receive
        super().release()


class IntelMpi(_Mpi):
    """Intel MPI."""

    name = "intel_mpi"
    vendor = "Intel MPI"
    bf16 = (0x4C000247, "MPIX_C_BF16", (2021, 13))


class Mpich(_Mpi):
    """MPICH."""

    name = "mpich"
    vendor = "MPICH"
    bf16 = (0x4C00024C, "MPIX_BFLOAT16", (5, 0))


class OpenMpi(_Mpi):
    """Open MPI."""

    name = "openmpi"
    vendor = "Open MPI"
