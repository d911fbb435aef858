#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sftrun/plan/memory_plan.h"

/// Changes to a run that save memory, by what they cost.
namespace sftrun::plan {

struct MemoryChange {
  std::vector<std::string> settings;  ///< as overrides: "train.batch_size=2"
  std::string cost;                   ///< "the same result; a third more computation"
};

struct CheapestChange {
  std::vector<MemoryChange> changes;          ///< to be made together
  config::RunConfig config;                   ///< with them
  MemoryPlan plan;                            ///< of it
  std::vector<std::string> settings() const;  ///< of all changes
};

/// The cheapest change with which a run needs at most `memory_bytes`, in the order of docs/memory.md:
/// the first single one that keeps the result, or nearly, and is enough; two, or as few as needed, of
/// those that keep it together; the same with those that nearly keep it; and only then changes that
/// make the result worse, and those that give another one, alone and with the others. nullopt: no
/// change is enough.   @param config resolved
std::optional<CheapestChange> cheapest_change(const spec::ArchSpec& arch,
                                              const config::RunConfig& config,
                                              const RunDevices& devices, const StoredBytes& stored,
                                              int64_t memory_bytes,
                                              const StoredBlocks& blocks = {});

/// What to do about a run that ran out of memory, for an error: the cheapest change that brings it
/// below the device's memory and below nine tenths of its plan, which it has exceeded or shared with
/// other programs. "" if no change is known.
/// @param devices memory_bytes 0: not known
std::string memory_advice(const spec::ArchSpec& arch, const config::RunConfig& config,
                          const RunDevices& devices, const StoredBytes& stored,
                          const StoredBlocks& blocks = {});

}  // namespace sftrun::plan
