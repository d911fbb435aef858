#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"

/// One function per subcommand of the front end. Arguments are already parsed and their form is
/// checked. Each function returns the exit code, and throws sftrun::Error for problems that a user
/// can fix.
namespace sftrun::app {

struct TrainOptions {
  std::filesystem::path config;
  std::vector<std::string> overrides;
  std::string nproc_per_node = "auto";
  std::string gpus;  ///< "2" or "0,2,3"; empty: all visible
  int nnodes = 1, node_rank = 0;
  std::string master_addr;
  int master_port = 0;  ///< 0: a free one
  std::string resume = "auto";
  int max_restarts = 0;
  bool dry_run = false, overwrite = false;
  bool allow_changed_data = false, allow_changed_length = false, allow_backend_change = false;
  std::string device = "auto";
  /// Files of Accelerate and DeepSpeed, as parallel.accelerate and parallel.deepspeed; empty: none.
  std::filesystem::path accelerate_config, deepspeed;
  /// The model's path, from the launcher to its workers; empty: not known yet.
  std::filesystem::path model_path;
};
int run_train(const TrainOptions& options);

struct TokenizeOptions {
  std::filesystem::path model, input, output;
  bool chat = false;
};
int run_tokenize(const TokenizeOptions& options);

struct PreviewOptions {
  std::filesystem::path config;
  std::vector<std::string> overrides;
  int64_t num_examples = 3;
  std::optional<std::filesystem::path> html;
  bool json = false;
};
int run_preview(const PreviewOptions& options);

struct DownloadOptions {
  std::string name, revision;
  bool json = false, quiet = false;
};
int run_download(const DownloadOptions& options);

struct GpuInfoOptions {
  bool json = false, watch = false;
};
int run_gpu_info(const GpuInfoOptions& options);

struct MemoryCheckOptions {
  /// The run, with the flags of `sftrun train`. `gpus` may also name cards that are not here.
  TrainOptions run;
  bool json = false;
};
int run_memory_check(const MemoryCheckOptions& options);

struct ConfigOptions {
  std::string action;  ///< check, show, reference, schema
  std::filesystem::path config;
  std::vector<std::string> overrides;
  bool json = false;
  int world_size = 0;  ///< number of devices for batch sizes; 0: the number that they imply, else 1
};
int run_config(const ConfigOptions& options);

struct ImportOptions {
  std::filesystem::path file, output;  ///< output: empty: standard output
  std::string from;                    ///< the tool; empty: recognised
  bool json = false;
};
int run_import(const ImportOptions& options);

/// Loads the engine beside this executable and calls it. @param request see engine_api.h
int run_in_engine(const std::string& command, const nlohmann::json& request);

/// Names and versions of this program and the libraries it uses, LibTorch's and NCCL's read without
/// loading them.
std::string version_text();

}  // namespace sftrun::app
