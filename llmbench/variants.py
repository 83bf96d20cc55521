"""Variants from what the user writes: `eager,torch-compile[mode=max-autotune,dtype=float32]`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llmbench.engines.registry import EngineSpec, find
from llmbench.protocol import DTYPE_BYTES, Scalar, Variant

#: Short names that users of other tools know.
DTYPE_ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16", "float": "float32"}

#: What stands behind a variant's second name in an A/A run: `eager` and `eager (again)` are the same thing.
AGAIN = " (again)"

_FORM = re.compile(rf"(?P<engine>[A-Za-z0-9_.-]+)(?:\[(?P<options>[^\[\]]*)\])?(?P<again>{re.escape(AGAIN)})?")


class VariantError(ValueError):
    """A variant that can't be read; the text says why and what to write."""


def dtype_name(text: str) -> str:
    """The dtype's full name, or VariantError. "auto" is not one: resolve it first."""
    name = DTYPE_ALIASES.get(text, text)
    if name not in DTYPE_BYTES:
        raise VariantError(f"unknown dtype {text!r}; there are auto, {', '.join(DTYPE_BYTES)}")
    return name


def parse_variants(text: str, dtype: str) -> list[tuple[EngineSpec, Variant]]:
    """The variants of a comma-separated list. dtype: the run's, for those that name none. Raises VariantError or UnknownEngine."""
    found = [_parse(piece, dtype) for piece in _split(text)]
    if not found:
        raise VariantError("no engine is named; `llmbench engines` lists them")
    labels = [variant.label for _, variant in found]
    for label in labels:
        if labels.count(label) > 1:
            raise VariantError(f"{label} is named twice")
    return found


def default_variant(spec: EngineSpec, dtype: str) -> Variant:
    """The engine with no options."""
    return Variant(spec.name, spec.name, dtype)


def twice(text: str) -> str:
    """One variant's text as a list of it under two names, for an A/A run. Raises VariantError where it isn't one."""
    pieces = [piece for piece in _split(text) if not piece.endswith(AGAIN)]
    if len(pieces) != 1:
        raise VariantError(f"an A/A run takes one variant, not {len(pieces)}: {text!r}")
    return f"{pieces[0]},{pieces[0]}{AGAIN}"


#: The ways to start that a start-up run measures of an engine with the option `start`, beside its default.
STARTS = ("bundle", "aot")


def all_starts(variants: list[tuple[EngineSpec, Variant]], dtype: str) -> list[tuple[EngineSpec, Variant]]:
    """Each variant whose engine has the option `start`, and that doesn't say which, followed by itself with the other ways to start."""
    labels = {variant.label for _, variant in variants}
    found = []
    for spec, variant in variants:
        found.append((spec, variant))
        if "start" not in spec.options or "start" in variant.options:
            continue
        for start in STARTS:
            name, bracket, rest = variant.label.partition("[")
            other = _parse(f"{name}[start={start},{rest}" if bracket else f"{name}[start={start}]", dtype)
            if other[1].label not in labels:  # a resumed run names them already
                found.append(other)
    return found


def _split(text: str) -> Iterator[str]:
    """Pieces at commas outside brackets, empty ones left out."""
    for piece in re.split(r",(?![^\[]*\])", text):
        if piece.strip():
            yield piece.strip()


def _parse(text: str, dtype: str) -> tuple[EngineSpec, Variant]:
    form = _FORM.fullmatch(text)
    if form is None:
        raise VariantError(f"can't read the variant {text!r}; write engine or engine[option=value,...]")
    spec = find(form["engine"])
    if not spec.measured:
        raise VariantError(f"{spec.name} only builds what other engines load ({spec.summary}); it can't be compared")
    options: dict[str, Scalar] = {}
    for pair in filter(None, (pair.strip() for pair in (form["options"] or "").split(","))):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise VariantError(f"can't read {pair!r} in {text!r}; write option=value")
        if name.strip() in options:
            raise VariantError(f"{name.strip()} is given twice in {text!r}")
        options[name.strip()] = _scalar(value.strip())
    for name in options:
        if name not in (*spec.options, "dtype", "quantization"):
            raise VariantError(f"{spec.name} has no option {name!r}; it has {', '.join((*spec.options, 'dtype', 'quantization'))}")
    chosen_dtype = dtype_name(str(options.pop("dtype"))) if "dtype" in options else dtype
    quantization = str(options.pop("quantization")) if "quantization" in options else None
    shown = {
        **({"dtype": chosen_dtype} if chosen_dtype != dtype else {}),
        **({"quantization": quantization} if quantization else {}),
        **{name: options[name] for name in sorted(options)},
    }
    label = (
        spec.name + (f"[{','.join(f'{name}={_text(value)}' for name, value in shown.items())}]" if shown else "") + (form["again"] or "")
    )
    return spec, Variant(label, spec.name, chosen_dtype, quantization, options)


def _scalar(text: str) -> Scalar:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
