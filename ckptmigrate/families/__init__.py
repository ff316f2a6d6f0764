"""Open folder: one file, one framework's optimizer and scheduler state."""
