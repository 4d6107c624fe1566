"""The toy Qwen-Image-Edit and the command that builds it."""
