"""TensorRT in its two editions: one builder and one runner, with what differs between them in bindings.py."""
