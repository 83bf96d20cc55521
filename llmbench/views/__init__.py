"""Tables and charts. They read run files and nothing else."""
