#include "sftrun/train/adamw.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "makers.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/host_memory.h"
#include "staged_moments.h"

namespace sftrun::train {
namespace {

static_assert(kernels::kStateBlock == config::kMomentBlock);

double bias_correction(double beta, int64_t steps) {
  return 1 - std::pow(beta, static_cast<double>(steps));
}

}  // namespace

AdamWConfig AdamWConfig::from(const config::TrainConfig& config, at::Device device) {
  // On a CPU all moments are in host memory anyway.
  const bool on_host = config::optimizer_info(config.optimizer).is_on_host() && !device.is_cpu();
  return {.beta1 = config.adam_beta1,
          .beta2 = config.adam_beta2,
          .epsilon = config.adam_epsilon,
          .weight_decay = config.weight_decay,
          .rates = LearningRateRatios::from(config),
          .moments_on_host = on_host};
}

AdamW::~AdamW() = default;

AdamW::AdamW(const layers::OwnedValues& values, AdamWConfig with) : values_(values), config_(with) {
  if (with.moments_on_host) staged_ = std::make_unique<StagedMoments>(values.flat.master.device());
  constexpr int64_t kAlignment = 16;  // in elements: moments start at a cache line
  int64_t num_fp32 = 0;
  std::vector<std::pair<int64_t, int64_t>> blocks;  // first element and length of each block
  for (const layers::OwnedValues::Piece& piece : values_.pieces) {
    const layers::Parameter& parameter = *piece.parameter;
    Place place{with.is_8bit && config::has_8bit_moments(parameter.role, parameter.numel), num_fp32,
                0};
    if (place.is_8bit) {
      SFTRUN_CHECK_EQ(piece.begin % kernels::kStateBlock, 0);
      place.first = static_cast<int64_t>(blocks.size());
      for (int64_t i = 0; i < piece.numel; i += kernels::kStateBlock)
        blocks.emplace_back(piece.offset + i, std::min(kernels::kStateBlock, piece.numel - i));
      place.end = static_cast<int64_t>(blocks.size());
    } else {
      place.end = num_fp32 + piece.numel;
      num_fp32 += (piece.numel + kAlignment - 1) / kAlignment * kAlignment;
    }
    places_.push_back(place);
    if (piece.numel > 0) add_segment(piece, place);
  }
  allocate(num_fp32, blocks);
}

void AdamW::add_segment(const layers::OwnedValues::Piece& piece, const Place& place) {
  const bool decays = piece.parameter->decays;
  const double lr_ratio = config_.rates.of(*piece.parameter);
  Segment* last = segments_.empty() ? nullptr : &segments_.back();
  // 8-bit blocks store their own offsets. fp32 moments must have the same gaps as the parameters.
  const bool continues =
      last != nullptr && last->decays == decays && last->lr_ratio == lr_ratio &&
      last->place.is_8bit == place.is_8bit &&
      (place.is_8bit || place.first - last->place.first == piece.offset - last->begin);
  if (!continues) {
    segments_.push_back({place, piece.offset, piece.end_offset(), decays, lr_ratio});
    return;
  }
  last->end = piece.end_offset();
  last->place.end = place.end;
}

void AdamW::allocate(int64_t num_fp32, const std::vector<std::pair<int64_t, int64_t>>& blocks) {
  const at::Tensor& master = values_.flat.master;
  exp_avg_ = zero_moments({num_fp32}, at::kFloat);
  exp_avg_sq_ = zero_moments({num_fp32}, at::kFloat);
  const bool has_8bit_state =
      std::any_of(places_.begin(), places_.end(), [](const Place& place) { return place.is_8bit; });
  if (!has_8bit_state) return;  // with it, this rank may still own none of the blocks
  const auto num_blocks = static_cast<int64_t>(blocks.size());
  blockwise_.exp_avg = zero_moments({num_blocks, kernels::kStateBlock}, at::kByte);
  blockwise_.exp_avg_sq = zero_moments({num_blocks, kernels::kStateBlock}, at::kByte);
  blockwise_.exp_avg_absmax = zero_moments({num_blocks}, at::kFloat);
  blockwise_.exp_avg_sq_absmax = zero_moments({num_blocks}, at::kFloat);
  at::Tensor begin = at::empty({num_blocks}, at::kLong),
             numel = at::empty({num_blocks}, at::kShort);
  for (size_t i = 0; i < blocks.size(); ++i) {
    begin.data_ptr<int64_t>()[i] = blocks[i].first;
    numel.data_ptr<int16_t>()[i] = static_cast<int16_t>(blocks[i].second);
  }
  blockwise_.block_begin = begin.to(master.device());
  blockwise_.block_numel = numel.to(master.device());
  blockwise_.exp_avg_map = kernels::dynamic_map(/*is_signed=*/true).to(master.device());
  blockwise_.exp_avg_sq_map = kernels::dynamic_map(/*is_signed=*/false).to(master.device());
}

at::Tensor AdamW::zero_moments(at::IntArrayRef shape, at::ScalarType dtype) const {
  const at::Device device = values_.flat.master.device();
  return staged_ ? kernels::host_zeros(shape, dtype, device)
                 : at::zeros(shape, at::TensorOptions().dtype(dtype).device(device));
}

void AdamW::step(double learning_rate, double grad_scale) {
  step(learning_rate, GradScale{grad_scale, {}});
}

void AdamW::step(double learning_rate, const at::Tensor& gate) {
  step(learning_rate, GradScale{1, gate});
}

void AdamW::step(double learning_rate, const GradScale& scale) {
  ++steps_;
  for (const Segment& segment : segments_) {
    const double own_rate = learning_rate * segment.lr_ratio;
    segment.place.is_8bit ? update_8bit(segment, own_rate, scale)
                          : update(segment, own_rate, scale);
  }
  values_.store->compute_changed();
}

void AdamW::update(const Segment& segment, double learning_rate, const GradScale& scale) {
  kernels::AdamWParams params{};
  params.learning_rate = static_cast<float>(learning_rate);
  params.beta1 = static_cast<float>(config_.beta1);
  params.beta2 = static_cast<float>(config_.beta2);
  params.one_minus_beta1 = static_cast<float>(1 - config_.beta1);
  params.one_minus_beta2 = static_cast<float>(1 - config_.beta2);
  params.epsilon = static_cast<float>(config_.epsilon);
  params.bias_correction1 = static_cast<float>(bias_correction(config_.beta1, steps_));
  params.sqrt_bias_correction2 =
      static_cast<float>(std::sqrt(bias_correction(config_.beta2, steps_)));
  params.grad_scale = static_cast<float>(scale.factor);
  params.weight_decay = segment.decays ? static_cast<float>(config_.weight_decay) : 0.0F;
  if (staged_) return update_in_parts(segment, params, scale.gate);
  const int64_t length = segment.end - segment.begin;
  const auto part = [&](const at::Tensor& flat, int64_t first) {
    return flat.narrow(0, first, length);
  };
  at::Tensor master = part(values_.flat.master, segment.begin),
             compute = part(values_.flat.compute, segment.begin),
             exp_avg = part(exp_avg_, segment.place.first),
             exp_avg_sq = part(exp_avg_sq_, segment.place.first);
  kernels::adamw_(master, part(values_.flat.grad, segment.begin), exp_avg, exp_avg_sq, compute, 0,
                  length, params, scale.gate);
}

void AdamW::update_in_parts(const Segment& segment, const kernels::AdamWParams& params,
                            const at::Tensor& gate) {
  const int64_t size = config_.values_of_part, length = segment.end - segment.begin;
  std::vector<StagedMoments::Part> parts;
  for (int64_t first = 0; first < length; first += size) {
    const int64_t count = std::min(size, length - first), at = segment.place.first + first;
    parts.push_back({exp_avg_.narrow(0, at, count), exp_avg_sq_.narrow(0, at, count)});
  }
  staged_->run(parts, [&](size_t part, const StagedMoments::Part& moments) {
    const int64_t count = moments[0].numel(),
                  at = segment.begin + static_cast<int64_t>(part) * size;
    at::Tensor master = values_.flat.master.narrow(0, at, count),
               compute = values_.flat.compute.narrow(0, at, count), exp_avg = moments[0],
               exp_avg_sq = moments[1];
    kernels::adamw_(master, values_.flat.grad.narrow(0, at, count), exp_avg, exp_avg_sq, compute, 0,
                    count, params, gate);
  });
}

void AdamW::update_8bit(const Segment& segment, double learning_rate, const GradScale& scale) {
  const double weight_decay = segment.decays ? config_.weight_decay : 0;
  kernels::AdamW8bitParams params{};
  params.beta1 = static_cast<float>(config_.beta1);
  params.one_minus_beta1 = static_cast<float>(1 - config_.beta1);
  params.beta2 = static_cast<float>(config_.beta2);
  params.one_minus_beta2 = static_cast<float>(1 - config_.beta2);
  params.epsilon = static_cast<float>(config_.epsilon);
  params.step_size = static_cast<float>(-learning_rate / bias_correction(config_.beta1, steps_));
  params.decay = static_cast<float>(1 - learning_rate * weight_decay);
  params.sqrt_bias_correction2 =
      static_cast<float>(std::sqrt(bias_correction(config_.beta2, steps_)));
  params.grad_scale = static_cast<float>(scale.factor);
  if (staged_) return update_8bit_in_parts(segment, params, scale.gate);
  kernels::adamw_8bit_(values_.flat.master, values_.flat.grad, blockwise_, values_.flat.compute,
                       segment.place.first, segment.place.end, params, scale.gate);
}

void AdamW::update_8bit_in_parts(const Segment& segment, const kernels::AdamW8bitParams& params,
                                 const at::Tensor& gate) {
  const int64_t size = std::max<int64_t>(1, config_.values_of_part / kernels::kStateBlock),
                first = segment.place.first, end = segment.place.end;
  std::vector<StagedMoments::Part> parts;
  for (int64_t at = first; at < end; at += size) {
    const int64_t count = std::min(size, end - at);
    StagedMoments::Part part;
    for (const at::Tensor* whole : {&blockwise_.exp_avg, &blockwise_.exp_avg_sq,
                                    &blockwise_.exp_avg_absmax, &blockwise_.exp_avg_sq_absmax})
      part.push_back(whole->narrow(0, at, count));
    parts.push_back(std::move(part));
  }
  staged_->run(parts, [&](size_t number, const StagedMoments::Part& moments) {
    const int64_t count = moments[2].numel(), at = first + static_cast<int64_t>(number) * size;
    kernels::BlockwiseMoments part = blockwise_;
    part.exp_avg = moments[0], part.exp_avg_sq = moments[1];
    part.exp_avg_absmax = moments[2], part.exp_avg_sq_absmax = moments[3];
    part.block_begin = blockwise_.block_begin.narrow(0, at, count);
    part.block_numel = blockwise_.block_numel.narrow(0, at, count);
    kernels::adamw_8bit_(values_.flat.master, values_.flat.grad, part, values_.flat.compute, 0,
                         count, params, gate);
  });
}

std::vector<StateTensor> AdamW::state() const {
  if (staged_) staged_->finish();
  std::vector<StateTensor> all;
  for (size_t i = 0; i < places_.size(); ++i) {
    const layers::OwnedValues::Piece& piece = values_.pieces[i];
    const layers::Parameter& parameter = *piece.parameter;
    const Place& place = places_[i];
    const auto add = [&](const char* what, const at::Tensor& values, int64_t first) {
      all.push_back({std::string(what) + "." + parameter.name,
                     values.flatten().narrow(0, first, piece.numel), piece.begin,
                     parameter.whole_shape(), &parameter});
    };
    const auto add_scales = [&](const char* what, const at::Tensor& scales) {
      const int64_t blocks = (parameter.numel + kernels::kStateBlock - 1) / kernels::kStateBlock;
      all.push_back({std::string(what) + "." + parameter.name,
                     scales.narrow(0, place.first, place.end - place.first),
                     piece.begin / kernels::kStateBlock,
                     {blocks}});
    };
    if (place.is_8bit) {
      add("exp_avg", blockwise_.exp_avg, place.first * kernels::kStateBlock);
      add_scales("exp_avg_absmax", blockwise_.exp_avg_absmax);
      add("exp_avg_sq", blockwise_.exp_avg_sq, place.first * kernels::kStateBlock);
      add_scales("exp_avg_sq_absmax", blockwise_.exp_avg_sq_absmax);
    } else {
      add("exp_avg", exp_avg_, place.first);
      add("exp_avg_sq", exp_avg_sq_, place.first);
    }
  }
  return all;
}

bool AdamW::is_finite() const {
  if (staged_) staged_->finish();
  for (const at::Tensor* values :
       {&exp_avg_, &exp_avg_sq_, &blockwise_.exp_avg_absmax, &blockwise_.exp_avg_sq_absmax}) {
    if (values->defined() && !std::isfinite(kernels::sum_of_squares(*values).item<double>()))
      return false;
  }
  return true;
}

uint64_t AdamW::bytes() const {
  uint64_t total = 0;
  for (const at::Tensor* part :
       {&exp_avg_, &exp_avg_sq_, &blockwise_.exp_avg, &blockwise_.exp_avg_sq,
        &blockwise_.exp_avg_absmax, &blockwise_.exp_avg_sq_absmax, &blockwise_.block_begin,
        &blockwise_.block_numel}) {
    if (part->defined()) total += part->nbytes();
  }
  return total;
}

uint64_t AdamW::device_bytes() const {
  if (!staged_) return bytes();
  uint64_t total = staged_->device_bytes();
  for (const at::Tensor* part : {&blockwise_.block_begin, &blockwise_.block_numel})
    if (part->defined()) total += part->nbytes();
  return total;
}

std::unique_ptr<Optimizer> make_adamw(const layers::OwnedValues& values,
                                      const config::TrainConfig& config) {
  return std::make_unique<AdamW>(values, AdamWConfig::from(config, values.flat.master.device()));
}

std::unique_ptr<Optimizer> make_adamw_8bit(const layers::OwnedValues& values,
                                           const config::TrainConfig& config) {
  AdamWConfig in_8bit = AdamWConfig::from(config, values.flat.master.device());
  in_8bit.is_8bit = true;
  return std::make_unique<AdamW>(values, in_8bit);
}

}  // namespace sftrun::train
