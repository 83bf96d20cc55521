"""The one clock. Everything that llmbench times in a worker is timed here, for every engine alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def now_s() -> float:
    """Seconds on the monotonic clock, from an arbitrary zero."""
    return time.perf_counter()


def timed(action: Callable[[], T], synchronize: Callable[[], None]) -> tuple[T, float]:
    """The action's result and its wall seconds, all device work done at both ends.

    Python's cycle collector is emptied before and held off meanwhile, so that one engine's garbage isn't another sample's pause.
    """
    gc.collect()
    synchronize()
    gc.disable()
    try:
        start = time.perf_counter()
        result = action()
        synchronize()
        return result, time.perf_counter() - start
    finally:
        gc.enable()
