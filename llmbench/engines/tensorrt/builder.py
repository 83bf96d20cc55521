"""From the ONNX graph to a TensorRT plan: parse, set the shapes and the targets, build, write.

The network is strongly typed: every tensor keeps the dtype that the graph gives it, so weights stay in their storage dtype and norms, rotary
embedding and softmax in float32, as in the other engines. TF32 is off: what is called float32 is float32.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmbench.engines.base import EngineError
from llmbench.engines.tensorrt.bindings import Edition, log
from llmbench.engines.tensorrt.in_place import update_in_place
from llmbench.graph.contract import IDS, INFO_FILE, MODEL_FILE, POSITIONS, GraphInfo, read_info
from llmbench.protocol import Status

PLAN_FILE = "model.plan"


@dataclass(frozen=True)
class PlanOptions:
    """What decides a plan beside the graph."""

    prompt_maximum: int  # tokens of one call at most; the profile's range is 1 to this, tuned for 1
    targets: tuple[str, ...] = ()  # "sm_86", for an edition that cross-builds
    in_place: bool = False  # the cache is written by TensorRT's own layers where it lies
    workspace_mib: int | None = None  # scratch memory that a kernel may want; None: the device's


def build_plan(edition: Edition, trt: Any, graph: Path, into: Path, options: PlanOptions) -> GraphInfo:
    """Writes model.plan and graph.json into a folder. Raises EngineError (build failed, out of memory) with TensorRT's first complaint."""
    info = read_info(graph)
    logger = log.logger(trt)
    log.errors.clear()
    builder = trt.Builder(logger)
    if builder is None:
        raise log.failure("no builder can be made", Status.BUILD_FAILED)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph / MODEL_FILE)):  # the file's path, so that the weights beside it are found
        complaints = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise log.failure("the ONNX graph can't be parsed", Status.BUILD_FAILED, complaints)
    if options.in_place:
        update_in_place(trt, network, info)
    plan = builder.build_serialized_network(network, _config(edition, trt, builder, info, options))
    if plan is None:
        raise log.failure("the plan can't be built", Status.BUILD_FAILED)
    # The parser's weights are referred to until here.
    del parser, network
    with (into / PLAN_FILE).open("wb") as file:
        file.write(memoryview(plan))
    shutil.copyfile(graph / INFO_FILE, into / INFO_FILE)
    return info


def _config(edition: Edition, trt: Any, builder: Any, info: GraphInfo, options: PlanOptions) -> Any:
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    if options.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mib * 2**20)
    if edition.cross_builds:
        _set_targets(trt, config, options.targets)
    profile = builder.create_optimization_profile()
    longest = options.prompt_maximum
    profile.set_shape(IDS, (info.batch, 1), (info.batch, 1), (info.batch, longest))
    profile.set_shape(POSITIONS, (1,), (1,), (longest,))
    if config.add_optimization_profile(profile) != 0:
        raise log.failure(f"the profile of 1 to {longest} tokens is refused", Status.BUILD_FAILED)
    return config


def _set_targets(trt: Any, config: Any, targets: Sequence[str]) -> None:
    if not targets:
        raise EngineError("no compute capability to build for", Status.BUILD_FAILED)
    config.num_compute_capabilities = len(targets)
    for index, target in enumerate(targets):
        capability = getattr(trt.ComputeCapability, target.replace("sm_", "SM"))
        if not config.set_compute_capability(capability, index):
            raise log.failure(f"the target {target} is refused", Status.BUILD_FAILED)
