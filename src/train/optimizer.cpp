#include "sftrun/train/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "sftrun/config/optimizer_state.h"

namespace sftrun::train {
namespace {

static_assert(kernels::kStateBlock == config::kMomentBlock);

double bias_correction(double beta, int64_t steps) {
  return 1 - std::pow(beta, static_cast<double>(steps));
}

double lr_ratio_of(const kernels::Parameter& parameter, const AdamWConfig& config) {
  if (parameter.name.find(".lora_embedding_") != std::string::npos)
    return config.loraplus_embedding_ratio;
  const bool is_fast =
      parameter.name.find("lora_B") != std::string::npos || parameter.shape_in_files().size() == 1;
  return is_fast ? config.loraplus_lr_ratio : 1;
}

}  // namespace

AdamW::AdamW(kernels::ParameterStore& store, AdamWConfig with) : store_(store), config_(with) {
  constexpr int64_t kAlignment = 16;  // elements: moments begin on a cache line
  int64_t num_fp32 = 0;
  std::vector<std::pair<int64_t, int64_t>> blocks;  // first element and number of them
  for (const kernels::Parameter& parameter : store.parameters()) {
    Place place{with.is_8bit && config::has_8bit_moments(parameter.name, parameter.numel), num_fp32,
                0};
    if (place.is_8bit) {
      place.first = static_cast<int64_t>(blocks.size());
      for (int64_t i = 0; i < parameter.numel; i += kernels::kStateBlock) {
        blocks.emplace_back(parameter.offset + i,
                            std::min(kernels::kStateBlock, parameter.numel - i));
      }
      place.end = static_cast<int64_t>(blocks.size());
    } else {
      place.end = num_fp32 + parameter.numel;
      num_fp32 += (parameter.numel + kAlignment - 1) / kAlignment * kAlignment;
    }
    places_.push_back(place);
    add_segment(parameter, place);
  }
  allocate(num_fp32, blocks);
}

void AdamW::add_segment(const kernels::Parameter& parameter, const Place& place) {
  const int64_t end = parameter.offset + parameter.numel;
  const double lr_ratio = lr_ratio_of(parameter, config_);
  Segment* last = segments_.empty() ? nullptr : &segments_.back();
  // Blocks say themselves where they lie; of fp32 moments the gaps must be those of the parameters.
  const bool continues =
      last != nullptr && last->decays == parameter.decays && last->lr_ratio == lr_ratio &&
      last->place.is_8bit == place.is_8bit &&
      (place.is_8bit || place.first - last->place.first == parameter.offset - last->begin);
  if (!continues) {
    segments_.push_back({place, parameter.offset, end, parameter.decays, lr_ratio});
    return;
  }
  last->end = end;
  last->place.end = place.end;
}

void AdamW::allocate(int64_t num_fp32, const std::vector<std::pair<int64_t, int64_t>>& blocks) {
  const at::Tensor& master = store_.master();
  exp_avg_ = at::zeros({num_fp32}, master.options());
  exp_avg_sq_ = at::zeros({num_fp32}, master.options());
  if (blocks.empty()) return;
  const auto num_blocks = static_cast<int64_t>(blocks.size());
  blockwise_.exp_avg =
      at::zeros({num_blocks, kernels::kStateBlock}, master.options().dtype(at::kByte));
  blockwise_.exp_avg_sq = at::zeros_like(blockwise_.exp_avg);
  blockwise_.exp_avg_absmax = at::zeros({num_blocks}, master.options());
  blockwise_.exp_avg_sq_absmax = at::zeros_like(blockwise_.exp_avg_absmax);
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

void AdamW::step(double learning_rate, double grad_scale) {
  ++steps_;
  for (const Segment& segment : segments_) {
    const double own_rate = learning_rate * segment.lr_ratio;
    segment.place.is_8bit ? update_8bit(segment, own_rate, grad_scale)
                          : update(segment, own_rate, grad_scale);
  }
}

void AdamW::update(const Segment& segment, double learning_rate, double grad_scale) {
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
  params.grad_scale = static_cast<float>(grad_scale);
  params.weight_decay = segment.decays ? static_cast<float>(config_.weight_decay) : 0.0F;
  const int64_t length = segment.end - segment.begin;
  const auto part = [&](const at::Tensor& flat, int64_t first) {
    return flat.narrow(0, first, length);
  };
  at::Tensor master = part(store_.master(), segment.begin),
             compute = part(store_.compute(), segment.begin),
             exp_avg = part(exp_avg_, segment.place.first),
             exp_avg_sq = part(exp_avg_sq_, segment.place.first);
  kernels::adamw_(master, part(store_.grad(), segment.begin), exp_avg, exp_avg_sq, compute, 0,
                  length, params);
}

void AdamW::update_8bit(const Segment& segment, double learning_rate, double grad_scale) {
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
  params.grad_scale = static_cast<float>(grad_scale);
  kernels::adamw_8bit_(store_.master(), store_.grad(), blockwise_, store_.compute(),
                       segment.place.first, segment.place.end, params);
}

std::vector<StateTensor> AdamW::state() const {
  std::vector<StateTensor> all;
  size_t number = 0;
  for (const kernels::Parameter& parameter : store_.parameters()) {
    const Place& place = places_[number++];
    const auto add = [&](const char* what, const at::Tensor& values, int64_t first) {
      all.push_back({std::string(what) + "." + parameter.name,
                     values.flatten().narrow(0, first, parameter.numel).view(parameter.shape)});
    };
    const auto add_factors = [&](const char* what, const at::Tensor& factors) {
      all.push_back({std::string(what) + "." + parameter.name,
                     factors.narrow(0, place.first, place.end - place.first)});
    };
    if (place.is_8bit) {
      add("exp_avg", blockwise_.exp_avg, place.first * kernels::kStateBlock);
      add_factors("exp_avg_absmax", blockwise_.exp_avg_absmax);
      add("exp_avg_sq", blockwise_.exp_avg_sq, place.first * kernels::kStateBlock);
      add_factors("exp_avg_sq_absmax", blockwise_.exp_avg_sq_absmax);
    } else {
      add("exp_avg", exp_avg_, place.first);
      add("exp_avg_sq", exp_avg_sq_, place.first);
    }
  }
  return all;
}

bool AdamW::is_finite() const {
  for (const at::Tensor* values :
       {&exp_avg_, &exp_avg_sq_, &blockwise_.exp_avg_absmax, &blockwise_.exp_avg_sq_absmax}) {
    if (values->defined() && !std::isfinite(kernels::sum_of_squares(*values))) return false;
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

double grad_norm(kernels::ParameterStore& store) {
  return std::sqrt(kernels::sum_of_squares(store.grad()));
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace sftrun::train
