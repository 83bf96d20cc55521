"""The engines as the parent knows them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from llmbench.engines.registry import BUILT_IN, EngineSpec, engines, find, problem


@pytest.mark.parametrize("spec", BUILT_IN, ids=lambda spec: spec.name)
def test_targets_exist_and_have_the_protocols_methods(spec: EngineSpec) -> None:
    module, _, name = spec.target.partition(":")
    engine = getattr(importlib.import_module(module), name)()
    for method in ("supports", "build", "load", "generate", "logits", "versions", "synchronize", "close"):
        assert callable(getattr(engine, method)), method


def test_an_engine_of_another_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry-point group: a good one counts, one that can't be loaded is a warning, and a built-in name can't be taken."""

    class Entry:
        def __init__(self, name: str, value: object) -> None:
            self.name, self.value = name, value

        def load(self) -> object:
            if isinstance(self.value, Exception):
                raise self.value
            return self.value

    entries = [
        Entry("mine", EngineSpec("mine", "mine:Engine", "of my own", requires=("no_such_module",))),
        Entry("eager", EngineSpec("eager", "evil:Engine", "an impostor")),
        Entry("broken", ImportError("broken on import")),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries if group == "llmbench.engines" else [])
    with pytest.warns(UserWarning, match="'broken' of another package could not be loaded"):
        found = engines()
    assert found["mine"].summary == "of my own"
    assert found["eager"].target.startswith("llmbench.")
    why = problem(found["mine"])
    assert why is not None
    assert "'no_such_module' is not installed" in str(why)


def test_what_is_missing_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    why = problem(find("torch-compile"), "cpu")
    assert why is not None
    assert "install g++" in (why.remedy or "")
    assert problem(find("eager"), "cpu") is None
    assert "does not run on" in str(problem(EngineSpec("x", "x:X", "", devices=("cuda",)), "cpu"))


def test_asking_imports_no_engine_library() -> None:
    script = (
        "import sys\nfrom llmbench.views.listing import engines_data\nengines_data()\n"
        "sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
