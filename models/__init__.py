"""The editors that can be trained, behind one protocol."""
