#include "sftrun/model/pissa.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/core/error.h"

namespace sftrun::model {

PrincipalPart principal_part(const at::Tensor& weight, int64_t r, double scale) {
  const at::NoGradGuard no_grad;
  const at::Tensor w = weight.to(at::kDouble);
  const bool is_wide = w.size(0) <= w.size(1);
  SFTRUN_CHECK(r <= std::min(w.size(0), w.size(1)));
  const at::Tensor gram = is_wide ? at::mm(w, w.t()) : at::mm(w.t(), w);
  const auto [values, vectors] = at::linalg_eigh(gram);  // ascending
  const at::Tensor largest = vectors.narrow(1, vectors.size(1) - r, r).flip(1);
  const at::Tensor s = values.narrow(0, values.size(0) - r, r).flip(0).clamp_min(0).sqrt();
  // A singular value of 0 contributes nothing.
  const at::Tensor inverse = at::where(s > 0, 1 / s, at::zeros_like(s));
  at::Tensor u = is_wide ? largest : at::mm(w, largest) * inverse;      // [out, r]
  at::Tensor v = is_wide ? at::mm(w.t(), largest) * inverse : largest;  // [in, r]
  const at::Tensor at_largest = v.gather(0, v.abs().argmax(0, /*keepdim=*/true));
  const at::Tensor sign =
      at::where(at_largest < 0, -at::ones_like(at_largest), at::ones_like(at_largest));
  const at::Tensor root = (s / scale).sqrt();
  return {(v * sign * root).t().to(at::kFloat).contiguous(),
          (u * sign * root).to(at::kFloat).contiguous()};
}

}  // namespace sftrun::model
