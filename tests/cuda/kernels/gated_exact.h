#pragma once

#include <cmath>

#include "sftrun/kernels/cpu_table.h"
#include "tolerances.h"

/// Gated activations and their gradients in fp64.
namespace sftrun::kernels::cuda::test {

/// What the sigmoid takes, its slope, and how large its terms are.
struct Inner {
  double value, slope, size;
};
inline Inner inner_of(const Gating& gating, double x) {
  if (gating.activation == Activation::kSilu) return {x, 1, std::fabs(x)};
  if (gating.activation == Activation::kClampedSwiglu)
    return {gating.alpha * x, gating.alpha, std::fabs(gating.alpha * x)};
  constexpr double kTwiceRoot = 1.5957691216057308, kCubic = 0.044715;
  const double u = kTwiceRoot * (x + kCubic * x * x * x);
  return {u, kTwiceRoot * (1 + 3 * kCubic * x * x), std::fabs(u)};
}

/// One element: h, and the gradients of gate and up.
struct Element {
  Exact h, gate, up;
};
inline Element element(const Gating& gating, double dh, double gate, double up) {
  bool gate_passes = true, up_passes = true;
  double up_size = std::fabs(up);
  if (gating.activation == Activation::kClampedSwiglu) {
    const double limit = gating.limit;
    gate_passes = gate <= limit;
    up_passes = std::fabs(up) <= limit;
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    up_size = std::fabs(up) + 1;
    up += 1;
  }
  const Inner inner = inner_of(gating, gate);
  const double s = 1 / (1 + std::exp(-inner.value)), argument = 1 + inner.size;
  Element e;
  e.h = {gate * s * up, std::fabs(gate) * s * up_size * argument};
  e.gate = {dh * up * s * (1 + gate * (1 - s) * inner.slope),
            std::fabs(dh) * up_size * s * (1 + std::fabs(gate) * inner.slope) * argument};
  e.up = {dh * gate * s, std::fabs(dh * gate) * s * argument};
  if (!gate_passes) e.gate = {0, 0};
  if (!up_passes) e.up = {0, 0};
  return e;
}

}  // namespace sftrun::kernels::cuda::test
