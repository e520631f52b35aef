"""The line of talk between coordinator and workers: JSON messages over a unix socket."""

from __future__ import annotations

import json
import secrets
import socket
from typing import Any

from .errors import BenchError

TOKEN_VARIABLE = "SYMMOE_BENCH_TOKEN"
_CHUNK = 1 << 16


class Channel:
    """One end of a connection. Messages are objects, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._pending = b""

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Sends one message."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Waits, without using the processor, for one message; None when the other end is gone."""
        while b"\n" not in self._pending:
            try:
                chunk = self._socket.recv(_CHUNK)
            except ConnectionError:
                return None
            if not chunk:
                return None
            self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def has_message(self) -> bool:
        """Whether a whole message came with an earlier one, so that select will not tell of it."""
        return b"\n" in self._pending

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()


class Listener:
    """Where workers report. The address is abstract: nothing of it is in the file system."""

    def __init__(self) -> None:
        self.name = f"symmoe-bench-{secrets.token_hex(8)}"
        self.token = secrets.token_hex(16)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind("\0" + self.name)
        self._socket.listen(64)

    def accept(self, seconds: float) -> tuple[Channel, dict[str, Any]] | None:
        """The next worker that knows the token, and its first message; None after that time."""
        self._socket.settimeout(seconds)
        try:
            connection, _ = self._socket.accept()
        except TimeoutError:
            return None
        connection.settimeout(5.0)
        channel = Channel(connection)
        try:
            hello = channel.receive()
        except TimeoutError:
            hello = None
        if hello is None or not secrets.compare_digest(str(hello.get("token")), self.token):
            channel.close()
            return None
        connection.settimeout(None)
        return channel, hello

    def close(self) -> None:
        """Stops listening."""
        self._socket.close()


def report_to(name: str, hello: dict[str, Any]) -> Channel:
    """A worker's connection to the coordinator.

    Raises:
        BenchError: Nobody listens under that name.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect("\0" + name)
    except OSError as error:
        raise BenchError(f"no coordinator at {name}: {error}") from error
    channel = Channel(connection)
    channel.send(hello)
    return channel
