#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sftrun/kernels/ops.h"
#include "sftrun/layers/parameter.h"
#include "sftrun/train/optimizer.h"

/// AdamW (arXiv:1711.05101) over the flat buffers, equal to torch.optim.AdamW up to rounding. With
/// is_8bit, moments take 8 bits per value (arXiv:2110.02861), equal to bitsandbytes.optim.AdamW
/// with optim_bits=8 as transformers' Trainer sets it up (config::has_8bit_moments says which
/// moments stay in fp32).
namespace sftrun::train {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  bool is_8bit = false;
  LearningRateRatios rates;
  /// Moments are kept in host memory; parts of them are copied to the device for the update.
  bool moments_on_host = false;
  /// Values per part of a moment; two parts are on the device at a time.
  int64_t values_of_part = int64_t{1} << 22;

  /// The run's settings, with moments in fp32.   @param device of the weights
  static AdamWConfig from(const config::TrainConfig& config, at::Device device);
};

class StagedMoments;

class AdamW final : public Optimizer {
 public:
  /// @param values with is_8bit, pieces begin at a multiple of the block size
  AdamW(const layers::OwnedValues& values, AdamWConfig config);
  ~AdamW() override;
  void step(double learning_rate, double grad_scale) override;
  bool reads_gate() const override { return true; }
  void step(double learning_rate, const at::Tensor& gate) override;
  std::vector<StateTensor> state() const override;
  bool is_finite() const override;
  uint64_t bytes() const override;
  uint64_t device_bytes() const override;

 private:
  /// Where the moments of a piece are.
  struct Place {
    bool is_8bit;
    int64_t first;  ///< first element of exp_avg_ and exp_avg_sq_; with is_8bit, first block
    int64_t end;
  };
  /// Adjacent pieces with the same settings, merged.
  struct Segment {
    Place place;
    int64_t begin, end;  ///< elements of the flat buffers
    bool decays;
    double lr_ratio;
  };
  void add_segment(const layers::OwnedValues::Piece& piece, const Place& place);
  void allocate(int64_t num_fp32, const std::vector<std::pair<int64_t, int64_t>>& blocks);
  at::Tensor zero_moments(at::IntArrayRef shape, at::ScalarType dtype) const;
  /// Gradient scale: `factor`, or the factor in `gate` if that is defined.
  struct GradScale {
    double factor;
    at::Tensor gate;
  };
  void step(double learning_rate, const GradScale& scale);
  void update(const Segment& segment, double learning_rate, const GradScale& scale);
  void update_in_parts(const Segment& segment, const kernels::AdamWParams& params,
                       const at::Tensor& gate);
  void update_8bit(const Segment& segment, double learning_rate, const GradScale& scale);
  void update_8bit_in_parts(const Segment& segment, const kernels::AdamW8bitParams& params,
                            const at::Tensor& gate);

  layers::OwnedValues values_;
  AdamWConfig config_;
  std::vector<Place> places_;  // of each piece
  std::vector<Segment> segments_;
  at::Tensor exp_avg_, exp_avg_sq_;  // [elements with moments in fp32]
  kernels::BlockwiseMoments blockwise_;
  std::unique_ptr<StagedMoments> staged_;  // null: moments are on the device of the weights
};

}  // namespace sftrun::train
