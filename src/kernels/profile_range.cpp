#include "sftrun/kernels/profile_range.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <optional>
#include <string>

namespace sftrun::kernels {
namespace {

/// null: no profiler runs
std::unique_ptr<at::RecordFunction> new_range() {
  std::optional<at::StepCallbacks> callbacks =
      at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  return callbacks ? std::make_unique<at::RecordFunction>(std::move(*callbacks)) : nullptr;
}

}  // namespace

ProfileRange::ProfileRange(std::string_view name) : range_(new_range()) {
  if (range_) range_->before(std::string(name));
}

ProfileRange::ProfileRange(std::string_view name, int64_t number) : range_(new_range()) {
  if (range_) range_->before(fmt::format("{} {}", name, number));
}

ProfileRange::~ProfileRange() = default;

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
