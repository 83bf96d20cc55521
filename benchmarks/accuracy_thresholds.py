"""Prints how far right and wrong engines stray from the reference, beside what passes: how the thresholds of worker/accuracy.py were found.

    python benchmarks/accuracy_thresholds.py [--model FOLDER] [--prompts 3] [--only small,dummy,model]

Each line is one engine of tests/wrong_engines.py in one dtype on one prompt, judged by the very function that judges rows. Models: small
random weights large enough that attention matters, random weights at SmolLM2's shape (where it hardly does), and with --model a real one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from wrong_engines import ENGINES, write_random  # noqa: E402

from llmbench.accuracy import span  # noqa: E402
from llmbench.checkpoints.catalog import find  # noqa: E402
from llmbench.checkpoints.config import read_config  # noqa: E402
from llmbench.checkpoints.tokenizer import Tokenizer, synthetic_ids  # noqa: E402
from llmbench.protocol import CheckpointRef, Job, Request, Variant  # noqa: E402
from llmbench.worker.accuracy import check, write_logits  # noqa: E402

UNQUANTISED = ("right", "drops-a-layer", "other-weights", "wrong-theta", "interleaved-rope")
QUANTISED = ("rounded", "rounded-twice", "scale-off", "scale-off-in-one-layer")
TEXTS = (
    "The history of the printing press begins in",
    "def fibonacci(n):\n    ",
    "Hello, my name is",
    "In 1969, three astronauts flew to the moon. Their names were",
    "Dear Sir or Madam, I am writing to complain about",
)
NEW_TOKENS = 64


def judge(checkpoint: CheckpointRef, prompt: tuple[int, ...], name: str, dtype: str, scheme: str | None, folder: Path):
    """The verdict on one engine, in this process."""
    job = Job(checkpoint, Variant(name, name, dtype, scheme), Request(prompt, NEW_TOKENS), "cpu", torch.get_num_threads())
    engine = ENGINES[name]()
    engine.load(job, None)
    new = engine.generate(job.request)
    first, stop = span(job.request, NEW_TOKENS)
    write_logits(engine.logits([*prompt, *new[0]][:stop]), first, stop, folder / "logits")
    engine.close()
    return check(job, new, folder / "logits", first, stop, folder / "references")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a checkpoint's folder, with tokenizer files")
    parser.add_argument("--prompts", type=int, default=3, choices=range(1, len(TEXTS) + 1))
    parser.add_argument("--dtypes", default="float32,bfloat16,float16")
    parser.add_argument("--only", default="small,dummy,model", help="which of small (random), dummy (SmolLM2's shape) and model (--model)")
    given = parser.parse_args()
    only = given.only.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        models: list[tuple[str, CheckpointRef, list[tuple[int, ...]]]] = []
        small = write_random(folder / "small")
        models.append(("small random", CheckpointRef("small", str(small)), [synthetic_ids(199, 12, seed) for seed in range(given.prompts)]))
        entry = find("smollm2-135m")
        assert entry is not None
        (folder / "shape").mkdir()
        (folder / "shape" / "config.json").write_text(json.dumps(dict(entry.config)))
        shape = CheckpointRef("shape", str(folder / "shape"), "dummy")
        models.append(("dummy SmolLM2", shape, [synthetic_ids(40_000, 12, seed) for seed in range(given.prompts)]))
        if given.model is not None and "model" in only:
            tokenizer = Tokenizer.open(given.model, read_config(given.model))
            assert tokenizer is not None
            prompts = [tuple(tokenizer.encode(text)) for text in TEXTS[: given.prompts]]
            models.append((given.model.name.partition("@")[0], CheckpointRef(given.model.name, str(given.model.resolve())), prompts))
        models = [entry for entry in models if entry[0].split()[0] in only or entry[0] not in ("small random", "dummy SmolLM2")]
        print("| model | dtype | quantization | engine | error / eager's | of what passes | greatest error | verdict |")
        print("|---|---|---|---|---|---|---|---|")
        for model, checkpoint, prompts in models:
            for dtype in given.dtypes.split(","):
                for scheme in (None, "int8", "int4"):
                    for name in UNQUANTISED if scheme is None else QUANTISED:
                        found = [judge(checkpoint, prompt, name, dtype, scheme, folder) for prompt in prompts]
                        ratios = [entry.error / entry.eager_error for entry in found]
                        shares = [entry.error / entry.tolerance for entry in found]
                        passed = sum(entry.passed for entry in found)
                        verdict = "passes" if passed == len(found) else "fails" if not passed else f"{passed} of {len(found)} pass"
                        print(
                            f"| {model} | {dtype} | {scheme or '-'} | {name} | {min(ratios):.2f} to {max(ratios):.2f} | "
                            f"{min(shares):.2f} to {max(shares):.2f} | {max(entry.error for entry in found):.2g} | {verdict} |",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
