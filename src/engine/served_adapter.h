#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "completion_server.h"
#include "rank.h"
#include "sftrun/model/decoder.h"
#include "sftrun/parallel/strategy.h"
#include "sftrun/weights/peft.h"

namespace sftrun::engine {

/// The adapter that a run trains, as a server has it: written to one of two folders in turn, so that a
/// server which still reads one is not disturbed, and loaded under a name that says the step. Earlier
/// ones are unloaded: vLLM would keep what it read under a name.
class ServedAdapter {
 public:
  struct Inputs {
    const CompletionServer& server;
    model::Decoder& decoder;
    parallel::Strategy& strategy;
    Rank& rank;
    std::filesystem::path run_dir;
    weights::AdapterConfig config;
  };
  /// All of them must outlive this object.
  explicit ServedAdapter(Inputs inputs);
  /// As `finish`: also a run that ends by an error leaves nothing at the server.
  ~ServedAdapter();
  ServedAdapter(const ServedAdapter&) = delete;
  ServedAdapter& operator=(const ServedAdapter&) = delete;

  /// Writes the values as they are now. All ranks call it.
  /// @param step steps that are done   @return whether this rank is to call `load` then
  bool write(int64_t step);
  /// @throws as CompletionServer
  void load();
  const std::string& name() const { return name_; }  ///< of the adapter that was written last
  /// Unloads what an earlier process of this run left.   @throws as CompletionServer
  void unload_left(const std::vector<ListedModel>& models) const;
  /// Unloads and removes the last one, in a few seconds, also while the run stops. A server that refuses
  /// is warned of.
  void finish();

 private:
  std::filesystem::path slot() const;

  Inputs in_;
  std::string prefix_;           // of the names of this run
  std::optional<int64_t> step_;  // that was written last; nullopt: none
  int64_t num_written_ = 0;
  std::string name_, loaded_;  // empty: none
};

}  // namespace sftrun::engine
