"""Real plans through the build cache: two cards in one plan, hits, and everything that can have happened to a plan on disk."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from ahead import environment, job_for, provide

pytest.importorskip("tensorrt_rtx_bindings", reason="NVIDIA's wheels exist for Linux on x86-64 alone")

from llmbench.artifact_manifest import Ingredients
from llmbench.artifacts import ASIDE, Built, Lease, Store
from llmbench.building import Provided, Provider
from llmbench.engines import registry
from llmbench.engines.tensorrt.builder import PLAN_FILE
from llmbench.engines.tensorrt.engine import TensorRTForRTXEngine
from llmbench.graph.contract import INFO_FILE
from llmbench.protocol import Job, Status
from llmbench.supervise import WorkerFailed

pytestmark = pytest.mark.xdist_group("torch")

SPEC = registry.find("tensorrt-rtx")


def job(home: Path, *targets: str) -> Job:
    return dataclasses.replace(job_for(home / "checkpoint", "tensorrt-rtx"), targets=targets)


class NotHere(Exception):
    """The cache would have it built."""


def find(store: Store, wanted: Job, said: list[str] | None = None) -> Lease | None:
    """As a run looks it up, building nothing."""

    def build(into: Path) -> Built:
        raise NotHere

    ingredients = Ingredients.of("tensorrt-rtx", TensorRTForRTXEngine().recipe(wanted), wanted.checkpoint.identity, wanted.variant)
    say = said.append if said is not None else lambda text: None
    try:
        lease = store.obtain(ingredients, build, model="tiny", executes=True, say=say)
    except NotHere:
        return None
    lease.close()
    return lease


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Provided]:
    """One plan for a 3090 and a 4090, built by processes of their own from a graph that is kept as well."""
    home = tmp_path_factory.mktemp("home")
    provided = provide(Provider(Store(home / "engines"), environment), job(home, "rtx-4090", "rtx-3090"), home / "log")
    provided.close()
    return home, provided


def test_one_plan_serves_both_cards_and_is_found_again(built: tuple[Path, Provided]) -> None:
    home, first = built
    assert not first.use.hit
    assert first.use.build_peak_bytes
    assert first.lease.manifest.ingredients.targets == ("sm_86", "sm_89")
    assert first.lease.manifest.source is not None
    assert first.lease.manifest.source.startswith("onnx-graph/")
    assert sorted(first.lease.manifest.files) == [INFO_FILE, PLAN_FILE]
    assert first.lease.manifest.executes
    again = provide(Provider(Store(home / "engines"), environment), job(home, "rtx-3090", "rtx-4090"), home / "log")
    again.close()
    assert again.use.hit
    assert again.use.key == first.use.key
    for card in ("rtx-3090", "rtx-4090", "l40s"):
        found = find(Store(home / "engines"), job(home, card))
        assert found is not None, card
        assert found.manifest.key == first.use.key


def test_a_card_that_it_was_not_built_for_does_not_find_it(built: tuple[Path, Provided]) -> None:
    home, _ = built
    assert find(Store(home / "engines"), job(home, "rtx-5090")) is None
    assert find(Store(home / "engines"), job(home, "rtx-4090", "rtx-5090")) is None


def flip(plan: Path) -> None:
    content = bytearray(plan.read_bytes())
    content[len(content) // 2] ^= 1
    plan.write_bytes(content)


def truncate(plan: Path) -> None:
    plan.write_bytes(plan.read_bytes()[:-1])


def link(plan: Path) -> None:
    other = plan.parent.parent.parent / "elsewhere.plan"
    plan.rename(other)
    plan.symlink_to(other)


@pytest.fixture
def copy(built: tuple[Path, Provided], tmp_path: Path) -> tuple[Store, Path]:
    """The cache with the plan in it, to be spoilt."""
    _, provided = built
    key = provided.use.key
    folder = tmp_path / "engines" / "tensorrt-rtx" / key
    folder.mkdir(parents=True)
    for file in provided.path.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return Store(tmp_path / "engines"), folder / PLAN_FILE


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (flip, "'model.plan' has changed: its hash is another one"),
        (truncate, "'model.plan' has .* bytes, .* were written"),
        (link, "model.plan"),
    ],
    ids=["flipped", "truncated", "linked"],
)
def test_a_spoilt_plan_is_set_aside(
    copy: tuple[Store, Path], built: tuple[Path, Provided], spoil: Callable[[Path], None], words: str
) -> None:
    store, plan = copy
    wanted = job(built[0], "rtx-4090", "rtx-3090")
    assert find(store, wanted) is not None
    spoil(plan)
    said: list[str] = []
    assert find(store, wanted, said) is None
    assert len(said) == 1
    assert re.search(words, said[0]), said
    assert not plan.parent.exists()
    assert (store.root / "tensorrt-rtx" / ASIDE).is_dir()


def test_kill_9_in_the_middle_leaves_nothing_and_the_next_build_works(built: tuple[Path, Provided]) -> None:
    home, first = built
    store = Store(home / "engines")
    wanted = job(home, "rtx-5090")

    def with_tests(threads: int, caches: Path) -> dict[str, str]:
        return {**environment(threads, caches), "PYTHONPATH": str(Path(__file__).parent)}

    killed = dataclasses.replace(SPEC, target="tensorrt_killed:KilledEngine")
    provider = Provider(store, with_tests)
    with pytest.raises(WorkerFailed, match="SIGKILL during 'build'") as caught:
        provider.provide(killed, wanted, provider.recipe(killed, wanted, home / "log"), home / "log")
    assert caught.value.status is Status.CRASHED
    left = sorted(path.name for path in (home / "engines/tensorrt-rtx").iterdir() if not path.name.endswith(".lock"))
    assert left == [first.use.key]
    again = provide(Provider(store, environment), wanted, home / "log")
    again.close()
    assert not again.use.hit
    assert again.lease.manifest.ingredients.targets == ("sm_120",)
