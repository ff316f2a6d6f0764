"""Add the counter of seen batches to a batch norm that was saved before torch 0.4.1 had it.

torch's own load does so for a state dict that bears its modules' versions (`_metadata`), which safetensors and every copy of a
state dict lose. What has running statistics has the counter; a counter that is there stays. torch starts it at 0.
Source: torch/nn/modules/batchnorm.py of 0.4.0 and 0.4.1; formats/torch.md 10.3.
"""

from ckptmigrate import Add, Migrator, Present

STATISTICS, COUNTER = r"((?:.*\.)?)running_var", r"\1num_batches_tracked"

MIGRATOR = Migrator(
    chain="torch.batch_norm",
    version="0.4.1",
    marks=[Present(STATISTICS, without=COUNTER)],
    operations=[
        Add(
            COUNTER,
            near=STATISTICS,
            fill=0,
            shape=[],
            dtype="I64",
            role="buffer",
            lacking=True,
            optional=True,
        ),
    ],
)
