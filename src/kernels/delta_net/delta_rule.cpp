#include "sftrun/kernels/delta_rule.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "chunks.h"
#include "sftrun/kernels/profile_range.h"

/// Shapes: N chunks, G key heads, H = G * values_per_key value heads, C = kChunk tokens, K =
/// key_dim and V = value_dim channels. With c the cumulative sum of g within the chunk and D_ij =
/// exp(c_i - c_j) for j <= i, a chunk that starts with state S has
///     A = I + strictly lower (beta_i k_i.k_j D_ij)
///     new values    X = A^-1 beta v - (A^-1 beta e^c k) S          [C, V]
///     outputs       O = (e^c q) S + (q k^T D) X
///     state after   e^c_last S + (e^(c_last - c) k)^T X
/// Only the last line depends on the chunk order.
namespace sftrun::kernels {
namespace {

// Pairs of chunk and value head processed at once on a GPU. Each needs about 600 KiB in the
// backward pass for heads of 128 channels.
constexpr int64_t kCudaPairs = 1 << 11;

/// Key heads [first, first + count) and their value heads.
struct Heads {
  int64_t first, count, values_per_key;
  int64_t first_value() const { return first * values_per_key; }
  int64_t num_values() const { return count * values_per_key; }
};

/// View [N, heads, C, dim] of x [N, C, …]; the heads' channels begin at `offset`.
at::Tensor heads_of(const at::Tensor& x, int64_t offset, int64_t first, int64_t count,
                    int64_t dim) {
  return x.narrow(2, offset + first * dim, count * dim).unflatten(2, {count, dim}).transpose(1, 2);
}
struct QkvViews {
  at::Tensor q, k, v;
};
QkvViews views_of(const at::Tensor& qkv, const Heads& heads, const RuleShape& s) {
  return {heads_of(qkv, 0, heads.first, heads.count, s.key_dim),
          heads_of(qkv, s.keys_size(), heads.first, heads.count, s.key_dim),
          heads_of(qkv, 2 * s.keys_size(), heads.first_value(), heads.num_values(), s.value_dim)};
}

/// of_keys [N, G, …] * of_values [N, H, …], each key head broadcast to its value heads.
at::Tensor times(const at::Tensor& of_keys, const at::Tensor& of_values) {
  return (of_keys.unsqueeze(2) * of_values.unflatten(1, {of_keys.size(1), -1})).flatten(1, 2);
}
/// [N, H, …] -> [N, G, …]
at::Tensor sum_over_values(const at::Tensor& x, const Heads& heads) {
  return heads.values_per_key == 1 ? x : x.unflatten(1, {heads.count, -1}).sum(2);
}
at::Tensor row_dots(const at::Tensor& of_keys, const at::Tensor& of_values) {
  return times(of_keys, of_values).sum(-1);
}

/// View of the diagonal blocks of x [B, C, C]: [B, C / size, size, size].
at::Tensor diagonal_blocks(const at::Tensor& x, int64_t size) {
  const int64_t blocks = x.size(-1) / size;
  return x.view({-1, blocks, size, blocks, size}).diagonal(0, 1, 3).permute({0, 3, 1, 2});
}

/// Inverse of unit lower triangular matrices [N, H, C, C] (the diagonal is taken as 1, the upper
/// triangle as 0). Small blocks are solved directly and combined pairwise,
///     [P, 0; M, Q]^-1 = [P^-1, 0; -Q^-1 M P^-1, Q^-1],
/// so that most of the work is matrix products.
at::Tensor unit_lower_inverse(const at::Tensor& matrix) {
  constexpr int64_t kSolved = 16;
  const at::Tensor a = matrix.flatten(0, 1), inverse = at::zeros_like(a);
  const at::Tensor small = diagonal_blocks(a, kSolved);
  diagonal_blocks(inverse, kSolved)
      .copy_(at::linalg_solve_triangular(small, at::eye(kSolved, a.options()).expand_as(small),
                                         /*upper=*/false, /*left=*/true, /*unitriangular=*/true));
  for (int64_t size = kSolved; size < a.size(-1); size *= 2) {
    const at::Tensor blocks = diagonal_blocks(inverse, 2 * size);
    const at::Tensor between =
        diagonal_blocks(a, 2 * size).narrow(2, size, size).narrow(3, 0, size);
    const at::Tensor p = blocks.narrow(2, 0, size).narrow(3, 0, size),
                     q = blocks.narrow(2, size, size).narrow(3, size, size);
    blocks.narrow(2, size, size)
        .narrow(3, 0, size)
        .copy_(at::matmul(q, at::matmul(between, p)).neg_());
  }
  return inverse.view_as(matrix);
}

/// D [N, H, C, C]. With strong decay the sums are large and their differences small, so these are
/// computed in fp64. Above the diagonal they would overflow, so they are masked before exp.
at::Tensor decay_between(const at::Tensor& sums) {
  const at::Tensor later =
      at::ones({kChunk, kChunk}, sums.options().dtype(at::kBool)).triu(/*diagonal=*/1);
  return (sums.unsqueeze(-1) - sums.unsqueeze(-2))
      .to(at::kFloat)
      .masked_fill_(later, -std::numeric_limits<float>::infinity())
      .exp_();
}

/// Quantities of the chunks that do not depend on the states.
struct Inner {
  UnitRows q, k;       // [N, G, C, K]
  at::Tensor v, beta;  // [N, H, C, V] view, [N, H, C, 1]
  at::Tensor decayed;  // [N, H, C, 1]: e^c
  at::Tensor d;        // [N, H, C, C]
  at::Tensor qk, kk;   // [N, G, C, C]
  at::Tensor inverse;  // [N, H, C, C]: A^-1
  at::Tensor reading;  // [N, H, C, K]: A^-1 beta e^c k
  at::Tensor writing;  // [N, H, C, K]: e^(c_last - c) k
  at::Tensor x;        // [N, H, C, V]: A^-1 beta v; the new values after `remember`

  at::Tensor last_decayed() const { return decayed.narrow(2, kChunk - 1, 1); }  // [N, H, 1, 1]
  at::Tensor decay_to_end() const { return d.select(2, kChunk - 1).unsqueeze(-1); }
};

Inner inner_of(const RuleInputs& in, const RuleShape& shape, const Heads& heads) {
  Inner inner;
  const auto [q, k, v] = views_of(in.qkv, heads, shape);
  inner.q = unit_rows(q, 1 / std::sqrt(static_cast<double>(shape.key_dim)));
  inner.k = unit_rows(k, 1);
  inner.v = v;
  const auto part = [&](const at::Tensor& gates) {
    return gates.narrow(1, heads.first_value(), heads.num_values());
  };
  inner.beta = part(in.beta).unsqueeze(-1);
  const at::Tensor sums = part(in.g).to(at::kDouble).cumsum(-1);
  inner.decayed = sums.to(at::kFloat).exp_().unsqueeze(-1);
  inner.d = decay_between(sums);
  const at::Tensor& keys = inner.k.rows;
  inner.qk = at::matmul(inner.q.rows, keys.transpose(2, 3));
  inner.kk = at::matmul(keys, keys.transpose(2, 3));
  inner.inverse = unit_lower_inverse(times(inner.kk, inner.d).mul_(inner.beta));
  inner.reading = at::matmul(inner.inverse, times(keys, inner.decayed * inner.beta));
  inner.writing = times(keys, inner.decay_to_end());
  at::Tensor rhs = at::empty(v.sizes(), v.options());  // contiguous, unlike v
  at::mul_out(rhs, v, inner.beta);
  inner.x = at::matmul(inner.inverse, rhs);
  return inner;
}

/// Chunks [first, first + count) of x [N, H, a, b] as a batch of matrices.
at::Tensor matrices(const at::Tensor& x, int64_t first, int64_t count) {
  return x.narrow(0, first, count).flatten(0, 1);
}

/// The recurrence over chunks. Returns the state at the start of each chunk [N, H, K, V]; `inner.x`
/// becomes the new values.
at::Tensor remember(Inner& inner, const Chunks& chunks) {
  const auto sizes = inner.reading.sizes();
  at::Tensor memories =
      at::empty({sizes[0], sizes[1], sizes[3], inner.x.size(3)}, inner.x.options());
  memories.narrow(0, 0, chunks.steps[0]).zero_();
  int64_t first = 0;
  for (size_t step = 0; step < chunks.steps.size(); ++step) {
    const int64_t count = chunks.steps[step],
                  after = step + 1 < chunks.steps.size() ? chunks.steps[step + 1] : 0;
    if (step > 0)
      matrices(inner.x, first, count)
          .baddbmm_(matrices(inner.reading, first, count), matrices(memories, first, count), 1, -1);
    if (after > 0) {
      at::Tensor next = memories.narrow(0, first + count, after);
      at::mul_out(next, memories.narrow(0, first, after),
                  inner.last_decayed().narrow(0, first, after));
      matrices(memories, first + count, after)
          .baddbmm_(matrices(inner.writing, first, after).transpose(1, 2),
                    matrices(inner.x, first, after));
    }
    first += count;
  }
  return memories;
}

/// State [H, K, V] after the last chunk.
at::Tensor memory_after_last(const Inner& inner, const at::Tensor& memories) {
  const int64_t last = memories.size(0) - 1;
  return at::baddbmm(memories[last] * inner.last_decayed()[last],
                     inner.writing[last].transpose(1, 2), inner.x[last]);
}

/// Backward pass of the recurrence over chunks. Returns the gradient [N, H, K, V] of the state
/// after each chunk.
/// @param d_x gradient of the new values from their own chunk's output; becomes the full gradient
/// @param d_start [N, H, K, V] gradient of the state at each chunk's start from its own output
at::Tensor remember_backward(const Inner& inner, const Chunks& chunks, at::Tensor& d_x,
                             const at::Tensor& d_start) {
  at::Tensor d_after = at::zeros_like(d_start);  // the last state of a document is not read
  int64_t end = d_start.size(0), after = 0;
  for (size_t step = chunks.steps.size(); step-- > 0;) {
    const int64_t count = chunks.steps[step], first = end - count;
    if (after > 0)
      matrices(d_x, first, after)
          .baddbmm_(matrices(inner.writing, first, after), matrices(d_after, first, after));
    if (step > 0) {
      const int64_t before = first - chunks.steps[step - 1];
      at::Tensor target = d_after.narrow(0, before, count);
      at::addcmul_out(target, d_start.narrow(0, first, count), d_after.narrow(0, first, count),
                      inner.last_decayed().narrow(0, first, count));
      matrices(d_after, before, count)
          .baddbmm_(matrices(inner.reading, first, count).transpose(1, 2),
                    matrices(d_x, first, count), 1, -1);
    }
    after = count, end = first;
  }
  return d_after;
}

/// Gradient of x for rows = unit_rows(x).
at::Tensor unit_rows_backward(const at::Tensor& d, const UnitRows& unit, double length) {
  const at::Tensor along = (unit.rows * d).sum(-1, /*keepdim=*/true).mul_(-1 / (length * length));
  return at::addcmul(d, unit.rows, along).mul_(unit.factor);
}

at::Tensor reversed_cumsum(const at::Tensor& x) {
  return x.flip(-1).cumsum(-1).flip(-1);
}

void zero_diagonal(const at::Tensor& x) {
  x.diagonal(0, -2, -1).zero_();
}

/// Backward pass of some heads; writes to their part of `grads`.
class RuleBackward {
 public:
  RuleBackward(const at::Tensor& d_out, const RuleInputs& in, const RuleShape& shape,
               const Chunks& chunks, const Heads& heads)
      : shape_(shape), chunks_(chunks), heads_(heads), inner_(inner_of(in, shape, heads)) {
    memories_ = remember(inner_, chunks);
    const at::Tensor mine =
        heads_of(d_out, 0, heads.first_value(), heads.num_values(), shape.value_dim);
    d_out_ = at::empty(mine.sizes(), inner_.x.options());
    at::mul_out(d_out_, mine, chunks.real.view({-1, 1, kChunk, 1}));
  }

  void write_to(const RuleGrads& grads) {
    through_memories();
    const at::Tensor d_rhs = at::matmul(inner_.inverse.transpose(2, 3), d_x_);  // A X = rhs
    const auto gate = [&](const at::Tensor& all) {
      return all.narrow(1, heads_.first_value(), heads_.num_values());
    };
    // beta dX/dbeta is X's own contribution; the derivative of beta by its logit is beta (1 -
    // beta).
    gate(grads.b).copy_((d_rhs * inner_.x).sum(-1) * (1 - inner_.beta.squeeze(-1)));
    const QkvViews d = views_of(grads.qkv, heads_, shape_);
    at::Tensor d_v = d.v;
    at::mul_out(d_v, d_rhs, inner_.beta);
    within_chunks(d_rhs);
    between_chunks(d_rhs);
    gate(grads.g).copy_(reversed_cumsum(d_sums_));
    d.q.copy_(
        unit_rows_backward(d_q_, inner_.q, 1 / std::sqrt(static_cast<double>(shape_.key_dim))));
    d.k.copy_(unit_rows_backward(d_k_, inner_.k, 1));
  }

 private:
  void through_memories() {
    const at::Tensor weights = times(inner_.qk, inner_.d);
    d_x_ = at::matmul(weights.transpose(2, 3), d_out_);
    const at::Tensor reading = times(inner_.q.rows, inner_.decayed);
    d_after_ =
        remember_backward(inner_, chunks_, d_x_, at::matmul(reading.transpose(2, 3), d_out_));
  }

  /// Through q k^T D and A. A gradient of D's exponent c_i - c_j is added to c_i, subtracted from
  /// c_j.
  void within_chunks(const at::Tensor& d_rhs) {
    const at::Tensor new_values = inner_.x.transpose(2, 3);
    const at::Tensor d_qk = at::matmul(d_out_, new_values).mul_(inner_.d);
    const at::Tensor d_kk = at::matmul(d_rhs, new_values).mul_(inner_.d).mul_(inner_.beta.neg());
    zero_diagonal(d_kk);
    const at::Tensor d_exponents = times(inner_.qk, d_qk).add_(times(inner_.kk, d_kk));
    zero_diagonal(d_exponents);
    d_sums_ = d_exponents.sum(-1).sub_(d_exponents.sum(-2));
    const at::Tensor qk = sum_over_values(d_qk, heads_), kk = sum_over_values(d_kk, heads_);
    d_q_ = at::matmul(qk, inner_.k.rows);
    d_k_ = at::matmul(qk.transpose(2, 3), inner_.q.rows)
               .add_(at::matmul(kk + kk.transpose(2, 3), inner_.k.rows));
  }

  /// Through reading the state at a chunk's start and writing the state after it.
  void between_chunks(const at::Tensor& d_rhs) {
    const at::Tensor starts = memories_.transpose(2, 3);
    const at::Tensor read_q = at::matmul(d_out_, starts).mul_(inner_.decayed);
    const at::Tensor read_k =
        at::matmul(d_rhs, starts).mul_(inner_.decayed * inner_.beta);  // is subtracted
    const at::Tensor written =
        at::matmul(inner_.x, d_after_.transpose(2, 3)).mul_(inner_.decay_to_end());
    const at::Tensor of_writing = row_dots(inner_.k.rows, written);
    d_sums_.add_(row_dots(inner_.q.rows, read_q));
    d_sums_.sub_(row_dots(inner_.k.rows, read_k)).sub_(of_writing);
    const at::Tensor kept = (memories_ * d_after_).sum({2, 3}) * inner_.last_decayed().flatten(1);
    d_sums_.select(2, kChunk - 1).add_(of_writing.sum(-1)).add_(kept);
    d_q_.add_(sum_over_values(read_q, heads_));
    d_k_.add_(sum_over_values(written.sub(read_k), heads_));
  }

  const RuleShape& shape_;
  const Chunks& chunks_;
  Heads heads_;
  Inner inner_;
  at::Tensor memories_;   // [N, H, K, V]: state at each chunk's start
  at::Tensor d_out_;      // [N, H, C, V], 0 at padding
  at::Tensor d_x_;        // [N, H, C, V]: gradient of the new values
  at::Tensor d_after_;    // [N, H, K, V]: gradient of the state after each chunk
  at::Tensor d_sums_;     // [N, H, C]: gradient of c
  at::Tensor d_q_, d_k_;  // [N, G, C, K]: gradients of the unit rows
};

/// Calls body(heads) for parts of the key heads, which are independent.
template <typename Body>
void for_heads(const RuleInputs& in, const RuleShape& shape, const Chunks& chunks,
               const Body& body) {
  const int64_t per_key = shape.values_per_key();
  const int64_t cuda_part = std::max<int64_t>(1, kCudaPairs / (chunks.count() * per_key));
  for_parts(in.qkv.device(), shape.num_key_heads, /*cpu_part=*/1, cuda_part,
            [&](int64_t first, int64_t count) {
              body(Heads{first, count, per_key});
            });
}

}  // namespace

UnitRows unit_rows(const at::Tensor& x, double length) {
  UnitRows unit;
  unit.factor = (x * x).sum(-1, /*keepdim=*/true).add_(1e-6).rsqrt_().mul_(length);
  unit.rows = at::empty(x.sizes(), x.options());
  at::mul_out(unit.rows, x, unit.factor);
  return unit;
}

at::Tensor delta_rule_forward(const RuleInputs& in, const RuleShape& shape, const Chunks& chunks,
                              at::ScalarType dtype, at::Tensor* memory) {
  const ProfileRange range("delta_rule_forward");
  at::Tensor out = at::empty({chunks.count(), kChunk, shape.num_value_heads * shape.value_dim},
                             in.qkv.options().dtype(dtype));
  if (memory)
    *memory = at::empty({shape.num_value_heads, shape.key_dim, shape.value_dim}, in.qkv.options());
  for_heads(in, shape, chunks, [&](const Heads& heads) {
    Inner inner = inner_of(in, shape, heads);
    const at::Tensor memories = remember(inner, chunks);
    const at::Tensor read = at::matmul(times(inner.q.rows, inner.decayed), memories);
    read.flatten(0, 1).baddbmm_(times(inner.qk, inner.d).flatten(0, 1), inner.x.flatten(0, 1));
    heads_of(out, 0, heads.first_value(), heads.num_values(), shape.value_dim).copy_(read);
    if (memory)
      memory->narrow(0, heads.first_value(), heads.num_values())
          .copy_(memory_after_last(inner, memories));
  });
  return out;
}

RuleGrads delta_rule_backward(const at::Tensor& d_out, const RuleInputs& in, const RuleShape& shape,
                              const Chunks& chunks) {
  const ProfileRange range("delta_rule_backward");
  RuleGrads grads{at::empty_like(in.qkv), at::empty_like(in.g), at::empty_like(in.g)};
  for_heads(in, shape, chunks, [&](const Heads& heads) {
    RuleBackward(d_out, in, shape, chunks, heads).write_to(grads);
  });
  return grads;
}

}  // namespace sftrun::kernels
