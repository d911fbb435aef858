#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/app/command_list.h"
#include "sftrun/config/run_config.h"
#include "sftrun/core/file.h"
#include "sftrun/core/open_file.h"

namespace sftrun::launch {
struct LaunchRequest;
}

/// One function per subcommand of the front end. Arguments are already parsed and their form is
/// checked. Each function returns the exit code, and throws sftrun::Error for problems that a user
/// can fix.
namespace sftrun::app {

/// The processes of a command that runs on several devices.
struct LaunchFlags {
  std::string nproc_per_node = "auto";
  std::string gpus;  ///< "2" or "0,2,3"; empty: all visible
  int nnodes = 1, node_rank = 0;
  std::string master_addr;
  int master_port = 0;  ///< 0: a free one
  std::string device = "auto";

  /// The user asked for processes of this program: a scheduler's tasks start launchers then.
  bool asks_for_processes() const {
    return nproc_per_node != "auto" || !gpus.empty() || nnodes > 1;
  }
  bool asks_for_several() const {
    return nnodes > 1 || (nproc_per_node != "auto" && nproc_per_node != "1");
  }
  /// What the flags ask of the launcher.
  launch::LaunchRequest request() const;
};

struct TrainOptions : LaunchFlags {
  std::filesystem::path config;
  std::vector<std::string> overrides;
  std::string resume = "auto";
  int max_restarts = 0;
  bool dry_run = false, overwrite = false;
  bool allow_changed_data = false, allow_changed_length = false, allow_backend_change = false;
  std::string profile;  ///< steps, as core/step_range.h has them; empty: none
  /// Files of Accelerate and DeepSpeed, as parallel.accelerate and parallel.deepspeed; empty: none.
  std::filesystem::path accelerate_config, deepspeed;
  /// The model's path, from the launcher to its workers; empty: not known yet.
  std::filesystem::path model_path;
  /// The largest automatic micro-batch, from the launcher to its workers, after a larger one did not
  /// fit; 0: by the plan.
  int64_t max_micro_batch = 0;
  /// The images that the launcher plans for, to its workers (planned_images.h); empty: none.
  std::string images_of_bin;
};
int run_train(const TrainOptions& options);

struct TokenizeOptions {
  std::filesystem::path model, output;
  config::DataSource input;
  bool chat = false;
};
int run_tokenize(const TokenizeOptions& options);

struct PreviewOptions {
  std::filesystem::path config;
  std::vector<std::string> overrides;
  int64_t num_examples = 3;
  bool validation = false;  ///< shows data.val in place of data.train
  std::optional<std::filesystem::path> html;
  bool json = false;
};
int run_preview(const PreviewOptions& options);

struct DownloadOptions {
  std::string name, revision;
  bool json = false;
};
int run_download(const DownloadOptions& options);

struct UploadOptions {
  std::filesystem::path run, from;
  std::string repo;  ///< "owner/name"; empty: of the token's user, named as the run
  std::string what = "auto", base, revision, message;
  bool is_private = false, dry_run = false, json = false;
};
int run_upload(const UploadOptions& options);

struct GpuInfoOptions {
  bool json = false, watch = false;
};
int run_gpu_info(const GpuInfoOptions& options);

struct ReportOptions {
  std::vector<std::filesystem::path> run_dirs;
  std::filesystem::path output;
  SpecialFile special = SpecialFile::kRefused;  ///< allowed if the user names the output
  bool json = false;
};
int run_report(const ReportOptions& options);

struct DoctorOptions : LaunchFlags {
  bool json = false, no_all_reduce = false;
  std::filesystem::path result;  ///< from the launcher to its workers: where rank 0 writes numbers
};
int run_doctor(const DoctorOptions& options);

/// `--images` and `--image-size`
struct ImageFlags {
  int64_t of_sequence = 0;         ///< 0: texts alone
  std::string size = "1024x1024";  ///< width and height in pixels, before the image processor
};

struct MemoryCheckOptions {
  /// The run, with the flags of `sftrun train`. `gpus` may also name cards that are not here.
  TrainOptions run;
  ImageFlags images;
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

/// Answers that flags give; nullopt: asked, or the default.
struct InitOptions {
  bool machine = false, yes = false, overwrite = false;
  std::filesystem::path output;
  std::optional<std::string> devices, dtype, strategy, nodes, node_rank, master;  // --machine
  std::optional<std::string> model, data, val_split, mode, max_seq_len, epochs;   // a run
  std::optional<std::string> objective;                                           // by its name
  std::vector<std::string> rewards;    // a run on prompts: functions, or one list of them
  std::vector<std::string> fields;     // "KEY=COLUMN,…": data.fields
  std::optional<std::string> teacher;  // a run with one
};
int run_init(const InitOptions& options);

struct ImportOptions {
  std::filesystem::path file, output;  ///< output: empty: standard output
  std::string from;                    ///< the tool; empty: recognised
  bool overwrite = false, json = false;
};
int run_import(const ImportOptions& options);

/// Loads the engine beside this executable and calls it. @param request see engine_api.h
int run_in_engine(const std::string& command, const nlohmann::ordered_json& request);
template <class Request>
int run_in_engine(const Request& request) {
  return run_in_engine(command_of(request), json_of(request));
}
/// The same in a process that a launcher of this program has started. With another exit code than 0
/// the process ends at once.
int run_as_worker(const std::string& command, const nlohmann::ordered_json& request);
template <class Request>
int run_as_worker(const Request& request) {
  return run_as_worker(command_of(request), json_of(request));
}
/// A request that the launcher has written for its workers, or an answer of the engine.
template <class T>
T read_json_file(const std::filesystem::path& file) {
  return read_json<T>(nlohmann::ordered_json::parse(read_text_file(file)));
}

/// A command of the engine whose processes share the records of a file.
struct RecordsCommand {
  std::string name;    ///< of the subcommand and of the engine's command
  RanksRequest ranks;  ///< `folder` is set
  std::function<nlohmann::ordered_json(const RanksRequest& ranks)> request;  ///< with these ranks
  LaunchFlags launch;
  /// Holds what is finished, and logs, while the command runs; empty: the command is one process.
  /// What rank 0 writes to `result` in it is printed at the end, if this process is the launcher.
  std::filesystem::path folder;
  /// In place of `folder` for a command that keeps nothing: it is removed at the end, unless a worker
  /// failed whose log is in it.
  bool has_temporary_folder = false;
  bool has_terminal = false;  ///< rank 0 reads standard input and writes standard output itself
};
/// Runs the command on all devices, as the launch flags say: in this process, in processes that it
/// starts, or as one of the processes that another launcher has started.
/// @throws as launch::make_plan and launch::supervise
int run_on_devices(const RecordsCommand& command);
/// @param command with its launch flags and its folder
template <class Request>
int run_on_devices(const Request& request, RecordsCommand command) {
  command.name = command_of(request);
  command.ranks = request.ranks;
  command.launch.device = request.ranks.compute.device;
  command.request = [whole = request](const RanksRequest& ranks) mutable {
    whole.ranks = ranks;
    return json_of(whole);
  };
  return run_on_devices(command);
}

/// Names and versions of this program and the libraries it uses, LibTorch's and NCCL's read without
/// loading them.
std::string version_text();
/// The line of version_text() that begins with `name`, without the name; empty if there is none.
std::string version_of(const std::string& versions, std::string_view name);

}  // namespace sftrun::app
