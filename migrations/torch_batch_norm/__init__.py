"""The counters that every batch norm has since torch 0.4.1."""

from ckptmigrate import Chain

CHAIN = Chain(
    "torch.batch_norm", family="torch", about="adds num_batches_tracked to batch norms that were saved before 0.4.1"
)
