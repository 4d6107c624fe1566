"""``transformers serve`` with a tiny Qwen2.5-VL of random weights, as a process of its own.

python tests/support/serve_vision_chat.py FOLDER PORT       FOLDER receives the model, and is its name
"""

import sys

from transformers import AutoProcessor, Qwen2_5_VLConfig
from transformers.cli.transformers import main

from physedit.models.qwen_processor import PictureProcessor
from physedit.models.random_tiny_qwen import build_random_tiny_vision_chat

if __name__ == "__main__":
    folder, port = sys.argv[1:]
    for part in build_random_tiny_vision_chat(seed=0):
        part.save_pretrained(folder)
    # The stock processor also reads videos, for which torchvision would be needed.
    AutoProcessor.register(Qwen2_5_VLConfig, PictureProcessor, exist_ok=True)
    sys.argv = ["transformers", "serve", folder, "--host", "127.0.0.1", "--port", port, "--device", "cpu"]
    main()
