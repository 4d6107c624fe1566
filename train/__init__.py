"""The trainer: composition, the training loop, checkpoints and the command line."""
