"""Bytes to plain values, bounded: one file, one encoding."""
