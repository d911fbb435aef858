#include "division_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/refusals.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/plan/refusals.h"
#include "sftrun/plan/stages.h"

namespace sftrun::app {
namespace {

constexpr const char* kNproc = "--nproc-per-node";

/// "2, 4 or 8"
std::string listed(const std::vector<int64_t>& sizes) {
  std::vector<std::string> words;
  words.reserve(sizes.size());
  for (const int64_t size : sizes) words.push_back(std::to_string(size));
  return joined(words, " or ");
}

/// "2 or 4": the multiples of `copy` around a number of processes.
std::string near_processes(int64_t processes, int64_t copy) {
  const int64_t below = processes / copy * copy;
  return below < 2 ? std::to_string(below + copy) : fmt::format("{} or {}", below, below + copy);
}

/// The sizes from 2 to `max` that divide a number of processes.
std::vector<int64_t> dividing(int64_t processes, int64_t max) {
  std::vector<int64_t> sizes;
  for (int64_t size = 2; size <= std::min(processes, max); ++size)
    if (processes % size == 0) sizes.push_back(size);
  return sizes;
}

/// The flags of one command, checked against its model and its processes.
class DivisionCheck {
 public:
  DivisionCheck(const DivisionFlags& flags, const DividedUse& use, const plan::ModelFiles* files,
                const config::TuningConfig& tuning, int64_t processes)
      : flags_(flags), use_(use), files_(files), processes_(processes) {
    run_.tuning = tuning;
    run_.train.router_aux_loss_coef = 0;  // it is of the loss
  }

  void run() {
    if (is("device_map")) return require_stages(pp(), "--pp");
    if (processes_ == 1) fail_on_one_process();
    if (is("fsdp") && !use_.takes_shards) fail_with_shards();
    // The model first: a number of processes that suits other sizes is no help.
    if (pp() > 1) require_stages(pp(), "--pp");
    if (tp() > 1) require_parts(tp(), "--tp");
    if (processes_ % (pp() * tp()) != 0) fail_to_divide();
    const int64_t left = processes_ / (pp() * tp());
    if (is("pipeline") && !flags_.pp) return require_stages(left, kNproc);
    if (is("tensor") && !flags_.tp) return require_parts(left, kNproc);
    if (use_.has_one_copy && left > 1 && !is("fsdp")) fail_with_copies(left);
  }

 private:
  bool is(const char* strategy) const { return flags_.strategy == strategy; }
  int64_t pp() const { return flags_.pp.value_or(1); }
  int64_t tp() const { return flags_.tp.value_or(1); }

  /// The flags that divide the model: "--strategy tensor --tp 2".
  std::string given() const {
    std::string text;
    if (flags_.strategy != "auto") text += " --strategy " + flags_.strategy;
    if (flags_.tp) text += fmt::format(" --tp {}", *flags_.tp);
    if (flags_.pp) text += fmt::format(" --pp {}", *flags_.pp);
    return text.substr(1);
  }
  std::string place_of_given() const {
    std::vector<std::string> names;
    if (flags_.strategy != "auto") names.emplace_back("--strategy");
    if (flags_.tp) names.emplace_back("--tp");
    if (flags_.pp) names.emplace_back("--pp");
    return joined(names, " and ") + " on the command line";
  }
  /// "--nproc-per-node 4", as all machines together must have them
  std::string started(const std::string& processes) const {
    return use_.nnodes == 1
               ? fmt::format("{} {}", kNproc, processes)
               : fmt::format("{} processes on all machines together ({})", processes, kNproc);
  }
  /// @param flag "--tp", or --nproc-per-node of a size that follows from it
  std::string place_of(const std::string& flag) const {
    return flag == kNproc ? fmt::format("--strategy and {} on the command line", kNproc)
                          : flag + " on the command line";
  }

  [[noreturn]] void fail_on_one_process() const {
    const int64_t size = pp() * tp();
    if (size == 1 && flags_.strategy == "auto")
      throw ConfigError(fmt::format("`{}` divides nothing, and there is one process", given()),
                        place_of_given(), fmt::format("leave it out, or add {} N", kNproc));
    const std::string add =
        "add " + started(size > 1 ? std::to_string(size) : std::string("2 or more"));
    throw ConfigError(
        fmt::format("`{}` divides the model over {}processes, and there is one", given(),
                    size > 1 ? fmt::format("{} ", size) : ""),
        place_of_given(),
        use_.is_stream
            ? fmt::format("name files for --input and --output, and {}", add)
            : fmt::format("{}; or use --strategy device_map for the GPUs of one process", add));
  }

  [[noreturn]] void fail_with_shards() const {
    throw ConfigError(
        fmt::format("`--strategy fsdp` is not for {}: each token would gather all layers",
                    use_.command),
        "--strategy on the command line", "use --strategy tensor or pipeline");
  }

  [[noreturn]] void fail_to_divide() const {
    const int64_t size = pp() * tp();
    throw ConfigError(
        fmt::format("`{}` needs {}{} processes, and there are {}", given(),
                    size > processes_ ? "" : "a multiple of ", size, processes_),
        fmt::format("{}; {} on the command line", place_of_given(), kNproc),
        std::string("use ") +
            started(use_.has_one_copy ? std::to_string(size) : near_processes(processes_, size)));
  }

  [[noreturn]] void fail_with_copies(int64_t copies) const {
    std::vector<std::string> fixes = {"use " + started(std::to_string(pp() * tp()))};
    if (pp() == 1 && tp() > 1 && has_stages(copies))
      fixes.push_back(fmt::format("add --pp {}", copies));
    if (tp() == 1 && pp() > 1 && has_parts(copies))
      fixes.push_back(fmt::format("add --tp {}", copies));
    throw ConfigError(
        fmt::format("`{}` on {} processes makes {} copies of the model, and {} has one", given(),
                    processes_, copies, use_.command),
        fmt::format("{}; {} on the command line", place_of_given(), kNproc),
        joined(fixes, ", or "));
  }

  /// Why the model cannot have these axes at all; empty: it can.
  std::string refusal(const config::Axes& axes) const {
    const config::Refusal* found =
        config::find_refusal(run_, axes, plan::model_facts(files_->arch, run_));
    const bool is_of_model = found != nullptr && found->known_by == config::KnownBy::kModel;
    return is_of_model ? config::message_of(*found, run_) : "";
  }

  int64_t max_stages() const { return files_->arch.num_layers + 2; }
  bool has_stages(int64_t stages) const {
    return files_ == nullptr || (stages <= max_stages() && refusal({.pp = stages}).empty());
  }
  void require_stages(int64_t stages, const std::string& flag) const {
    if (files_ == nullptr || stages == 1) return;
    if (const std::string why = refusal({.pp = stages}); !why.empty())
      throw ConfigError(why, place_of_given(), "use --strategy tensor" + or_shards());
    config::RunConfig run = run_;
    run.parallel.axes.pp = stages;
    try {
      plan::require_stages(files_->arch, run, {});
    } catch (const ConfigError& error) {
      throw ConfigError(error.message(), place_of(flag), fix_of_stages(flag));
    }
  }
  std::string fix_of_stages(const std::string& flag) const {
    if (is("device_map")) return fmt::format("use --pp {} or less", max_stages());
    const std::string instead = use_.takes_shards ? ", or use --strategy fsdp" : "";
    if (flag != kNproc)
      return fmt::format("use --pp {} or less, with {} a multiple of it{}", max_stages(), kNproc,
                         instead);
    const std::vector<int64_t> fitting = dividing(processes_ / tp(), max_stages());
    if (use_.has_one_copy || fitting.empty())
      return fmt::format("use {} or less{}", started(std::to_string(max_stages() * tp())), instead);
    return fmt::format("add --pp {}{}", listed(fitting), instead);
  }
  std::string or_shards() const { return use_.takes_shards ? " or fsdp" : ""; }

  bool has_parts(int64_t parts) const { return files_ == nullptr || !error_of(parts); }
  std::optional<ConfigError> error_of(int64_t parts) const {
    try {
      plan::tensor_part(files_->arch, run_, files_->blocks, {.rank = 0, .size = parts});
    } catch (const ConfigError& error) {
      return error;
    }
    return std::nullopt;
  }
  void require_parts(int64_t parts, const std::string& flag) const {
    if (files_ == nullptr || parts == 1) return;
    if (const auto error = error_of(parts))
      throw ConfigError(error->message(), place_of(flag), fix_of_parts(flag));
  }
  std::string fix_of_parts(const std::string& flag) const {
    constexpr int64_t kUsual = 16;  // more are listed if there are more processes
    const int64_t left = std::max<int64_t>(1, processes_ / pp());
    const std::vector<int64_t> all =
        plan::sizes_of_parts(files_->arch, run_, files_->blocks, std::max(left, kUsual));
    const std::string instead = "use --strategy pipeline" + or_shards();
    if (all.empty()) return instead;
    std::vector<int64_t> fitting;
    std::copy_if(all.begin(), all.end(), std::back_inserter(fitting),
                 [&](int64_t size) { return left % size == 0; });
    if (flag == kNproc && use_.has_one_copy) {
      std::vector<int64_t> processes = all;
      for (int64_t& count : processes) count *= pp();
      return fmt::format("use {}, or {}", started(listed(processes)), instead);
    }
    const char* verb = flag == kNproc ? "add" : "use";
    if (fitting.empty())
      return fmt::format("{} --tp {}, with {} a multiple of it, or {}", verb, listed(all), kNproc,
                         instead);
    return fmt::format("{} --tp {}, or {}", verb, listed(fitting), instead);
  }

  const DivisionFlags& flags_;
  const DividedUse& use_;
  const plan::ModelFiles* files_;
  int64_t processes_;
  config::RunConfig run_;
};

}  // namespace

void check_division(const DivisionFlags& flags, const DividedUse& use,
                    const plan::ModelFiles* files, const config::TuningConfig& tuning,
                    int64_t processes) {
  DivisionCheck(flags, use, files, tuning, processes).run();
}

}  // namespace sftrun::app
