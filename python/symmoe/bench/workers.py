"""The worker processes of one backend: started together, given turns, ended together."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from symmoe._core import measure

from . import peers
from .channel import TOKEN_VARIABLE, Channel, Listener
from .errors import BenchError
from .problem import Problem

_LOG_LINES = 12
_END_SECONDS = 5.0
_TERMINATE_SECONDS = 2.0


@dataclass(frozen=True)
class Setting:
    """What all workers of a run share.

    Attributes:
        cpus: Processors to use.
        pin: Whether rank r stays on processor r (modulo their number).
        threads: Threads per rank.
        peer_folder: Where peers are installed.
        backend_files: Files with further backends.
        timeout: Seconds that starting, or one turn, may take.
    """

    cpus: list[int]
    pin: bool
    threads: int
    peer_folder: Path
    backend_files: list[Path]
    timeout: float


class Workers:
    """All ranks of one path. Ends its processes, whatever happens, when the context ends."""

    def __init__(self, path: str, ranks: int, setting: Setting, listener: Listener) -> None:
        self.path = path
        self.ranks = ranks
        self._setting = setting
        self._listener = listener
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: dict[int, Channel] = {}
        self._pids: dict[int, int] = {}
        self._paused = False
        self._spins_idle = False
        self._descriptors: list[int] = []

    def __enter__(self) -> Workers:
        self._folder = tempfile.TemporaryDirectory(prefix="symmoe-bench-")
        try:
            self._start()
        except BaseException:
            self.close(patience=0.0)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(patience=_END_SECONDS if kind is None else 0.0)

    def _shared_file(self, nbytes: int) -> str:
        """A file of zeros without a name, opened by the workers through this process."""
        descriptor = os.memfd_create(f"symmoe-bench-{self.path}")
        self._descriptors.append(descriptor)
        os.ftruncate(descriptor, nbytes)
        return f"/proc/{os.getpid()}/fd/{descriptor}"

    def _worker_arguments(self) -> list[str]:
        setting = self._setting
        line_bytes = measure.StartLine.bytes_for(self.ranks)
        arguments = ["-m", f"{__package__}.worker", "--backend", self.path]
        arguments += ["--world", str(self.ranks), "--control", self._listener.name]
        arguments += ["--folder", self._folder.name, "--run-id", self._listener.name]
        arguments += ["--line", self._shared_file(line_bytes)]
        arguments += ["--core-line", self._shared_file(line_bytes)]
        arguments += ["--arena", self._shared_file(0)]
        arguments += ["--cpus", ",".join(map(str, setting.cpus))]
        arguments += ["--threads", str(setting.threads)]
        for file in setting.backend_files:
            arguments += ["--backend-file", str(file)]
        if setting.pin:
            arguments.append("--pin")
        return arguments

    def _start(self) -> None:
        setting = self._setting
        arguments = self._worker_arguments()
        environment = os.environ | {
            TOKEN_VARIABLE: self._listener.token,
            "OMP_NUM_THREADS": str(setting.threads),
            "PYTHONPATH": os.pathsep.join(peers.import_path()),
        }
        peer = peers.PEERS.get(self.path)
        if peer is None:
            commands = [
                [sys.executable, *arguments, "--rank", str(rank)] for rank in range(self.ranks)
            ]
        else:
            if reason := peers.missing(peer, setting.peer_folder):
                raise BenchError(f"{self.path}: {reason}")
            folder = setting.peer_folder
            environment |= peers.environment(peer, folder, self.ranks, setting.cpus)
            commands = [[*peers.command(peer, folder, self.ranks), *arguments]]
        log = (Path(self._folder.name) / "log").open("ab")
        # All in this session: Linux may share a processor out between sessions first
        # (sched_autogroup), and a rank that yields would then not yield to one of another session.
        with log:
            for command in commands:
                self._processes.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                    )
                )
        self._meet()

    def _meet(self) -> None:
        deadline = time.monotonic() + self._setting.timeout
        while len(self._channels) < self.ranks:
            accepted = self._listener.accept(0.2)
            if accepted is not None:
                channel, hello = accepted
                if hello.get("backend") != self.path:
                    channel.close()
                    continue
                self._channels[int(hello["rank"])] = channel
                self._pids[int(hello["rank"])] = int(hello["pid"])
            codes = [process.poll() for process in self._processes]
            if any(code is not None for code in codes):
                raise BenchError(f"{self.path}: a worker ended at start{self._log()}")
            if time.monotonic() > deadline:
                raise BenchError(f"{self.path}: workers did not start in time{self._log()}")
        answers = self._collect("setup", deadline)
        self._spins_idle = any(answer["spins_idle"] for answer in answers)
        self._pause()

    def turn(self, problem: Problem, iterations: int, seed: int) -> list[dict[str, Any]]:
        """Runs one turn on all ranks; the answers by rank.

        Raises:
            BenchError: A rank failed, ended or took too long. The workers are then unusable.
        """
        self._resume()
        message = {
            "command": "turn",
            "problem": problem.to_json(),
            "iterations": iterations,
            "seed": seed,
        }
        for rank, channel in self._channels.items():
            try:
                channel.send(message)
            except OSError as error:
                raise BenchError(f"{self.path}: rank {rank} is gone{self._log()}") from error
        answers = self._collect(str(problem), time.monotonic() + self._setting.timeout)
        self._pause()
        return answers

    def _collect(self, what: str, deadline: float) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < self.ranks:
            waiting = {r: c for r, c in self._channels.items() if r not in answers}
            ready = [channel for channel in waiting.values() if channel.has_message()]
            if not ready:
                ready, _, _ = select.select(list(waiting.values()), [], [], 0.5)
            for rank, channel in waiting.items():
                if channel not in ready:
                    continue
                answer = channel.receive()
                if answer is None:
                    raise BenchError(f"{self.path}: rank {rank} ended in {what}{self._log()}")
                if "error" in answer:
                    raise BenchError(f"{self.path}: rank {rank} in {what}: {answer['error']}")
                answers[rank] = answer
            if time.monotonic() > deadline:
                late = sorted(set(self._channels) - set(answers))
                raise BenchError(f"{self.path}: no answer from ranks {late} in {what}{self._log()}")
        return [answers[rank] for rank in range(self.ranks)]

    def _log(self) -> str:
        """The end of what the workers printed, for an error message."""
        text = (Path(self._folder.name) / "log").read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-_LOG_LINES:]
        return "".join(f"\n    {line}" for line in lines)

    def _pause(self) -> None:
        if self._spins_idle and not self._paused:
            self._signal(signal.SIGSTOP)
            self._paused = True

    def _resume(self) -> None:
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill_strays(self) -> None:
        """Kills workers that outlived their launcher."""
        for pid in self._pids.values():
            with contextlib.suppress(OSError):
                # The number may be another process's by now.
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if self._listener.name.encode() in command:
                    os.kill(pid, signal.SIGKILL)

    def close(self, patience: float = _END_SECONDS) -> None:
        """Asks the workers to end, waits that many seconds, then kills what is left."""
        self._resume()
        for channel in self._channels.values():
            with contextlib.suppress(OSError):
                channel.send({"command": "end"})
        deadline = time.monotonic() + patience
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.05, deadline - time.monotonic()))
        for process in self._processes:
            # A launcher takes its processes along when it is asked, not when it is killed.
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_TERMINATE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._kill_strays()
        for channel in self._channels.values():
            channel.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._channels, self._processes, self._descriptors = {}, [], []
        self._folder.cleanup()
