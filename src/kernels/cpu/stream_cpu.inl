// Non-temporal stores, aligned to whole vectors (whole cache lines with AVX-512, which need no
// write combining).

#if defined(__AVX512F__)
constexpr size_t kStreamBytes = 64;
inline void stream_some(std::byte* to, const std::byte* from) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
#elif defined(__AVX2__)
constexpr size_t kStreamBytes = 32;
inline void stream_some(std::byte* to, const std::byte* from) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
#elif defined(__SSE2__)
constexpr size_t kStreamBytes = 16;
inline void stream_some(std::byte* to, const std::byte* from) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to),
                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
#else
constexpr size_t kStreamBytes = 1;
inline void stream_some(std::byte* to, const std::byte* from) {
  *to = *from;
}
#endif

inline void stream_copy(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const size_t past = reinterpret_cast<uintptr_t>(to) % kStreamBytes;
  size_t at = past == 0 ? 0 : std::min(bytes, kStreamBytes - past);
  std::memcpy(out, in, at);
  for (; at + kStreamBytes <= bytes; at += kStreamBytes) stream_some(out + at, in + at);
  std::memcpy(out + at, in + at, bytes - at);
}
