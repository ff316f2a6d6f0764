"""Call a ModelCheckpoint by a key without `save_on_train_epoch_end`, under which 1.9 looks for its state.

Where two keys would become one, nobody can say which callback is which: both stay, and Lightning finds neither, as in its own migration.
Source: lightning/pytorch/utilities/migration/migration.py of 2.6; formats/torch.md 9.6.
"""

import re
from typing import Any

from ckptmigrate import Apply, Migrator, Present

CALLBACKS = "values/extra/callbacks"
SETTING = re.compile(r", 'save_on_train_epoch_end': (?:None|True|False)")


def shortened(callbacks: dict[Any, Any]) -> dict[Any, Any]:
    """Give the states under their keys of today."""
    keys = [
        SETTING.sub("", key) if isinstance(key, str) and key.startswith("ModelCheckpoint") else key for key in callbacks
    ]
    return dict(zip(keys, callbacks.values(), strict=True)) if len(set(keys)) == len(keys) else callbacks


MIGRATOR = Migrator(
    chain="lightning",
    version="1.9.0",
    marks=[Present(rf"{CALLBACKS}/ModelCheckpoint.*{SETTING.pattern}[^/]*\}}", on="items")],
    operations=[Apply([CALLBACKS], [CALLBACKS], shortened, wants="values", on="items", optional=True)],
)
