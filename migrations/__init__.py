"""Open folder: the shipped chains, one folder each, one file a step (installed as ckptmigrate.migrations)."""
