"""What torchvision renamed in its own models."""

from ckptmigrate import Chain

CHAIN = Chain("torchvision", family="torch", about="DenseNet's layers as they are called since torchvision 0.2.1")
