"""Launch plans: which processes start, with which environment."""
