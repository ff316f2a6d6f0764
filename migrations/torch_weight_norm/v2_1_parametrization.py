"""Keep magnitude and direction where the parametrization looks for them.

`torch.nn.utils.weight_norm` saved `weight_g` (the magnitude) and `weight_v` (the direction). The one in
`torch.nn.utils.parametrizations`, of 2.1, has them as `parametrizations.weight.original0` and `.original1`. `weight_v` alone is no
sign of it: in a spectral norm it is a singular vector, beside `weight_u`. Source: torch/nn/utils/weight_norm.py and
torch/nn/utils/parametrizations.py (the state-dict hook of weight_norm) of 2.1; formats/torch.md 10.2.
"""

from ckptmigrate import Migrator, Present, Rename

MODULE = r"((?:.*\.)?)"
WEIGHT = r"(\w*weight\w*)"  # a parameter that somebody calls w_v beside another, w_g, is none
NORM, DIRECTION = rf"{MODULE}{WEIGHT}_g", rf"{MODULE}{WEIGHT}_v"

MIGRATOR = Migrator(
    chain="torch.weight_norm",
    version="2.1",
    marks=[Present(NORM, where=r"\1\2_v")],
    operations=[
        Rename(
            {NORM: r"\1parametrizations.\2.original0", DIRECTION: r"\1parametrizations.\2.original1"},
            where={NORM: r"\1\2_v", DIRECTION: r"\1\2_g"},
            back={
                rf"{MODULE}parametrizations\.{WEIGHT}\.original0": r"\1\2_g",
                rf"{MODULE}parametrizations\.{WEIGHT}\.original1": r"\1\2_v",
            },
        ),
    ],
)
