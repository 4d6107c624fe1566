"""Runs beside each other: what differs in their settings and in their numbers, and whether that is more than chance."""
