"""What runs at set checkpoints: generate, judge, measure, report."""
