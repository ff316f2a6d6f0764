"""Give an instance norm its own parameters.

In 0.13, the first release that has it, an instance norm was a group norm in a field of that name: `norm.group_norm.gamma`. Since
0.14 it holds the parameters itself: `norm.gamma`. A module of somebody's own may have a group norm in a field of that name too,
so it counts only where that is the module's sole field, and only in a record of 0.13.
Source: crates/burn-core/src/nn/norm/instance.rs of 0.13.2 and 0.14.0; formats/burn.md 3.4.
"""

import re

from ckptmigrate import Fact, Fields, Migrator, Rename

MIGRATOR = Migrator(
    chain="burn",
    version="0.14",
    marks=[
        Fact("versions/burn", re.compile(r"0\.13(\..*)?")),
        Fields(r".*", ["group_norm"]),
    ],
    operations=[
        Rename(r"((?:.*\.)?)group_norm\.(gamma|beta)", r"\1\2", fields=["group_norm"]),
    ],
)
