"""Reads results of sftrun with vLLM: run by the Python that has vLLM (tests/smoke/vllm_clients.py).

    python vllm_reader.py TASKS.json

TASKS.json is a list of {"task", "model", "prompts", "adapter"}, with prompts as lists of token ids; the answers, one of each prompt, are written to
TASKS.json.answers. logprobs: of the tokens of the prompt but its first; scores: the numbers of the head before any activation; embeddings: of norm 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vllm import LLM, PoolingParams, SamplingParams
from vllm.lora.request import LoRARequest

COMMON = {"dtype": "float32", "enforce_eager": True, "max_model_len": 64, "gpu_memory_utilization": 0.1, "seed": 0}


def logprobs(task: dict, prompts: list[dict]) -> list:
    llm = LLM(model=task["model"], enable_lora=True, max_lora_rank=16, **COMMON)
    adapter = LoRARequest("adapter", 1, task["adapter"]) if task.get("adapter") else None
    answers = []
    for prompt in prompts:  # one at a time: vLLM 0.25 fails for several with an adapter on the CPU (einsum of other sizes)
        [output] = llm.generate([prompt], SamplingParams(max_tokens=1, prompt_logprobs=0), lora_request=adapter, use_tqdm=False)
        answers.append([places[token].logprob for token, places in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:])])
    return answers


def scores(task: dict, prompts: list[dict]) -> list:
    llm = LLM(model=task["model"], runner="pooling", **COMMON)
    return [output.outputs.probs for output in llm.classify(prompts, pooling_params=PoolingParams(use_activation=False), use_tqdm=False)]


def embeddings(task: dict, prompts: list[dict]) -> list:
    llm = LLM(model=task["model"], runner="pooling", convert="embed", **COMMON)
    return [output.outputs.embedding for output in llm.embed(prompts, use_tqdm=False)]


def main() -> None:
    path = Path(sys.argv[1])
    tasks = {"logprobs": logprobs, "scores": scores, "embeddings": embeddings}
    answers = []
    for task in json.loads(path.read_text()):
        answers.append(tasks[task["task"]](task, [{"prompt_token_ids": ids} for ids in task["prompts"]]))
    path.with_name(path.name + ".answers").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
