"""Measurements behind the numbers of the documentation; ``python -m benchmarks`` runs them one after another."""
