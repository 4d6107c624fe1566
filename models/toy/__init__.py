"""The small shipped FLUX.1-Kontext editor and the command that rebuilds it."""
