"""What measuring costs: the same engine in llmbench's harness and in a bare loop, their samples interleaved in one run.

    python benchmarks/harness_error.py --model smollm2-135m --engine eager --samples 10

Two processes are kept alive: a worker that the supervisor asks for samples as in `llmbench compare`, and a bare loop around the same engine
class, some ten lines with nothing of the harness in them. Samples alternate ABBA, so that drift of the machine falls on both. Printed are both
medians and the ratio harness / bare: its distance from 1 is the harness's error.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from llmbench.comparison import Options, prepare
from llmbench.protocol import Plan, encode
from llmbench.schedule import worker_environment
from llmbench.supervise import Worker

BARE_LOOP = """
import importlib, json, sys, time
from llmbench.protocol import Job, decode
target, job = sys.argv[1], decode(Job, json.loads(sys.argv[2]))
module, _, name = target.partition(":")
engine = getattr(importlib.import_module(module), name)()
engine.supports(job)
engine.load(job, None)
for line in sys.stdin:
    start = time.perf_counter()
    ids = engine.generate(job.request)
    print(json.dumps(len(ids[0]) / (time.perf_counter() - start)), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--engine", default="eager")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=100)
    arguments = parser.parse_args()

    options = Options(model=arguments.model, engines=arguments.engine, max_new_tokens=arguments.max_new_tokens, plan=Plan(timeout_s=1800))
    (contestant,) = prepare(options).contestants
    job, target = contestant.job, contestant.spec.target
    with tempfile.TemporaryDirectory() as folder:
        environment = worker_environment(job.threads, Path(folder))
        bare = subprocess.Popen(
            [sys.executable, "-c", BARE_LOOP, target, json.dumps(encode(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        with Worker(Path(folder) / "log", environment=environment) as worker:
            worker.ask("open", timeout_s=1800, target=target, job=encode(job))
            worker.ask("load", timeout_s=1800)

            def harness_sample() -> float:
                answer = worker.ask("generate", timeout_s=1800, kind="sample", max_new_tokens=job.request.max_new_tokens)
                return job.request.max_new_tokens / answer["sample"]["wall_s"]

            def bare_sample() -> float:
                assert bare.stdin is not None
                assert bare.stdout is not None
                bare.stdin.write("\n")
                bare.stdin.flush()
                return float(bare.stdout.readline())

            for _ in range(arguments.warmups):
                harness_sample()
                bare_sample()
            pairs = []
            for number in range(arguments.samples):
                if number % 2:
                    first = bare_sample()
                    pairs.append((harness_sample(), first))
                else:
                    first = harness_sample()
                    pairs.append((first, bare_sample()))
                print(f"{number + 1:3d}  harness {pairs[-1][0]:8.3f}  bare {pairs[-1][1]:8.3f} tokens/s", file=sys.stderr)
            worker.close()
        bare.stdin.close()  # type: ignore[union-attr]
        bare.wait()
    logs = [math.log(harness / alone) for harness, alone in pairs]
    half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else float("nan")
    print(
        f"{arguments.engine} on {arguments.model}, {job.variant.dtype}, {job.request.max_new_tokens} new tokens, {len(pairs)} pairs, ABBA"
    )
    print(f"harness  {statistics.median(pair[0] for pair in pairs):.3f} tokens/s (median)")
    print(f"bare     {statistics.median(pair[1] for pair in pairs):.3f} tokens/s (median)")
    print(f"ratio    {math.exp(statistics.fmean(logs)):.4f} (geometric mean of pairs, +- {100 * half:.2f} %)")


if __name__ == "__main__":
    main()
