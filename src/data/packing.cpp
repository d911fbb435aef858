#include "packing.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "sftrun/core/error.h"

namespace sftrun::data {
namespace {

/// A complete binary tree over bins with the largest free space of every range. It finds the first
/// bin with at least `needed` free tokens in O(log n).
class FirstFitTree {
 public:
  FirstFitTree(size_t num_bins, int64_t capacity)
      : leaves_(std::bit_ceil(std::max<size_t>(num_bins, 1))), room_(2 * leaves_, capacity) {}

  size_t take(int64_t needed) {
    SFTRUN_CHECK(room_[1] >= needed);
    size_t node = 1;
    while (node < leaves_) node = room_[2 * node] >= needed ? 2 * node : 2 * node + 1;
    const size_t bin = node - leaves_;
    room_[node] -= needed;
    while (node /= 2) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    return bin;
  }

 private:
  size_t leaves_;
  std::vector<int64_t> room_;
};

/// Bins of one window; `places` are places in `order`, and so are the bins' entries.
std::vector<Bin> pack_window(std::vector<int64_t> places, std::span<const int64_t> order,
                             std::span<const int64_t> lengths, int64_t capacity) {
  const auto length_at = [&](int64_t place) { return lengths[order[place]]; };
  std::stable_sort(places.begin(), places.end(),
                   [&](int64_t a, int64_t b) { return length_at(a) > length_at(b); });
  FirstFitTree tree(places.size(), capacity);
  std::vector<Bin> bins;
  for (const int64_t place : places) {
    const size_t bin = tree.take(std::min(length_at(place), capacity));
    if (bin >= bins.size()) bins.resize(bin + 1);
    bins[bin].push_back(place);
  }
  for (Bin& bin : bins) std::sort(bin.begin(), bin.end());
  std::sort(bins.begin(), bins.end());
  return bins;
}

}  // namespace

std::vector<Bin> pack_first_fit_decreasing(std::span<const int64_t> order,
                                           std::span<const int64_t> lengths, int64_t capacity,
                                           int64_t window, std::vector<int64_t>* window_ends) {
  std::vector<Bin> packed;
  Bin carried;
  const int64_t num_examples = static_cast<int64_t>(order.size());
  for (int64_t begin = 0; begin < num_examples; begin += window) {
    const int64_t end = std::min(begin + window, num_examples);
    std::vector<int64_t> places = std::move(carried);
    places.resize(places.size() + static_cast<size_t>(end - begin));
    std::iota(places.end() - (end - begin), places.end(), begin);
    std::vector<Bin> bins = pack_window(std::move(places), order, lengths, capacity);
    carried.clear();
    if (end < num_examples) {
      const auto tokens_in = [&](const Bin& bin) {
        int64_t sum = 0;
        for (const int64_t place : bin) sum += lengths[order[place]];
        return sum;
      };
      const auto emptiest =
          std::min_element(bins.begin(), bins.end(),
                           [&](const Bin& a, const Bin& b) { return tokens_in(a) < tokens_in(b); });
      carried = std::move(*emptiest);
      bins.erase(emptiest);
    }
    for (Bin& bin : bins) packed.push_back(std::move(bin));
    if (window_ends) window_ends->push_back(static_cast<int64_t>(packed.size()));
  }
  for (Bin& bin : packed)
    for (int64_t& entry : bin) entry = order[entry];
  return packed;
}

}  // namespace sftrun::data
