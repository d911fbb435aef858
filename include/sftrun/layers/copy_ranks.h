#pragma once

#include <cstdint>
#include <string>

#include "sftrun/layers/unit.h"

namespace sftrun::layers {

/// The ranks that have one copy of a model together and use it without training: they make the same
/// passes, and one of them, the lead, is given the work and hands over the results. Other copies may
/// have the other shards of the weights.
class CopyRanks {
 public:
  CopyRanks() = default;
  CopyRanks(const CopyRanks&) = delete;
  CopyRanks& operator=(const CopyRanks&) = delete;
  virtual ~CopyRanks() = default;
  virtual bool leads() const = 0;
  /// What the lead gave. All ranks of the copy call it; the others' argument is ignored.
  virtual std::string from_lead(const std::string& text) = 0;
  /// What a rank with the model's head gave. All ranks of the copy call it.
  virtual std::string from_head(const std::string& text) = 0;
  /// The others wait for `call` of the lead, for hours if need be: without a collective, so that their
  /// devices rest.
  virtual void await_call() = 0;
  virtual void call() = 0;
  /// The largest value of the ranks whose shards of the weights this rank gathers, its own among them.
  virtual int64_t max_of_shards(int64_t value) = 0;
  /// Told which units a pass uses; null: every rank has all it needs.
  virtual UnitHooks* hooks() = 0;
  /// null: this rank runs all units.
  virtual StageLinks* links() = 0;
};

}  // namespace sftrun::layers
