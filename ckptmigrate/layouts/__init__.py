"""Open folder: one file, one layout of the parts of a checkpoint."""
