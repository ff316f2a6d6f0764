"""Our own folder, for formats that hold tensors and no trees.

model.*               the model, in its order
ema.*                 a twin, under its own name
optimizer.*           "{optimizer}/{position}/{slot}": one tensor a slot; what has no parameter is "{optimizer}/shared/…"
state.*               the tensors of all value trees: RNG, scheduler, extra
training_state.json   everything else, as one JSON object (`record.py`); written last: without it the set is not whole
"""

from __future__ import annotations

from ckptmigrate.format import Layout

LAYOUT = Layout(
    "ckptmigrate",
    recognised_by=("training_state.json",),
    files={
        "model": "model",
        "twins": "{twin}",
        "optimizers": "optimizer",
        "values": "state",
        "record": "training_state",
    },
    last="training_state.json",
    about="our folder: model, optimizer and state in files of tensors, the rest in training_state.json",
)
