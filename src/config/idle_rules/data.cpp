#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "idle_rules/rules.h"
#include "sftrun/core/user_path.h"

namespace sftrun::config {
namespace {

/// Whether every data set is said to have texts without answers.
bool all_are_text(const DataConfig& data) {
  const auto is_text = [&](const DataSource& source) {
    return is_format(source.format == RecordFormat::kAuto ? data.format : source.format,
                     &RecordFormatInfo::is_text);
  };
  return !data.train.empty() && std::all_of(data.train.begin(), data.train.end(), is_text) &&
         std::all_of(data.val.begin(), data.val.end(), is_text);
}

std::string for_text(const RunConfig& run, const RunFacts&) {
  return all_are_text(run.data) ? " on data of the format text" : "";
}

/// Queries and texts are not rendered.
std::string for_queries(const RunConfig& run, const RunFacts&) {
  const ObjectiveInfo& objective = run.train.objective_info();
  return objective.reads_retrieval() ? fmt::format(" with train.objective {}", objective.name) : "";
}

bool draws_data(const DataConfig& data) {
  const auto is_drawn = [](const DataSource& source) {
    return source.weight != std::floor(source.weight);
  };
  // Streaming takes the share of each data set from the order of its files.
  const bool draws_shares =
      !data.streaming && std::any_of(data.train.begin(), data.train.end(), is_drawn);
  return data.shuffle || data.val_split > 0 || draws_shares;
}

/// Whether the order of a stream depends on the size of its windows.
bool orders_windows(const DataConfig& data) {
  return data.shuffle || data.packing || data.train.size() > 1;
}

bool weighs_validation(const DataConfig& data) {
  return std::any_of(data.val.begin(), data.val.end(),
                     [](const DataSource& source) { return source.weight != 1; });
}

bool have_own_formats(const DataConfig& data) {
  const auto has_own = [](const DataSource& s) { return s.format != RecordFormat::kAuto; };
  return std::all_of(data.train.begin(), data.train.end(), has_own) &&
         std::all_of(data.val.begin(), data.val.end(), has_own) && !data.train.empty();
}

}  // namespace

IdleRules rules_of_data() {
  return {
      {{"data.shuffle_buffer"},
       [](const RunConfig& run, const RunFacts&) {
         if (!run.data.streaming) return " without data.streaming";
         return orders_windows(run.data) ? ""
                                         : " without data.shuffle and data.packing, where records "
                                           "stay in the order of the "
                                           "data set";
       }},
      {{"data.cache_dir"},
       [](const RunConfig& run, const RunFacts&) {
         const bool is_used = !run.data.streaming || !run.data.val.empty();
         return is_used ? "" : " with data.streaming, which tokenizes during training";
       },
       [](const RunConfig& asked, const RunConfig&) { return is_none_word(asked.data.cache_dir); }},
      {{"data.bin_tokens"},
       [](const RunConfig& run, const RunFacts&) {
         return run.data.packing ? "" : " without data.packing";
       }},
      {.keys = {"data.packing"},
       .reason =
           [](const RunConfig& run, const RunFacts&) {
             return run.train.writes_answers()
                        ? " with train.rollouts: answers that the run writes are not packed"
                        : "";
           },
       .is_implied = [](const RunConfig& asked, const RunConfig&) { return !asked.data.packing; },
       .also_default = true},
      {{"data.seed"},
       [](const RunConfig& run, const RunFacts&) {
         return draws_data(run.data) ? "" : " without data.shuffle and data.val_split";
       }},
      {{"data.format"},
       [](const RunConfig& run, const RunFacts&) {
         return have_own_formats(run.data) ? ": each data set has a format of its own" : "";
       }},
      {{"data.val"}, [](const RunConfig& run, const RunFacts&) { return why_no_evaluation(run); }},
      {.keys = {"data.val"},
       .reason =
           [](const RunConfig& run, const RunFacts&) {
             return weighs_validation(run.data)
                        ? ": an evaluation reads each record once; max_samples limits a data set"
                        : "";
           },
       .part = "weight in data.val"},
      {{"data.thinking", "data.empty_thinking", "data.loss_on"}, for_text},
      {{"data.thinking", "data.empty_thinking"}, for_queries},
      {{"data.thinking"},
       [](const RunConfig& run, const RunFacts&) {
         const bool splits = run.data.thinking == Thinking::kSplit;
         return splits && run.data.loss_on != LossOnChoice::kAssistant
                    ? ": split is for data.loss_on assistant"
                    : "";
       }},
  };
}

}  // namespace sftrun::config
