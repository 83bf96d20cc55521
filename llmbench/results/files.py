"""The run file: written whole or not at all, read with distrust.

A run file may come from anywhere: it is checked against the dataclasses of protocol.py, and what doesn't fit gets one clear line.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from llmbench.protocol import SCHEMA_VERSION, Run, encode

#: Larger files are refused unread. A run of 6 engines x 5 rounds x 3 samples has some 100 kB.
MAX_BYTES = 64 * 2**20
#: Deeper nesting than any run has.
_MAX_DEPTH = 40
#: More than any model has. Views go over all layers, so a number without bounds would hang them.
_MOST_LAYERS = 10_000


class RunFileError(ValueError):
    """A run file that can't be read or written; the text names the file and says why."""


def reserve(results: Path, started_at: str, model: str) -> Path:
    """Creates results/<time>-<model>.json empty, under a name of its own, with the logs' folder beside it. RunFileError where it can't."""
    stamp = re.sub(r"[^0-9]", "", started_at[:19])
    stamp = f"{stamp[:8]}-{stamp[8:]}"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name).strip("-.")[:60] or "model"
    try:
        results.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = results / f"{stamp}-{name}{f'-{number}' if number > 1 else ''}.json"
            try:
                path.open("x").close()
            except FileExistsError:
                continue
            logs_of(path).mkdir(exist_ok=True)
            return path
    except OSError as error:
        raise RunFileError(
            f"results can't be written in {results}: {error.strerror or error}; set LLMBENCH_HOME or make it writable"
        ) from None
    raise RunFileError(f"results can't be written in {results}: 10,000 runs of this second and name")


def forget(path: Path) -> None:
    """Takes back what `reserve` made, where the run could not be begun: an empty file would puzzle every later reader."""
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        logs_of(path).rmdir()


def logs_of(path: Path) -> Path:
    """The folder of a run's worker logs."""
    return path.with_suffix(".logs")


def save(run: Run, path: Path) -> None:
    """Writes the run beside `path`, syncs it and moves it there, so that a reader or a crash sees the old file or the new one."""
    try:
        text = json.dumps(encode(run), indent=1, allow_nan=False)
        write_atomically(path, text.encode())
    except OSError as error:
        raise RunFileError(f"the run file {path} can't be written: {error.strerror or error}") from None
    except ValueError as error:  # a figure that is no number: a fault of ours, but nothing measured shall be lost by it
        raise RunFileError(f"the run file {path} can't be written: {error}") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file by one that is whole; see `replacing`. Makes its folder where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the name `path` once all is written and synced; a link's target, not the link. Leaves nothing behind where that
    fails.

    What is no regular file, as /dev/null or a pipe, is written into: replacing it would take it from everyone else.
    """
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as other:
            yield other
        return
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def load(path: Path) -> Run:
    """The run that a file holds. Raises RunFileError for what isn't one."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise RunFileError(f"{path}: {size / 2**20:.0f} MiB is no run file; at most {MAX_BYTES // 2**20} MiB are read")
        text = path.read_bytes()
    except OSError as error:
        raise RunFileError(f"{path}: {error.strerror or error}") from None
    run = _quickly(text)
    return run if run is not None else _carefully(path, text)


def _quickly(text: bytes) -> Run | None:
    """The run, where the file is one in every point; null where it isn't, for `_carefully` to say why. One pass in compiled code.

    It accepts what `_carefully` accepts. What stands under unknown keys is passed over by both, but only `_carefully` has looked at it.
    """
    from pydantic_core import ValidationError

    try:
        run: Run = _validator().validate_json(text, strict=True)
    except ValidationError:
        return None
    config = run.model.config
    sound = run.schema_version <= SCHEMA_VERSION and not _absurd(run) and _is_shape(config)
    return run if sound and b'"schema_version"' in text and b'"rows"' in text else None


def _carefully(path: Path, text: bytes) -> Run:
    data = _parse(path, text)
    version = data.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or "rows" not in data:
        raise RunFileError(f"{path}: not a run file of llmbench (no schema_version or rows)")
    if version > SCHEMA_VERSION:
        raise RunFileError(
            f"{path}: written by a newer llmbench (schema {version}; this one reads up to {SCHEMA_VERSION}); update llmbench"
        )
    from pydantic import ValidationError

    try:
        run: Run = _adapter().validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RunFileError(f"{path}: not a run file of llmbench: {where[:200]}: {first['msg']}") from None
    fault = _huge_integer(data) or _absurd(run) or _wrong_shape(run)
    if fault:
        raise RunFileError(f"{path}: not a run file of llmbench: {fault}")
    return run


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def refuse(number: str) -> float:
        raise ValueError(f"{number} is not a number")

    def finite(number: str) -> float:
        value = float(number)
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"{number[:40]} is too large")
        return value

    try:
        if _depth(text) > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        data = json.loads(text, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"{path}: not JSON that llmbench reads: {str(error)[:200]}") from None
    if not isinstance(data, dict):
        raise RunFileError(f"{path}: not a run file of llmbench (not a JSON object)")
    return data


def _depth(text: bytes) -> int:
    """An upper bound of the nesting, brackets in strings counted too until they close."""
    depth = deepest = 0
    for piece in re.finditer(rb"[\[{\]}]", re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)):
        depth += 1 if piece.group() in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _huge_integer(data: Any) -> str | None:
    """Names an integer that no figure can be made of; JSON's have no limit."""
    if isinstance(data, dict):
        return next(filter(None, map(_huge_integer, data.values())), None)
    if isinstance(data, list):
        return next(filter(None, map(_huge_integer, data)), None)
    huge = isinstance(data, int) and abs(data) >= 2**63
    return f"an integer of {len(str(data))} digits" if huge else None


def _wrong_shape(run: Run) -> str | None:
    """Whether model.config, which views make a ModelConfig of, is one."""
    return _shape_fault(run.model.config)


def _shape_fault(config: dict[str, Any]) -> str | None:
    from pydantic import TypeAdapter, ValidationError

    from llmbench.checkpoints.config import ModelConfig

    if not config:
        return None
    try:
        TypeAdapter(ModelConfig).validate_python(config)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"model.config.{'.'.join(str(part) for part in first['loc'])[:200]}: {first['msg']}"
    layers = config.get("layers")
    return f"model.config.layers of {layers}" if isinstance(layers, int) and not 0 <= layers <= _MOST_LAYERS else None


def _absurd(run: Run) -> str | None:
    """What no measurement gives, however well-typed: the figures divide by these."""
    if run.request.max_new_tokens < 1 or run.request.batch_size < 1:
        return "max_new_tokens and batch_size must be at least 1"
    if run.threads < 1:
        return f"threads of {run.threads}"
    plan, floor = run.plan, run.noise_floor
    if not (0 < plan.confidence < 1 and 0 <= plan.min_effect < 10 and (floor is None or 0 <= floor < 1e9)):
        return f"confidence {plan.confidence!r}, min_effect {plan.min_effect!r} or noise_floor {floor!r} out of range"
    for row in run.rows:
        for block in row.blocks:
            for sample in block.samples:
                if not 1e-9 <= sample.wall_s < 1e9:
                    return f"wall_s of {sample.wall_s!r} s in a sample of {row.variant.label[:60]!r}"
            for bandwidth in block.bandwidth:
                if bandwidth.gb_per_s is not None and not 0 < bandwidth.gb_per_s < 1e9:
                    return f"gb_per_s of {bandwidth.gb_per_s!r}"
    return None


@lru_cache(maxsize=1)
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Run)


@lru_cache(maxsize=1)
def _validator() -> Any:
    """`_adapter`'s rules, and numbers that are finite and fit in 64 bits."""
    from pydantic_core import SchemaValidator

    return SchemaValidator(_bounded(_adapter().core_schema))


def _bounded(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bounded(entry) for entry in schema]
    if isinstance(schema, tuple):
        return tuple(_bounded(entry) for entry in schema)
    if not isinstance(schema, dict):
        return schema
    bounds: dict[str, dict[str, Any]] = {"float": {"allow_inf_nan": False}, "int": {"ge": -(2**63) + 1, "le": 2**63 - 1}}
    kind = schema.get("type")
    found = {key: value if key in ("metadata", "cls", "default") else _bounded(value) for key, value in schema.items()}
    return {**found, **bounds.get(kind, {})} if isinstance(kind, str) else found


#: model.config by its text -> whether it is a shape of finite numbers that views can read. Runs of one model share it.
_shapes: dict[str, bool] = {}


def _is_shape(config: dict[str, Any]) -> bool:
    text = repr(config)
    if text not in _shapes:
        if len(_shapes) > 1000:
            _shapes.clear()
        _shapes[text] = _is_plain(config) and not _shape_fault(config)
    return _shapes[text]


def _is_plain(data: Any, depth: int = 0) -> bool:
    """Whether all numbers are finite and below 2**63, and nothing is nested deeply."""
    if depth > _MAX_DEPTH // 2:
        return False
    if isinstance(data, dict):
        return all(_is_plain(entry, depth + 1) for entry in data.values())
    if isinstance(data, list):
        return all(_is_plain(entry, depth + 1) for entry in data)
    return not isinstance(data, (int, float)) or (math.isfinite(data) if isinstance(data, float) else abs(data) < 2**63)
