"""Classes of training frameworks that checkpoints hold, and what each means; torch's own are beside its tensors.

    AttributeDict of Lightning                        dict
    DictConfig, ListConfig, nodes of OmegaConf        dict, list, the node's value; interpolations and "???" stay text
    enums of transformers, accelerate, DeepSpeed, …   their value: Class(value) is how Python pickles an enum's member
    getattr(an object of this file, "method")         inert: a bound method, which schedulers before torch 2.4 kept in their state
    getattr(a scheduler's class, "method")            inert: the same where the method is static
    getattr(torch's table of functions, "relu")       inert: how Python pickles torch.relu, which models keep as an attribute
    torch 1.0's module backend                        inert: every module of that release carries the call

Anything else that is called stays an inert call, which is refused, and so is a call of what such a `getattr` gives.
Sources: the classes' own packages; `formats/torch.md` 4.3, 4.4, 4.5, 11.4.
"""

from __future__ import annotations

import re
from typing import Any

from ckptmigrate.values import Inert
from ckptmigrate.wire.meanings import attributes, namespace
from ckptmigrate.wire.names import Meaning, harmless

_SCHEDULER = re.compile(r"(.+\.)?lr_scheduler\.\w+")
_FUNCTIONS = frozenset(
    f"torch._C.{name}" for name in ("_VariableFunctions", "_VariableFunctionsClass", "_TensorBase", "TensorBase")
)
_LIGHTNING = ("pytorch_lightning", "lightning.pytorch")
_MEGATRON = ("megatron", "megatron.model", "megatron.legacy.model", "megatron.core", "megatron.core.transformer")

ENUMS: dict[str, tuple[str, ...]] = {
    "transformers.trainer_utils": (
        "EvaluationStrategy", "FSDPOption", "HubStrategy", "IntervalStrategy", "SaveStrategy", "SchedulerType", "ShardedDDPOption",
    ),
    "transformers.training_args": ("OptimizerNames", "ParallelMode"),
    "transformers.debug_utils": ("DebugOption",),
    "transformers.file_utils": ("PaddingStrategy", "TensorType"),
    "transformers.utils.generic": ("PaddingStrategy", "TensorType"),
    "transformers.tokenization_utils_base": ("TruncationStrategy",),
    "accelerate.state": ("DistributedType",),
    "accelerate.utils.dataclasses": (
        "ComputeEnvironment", "CustomDtype", "DistributedType", "DynamoBackend", "LoggerType", "PrecisionType", "RNGType",
        "SageMakerDistributedType",
    ),
    "deepspeed.inference.config": ("DtypeEnum",),
    "deepspeed.runtime.config": ("DtypeEnum",),
    "deepspeed.runtime.zero.config": ("ZeroStageEnum",),
    "deepspeed.runtime.zero.offload_config": ("OffloadDeviceEnum", "OffloadStateTypeEnum"),
    "deepspeed.runtime.zero.partition_parameters": ("ZeroParamStatus", "ZeroParamType"),
    "peft.utils.peft_types": ("PeftType", "TaskType"),
    "peft.utils.config": ("PeftType", "TaskType"),
    **{
        f"{module}.enums": (
            "AttnBackend", "AttnMaskType", "AttnType", "CudaGraphScope", "Fp4Recipe", "Fp8Recipe", "LayerType", "ModelType",
            "PositionEmbeddingType",
        )
        for module in _MEGATRON
    },
    **{
        f"{module}.utilities.enums": (
            "AMPType", "AutoRestartBatchKeys", "DeviceType", "DistributedType", "GradClipAlgorithmType", "ModelSummaryMode",
        )
        for module in _LIGHTNING
    },
    **{f"{module}.trainer.states": ("RunningStage", "TrainerFn", "TrainerState", "TrainerStatus") for module in _LIGHTNING},
    **{
        f"torch.distributed.fsdp.{module}": ("BackwardPrefetch", "ShardingStrategy", "StateDictType")
        for module in ("api", "fully_sharded_data_parallel")
    },
}  # fmt: skip
"""Enum classes by module; they pickle as Class(value), and under some Python 3.11 as getattr(Class, name)."""

_ENUMS = frozenset(f"{module}.{name}" for module, names in ENUMS.items() for name in names)


def _member(path: str) -> Meaning:
    """Give the meaning of an enum class: a member is its value."""
    return Meaning(lambda args: args[0] if len(args) == 1 else Inert("object", path, args))


def _getattr(args: tuple[Any, ...]) -> Inert:
    match args:
        case (Inert(kind="object"), str()):
            return Inert("object", "builtins.getattr", args)
        case (Inert(kind="name", path=path), str()) if path in _ENUMS | _FUNCTIONS or _SCHEDULER.fullmatch(path):
            return Inert("object", "builtins.getattr", args)
    return Inert("call", "builtins.getattr", args)


def _content(key: str, path: str) -> Meaning:
    """Give the meaning of a class whose objects stand for one of their attributes."""

    def build(value: Inert, state: Any) -> Any:
        found = attributes(state)
        if key in found:
            return found[key]
        value.state = state
        return value

    return Meaning(lambda args: Inert("object", path, args), build)


_CONTENTS = {
    "_content": ("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig", "omegaconf.base.UnionNode"),
    "_val": tuple(
        f"omegaconf.nodes.{name}"
        for name in (
            "AnyNode", "BooleanNode", "BytesNode", "EnumNode", "FloatNode", "IntegerNode", "InterpolationResultNode", "PathNode",
            "StringNode", "ValueNode",
        )
    ),
}  # fmt: skip

FOREIGN_CLASSES: dict[str, Meaning] = {
    **{path: _member(path) for path in sorted(_ENUMS)},
    **{path: _content(key, path) for key, paths in _CONTENTS.items() for path in paths},
    **{
        f"{module}.AttributeDict": namespace()
        for module in (
            "lightning.fabric.utilities.data",
            "lightning.pytorch.utilities.parsing",
            "lightning_fabric.utilities.data",
            "pytorch_lightning.utilities.parsing",
        )
    },
    "builtins.getattr": Meaning(_getattr),
    "torch.nn.backends.thnn._get_thnn_function_backend": harmless("torch.nn.backends.thnn._get_thnn_function_backend"),
}
"""Canonical names and what each means; formats add these to ``wire.meanings.STANDARD``."""
