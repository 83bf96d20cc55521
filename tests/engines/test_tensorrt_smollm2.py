"""The real model as a plan for a card that isn't here, by the command line as a CI machine would call it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny import llmbench

pytest.importorskip("tensorrt_rtx_bindings")
pytestmark = pytest.mark.xdist_group("torch")


def test_built_for_an_rtx_4090_without_one_and_found_again(smollm2, tmp_path: Path) -> None:
    asked = ("build", "--model", smollm2.ref.path, "--engine", "tensorrt-rtx", "--target", "rtx-4090", "--max-new-tokens", 16)
    try:
        first = llmbench(tmp_path, *asked, "--format", "json")
        assert first.returncode == 0, first.stderr
        second = llmbench(tmp_path, *asked, "--format", "json")
        assert second.returncode == 0, second.stderr
        (built,), (found,) = (json.loads(done.stdout) for done in (first, second))
        assert (built["hit"], found["hit"]) == (False, True)
        assert built["path"] == found["path"]
        manifest = json.loads((Path(found["path"]) / "manifest.json").read_text())
        assert manifest["ingredients"]["targets"] == ["sm_89"]
        # The weights, 257 MiB in bfloat16, are inside the plan.
        assert sum(stored["size"] for stored in manifest["files"].values()) > 250 * 2**20
    finally:
        shutil.rmtree(tmp_path / "engines", ignore_errors=True)
