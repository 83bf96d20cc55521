"""What measuring costs: the same engine in llmbench's harness and in a bare loop, their samples interleaved in one run.

    python benchmarks/harness_error.py --model smollm2-135m --engine eager --processes 6 --samples 4

A pair of processes lives side by side: a worker that the supervisor asks for samples as in `llmbench compare`, and a bare loop around the same
engine class, some ten lines with nothing of the harness in them. Samples alternate ABBA, so that drift of the machine falls on both. Pairs are
started anew, in turn the one and the other first, since two processes of the very same code differ by where their memory lies. Printed are both
medians and the ratio harness / bare with its 95 % interval, by the statistics that llmbench itself uses: its distance from 1 is the harness's
error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from llmbench.comparison import Options, prepare
from llmbench.protocol import Job, Plan, encode
from llmbench.schedule import worker_environment
from llmbench.statistics import compare
from llmbench.supervise import Worker

BARE_LOOP = """
import gc, importlib, json, sys, time
from llmbench.protocol import Job, decode
target, job = sys.argv[1], decode(Job, json.loads(sys.argv[2]))
module, _, name = target.partition(":")
engine = getattr(importlib.import_module(module), name)()
engine.supports(job)
engine.load(job, None)
gc.collect()
gc.disable()  # as timeit does
print("ready", flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    ids = engine.generate(job.request)
    print(json.dumps(len(ids[0]) / (time.perf_counter() - start)), flush=True)
"""


def start_bare(target: str, job: Job, environment: dict[str, str]) -> subprocess.Popen[str]:
    """The bare loop, loaded and waiting."""
    bare = subprocess.Popen(
        [sys.executable, "-c", BARE_LOOP, target, json.dumps(encode(job))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert bare.stdout is not None
    bare.stdout.readline()
    return bare


def sample_pair(target: str, job: Job, warmups: int, samples: int, bare_first: bool) -> list[tuple[float, float]]:
    """(harness, bare) tokens/s of one pair of processes, one loaded after the other."""
    with tempfile.TemporaryDirectory() as folder:
        environment = worker_environment(job.threads, Path(folder))
        bare = start_bare(target, job, environment) if bare_first else None
        try:
            with Worker(Path(folder) / "log", environment=environment) as worker:
                worker.ask("open", timeout_s=1800, target=target, job=encode(job))
                worker.ask("load", timeout_s=1800)
                bare = bare or start_bare(target, job, environment)

                def harness_sample() -> float:
                    answer = worker.ask("generate", timeout_s=1800, kind="sample", max_new_tokens=job.request.max_new_tokens)
                    return job.request.max_new_tokens / float(answer["sample"]["wall_s"])

                def bare_sample() -> float:
                    assert bare is not None
                    assert bare.stdin is not None
                    assert bare.stdout is not None
                    bare.stdin.write("\n")
                    bare.stdin.flush()
                    return float(bare.stdout.readline())

                for _ in range(warmups):
                    harness_sample()
                    bare_sample()
                pairs = []
                for number in range(samples):
                    if number % 2:
                        alone = bare_sample()
                        pairs.append((harness_sample(), alone))
                    else:
                        measured = harness_sample()
                        pairs.append((measured, bare_sample()))
                worker.close()
                return pairs
        finally:
            if bare is not None:
                bare.kill()
                bare.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--engine", default="eager")
    parser.add_argument("--processes", type=int, default=6, help="pairs of processes")
    parser.add_argument("--samples", type=int, default=4, help="of each process")
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=100)
    arguments = parser.parse_args()

    options = Options(model=arguments.model, engines=arguments.engine, max_new_tokens=arguments.max_new_tokens, plan=Plan(timeout_s=1800))
    (contestant,) = prepare(options).contestants
    harness, bare = [], []
    for number in range(arguments.processes):
        pairs = sample_pair(contestant.spec.target, contestant.job, arguments.warmups, arguments.samples, bare_first=number % 2 == 0)
        harness.append(statistics.median(pair[0] for pair in pairs))
        bare.append(statistics.median(pair[1] for pair in pairs))
        print(f"{number + 1:3d}  harness {harness[-1]:8.3f}  bare {bare[-1]:8.3f} tokens/s (medians of {len(pairs)})", file=sys.stderr)
    found = compare([ours / alone for ours, alone in zip(harness, bare, strict=True)])
    job = contestant.job
    print(
        f"{arguments.engine} on {arguments.model}, {job.variant.dtype}, {job.request.max_new_tokens} new tokens, 2 x {len(bare)} processes, ABBA"
    )
    print(f"harness  {statistics.median(harness):.3f} tokens/s")
    print(f"bare     {statistics.median(bare):.3f} tokens/s")
    interval = f" [{found.low:.4f}, {found.high:.4f}]" if found.low is not None and found.high is not None else ""
    print(f"ratio    {found.ratio:.4f}{interval}: {'within 2 %' if abs(found.ratio - 1) <= 0.02 else 'NOT within 2 %'}")


if __name__ == "__main__":
    main()
