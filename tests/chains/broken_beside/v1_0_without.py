"""A file that looks like a step and declares none, beside others."""
