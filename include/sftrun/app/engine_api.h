#pragma once

/// The one door between the front (`sftrun`, no LibTorch) and the engine (`libsftrun_engine.so`),
/// crossed with plain C types: both carry their own copies of the rooms without LibTorch.
///
/// @param command "worker", "generate", "score", "merge", "bench", "versions"
/// @param request a JSON object. For "worker": {"config": config::to_json, "model_path": where
/// model.name lies, "config_path", "overrides": [{key,value,source}],
///   "resume", "overwrite", "allow_changed_data", "allow_changed_length", "allow_backend_change",
///   "device"; "steps_are_auto", "batch_size": int|null, "max_micro_batch": what of the batch sizes
///   was asked for, and what fits}. For the others: every flag
///   of the command by its long name with underscores ("max_new_tokens"), typed, null when not
///   given. generate: model, adapter, prompt, input, output, system: text|null; chat: bool|null
///   (null: if the model has a template);
///     max_new_tokens: int; temperature: number; top_p: number|null; top_k, seed, threads,
///     batch_size: int|null; device, dtype: text; json: bool. Exactly one of prompt and input is
///     there; output is, where input is.
///   score: model, input, output: text; adapter: text|null; device, dtype: text; threads: int|null.
///   merge: model, output: text; adapter: text|null (null: the model is converted); format:
///   "safetensors"|"gguf"; dtype: "auto"|"bf16"|"f16"|"f32", of gguf also what
///   weights::gguf_mixes() has; max_shard_size: int, in bytes; as_stored, overwrite, json: bool.
///   quantize: model, output, method, dtype; overwrite, json: bool. bench:
///   arch, model: text|null, exactly one of them; seq_len, batch_size, steps: int; device, dtype:
///   text; threads: int|null;
///     json: bool; overrides: [text], for config::config_from_overrides, which has already found
///     them good.
///   In all but bench, model is given (an adapter's base is filled in); device is
///   "auto"|"cuda"|"cpu", dtype "auto"|"fp32"|"bf16"|"fp16".
/// @return the process's exit code (core/error.h). Errors are printed before it returns; nothing is
/// thrown.
extern "C" int sftrun_engine_run(const char* command, const char* request);
using SftrunEngineRun = int (*)(const char* command, const char* request);
