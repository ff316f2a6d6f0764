"""Take the prefixes out that a wrapper left in every name below it, wherever they stand, and as often as they nest.

    module.                        DataParallel, DistributedDataParallel, AveragedModel       at the front
    _forward_module.               Lightning's strategies, DeepSpeed's engine                 at the front
    _orig_mod.                     torch.compile                                              at the front, and after a submodule
    _fsdp_wrapped_module.          FSDP (`_fpw_module.` in 1.12 and 1.13)                      anywhere
    _checkpoint_wrapped_module.    activation checkpointing                                   anywhere

A submodule that somebody called `module` further down keeps its name. A name without the prefix that others have is kept and
counted. Sources: torch/nn/parallel/data_parallel.py, torch/_dynamo/eval_frame.py, torch/distributed/fsdp/_common_utils.py,
torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py; formats/torch.md 10.1.
"""

from ckptmigrate import Migrator, Present, Rename

INSIDE = r"(?:_orig_mod|_fsdp_wrapped_module|_fpw_module|_checkpoint_wrapped_module)\."
FRONT = rf"(?:module\.|_forward_module\.|{INSIDE})"

MIGRATOR = Migrator(
    chain="torch.wrappers",
    version="1.0",
    marks=[Present(rf"{FRONT}.*|.*\.{INSIDE}.*")],
    operations=[
        Rename(rf"{FRONT}+(.+)", r"\1", of=r".*", optional=True),
        Rename(rf"(.+?\.){INSIDE}(.+)", r"\1\2", repeated=True, optional=True),
    ],
)
