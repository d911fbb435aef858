#pragma once

/// The interface between the front end (`sftrun`, without LibTorch) and the engine
/// (`libsftrun_engine.so`). It has only C types, because both contain their own copies of the
/// modules without LibTorch.
///
/// @param command   "worker", "generate", "eval", "score", "serve", "chat", "merge", "quantize", "bench" or
///                  "all_reduce"
/// @param request   a JSON object. Paths exist, values are checked, and a flag that was not given
///                  is null.
///
/// worker     config: config::to_json; places: {key: text}, where each key was set, for errors;
///            model_path: of model.name; config_path; overrides: [{key, value, source}]; resume;
///            overwrite, allow_changed_data, allow_changed_length, allow_backend_change: bool;
///            device; batch_size: int|null, as configured; steps_are_auto: bool; max_micro_batch:
///            int, the largest that fits
/// generate   model, adapter, prompt, input, output, system: text|null, with either prompt or both
///            input and output; chat: bool|null (null: if the model has a template);
///            max_new_tokens: int; temperature: number; top_p, min_p, repetition_penalty:
///            number|null; top_k, seed, batch_size: int|null; stop: [text]; overwrite: bool; folder:
///            text|null, for what is finished until all is
/// eval       config: config::to_json; places as worker; models: [{name, model, adapter: text|null}];
///            generate: bool; max_records: int|null; predictions: text|null; batch_size,
///            max_new_tokens and what follows it of generate; folder: text, for logs
/// score      model, input, output: text; adapter: text|null
/// serve      model: text; models: [{name, adapter: text|null}], the first for requests without a
///            name; host: text; port, batch_size, max_waiting, max_new_tokens: int; max_model_len,
///            cache_bytes: int|null; token: text|null
/// chat       model, models as serve; system: text|null; max_new_tokens and what follows it of
///            generate, up to stop
/// merge      model, output: text; adapter: text|null (null: the model is converted); format:
///            "safetensors" or "gguf"; dtype: of the stored weights, for gguf also one of
///            weights::gguf_mixes(); max_shard_size: int, bytes; as_stored, overwrite,
///            no_double_quant: bool; block_size, sample: int|null; skip_modules: [text];
///            data: text|null
/// quantize   model, output, method, dtype: text; block_size, max_shard_size: int; double_quant,
///            overwrite: bool; skip_modules: [text]
/// bench      arch, model: text|null, exactly one of them; seq_len, batch_size, steps: int;
///            overrides: [text], for config::config_from_overrides; places as worker
///
/// all_reduce result: text, the file that rank 0 writes, as JSON: world_size, backend, device, bytes,
///            seconds (mean of an all-reduce of these bytes), bandwidth (bytes/s on the wire of each
///            rank, as nccl-tests compute it), latency_seconds (of 4 bytes)
///
/// generate, eval, score, serve and chat also have as_stored: bool; all but worker, serve, chat and
/// all_reduce have json: bool. device ("auto", "cuda", "cpu") is in all but quantize; dtype ("auto",
/// "fp32", "bf16", "fp16") and threads: int|null are in generate, eval, score, serve, chat and bench.
///
/// @return the exit code (core/error.h). Errors are printed before it returns; nothing is thrown.
extern "C" int sftrun_engine_run(const char* command, const char* request);
using SftrunEngineRun = int (*)(const char* command, const char* request);
