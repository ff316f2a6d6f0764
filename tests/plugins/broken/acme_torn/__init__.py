"""What somebody else installed, and does not load."""
