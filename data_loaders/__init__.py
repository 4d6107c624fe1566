"""Edit pairs: reading, resizing, ordering and batching."""
