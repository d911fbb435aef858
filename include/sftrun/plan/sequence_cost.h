#pragma once

#include <cstdint>

#include "sftrun/config/run_config.h"
#include "sftrun/plan/tower.h"
#include "sftrun/spec/arch_spec.h"

/// How much a sequence gives a training step to compute.
namespace sftrun::plan {

/// Products (a multiplication and an addition) in the forward and backward passes of text model and tower, by the architecture and by
/// what trains. In thousands and whole numbers: the same on every machine, and the sum of a step fits.
class SequenceCost {
 public:
  /// @param tower what the run has of it
  SequenceCost(const spec::ArchSpec& arch, const config::RunConfig& config, const TowerUse& tower);

  /// Of a document in the text model: its tokens with matrices and with each other, and its labels with the head.
  int64_t of_document(int64_t tokens, int64_t label_tokens) const;
  /// Of a tile with so many patches in tower and projector.
  int64_t of_tile(int64_t patches) const;

 private:
  void add_text(const spec::ArchSpec& arch, const config::RunConfig& config);
  void add_tower(const spec::ArchSpec& arch, const config::RunConfig& config,
                 const TowerUse& tower);

  // Products of a token, a pair of tokens in a document, a label, a patch, a pair of patches in a tile and in a window.
  int64_t token_ = 0, token_pair_ = 0, label_ = 0;
  int64_t patch_ = 0, patch_pair_ = 0, window_pair_ = 0;
  int64_t window_ = 0;  // patches of a window
};

}  // namespace sftrun::plan
