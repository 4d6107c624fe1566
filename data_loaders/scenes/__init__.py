"""The embedded world: small scenes drawn under known physics."""
