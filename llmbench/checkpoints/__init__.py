"""Checkpoints: the catalog, where they come from, their shapes, tensors and tokenizers."""
