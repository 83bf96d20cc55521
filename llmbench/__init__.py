"""llmbench: which way of running an LLM is fastest on this machine, by how much, at what cost, and whether that can be trusted."""

__version__ = "0.1.0"
