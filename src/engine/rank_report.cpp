#include "rank_report.h"

#include <array>
#include <cstdint>

namespace sftrun::engine {
namespace {

using Bytes = uint64_t observe::RankBytes::*;
constexpr std::array<Bytes, 5> kBytes = {
    &observe::RankBytes::base, &observe::RankBytes::trainable, &observe::RankBytes::gradients,
    &observe::RankBytes::optimizer, &observe::RankBytes::activations_peak};

struct Collective {
  parallel::CollectiveCount parallel::CollectiveCounts::*counted;
  int64_t observe::PerCollective::*reported;
};
constexpr std::array<Collective, 7> kCollectives = {{
    {&parallel::CollectiveCounts::all_reduce, &observe::PerCollective::all_reduce},
    {&parallel::CollectiveCounts::all_gather, &observe::PerCollective::all_gather},
    {&parallel::CollectiveCounts::reduce_scatter, &observe::PerCollective::reduce_scatter},
    {&parallel::CollectiveCounts::all_to_all, &observe::PerCollective::all_to_all},
    {&parallel::CollectiveCounts::broadcast, &observe::PerCollective::broadcast},
    {&parallel::CollectiveCounts::send, &observe::PerCollective::send},
    {&parallel::CollectiveCounts::recv, &observe::PerCollective::recv},
}};

}  // namespace

std::vector<observe::RankReport> gather_rank_reports(parallel::Communicator& comm,
                                                     const observe::RankBytes& own,
                                                     uint64_t model_file_bytes) {
  std::vector<double> values;
  for (const Bytes member : kBytes) values.push_back(static_cast<double>(own.*member));
  for (const Collective& collective : kCollectives) {
    const parallel::CollectiveCount& count = comm.counts().*collective.counted;
    values.push_back(static_cast<double>(count.calls));
    values.push_back(static_cast<double>(count.bytes));
  }
  values.push_back(static_cast<double>(model_file_bytes));
  std::vector<observe::RankReport> reports;
  for (const std::vector<double>& of_rank : comm.all_gather(values)) {
    observe::RankReport report;
    auto value = of_rank.begin();
    for (const Bytes member : kBytes) report.bytes.*member = static_cast<uint64_t>(*value++);
    for (const Collective& collective : kCollectives) {
      report.collectives.*collective.reported = static_cast<int64_t>(*value++);
      report.collective_bytes.*collective.reported = static_cast<int64_t>(*value++);
    }
    report.model_file_bytes = static_cast<uint64_t>(*value);
    reports.push_back(report);
  }
  return reports;
}

}  // namespace sftrun::engine
