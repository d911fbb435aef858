#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/model_part.h"
#include "sftrun/spec/arch_spec.h"

/// The image side of a run: what it loads, what of it trains, and the images of a micro-batch.
namespace sftrun::plan {

/// Whether a run has the tower with its projector, and what trains. A run of texts has none.
struct TowerUse {
  /// Of a run, which has the tower for images, or where a part of it trains.
  static TowerUse of(const config::TuningConfig& tuning, const spec::ArchSpec& arch,
                     bool has_images);
  bool is_loaded = false;
  TrainedParts parts = TrainedParts::text();
};

/// Images of a micro-batch, in patches of the tower. A tile is what attends to itself: an image, a part
/// of one, or a frame.
struct ImageShape {
  int64_t tiles = 0;
  int64_t patches = 0;       ///< of all tiles
  int64_t longest_tile = 0;  ///< patches of the largest
};

/// Images of the largest micro-batch of a run (data::largest_image_load), for each of its packed sequences (or examples, pairs).
struct ImagesOfBin {
  double tiles = 0, patches = 0;
  int64_t longest_tile = 0;
  ImageShape times(int64_t bins) const;
  /// Of a micro-batch of so many bins.
  static ImagesOfBin of(const ImageShape& micro_batch, int64_t bins);
};

/// The tensors of the image side that a run loads: layers that nothing reads are left out.
std::vector<spec::TensorSpec> tower_tensors(const spec::ArchSpec& arch);
/// The text model's tensors and, if the run loads them, those of `tower_tensors`: what `tuning.trainable`
/// names.
std::vector<spec::TensorSpec> with_tower(std::vector<spec::TensorSpec> text,
                                         const spec::ArchSpec& arch, const TowerUse& use);
/// Units of the tower: the patches, each layer, the mergers. 0: the run has none.
int64_t num_tower_units(const spec::ArchSpec& arch, const TowerUse& use);
/// Units before the embedding: those of the tower, and the projectors of features.
int64_t num_input_units(const spec::ArchSpec& arch, const TowerUse& use);
/// The unit of one of `tower_tensors`.
int64_t tower_unit_of(const spec::ArchSpec& arch, const spec::TensorSpec& tensor);
/// Whether it is the weight of a linear module, which may be quantised and have an adapter.
bool is_tower_linear(const spec::TensorSpec& tensor);
/// The module of such a weight.
std::string module_of_weight(const std::string& tensor);

/// What of the image side trains.
class TowerTraining {
 public:
  TowerTraining() = default;
  TowerTraining(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                const TowerUse& use);

  bool trains(const std::string& tensor) const { return tensors_.contains(tensor); }
  /// The rank of a module's adapter; 0: it has none.
  int64_t rank(const std::string& module) const;
  /// Whether a parameter of the unit, or of one before it, trains.
  bool at_or_below(int64_t unit) const { return first_unit_ <= unit; }
  /// Whether anything of the image side trains.
  bool any() const { return first_unit_ != INT64_MAX; }

 private:
  void add(int64_t unit) { first_unit_ = std::min(first_unit_, unit); }
  std::set<std::string> tensors_;         // in full
  std::map<std::string, int64_t> ranks_;  // by module
  int64_t first_unit_ = INT64_MAX;
};

}  // namespace sftrun::plan
