"""Benchmarks: our rows beside their peers, with device times, floors and checks."""
