"""LoRA training of the released sizes on one GPU, beside what ``physedit estimate`` tells; run by ``gpu.sh``."""
