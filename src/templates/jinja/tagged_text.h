#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sftrun::templates::jinja {

/// The origin of bytes: an index into the render's table of origins, and one flag bit.
using OriginId = uint32_t;
inline constexpr OriginId kFromTemplate = 0;
inline constexpr OriginId kFromOther = 1;
inline constexpr OriginId kFirstMessageOrigin = 2;  ///< from here on: one id for a (message, field)
inline constexpr OriginId kInGeneration = 0x8000'0000U;  ///< inside {% generation %}

/// UTF-8 text with the origin of every byte. Cheap if all bytes have the same origin.
class TaggedText {
 public:
  struct Run {
    uint32_t end;  ///< one past the last byte
    OriginId origin;
  };

  TaggedText() = default;
  explicit TaggedText(std::string bytes, OriginId origin = kFromTemplate)
      : bytes_(std::move(bytes)), origin_(origin) {}

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  OriginId origin_at(size_t byte) const;
  /// In order, covering the text; none for an empty one.
  std::vector<Run> runs() const;

  void append(std::string_view bytes, OriginId origin);
  void append(const TaggedText& other) { append(other, 0, other.size()); }
  void append(const TaggedText& other, size_t begin, size_t end);
  TaggedText slice(size_t begin, size_t end) const;
  /// Sets the generation flag on every byte.
  void mark_generation();

 private:
  size_t run_index(size_t byte) const;
  void extend_runs(size_t num_bytes, OriginId origin);

  std::string bytes_;
  OriginId origin_ = kFromTemplate;  ///< of all bytes, while runs_ is empty
  std::vector<Run> runs_;            ///< adjacent ones differ
};

}  // namespace sftrun::templates::jinja
