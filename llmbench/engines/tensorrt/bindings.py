"""The seam between the two editions of TensorRT: which Python module it is, what it builds for, and what its runtime has beside the common API.

Everything else is written once against the API that both have. Nothing is imported from NVIDIA before `load`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llmbench.engines.base import EngineError, Unavailable
from llmbench.engines.faults import classify
from llmbench.protocol import Status


@dataclass(frozen=True)
class Edition:
    """One edition of TensorRT."""

    engine: str  # llmbench's name for it
    module: str
    title: str
    install: str  # how to get the module
    cross_builds: bool  # builds for the compute capabilities that it is told, without a GPU
    runtime_config: bool  # kernels are compiled when a plan runs: IRuntimeConfig has their cache, their strategy and CUDA graphs


RTX = Edition("tensorrt-rtx", "tensorrt_rtx_bindings", "TensorRT for RTX", "pip install 'llmbench[tensorrt-rtx]'", True, True)
CLASSIC = Edition("tensorrt", "tensorrt", "TensorRT", "pip install 'llmbench[tensorrt]'", False, False)


def load(edition: Edition) -> Any:
    """The edition's module. Raises Unavailable where it is missing or its libraries don't load."""
    try:
        return importlib.import_module(edition.module)
    except ModuleNotFoundError as error:
        raise Unavailable(f"Python module {error.name!r} is not installed; {edition.install}") from error
    except (ImportError, OSError) as error:
        raise Unavailable(f"{edition.title} can't be loaded: {' '.join(str(error).split())[:300]}") from error


def capabilities(trt: Any) -> list[str]:
    """The compute capabilities that an edition with cross_builds can be told: "sm_75", "sm_80", ..."""
    names = (name for name in trt.ComputeCapability.__members__ if name.startswith("SM"))
    return [f"sm_{name.removeprefix('SM')}" for name in names]


class Log:
    """What TensorRT says: errors are kept for the one line that a failure gets, warnings go to standard output, which is the worker's log.

    TensorRT takes the first logger of a process for all that follows, so there is one, `log`.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._loggers: dict[str, Any] = {}

    def logger(self, trt: Any) -> Any:
        """The trt.ILogger that writes here."""
        if trt.__name__ not in self._loggers:
            self._loggers[trt.__name__] = _logger_class(trt, self.take)()
        return self._loggers[trt.__name__]

    def take(self, severity: str, message: str) -> None:
        line = " ".join(message.split())
        if severity in ("INTERNAL_ERROR", "ERROR"):
            self.errors.append(line)
        if severity in ("INTERNAL_ERROR", "ERROR", "WARNING"):
            print(f"{severity.lower()}: {line}", flush=True)

    def failure(self, what: str, otherwise: Status, more: Iterable[str] = ()) -> EngineError:
        """The error of a call that answered None or false: the first thing that was logged since the last failure is its cause."""
        causes = [*more, *self.errors]
        self.errors.clear()
        reason = f"{what}: {causes[0]}" if causes else f"{what}, and TensorRT does not say why"
        return EngineError(reason[:400], classify(RuntimeError(" ".join(causes))) or otherwise)


#: Of this process.
log = Log()


def _logger_class(trt: Any, take: Any) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            take(severity.name, msg)

    return Logger
