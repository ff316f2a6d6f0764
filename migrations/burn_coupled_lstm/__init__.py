"""What became of the gates that a coupled LSTM never used."""

from ckptmigrate import Chain

CHAIN = Chain(
    "burn.coupled_lstm",
    family="burn",
    about="drops the forget gates of LSTMs with input_forget, which the optimizer of the same run tells from all others",
)
