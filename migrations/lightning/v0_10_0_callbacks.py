"""Keep the state of the first two callbacks among those of all callbacks.

Up to 0.9 the best score and path of ModelCheckpoint and the counts of EarlyStopping lay at the top. Lightning's own migration puts them
under the class of the callback; a class is no key that a file without code can hold, so its name stands.
Source: lightning/pytorch/utilities/migration/migration.py of 2.6; formats/torch.md 9.6.
"""

from ckptmigrate import Add, Migrator, Present, Rename

TOP, CALLBACKS = "values/extra/", "values/extra/callbacks"
MOVED = {
    "checkpoint_callback_best_model_score": "ModelCheckpoint/best_model_score",
    "checkpoint_callback_best_model_path": "ModelCheckpoint/best_model_path",
    "checkpoint_callback_best": "ModelCheckpoint/best_model_score",
    "early_stop_callback_wait": "EarlyStopping/wait_count",
    "early_stop_callback_patience": "EarlyStopping/patience",
}

MIGRATOR = Migrator(
    chain="lightning",
    version="0.10.0",
    marks=[Present(rf"{TOP}(?:checkpoint_callback_best|early_stop_callback_).*", on="items")],
    operations=[
        Add(CALLBACKS, fill={}, lacking=True, on="items", optional=True),
        *(Rename(f"{TOP}{old}", f"{CALLBACKS}/{new}", on="items", optional=True) for old, new in MOVED.items()),
    ],
)
