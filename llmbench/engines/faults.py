"""What an unexpected exception means for a row: its status, where the exception tells it.

Torch-free, since the worker uses it for every engine: exceptions are known by class name and text. On the CPU torch has no class of its own
for a failed allocation, only a RuntimeError that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llmbench.checkpoints.errors import CheckpointError
from llmbench.engines.base import EngineError
from llmbench.protocol import Status

_OUT_OF_MEMORY_CLASSES = {"OutOfMemoryError", "MemoryError", "_ArrayMemoryError"}
_OUT_OF_MEMORY_TEXTS = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "defaultcpuallocator",
    "out of memory",
    "std::bad_alloc",
    "cublas_status_alloc_failed",
)
_DEVICE_TEXTS = ("cuda", "cublas", "gpu", "hip error")


def classify(error: BaseException) -> Status | None:
    """The status that this exception tells, or None: then it depends on what was being done. A compiler wraps what it met, so causes count."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, EngineError):
            return current.status
        text = str(current).lower()
        if type(current).__name__ in _OUT_OF_MEMORY_CLASSES or any(words in text for words in _OUT_OF_MEMORY_TEXTS):
            # torch's OutOfMemoryError stands for its device allocators alone.
            device = type(current).__name__ == "OutOfMemoryError" or any(words in text for words in _DEVICE_TEXTS)
            return Status.OUT_OF_DEVICE_MEMORY if device else Status.OUT_OF_HOST_MEMORY
        current = current.__cause__ or current.__context__
    return None


@contextmanager
def told_as(otherwise: Status) -> Iterator[None]:
    """Gives what the body raises a status and one line: out of memory where it is that, `otherwise` elsewhere."""
    try:
        yield
    except EngineError:
        raise
    except CheckpointError as error:
        raise EngineError(error.reason, Status.LOAD_FAILED) from error
    except Exception as error:
        first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise EngineError(f"{type(error).__name__}: {first_line}"[:400], classify(error) or otherwise) from error
