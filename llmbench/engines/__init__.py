"""The engines: their registry for the parent, and one adapter file for each, imported only in the worker."""
