"""TensorRT-LLM's two ways to run a model: a built engine (`tensorrt-llm`) and its PyTorch backend (`tensorrt-llm-pytorch`).

Written against release 1.2.1, the last with the engine flow, and not yet run on a GPU by this project. What its API looks like is recorded in
signatures.json; `contract` compares an installation with that. Worker code: standard library, torch and tensorrt_llm.
"""
