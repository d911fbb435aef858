#include "weight_hashing.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/log.h"
#include "sftrun/core/units.h"

namespace sftrun::engine {
namespace {

using Seconds = std::chrono::duration<double>;

uint64_t bytes_of(const weights::Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  std::error_code ignored;
  for (const auto& file : checkpoint.weight_files())
    bytes += std::filesystem::file_size(file.path, ignored);
  return bytes;
}

nlohmann::json to_json(const std::vector<weights::FileHash>& files) {
  nlohmann::json json = nlohmann::json::array();
  for (const weights::FileHash& file : files) json.push_back({file.name, file.hash});
  return json;
}

std::vector<weights::FileHash> from_json(const nlohmann::json& json) {
  std::vector<weights::FileHash> files;
  for (const nlohmann::json& file : json)
    files.push_back({file.at(0).get<std::string>(), file.at(1).get<std::string>()});
  return files;
}

bool are_same(const std::vector<weights::FileHash>& a, const std::vector<weights::FileHash>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.hash == y.hash; });
}

}  // namespace

WeightHashing::WeightHashing(std::shared_ptr<const weights::Checkpoint> checkpoint,
                             const launch::WorkerEnv& env)
    : checkpoint_(std::move(checkpoint)), env_(env) {
  if (!reads()) return;
  thread_ = std::jthread([this](const std::stop_token& stop) {
    try {
      promise_.set_value(weights::hash_weights(*checkpoint_, weights::remembered_hashes(), stop));
    } catch (const FileHashes::Stopped&) {
      promise_.set_value({});
    } catch (const Interrupted&) {
      promise_.set_value({});
    } catch (...) {
      promise_.set_exception(std::current_exception());
    }
  });
}

std::vector<weights::FileHash> WeightHashing::wait(const std::function<bool()>& is_stopped) {
  constexpr double kQuiet_s = 3;
  constexpr Seconds kPoll(0.05);
  const double begin = monotonic_seconds();
  bool said = false;
  while (hashes_.wait_for(kPoll) != std::future_status::ready) {
    if (is_stopped()) thread_.request_stop();
    if (said || monotonic_seconds() - begin < kQuiet_s) continue;
    said = true;
    log::info(
        "hashing the model's weights ({}), so that a resumed run can verify them; the hashes of "
        "unchanged files are cached",
        format_bytes(bytes_of(*checkpoint_)));
  }
  if (said) {
    log::info("weights hashed; waited {:.0f} s", monotonic_seconds() - begin);
  }
  return hashes_.get();
}

std::optional<std::vector<weights::FileHash>> WeightHashing::get(
    parallel::Communicator& comm, const std::function<bool()>& is_stopped) {
  std::vector<weights::FileHash> mine;
  if (reads()) mine = wait(is_stopped);
  comm.barrier("weights hashed");  // the others may wait for minutes
  const auto first =
      from_json(nlohmann::json::parse(comm.broadcast("weights", to_json(mine).dump())));
  const bool is_other = !mine.empty() && !first.empty() && !are_same(mine, first);
  const auto ranks = comm.all_gather({is_other ? 1.0 : 0.0});
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank][0] == 0) continue;
    throw ConfigError(
        fmt::format("the model's weights on the machine of rank {} differ from those of rank 0",
                    rank),
        checkpoint_->weight_files().at(0).path.string(),
        "give every machine the same files: copy or download the model again");
  }
  if (first.empty()) return std::nullopt;
  return first;
}

}  // namespace sftrun::engine
