"""The benchmark's own error."""


class BenchError(RuntimeError):
    """The benchmark cannot go on: wrong arguments, a backend that failed, a worker that ended."""
