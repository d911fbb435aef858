#pragma once

#include <span>
#include <string>
#include <vector>

#include "sftrun/spec/blocks.h"
#include "sftrun/spec/tensor_parallel.h"

/// What a block says of itself: a row of `blocks.cpp`.
namespace sftrun::spec {

/// What a number of tensor-parallel ranks asks of a model's sizes. A size that does not fit is a
/// ConfigError.
class Requirements {
 public:
  /// @param place of parallel.tp in the configuration
  Requirements(const TensorParallel& tensor, const std::string& place)
      : tensor_(tensor), place_(place) {}

  void divides(int64_t count, const char* what) const;
  /// Heads of keys, of which ranks may have copies.
  void divides_or_copies(int64_t count, const char* what) const;
  /// Inner channels, some of which each rank must have.
  void has_channels(int64_t count, const char* what) const;

 private:
  [[noreturn]] void fail(const std::string& why) const;
  std::string blocks() const;
  const TensorParallel& tensor_;
  const std::string& place_;
};

/// Turns sizes of a model into those of one rank.
class RankSizes {
 public:
  explicit RankSizes(const TensorParallel& tensor) : tensor_(tensor) {}
  void heads(int64_t& count) const;
  void shared_heads(int64_t& count) const;  ///< 0 stays 0
  void channels(int64_t& size) const;       ///< 0 stays 0

 private:
  const TensorParallel& tensor_;
};

struct Block {
  const char* name;
  bool is_mixer = false;
  bool (*is_in)(const ArchSpec& arch, int64_t layer);
  BlockTensors (*tensors)(const ArchSpec& arch, int64_t layer);
  /// Asks for sizes that can be divided; null: nothing is divided.
  void (*require_divisible)(const ArchSpec& arch, int64_t layer,
                            const Requirements& model) = nullptr;
  /// Changes the sizes of a whole model to those of a rank, for all layers at once.
  void (*take_part)(ArchSpec& part, const RankSizes& sizes) = nullptr;
  bool has_state = false;
  /// Products of a token beside those with matrices; null: none.
  double (*products)(const ArchSpec& arch, int64_t layer, int64_t seq_len) = nullptr;
};

/// The blocks in the order in which they compute.
std::span<const Block* const> all_blocks();

std::vector<NormSpec> norms_before_mixer(const ArchSpec& arch);
void add_norms_after_mixer(std::vector<NormSpec>& norms, const ArchSpec& arch);
/// Around an MLP, experts, or both together.
std::vector<NormSpec> norms_of_feed_forward(const ArchSpec& arch);

}  // namespace sftrun::spec
