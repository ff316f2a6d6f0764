"""BERT's names as transformers has them, for files that were converted from TensorFlow's."""

from ckptmigrate import Chain

CHAIN = Chain("bert", family="torch", about="LayerNorm.gamma and .beta become weight and bias; the prefix bert. goes")
