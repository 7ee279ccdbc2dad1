"""Pictures and sounds in prompts, answered by octavo/tiny-omni, which ships with Octavo, too."""

import numpy as np
from PIL import Image, ImageDraw

from octavo import LLM, SamplingParams

picture = Image.new("RGB", (200, 150), "lightgrey")
ImageDraw.Draw(picture).ellipse((60, 30, 140, 110), fill="red")

times = np.arange(8000) / 16000
beep = 0.3 * np.sin(2 * np.pi * 1200 * times) * (times < 0.2)
sound = (np.tile(beep, 3), 16000)  # samples and their rate; bytes, a path or a URL will do as well

CHATS = [
    [{"type": "image", "image": picture}, {"type": "text", "text": "What is this?"}],
    [{"type": "audio", "audio": sound}, {"type": "text", "text": "What do you hear?"}],
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=32)

with LLM("octavo/tiny-omni") as llm:
    for output in llm.chat([[{"role": "user", "content": parts}] for parts in CHATS], GREEDY):
        print(output.outputs[0].text)
