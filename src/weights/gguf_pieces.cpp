#include <cmath>
#include <numeric>

#include "gguf_form.h"
#include "gguf_names.h"
#include "sftrun/core/error.h"
#include "sftrun/weights/gguf_export.h"
#include "shape_math.h"

/// The inverse of the reader's names and forms (gguf_names.h, gguf_form.h).
namespace sftrun::weights {
namespace {

/// Inverts a permutation.
std::vector<int64_t> inverse(const std::vector<int64_t>& places) {
  std::vector<int64_t> result(places.size());
  for (size_t i = 0; i < places.size(); ++i)
    result[static_cast<size_t>(places[i])] = static_cast<int64_t>(i);
  return result;
}

GgufPiece piece_of(const spec::ArchSpec& arch, const spec::TensorSpec& spec, std::string name) {
  const GgufForm form = gguf_form(arch, spec);
  GgufPiece piece{.name = std::move(name), .shape = spec.shape, .layer = spec.layer};
  const bool is_vector = spec.shape.size() == 1;
  piece.row_size = is_vector && !form.rows.empty() ? 1 : spec.shape.back();
  piece.rows = inverse(form.rows);
  piece.columns = inverse(form.columns);
  piece.adds_one = form.value == GgufForm::Value::kPlusOne;
  piece.minus_exp = form.value == GgufForm::Value::kMinusExp;
  return piece;
}

/// A piece of an experts' tensor, which has `count` matrices (gate and up, or one) per expert.
/// @param number which of them
GgufPiece piece_of_experts(const spec::TensorSpec& spec, const std::string& name, int64_t number,
                           int64_t count) {
  GgufPiece piece{.name = name, .shape = spec.shape, .layer = spec.layer};
  piece.shape[1] /= count;
  piece.row_size = piece.shape.back();
  if (count == 1) return piece;
  const bool is_bias = spec.shape.size() == 2;
  const int64_t rows = is_bias ? 1 : piece.shape[1];  // rows per expert
  for (int64_t expert = 0; expert < spec.shape[0]; ++expert) {
    for (int64_t row = 0; row < rows; ++row)
      piece.rows.push_back((expert * count + number) * rows + row);
  }
  return piece;
}

}  // namespace

int64_t GgufPiece::num_rows() const {
  return row_size == 0 ? 0 : checked_numel(shape).value() / row_size;
}

std::vector<GgufPiece> gguf_pieces(const spec::ArchSpec& arch) {
  const std::map<std::string, std::string> names = gguf_names(arch);
  const std::vector<spec::TensorSpec> specs = spec::tensor_specs(arch);
  std::vector<GgufPiece> pieces;
  for (size_t source = 0; source < specs.size(); ++source) {
    const spec::TensorSpec& spec = specs[source];
    if (spec.projector >= 0) continue;  // llama.cpp has no such part
    if (!belongs_to_experts(spec)) {
      pieces.push_back(piece_of(arch, spec, names.at(spec.name)));
      pieces.back().source = source;
      continue;
    }
    const std::vector<std::string> of_experts = gguf_expert_names(spec);
    const auto count = static_cast<int64_t>(of_experts.size());
    for (int64_t i = 0; i < count; ++i) {
      pieces.push_back(piece_of_experts(spec, of_experts[static_cast<size_t>(i)], i, count));
      pieces.back().source = source;
    }
  }
  return pieces;
}

void fill_rows(const GgufPiece& piece, const float* source, int64_t first, int64_t count,
               float* rows) {
  const auto size = static_cast<size_t>(piece.row_size);
  for (int64_t row = 0; row < count; ++row) {
    const int64_t there =
        piece.rows.empty() ? first + row : piece.rows[static_cast<size_t>(first + row)];
    const float* from = source + there * piece.row_size;
    float* to = rows + row * piece.row_size;
    for (size_t i = 0; i < size; ++i)
      to[i] = from[piece.columns.empty() ? i : static_cast<size_t>(piece.columns[i])];
    if (piece.adds_one)
      for (size_t i = 0; i < size; ++i) to[i] += 1.0F;
    if (piece.minus_exp)
      for (size_t i = 0; i < size; ++i) to[i] = -std::exp(to[i]);
  }
}

}  // namespace sftrun::weights
