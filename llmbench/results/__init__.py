"""The run file: read, check, write, and the figures that follow from it."""
