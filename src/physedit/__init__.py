"""Fine-tuning for physics-aware image editors."""
