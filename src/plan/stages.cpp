#include "sftrun/plan/stages.h"

#include <algorithm>
#include <limits>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/plan/device_map.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::plan {
namespace {

/// Values in the matrices of a layer, of which `experts` are counted where it is sparse.
double matrix_values(const spec::ArchSpec& arch, int64_t layer, int64_t experts) {
  const auto values = [](const auto& matrix) {
    return static_cast<double>(matrix.in_features) * static_cast<double>(matrix.out_features);
  };
  double sum = 0;
  for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) sum += values(linear);
  for (const spec::ExpertSpec& matrix : spec::layer_experts(arch, layer))
    sum += static_cast<double>(experts) * values(matrix);
  return sum;
}

double layer_cost(const spec::ArchSpec& arch, int64_t layer, int64_t seq_len) {
  return matrix_values(arch, layer, arch.mixture.top_k) +
         spec::mixer_products(arch, layer, seq_len);
}

}  // namespace

std::vector<double> unit_costs(const spec::ArchSpec& arch, int64_t seq_len) {
  std::vector<double> costs = {0};  // the embedding copies rows
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    costs.push_back(layer_cost(arch, layer, seq_len));
  costs.push_back(static_cast<double>(arch.vocab_size) * static_cast<double>(arch.hidden_size));
  return costs;
}

std::vector<double> activation_shares(const spec::ArchSpec& arch, const config::RunConfig& config) {
  const std::vector<int64_t> firsts = stages_of(arch, config);
  const int64_t head = arch.num_layers + 1;
  std::vector<double> shares;
  for (size_t stage = 0; stage + 1 < firsts.size(); ++stage) {
    const int64_t layers = std::min(firsts[stage + 1], head) - std::max<int64_t>(firsts[stage], 1);
    const auto stages_left = static_cast<int64_t>(firsts.size() - 1 - stage);
    const auto under_way = static_cast<double>(
        std::min(stages_left, config.train.grad_accum.value.value_or(stages_left)));
    shares.push_back(under_way * static_cast<double>(std::max<int64_t>(0, layers)) /
                     static_cast<double>(arch.num_layers));
  }
  return shares;
}

std::vector<int64_t> balanced_stages(const std::vector<double>& costs, int64_t stages) {
  const auto units = static_cast<int64_t>(costs.size());
  SFTRUN_CHECK(stages >= 1 && stages <= units);
  std::vector<double> sums = {0};
  for (const double cost : costs) sums.push_back(sums.back() + cost);
  /// The best division of the first units into a number of stages.
  struct Division {
    double largest = std::numeric_limits<double>::infinity(), squares = 0;
    int64_t begin = 0;  // of its last stage
    bool operator<(const Division& other) const {
      return largest != other.largest ? largest < other.largest : squares < other.squares;
    }
  };
  std::vector<std::vector<Division>> best(static_cast<size_t>(stages) + 1,
                                          std::vector<Division>(static_cast<size_t>(units) + 1));
  best[0][0].largest = 0;
  for (int64_t stage = 1; stage <= stages; ++stage) {
    for (int64_t end = stage; end <= units; ++end) {
      Division& division = best[static_cast<size_t>(stage)][static_cast<size_t>(end)];
      for (int64_t begin = stage - 1; begin < end; ++begin) {
        const Division& before = best[static_cast<size_t>(stage) - 1][static_cast<size_t>(begin)];
        const double cost = sums[static_cast<size_t>(end)] - sums[static_cast<size_t>(begin)];
        const Division tried{std::max(before.largest, cost), before.squares + cost * cost, begin};
        if (tried < division) division = tried;
      }
    }
  }
  std::vector<int64_t> firsts = {units};
  for (int64_t stage = stages; stage >= 1; --stage) {
    const auto end = static_cast<size_t>(firsts.front());
    firsts.insert(firsts.begin(), best[static_cast<size_t>(stage)][end].begin);
  }
  return firsts;
}

std::vector<int64_t> stages_of(const spec::ArchSpec& arch, const config::RunConfig& config) {
  if (config.parallel.axes.stages_in_process) return device_stages(arch, config.parallel).firsts;
  return balanced_stages(unit_costs(arch, config.model.max_seq_len), config.parallel.axes.pp);
}

namespace {

std::string describe_units(int64_t first, int64_t end, int64_t num_layers) {
  std::vector<std::string> parts;
  if (first == 0) parts.emplace_back("embedding");
  const int64_t from = std::max<int64_t>(first, 1) - 1, to = std::min(end - 1, num_layers) - 1;
  if (from == to) parts.push_back(fmt::format("layer {}", from));
  if (from < to) parts.push_back(fmt::format("layers {} to {}", from, to));
  if (end > num_layers + 1) parts.emplace_back("head");
  return join(parts, ", ");
}

/// "GPU 1", "cpu:1"
std::string described_device(const std::string& device) {
  return device.starts_with("cpu") ? device : "GPU " + device;
}

}  // namespace

std::string describe_stages(const spec::ArchSpec& arch, const config::RunConfig& config) {
  const std::vector<int64_t> firsts = stages_of(arch, config);
  const bool is_map = config.parallel.axes.stages_in_process;
  std::vector<std::string> stages, devices;
  if (is_map) devices = device_stages(arch, config.parallel).devices;
  for (size_t stage = 0; stage + 1 < firsts.size(); ++stage) {
    const std::string units = describe_units(firsts[stage], firsts[stage + 1], arch.num_layers);
    stages.push_back(is_map ? fmt::format("{} on {}", units, described_device(devices[stage]))
                            : units);
  }
  if (is_map) return "device map: " + join(stages, "; ");
  return fmt::format("pipeline of {}: {}", counted(stages.size(), "stage"), join(stages, "; "));
}

// With m micro-batches and p stages, a stage waits for p - 1 of m + p - 1 turns.
std::optional<std::string> waiting_stages_warning(const config::RunConfig& config) {
  constexpr double kMuch = 0.25;
  if (!config.parallel.axes.has_stages()) return std::nullopt;
  const int64_t others = config.parallel.axes.pp - 1, accum = *config.train.grad_accum.value;
  const auto waiting = [&](int64_t micro_batches) {
    return static_cast<double>(others) / static_cast<double>(micro_batches + others);
  };
  if (waiting(accum) <= kMuch) return std::nullopt;
  const int64_t enough = 4 * (others + 1);
  return fmt::format(
      "with train.grad_accum {} each of the {} stages waits for the others {:.0f}% of the time; "
      "with {} it is {:.0f}%",
      accum, others + 1, 100 * waiting(accum), enough, 100 * waiting(enough));
}

void require_stages(const spec::ArchSpec& arch, const config::RunConfig& config,
                    const std::string& place) {
  const int64_t stages = config.parallel.axes.pp;
  const int64_t units = arch.num_layers + 2;
  const std::string instead =
      fmt::format("use parallel.strategy fsdp without {}",
                  config.parallel.device_map ? "parallel.device_map" : "parallel.pp");
  if (stages > units) {
    throw ConfigError(
        fmt::format("the model has {}, an embedding and a head, too few for {} stages",
                    counted(arch.num_layers, "layer"), stages),
        place, fmt::format("set parallel.pp to at most {}, or {}", units, instead));
  }
}

}  // namespace sftrun::plan
