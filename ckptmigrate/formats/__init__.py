"""Open folder: one file, one format (a leading underscore: shared by a family)."""
