#include "step_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/train/micro_batch.h"
#include "step_values.h"

namespace sftrun::train {
namespace {

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// What the host of a rank measured.
void add_host(const HostNumbers& host, StepReport& report) {
  report.peak_memory_bytes.push_back(static_cast<uint64_t>(host.peak_memory_bytes));
  if (host.gpu_utilization >= 0) report.gpu_utilization.push_back(host.gpu_utilization);
  report.memory_used_bytes.push_back(static_cast<uint64_t>(host.memory_used_bytes));
  report.cpu_utilization.push_back(host.cpu_utilization);
  report.stop_exit_code = std::max(report.stop_exit_code, static_cast<int>(host.stop_exit_code));
  report.all_parts_written = report.all_parts_written && host.has_written_part != 0;
}

/// The rank's first micro-batch with a non-finite loss.
std::optional<MicroBatchPlace> not_finite_place(const RankNumbers& numbers, int dp_rank) {
  for (size_t micro_step = 0; micro_step < numbers.losses.size(); ++micro_step)
    if (!std::isfinite(numbers.losses[micro_step]))
      return MicroBatchPlace{static_cast<int64_t>(micro_step), dp_rank};
  return std::nullopt;
}

}  // namespace

bool StepReport::is_finite() const {
  return std::isfinite(loss) && std::isfinite(grad_norm);
}

StepReport report_of(const std::vector<RankNumbers>& ranks, const parallel::Mesh& mesh,
                     const QueuedStep& queued, const StepDivisors& divisors) {
  StepReport report;
  report.grad_norm = ranks.front().grad_norm / queued.loss_scale;
  report.save_due = ranks.front().host.save_due != 0;
  report.all_parts_written = true;
  double total = 0, aux_total = 0;
  std::vector<double> metric_sums(queued.metric_names.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankNumbers& numbers = ranks[i];
    const auto rank = static_cast<int>(i);
    const double of_rank = sum_of(numbers.losses);
    // The reduced norm is the same on all ranks unless a GPU or a link is broken. A non-finite norm
    // on any rank stops the update.
    if (!std::isfinite(numbers.grad_norm)) report.grad_norm = numbers.grad_norm;
    const bool counts = mesh.counts_loss_of(rank);
    if (counts) {
      total += of_rank;
      aux_total += sum_of(numbers.aux_losses);
      for (size_t m = 0; m < metric_sums.size(); ++m) metric_sums[m] += numbers.metrics[m];
    }
    const bool has_loss = numbers.host.num_terms > 0 && counts;
    report.loss_per_rank.push_back(has_loss ? of_rank / numbers.host.num_terms : kNoLoss);
    add_host(numbers.host, report);
    if (!report.not_finite_at)
      report.not_finite_at = not_finite_place(numbers, mesh.dp_rank_of(rank));
  }
  if (report.gpu_utilization.size() < ranks.size()) report.gpu_utilization.clear();
  if (divisors.num_micro_batches) report.aux_loss = aux_total / *divisors.num_micro_batches;
  const double terms = divisors.num_terms;
  report.loss = total / terms;
  for (size_t i = 0; i < queued.metric_names.size(); ++i)
    report.objective.emplace_back(queued.metric_names[i], metric_sums[i] / terms);
  report.objective.insert(report.objective.end(), queued.batch.metrics.begin(),
                          queued.batch.metrics.end());
  return report;
}

namespace {

/// The records in some of a batch's packed sequences.
std::string records_of(const data::StepBatch& global_batch, const Batches& batches,
                       const std::vector<int64_t>& places) {
  constexpr size_t kShown = 16;
  std::map<std::string, std::set<int64_t>> numbers;  // record numbers by file, ascending
  std::map<std::string, bool> is_table;
  for (const int64_t place : places) {
    for (const int64_t example : global_batch.bins[static_cast<size_t>(place)]) {
      const data::SourceFile& file = batches.file_of(global_batch, example);
      numbers[file.path].insert(global_batch.examples.stored(example).number);
      is_table[file.path] = file.is_table;
    }
  }
  std::vector<std::string> files;
  for (const auto& [path, of_file] : numbers) {
    std::vector<std::string> shown;
    for (const int64_t number : of_file) {
      if (shown.size() < kShown) shown.push_back(std::to_string(number));
    }
    std::string text =
        fmt::format("{}, {} {}", path, plural(is_table[path] ? "row" : "line", of_file.size()),
                    join(shown, ", "));
    if (of_file.size() > kShown) text += fmt::format(" and {} more", of_file.size() - kShown);
    files.push_back(std::move(text));
  }
  return join(files, "; ");
}

}  // namespace

Error not_finite_error(const StepReport& report, const QueuedStep& queued, const Batches& batches,
                       const parallel::Mesh& mesh, int64_t micro_batch_size,
                       const std::string& newest_saved) {
  const auto& at = report.not_finite_at;
  const int64_t num_bins = std::ssize(queued.batch.bins);
  std::vector<int64_t> places(static_cast<size_t>(num_bins));
  std::iota(places.begin(), places.end(), 0);
  if (at) {
    places = places_of(
        {.micro_step = at->micro_step, .size = micro_batch_size, .dealt = &queued.batch.deal}, mesh,
        at->dp_rank, num_bins);
  }
  return {
      ExitCode::kWorkerFailed,
      fmt::format("{} is not finite at step {}; no weight was changed by this step",
                  std::isfinite(report.loss) ? "the gradient norm" : "the loss", queued.step + 1),
      fmt::format("{} of {}", records_of(queued.batch, batches, places),
                  at ? "the micro-batch where it appeared" : "this step's batch"),
      fmt::format("check these records, lower train.learning_rate, or use model.dtype fp32; {}",
                  newest_saved)};
}

}  // namespace sftrun::train
