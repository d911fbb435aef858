#include "reorder.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "sftrun/core/error.h"

namespace sftrun::weights {
namespace {

/// A dimension of the tensor in memory: its size, and its strides in memory and in the file.
struct Dimension {
  int64_t size = 1, memory = 0, file = 0;
};

std::vector<Dimension> dimensions_of(const FileLayout& layout) {
  std::vector<Dimension> dimensions(layout.view.size());
  int64_t stride = 1;
  for (size_t i = dimensions.size(); i-- > 0;) {
    dimensions[i].size = layout.view[i];
    dimensions[i].memory = stride;
    stride *= layout.view[i];
  }
  stride = 1;
  for (size_t i = layout.order.size(); i-- > 0;) {
    Dimension& of = dimensions[static_cast<size_t>(layout.order[i])];
    of.file = stride;
    stride *= of.size;
  }
  return dimensions;
}

/// Copies a 2D plane in square tiles that stay in cache on both sides.
template <typename T>
void copy_plane(const Dimension& rows, const Dimension& columns, const T* file, T* memory) {
  constexpr int64_t kSquare = 32;
  for (int64_t row = 0; row < rows.size; row += kSquare) {
    for (int64_t column = 0; column < columns.size; column += kSquare) {
      for (int64_t r = row; r < std::min(row + kSquare, rows.size); ++r) {
        for (int64_t c = column; c < std::min(column + kSquare, columns.size); ++c)
          memory[r * rows.memory + c * columns.memory] = file[r * rows.file + c * columns.file];
      }
    }
  }
}

/// Iterates over all dimensions but the last two, which are copied as planes.
template <typename T>
void copy(const std::vector<Dimension>& dimensions, size_t depth, const T* file, T* memory) {
  if (depth + 2 == dimensions.size())
    return copy_plane(dimensions[depth], dimensions[depth + 1], file, memory);
  const Dimension& here = dimensions[depth];
  for (int64_t i = 0; i < here.size; ++i)
    copy(dimensions, depth + 1, file + i * here.file, memory + i * here.memory);
}

template <typename T>
void copy_all(std::vector<Dimension> dimensions, const std::byte* file, std::byte* memory) {
  while (dimensions.size() < 2) dimensions.insert(dimensions.begin(), Dimension{});
  copy(dimensions, 0, reinterpret_cast<const T*>(file), reinterpret_cast<T*>(memory));
}

}  // namespace

FileLayout within_first(const FileLayout& layout) {
  SFTRUN_CHECK_EQ(layout.order.at(0), 0);
  FileLayout inner;
  inner.view.assign(layout.view.begin() + 1, layout.view.end());
  inner.shape.assign(layout.shape.begin() + 1, layout.shape.end());
  for (size_t i = 1; i < layout.order.size(); ++i) inner.order.push_back(layout.order[i] - 1);
  return inner;
}

void from_file_order(const FileLayout& layout, int64_t element_size, const std::byte* file,
                     std::byte* memory) {
  const std::vector<Dimension> dimensions = dimensions_of(layout);
  if (element_size == 4) return copy_all<uint32_t>(dimensions, file, memory);
  SFTRUN_CHECK_EQ(element_size, 2);
  copy_all<uint16_t>(dimensions, file, memory);
}

}  // namespace sftrun::weights
