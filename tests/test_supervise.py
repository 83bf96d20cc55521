"""The worker process and its supervision, on the fake engine, with real signals, real hangs and real garbage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from llmbench.protocol import CheckpointRef, Job, Request, Status, Variant, encode
from llmbench.supervise import Worker, WorkerFailed

FAKE = "llmbench.engines.fake:FakeEngine"


def job(**options: object) -> dict[str, object]:
    variant = Variant("fake", "fake", "float32", options={"tokens_per_s": 1e6, **options})  # type: ignore[dict-item]
    return encode(Job(CheckpointRef("none", "/nowhere"), variant, Request((3, 4, 5), 4, batch_size=2), "cpu", 1))


def generate(worker: Worker, timeout_s: float = 60.0, **options: object) -> dict[str, object]:
    """Leads a worker to its first sample."""
    worker.ask("open", timeout_s=60, target=FAKE, job=job(**options))
    worker.ask("load", timeout_s=60)
    worker.ask("generate", timeout_s=60, kind="warmup", max_new_tokens=4)
    return worker.ask("generate", timeout_s=timeout_s, kind="sample", max_new_tokens=4, want_ids=True)


def test_a_sample_is_counted_and_timed(tmp_path: Path) -> None:
    with Worker(tmp_path / "log") as worker:
        answer = generate(worker)
        worker.close()
    assert answer["sample"]["new_tokens"] == [4, 4]
    assert answer["sample"]["wall_s"] > 0
    assert [len(sequence) for sequence in answer["ids"]] == [4, 4]


def test_runs_without_site_packages(tmp_path: Path) -> None:
    """Rule of the house: an engine's interpreter has none of our dependencies."""
    with Worker(tmp_path / "log", python=(sys.executable, "-S")) as worker:
        assert generate(worker)["sample"]["new_tokens"] == [4, 4]
        assert worker.ask("probe", timeout_s=60)["torch"] is None
        bandwidth = worker.ask("bandwidth", timeout_s=60, device="cpu", threads=1)["bandwidth"]
        assert bandwidth["gb_per_s"] is None
        assert "torch" in bandwidth["reason"]


def test_nothing_in_the_users_folder_shadows_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "llmbench").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    with Worker(tmp_path / "log") as worker:
        assert generate(worker)["sample"]["new_tokens"] == [4, 4]


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("error", Status.FAILED, "ValueError: the fake engine was told to fail"),
        ("oom", Status.OUT_OF_HOST_MEMORY, "can't allocate memory"),
        ("crash", Status.CRASHED, "SIGSEGV"),
        ("kill", Status.CRASHED, "SIGKILL"),
        ("exit", Status.CRASHED, "exit code 0"),
        ("grandchild", Status.CRASHED, "SIGKILL"),
    ],
)
@pytest.mark.parametrize("place", ["open", "load", "sample"])
def test_a_fault_has_a_status_and_a_reason(tmp_path: Path, fault: str, status: Status, words: str, place: str) -> None:
    with Worker(tmp_path / "log") as worker, pytest.raises(WorkerFailed) as failure:
        generate(worker, fault=fault, fault_at=place)
    expected = Status.LOAD_FAILED if fault == "error" and place in ("open", "load") else status
    assert failure.value.status is expected
    assert words in failure.value.reason
    assert "\n" not in failure.value.reason


@pytest.mark.parametrize("fault", ["hang", "stop", "ignore_term"])
def test_a_worker_that_never_answers_is_ended(tmp_path: Path, fault: str) -> None:
    with Worker(tmp_path / "log") as worker, pytest.raises(WorkerFailed) as failure:
        generate(worker, timeout_s=0.2, fault=fault)
    assert failure.value.status is Status.TIMED_OUT
    assert not Path(f"/proc/{worker.pid}").exists()


def test_garbage_on_stdout_goes_to_the_log(tmp_path: Path) -> None:
    with Worker(tmp_path / "log") as worker:
        assert generate(worker, fault="garbage")["sample"]["new_tokens"] == [4, 4]
        worker.close()
    text = (tmp_path / "log").read_text()
    assert "not json" in text
    assert "a banner on stderr" in text


def test_garbage_on_the_protocol_is_no_reply(tmp_path: Path) -> None:
    """A library that writes on every descriptor it finds can't pass for a reply."""
    (tmp_path / "scribbler.py").write_text(
        "import os, sys\nfrom llmbench.engines.fake import FakeEngine\n"
        "class Engine(FakeEngine):\n    def supports(self, job):\n        os.write(int(sys.argv[2]), b'{\"number\": 77}\\n')\n"
    )
    with (
        Worker(tmp_path / "log", environment={"PYTHONPATH": str(tmp_path)}) as worker,
        pytest.raises(WorkerFailed, match="no reply") as failure,
    ):
        worker.ask("open", timeout_s=60, target="scribbler:Engine", job=job())
    assert failure.value.status is Status.CRASHED


def test_the_whole_group_ends_with_the_worker(tmp_path: Path) -> None:
    with Worker(tmp_path / "log") as worker, pytest.raises(WorkerFailed):
        generate(worker, fault="grandchild")
    for _ in range(10_000):  # the signal is on its way when `end` returns
        if not _group_members(worker.pid):
            return
        os.sched_yield()
    pytest.fail(f"still there: {_group_members(worker.pid)}")


def test_a_missing_module_is_unavailable(tmp_path: Path) -> None:
    with Worker(tmp_path / "log") as worker, pytest.raises(WorkerFailed) as failure:
        worker.ask("open", timeout_s=60, target="no_such_engine:Engine", job=job())
    assert failure.value.status is Status.UNAVAILABLE
    assert "no_such_engine" in failure.value.reason


def test_a_missing_interpreter_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed) as failure:
        Worker(tmp_path / "log", python=(str(tmp_path / "python"),))
    assert failure.value.status is Status.UNAVAILABLE


def test_a_command_longer_than_the_pipe_arrives(tmp_path: Path) -> None:
    long = job()
    long["request"]["prompt_ids"] = list(range(100_000))  # type: ignore[index]
    with Worker(tmp_path / "log") as worker:
        worker.ask("open", timeout_s=60, target=FAKE, job=long)


def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    """kill -9 of the parent leaves no worker behind, not even one that computes and never looks at its commands."""
    parent = textwrap.dedent(
        """
        import json, os, signal, sys
        from pathlib import Path
        from llmbench.supervise import Worker
        worker = Worker(Path(sys.argv[1]))
        worker.ask("open", timeout_s=60, target="llmbench.engines.fake:FakeEngine", job=json.loads(sys.argv[2]))
        worker.ask("load", timeout_s=60)
        command = {"number": 3, "do": "generate", "arguments": {"kind": "warmup", "max_new_tokens": 4}}
        os.write(worker._commands, json.dumps(command).encode() + b"\\n")
        print(worker.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    slow = json.dumps(job(tokens_per_s=0.001))
    done = subprocess.run([sys.executable, "-c", parent, str(tmp_path / "log"), slow], capture_output=True, text=True, timeout=120)
    pid = int(done.stdout)
    for _ in range(2000):  # the kernel delivers the signal at once; reaping by init may take a moment
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        os.sched_yield()
    pytest.fail("the worker outlived its parent")


def _group_members(group: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_an_ended_worker_answers_with_its_status_and_closes_quietly(tmp_path: Path) -> None:
    """Its descriptors are closed, and their numbers may be another file's by then."""
    with Worker(tmp_path / "log") as worker:
        with pytest.raises(WorkerFailed):
            generate(worker, fault="kill")
        with pytest.raises(WorkerFailed, match="had ended"):
            worker.ask("probe", timeout_s=5)
        worker.close()


def test_no_room_for_temporary_files_is_a_failure_and_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(WorkerFailed, match="no folder for a worker"):
        Worker(tmp_path / "log")


def test_host_memory_that_really_runs_out_is_told_by_its_name(tmp_path: Path) -> None:
    """Under a limit on the address space an engine asks for more than there is; torch's own text is classified."""
    (tmp_path / "greedy.py").write_text(
        "import resource\nfrom llmbench.engines.fake import FakeEngine\n"
        "class Engine(FakeEngine):\n"
        "    def load(self, job, artifact):\n"
        "        import torch\n"
        "        resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))\n"
        "        self.hoard = torch.empty(2**33, dtype=torch.uint8)\n"
    )
    with Worker(tmp_path / "log", environment={"PYTHONPATH": str(tmp_path)}) as worker, pytest.raises(WorkerFailed) as failure:
        worker.ask("open", timeout_s=60, target="greedy:Engine", job=job())
        worker.ask("load", timeout_s=60)
    assert failure.value.status is Status.OUT_OF_HOST_MEMORY
    assert "allocate memory" in failure.value.reason


@pytest.mark.parametrize("ids", ['[["a", "b", "c", "d"]] * 2', "[[1.0] * 4] * 2", "[[True] * 4] * 2"])
def test_ids_of_another_type_are_a_failure(tmp_path: Path, ids: str) -> None:
    (tmp_path / "strange.py").write_text(
        "from llmbench.engines.fake import FakeEngine\n"
        f"class Engine(FakeEngine):\n    def generate(self, request, on_token=None):\n        return {ids}\n"
    )
    with (
        Worker(tmp_path / "log", environment={"PYTHONPATH": str(tmp_path)}) as worker,
        pytest.raises(WorkerFailed, match="not all of type int"),
    ):
        worker.ask("open", timeout_s=60, target="strange:Engine", job=job())
        worker.ask("load", timeout_s=60)
        worker.ask("generate", timeout_s=60, kind="warmup", max_new_tokens=4)
