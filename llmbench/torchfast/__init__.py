"""The gpt-fast-style model and generation loop that the torch engines share. Runs in the worker only."""
