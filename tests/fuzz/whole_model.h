#pragma once

#include <filesystem>
#include <vector>

#include "fuzz.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/fingerprint.h"

namespace sftrun::fuzz {

/// All that opening a model and reading its weights asks of its files.
inline void read_whole_model(const std::filesystem::path& path) {
  expecting_errors([&] {
    const auto checkpoint = weights::Checkpoint::open(path);
    checkpoint->sampled_fingerprint();
    checkpoint->configuration();
    weights::hash_weights(*checkpoint, FileHashes({}));
    weights::block_kinds(*checkpoint);
    weights::norm_squares(*checkpoint);
    for (const weights::TensorInfo& info : checkpoint->tensors()) {
      std::vector<float> values(static_cast<size_t>(info.numel()));
      expecting_errors([&] { checkpoint->read(info.name, DType::kF32, values.data()); });
    }
  });
}

}  // namespace sftrun::fuzz
