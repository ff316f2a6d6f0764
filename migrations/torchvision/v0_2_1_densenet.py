"""Call DenseNet's layers by names without dots: `norm.1` is `norm1`.

torch 0.4 forbids a dot in a module's name. Only below a `denselayerN`, where torchvision itself renames.
Source: torchvision/models/densenet.py of 0.2.0 and 0.2.1.
"""

from ckptmigrate import Migrator, Present, Rename

LAYER = r"((?:.*\.)?denselayer\d+\.(?:norm|relu|conv))"

MIGRATOR = Migrator(
    chain="torchvision",
    version="0.2.1",
    marks=[Present(rf"{LAYER}\.[12]\..*")],
    operations=[
        Rename(rf"{LAYER}\.([12]\..*)", r"\1\2", back=(rf"{LAYER}([12]\..*)", r"\1.\2")),
    ],
)
