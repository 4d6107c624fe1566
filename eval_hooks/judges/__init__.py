"""Judges that answer a yes/no question about a region of a picture."""
