"""``python -m physedit.train`` and ``accelerate launch -m physedit.train``: the trainer without the parent door."""

from physedit.train.cli import train_main

train_main()
