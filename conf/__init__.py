"""Hydra configuration: yaml files only."""
