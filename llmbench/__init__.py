"""llmbench: which way of running an LLM is fastest on this machine, by how much, at what cost, and whether that can be trusted.

    from llmbench import compare, load_runs, plot

These three are loaded on first use (PEP 562): `import llmbench` alone imports nothing, since every worker process does it, under interpreters
that may have none of our dependencies. No module of this package may be named like one of them, or the import would give the module.
"""

TYPE_CHECKING = False  # type checkers take it for true; importing typing for it would double the time of every worker's first import
if TYPE_CHECKING:
    from llmbench.api import compare, load_runs, plot

__version__ = "0.1.0"
__all__ = ["__version__", "compare", "load_runs", "plot"]


def __getattr__(name: str) -> object:
    if name in ("compare", "load_runs", "plot"):
        from llmbench import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
