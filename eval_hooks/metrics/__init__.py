"""Numbers computed from judged answers and pictures."""
