"""TensorRT for RTX whose building process is killed when the plan is written and the artifact is not yet whole."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from llmbench.engines.tensorrt.engine import TensorRTForRTXEngine
from llmbench.protocol import Job


class KilledEngine(TensorRTForRTXEngine):
    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        super().build(job, into, source)
        os.kill(os.getpid(), signal.SIGKILL)
