"""Drop the forget gate of an LSTM whose input gate stands for it.

0.20 and 0.21 made the forget gate of an LSTM with `input_forget`, saved it, and never used it: no gradient ever reached it, and
other values in it do not change one bit of the output. 0.22 has no such gate and refuses it ("Unused tensors"). The names are
those of every other LSTM, and the setting is in no file: what tells is an optimizer that has state of the input gate and none
of the forget gate beside it. Source: crates/burn-nn/src/modules/rnn/lstm of 0.21.0 and 0.22.0; formats/burn.md 3.4.
"""

from ckptmigrate import Drop, Migrator, Untrained

GATE, BESIDE = r"((?:.*\.)?)forget_gate\.((?:input|hidden)_transform\.(?:weight|bias))", r"\1input_gate.\2"

MIGRATOR = Migrator(
    chain="burn.coupled_lstm",
    version="0.22",
    marks=[Untrained(GATE, beside=BESIDE)],
    operations=[
        Drop(GATE, reason="a coupled LSTM has no forget gate: it was never used and never trained", beside=BESIDE),
    ],
)
