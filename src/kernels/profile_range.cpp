#include "sftrun/kernels/profile_range.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "nvtx.h"

namespace sftrun::kernels {
namespace {

/// null: no profiler runs
std::unique_ptr<at::RecordFunction> new_range() {
  std::optional<at::StepCallbacks> callbacks =
      at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  return callbacks ? std::make_unique<at::RecordFunction>(std::move(*callbacks)) : nullptr;
}

/// @param text makes the range's name, if anybody reads it
template <class Text>
std::unique_ptr<at::RecordFunction> begin_range(Text&& text) {
  std::unique_ptr<at::RecordFunction> range = new_range();
  if (!range && !nvtx_listens()) return nullptr;
  std::string name = text();
  if (nvtx_listens()) nvtx_push(name);
  if (range) range->before(std::move(name));
  return range;
}

}  // namespace

ProfileRange::ProfileRange(std::string_view name)
    : range_(begin_range([&] { return std::string(name); })) {}

ProfileRange::ProfileRange(std::string_view name, int64_t number)
    : range_(begin_range([&] { return fmt::format("{} {}", name, number); })) {}

ProfileRange::~ProfileRange() {
  if (nvtx_listens()) nvtx_pop();
}

std::string_view range_name(Work work) {
  switch (work) {
    case Work::kStarting:
      return "start";
    case Work::kLoading:
      return "load";
    case Work::kTokenizing:
      return "tokenize";
    case Work::kTraining:
      return "training";
    case Work::kDataLoader:
      return "data loader";
    case Work::kForward:
      return "forward";
    case Work::kBackward:
      return "backward";
    case Work::kOptimizer:
      return "optimizer";
    case Work::kEvaluating:
      return "evaluation";
    case Work::kSaving:
      return "checkpoint";
    case Work::kExporting:
      return "export";
    case Work::kGenerating:
      return "generation";
    case Work::kMetrics:
      return "metrics";
  }
  return "";
}

}  // namespace sftrun::kernels
