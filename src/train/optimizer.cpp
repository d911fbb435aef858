#include "sftrun/train/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "sftrun/kernels/ops.h"

namespace sftrun::train {

namespace {

double lr_ratio_of(const kernels::Parameter& parameter, const AdamWConfig& config) {
  const bool is_fast =
      parameter.name.find("lora_B") != std::string::npos || parameter.shape_in_files().size() == 1;
  return is_fast ? config.loraplus_lr_ratio : 1;
}

}  // namespace

AdamW::AdamW(kernels::ParameterStore& store, AdamWConfig config)
    : store_(store),
      config_(config),
      exp_avg_(at::zeros_like(store.master())),
      exp_avg_sq_(at::zeros_like(store.master())) {
  for (const kernels::Parameter& parameter : store.parameters()) {
    const double lr_ratio = lr_ratio_of(parameter, config);
    if (!segments_.empty() && segments_.back().decays == parameter.decays &&
        segments_.back().lr_ratio == lr_ratio) {
      segments_.back().end = parameter.offset + parameter.numel;
    } else {
      segments_.push_back(
          {parameter.offset, parameter.offset + parameter.numel, parameter.decays, lr_ratio});
    }
  }
}

void AdamW::step(double learning_rate, double grad_scale) {
  ++steps_;
  const auto t = static_cast<double>(steps_);
  kernels::AdamWParams params{};
  params.beta1 = static_cast<float>(config_.beta1);
  params.beta2 = static_cast<float>(config_.beta2);
  params.epsilon = static_cast<float>(config_.epsilon);
  params.bias_correction1 = static_cast<float>(1 - std::pow(config_.beta1, t));
  params.sqrt_bias_correction2 = static_cast<float>(std::sqrt(1 - std::pow(config_.beta2, t)));
  params.grad_scale = static_cast<float>(grad_scale);
  for (const Segment& segment : segments_) {
    params.learning_rate = static_cast<float>(learning_rate * segment.lr_ratio);
    params.weight_decay = segment.decays ? static_cast<float>(config_.weight_decay) : 0.0F;
    kernels::adamw_(store_.master(), store_.grad(), exp_avg_, exp_avg_sq_, store_.compute(),
                    segment.begin, segment.end, params);
  }
}

double grad_norm(kernels::ParameterStore& store) {
  return std::sqrt(kernels::sum_of_squares(store.grad()));
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace sftrun::train
