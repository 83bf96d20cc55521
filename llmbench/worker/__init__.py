"""The child's side: one process that runs one variant. Standard library and the engine's own libraries, nothing else."""
