// One Philox call yields 16 random bits for each of 8 channels. Channel c uses lane c / num_blocks
// of call c % num_blocks, so consecutive channels use consecutive calls and the loops vectorise.
// dropout_reference.h has the same as plain loops.
template <typename T>
void dropout(const T* x, T* y, const TokenKey* tokens, int64_t rows, int64_t channels,
             DropoutParams params) {
  constexpr int64_t kChunk = 64;
  const int64_t num_blocks = (channels + 7) / 8;
  uint32_t words[4][kChunk];
  for (int64_t row = 0; row < rows; ++row, x += channels, y += channels) {
    const TokenKey token = tokens[row];
    for (int64_t first = 0; first < num_blocks; first += kChunk) {
      const int64_t count = num_blocks - first < kChunk ? num_blocks - first : kChunk;
#pragma omp simd
      for (int64_t i = 0; i < kChunk; ++i) {
        uint32_t c0 = static_cast<uint32_t>(first + i), c1 = token.position, c2 = token.document,
                 c3 = params.module;
        uint32_t k0 = static_cast<uint32_t>(params.seed) ^ params.step,
                 k1 = static_cast<uint32_t>(params.seed >> 32);
        for (int round = 0; round < 10; ++round) {
          const uint64_t p0 = 0xD2511F53ULL * c0, p1 = 0xCD9E8D57ULL * c2;
          c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
          c1 = static_cast<uint32_t>(p1);
          c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
          c3 = static_cast<uint32_t>(p0);
          k0 += 0x9E3779B9U;
          k1 += 0xBB67AE85U;
        }
        words[0][i] = c0, words[1][i] = c1, words[2][i] = c2, words[3][i] = c3;
      }
      for (int64_t lane = 0; lane < 8; ++lane) {
        const int64_t base = lane * num_blocks + first;
        const int64_t limit = channels - base < count ? channels - base : count;
        const uint32_t* word = words[lane / 2];
        const int shift = lane % 2 == 0 ? 0 : 16;
#pragma omp simd
        for (int64_t i = 0; i < limit; ++i) {
          const bool keep = ((word[i] >> shift) & 0xffffU) >= params.threshold;
          store(y + base + i, keep ? load(x + base + i) * params.scale : 0.0F);
        }
      }
    }
  }
}
