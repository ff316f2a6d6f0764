"""One dictionary with a key for each thing: our standard torch file, and the loops that people write themselves.

The first of each row is the key we write. The others are those of torch's own examples (`state_dict`, `optimizer`,
`best_acc1`), torchvision, Detectron2 and mmengine (`model`, `lr_scheduler`, `param_schedulers`, `iteration`, `meta`), pycls
(`model_state`), Ultralytics (`ema`, `best_fitness`), fairseq (`last_optimizer_state`), ESRGAN (`params`, `params_ema`) and of
public code at large; formats/torch.md 9.1 has the list with its sources. What `epoch` counts differs from loop to loop, so
nothing is said of it.
"""

from __future__ import annotations

from ckptmigrate.format import Layout

LAYOUT = Layout(
    "plain",
    keys={
        "model": (
            ("model_state_dict",), ("state_dict",), ("model",), ("net",), ("weights",), ("params",), ("module",),
            ("model_state",), ("model_states",), ("net_state_dict",), ("network",), ("weight",),
        ),
        "twins.ema": (("ema_state_dict",), ("ema",), ("model_ema",), ("state_dict_ema",), ("params_ema",)),
        "optimizers": (
            ("optimizer_state_dict",), ("optimizer",), ("optim",), ("optimizers",), ("optim_state_dict",),
            ("optimizer_state",), ("last_optimizer_state",), ("opt",),
        ),
        "schedulers": (
            ("scheduler_state_dict",), ("scheduler",), ("lr_scheduler",), ("lr_scheduler_state_dict",), ("schedulers",),
            ("param_schedulers",), ("sched",),
        ),
        "progress.epoch": (("epoch",), ("meta", "epoch")),
        "progress.step": (
            ("global_step",), ("step",), ("iteration",), ("iter",), ("steps",), ("num_updates",), ("meta", "iter"),
        ),
        "progress.best": (
            ("best_metric",), ("best_acc1",), ("best_prec1",), ("best_acc",), ("best_loss",), ("best_fitness",),
            ("best_score",), ("best_val_loss",), ("best",),
        ),
        "values.rng": (("rng_state",), ("rng",), ("rng_states",), ("random_state",)),
        "values.scaler": (("scaler",), ("scaler_state_dict",), ("grad_scaler",), ("amp_scaler",)),
        "values.config": (("config",), ("cfg",), ("args",), ("hyper_parameters",), ("hparams",), ("opt_args",)),
    },
    about="one dictionary with a key for each thing: our standard, and loops that people write themselves",
)  # fmt: skip
