"""Whole programs: finding the transposed convolutions in them and running them here."""
