#pragma once

#include "sftrun/kernels/cpu_table.h"

/// Parameters of an AdamW step in which no term drops out.
namespace sftrun::kernels {

inline constexpr AdamWParams kAdamWStep{.learning_rate = 1e-2F,
                                        .beta1 = 0.9F,
                                        .beta2 = 0.999F,
                                        .epsilon = 1e-8F,
                                        .weight_decay = 0.1F,
                                        .bias_correction1 = 0.271F,
                                        .sqrt_bias_correction2 = 0.0547F,
                                        .grad_scale = 0.5F,
                                        .one_minus_beta1 = 0.1F,
                                        .one_minus_beta2 = 0.001F};

}  // namespace sftrun::kernels
