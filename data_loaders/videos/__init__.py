"""Edit pairs from videos: decoding, choice of frames, instructions, and the set they are written to."""
