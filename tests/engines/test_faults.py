"""Exceptions told apart by class name and text, through what wraps them."""

import pytest

from llmbench.engines.base import EngineError, Unavailable
from llmbench.engines.faults import classify
from llmbench.protocol import Status


class OutOfMemoryError(RuntimeError):
    """Named as torch.cuda.OutOfMemoryError is."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OutOfMemoryError("Tried to allocate 20.00 MiB"), Status.OUT_OF_DEVICE_MEMORY),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            Status.OUT_OF_HOST_MEMORY,
        ),
        (MemoryError(), Status.OUT_OF_HOST_MEMORY),
        (RuntimeError("CUDA error: out of memory"), Status.OUT_OF_DEVICE_MEMORY),
        (EngineError("no", Status.BUILD_FAILED), Status.BUILD_FAILED),
        (Unavailable("not here"), Status.UNAVAILABLE),
        (RuntimeError("shapes differ"), None),
        (KeyError(), None),
    ],
)
def test_status_of_an_error(error, status):
    assert classify(error) is status


def test_the_cause_counts():
    wrapped = RuntimeError("backend raised")
    wrapped.__cause__ = MemoryError()
    assert classify(wrapped) is Status.OUT_OF_HOST_MEMORY


def test_a_circle_of_causes_ends():
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert classify(first) is None
