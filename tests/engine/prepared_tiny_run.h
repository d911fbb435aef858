#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "prepared_run.h"
#include "sftrun/core/file.h"
#include "sftrun/train/identity.h"
#include "sftrun/train/resume.h"
#include "support/load_config.h"
#include "support/test_data.h"

namespace sftrun::engine {

/// A run of two steps of a tiny model in this process, up to its trainer. One at a time, as of Rank.
struct PreparedTinyRun {
  /// @param directory of its data and its results   @param overrides of the configuration
  explicit PreparedTinyRun(const std::filesystem::path& directory,
                           std::vector<std::string> overrides = {}) {
    const std::filesystem::path data = directory / "data.jsonl";
    std::string lines;
    for (const char* answer : {"one", "two", "three", "four"})
      lines +=
          R"({"messages": [{"role": "user", "content": "say"}, {"role": "assistant", "content": ")" +
          std::string(answer) + "\"}]}\n";
    write_file_atomically(data, lines);
    for (const std::string& own :
         {"model.name=" + (test::kModels / "tied-gqa").string(), std::string("model.dtype=fp32"),
          "data.train=" + data.string(), "data.cache_dir=" + (directory / "cache").string(),
          std::string("data.packing=false"), std::string("tuning.lora.r=2"),
          std::string("train.batch_size=1"), std::string("train.grad_accum=2"),
          std::string("train.epochs=1"), std::string("output.tensorboard=false"),
          "output.dir=" + (directory / "run").string()})
      overrides.insert(overrides.begin(), own);
    config::LoadedConfig loaded = config::config_from_overrides(overrides);
    config::resolve(loaded, "", /*world_size=*/1);
    run.config = std::move(loaded.config);
    config::resolve_axes(run.config.parallel, 1, 1);
    run.model_path = test::kModels / "tied-gqa";
    run.compute = {at::kCPU, at::kFloat};
    run.checkpoint = weights::Checkpoint::open(run.model_path);
    run.rendered_at_unix_s = 1'700'000'000;
    std::filesystem::create_directories(run.run_dir());
  }

  /// @return 0, or the exit code of a stop
  int prepare() {
    rank.connect(run.config.parallel, run.compute.device);
    run.division = std::make_unique<ModelDivision>(rank.comm(), run.config, run.compute.device);
    resolve_auto(run.config, *run.checkpoint);
    run.division->divide_matrices(*run.checkpoint, run.config);
    WeightHashing hashing(run.checkpoint, rank.env());
    train::ResumeOptions resume;
    resume.from = "auto";
    run.resume_from = train::find_checkpoint(resume, run.run_dir(), rank.comm());
    std::optional<train::TrainState> saved;
    if (run.resume_from) saved = train::read_train_state(*run.resume_from);
    prepare_data(run, saved ? &*saved : nullptr, {.batch_size = 1}, rank);
    run.identity =
        train::identity_of(run.config, train::model_identity(*run.checkpoint, *run.text),
                           run.data.fingerprint, run.data.val_fingerprint(), run.data.parts);
    if (const int code = load_model(run, rank)) return code;
    return add_weights(run, hashing, rank) ? 0 : 1;
  }

  Rank rank;
  PreparedRun run;
};

}  // namespace sftrun::engine
