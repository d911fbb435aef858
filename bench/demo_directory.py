"""Writes the demo's model, a GGUF file, as a directory in Hugging Face layout that both sides of the benchmark load (fp32,
540 MB, once); prints where it is.

    python bench/demo_directory.py .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "tests" / "parity"), str(REPOSITORY / "scripts" / "fixtures")]

from demo_model import hf_directory  # noqa: E402

if __name__ == "__main__":
    gguf = Path(sys.argv[1])
    print(hf_directory(gguf.parent, gguf))
