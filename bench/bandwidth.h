#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "sftrun/kernels/cpu_table.h"

/// Kernels beside a copy of memory, by all threads, interleaved: bytes that have to move a second,
/// and their share of what the copy moves.
namespace sftrun::bench {

inline double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Measurement {
  std::string name;
  double bytes = 0;  ///< read and written, by all calls
  std::function<void()> work = {};
  std::function<double()> timed = {};  ///< in the place of `work`: does it and gives its seconds
  int calls = 1;                       ///< that are measured together
  std::vector<double> seconds = {};

  double median() {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
};

inline Measurement of_copy(std::vector<float>& from, std::vector<float>& to) {
  return {"copy", 2.0 * static_cast<double>(from.size()) * sizeof(float), [&] {
            at::parallel_for(0, static_cast<int64_t>(from.size()), 1 << 16,
                             [&](int64_t begin, int64_t end) {
                               std::memcpy(to.data() + begin, from.data() + begin,
                                           static_cast<size_t>(end - begin) * sizeof(float));
                             });
          }};
}

struct Arguments {
  int64_t values = 0;
  int rounds = 0;
};
/// Ends the program where they are none.
inline Arguments arguments_of(int argc, char** argv, int64_t default_millions) {
  const int64_t millions = argc > 1 ? std::atol(argv[1]) : default_millions;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  if (millions <= 0 || rounds <= 0) {
    std::fprintf(stderr, "usage: %s [millions of values] [rounds]\n", argv[0]);
    std::exit(2);
  }
  return {millions * 1'000'000, rounds};
}

/// Threads and instruction set.
inline std::string this_processor() {
  return std::to_string(at::get_num_threads()) + " threads, " + kernels::cpu_kernels().isa;
}

/// @param all the copy first
inline void measure(std::vector<Measurement> all, const Arguments& arguments,
                    const std::string& machine = this_processor()) {
  std::mt19937 random(1);  // NOLINT(bugprone-random-generator-seed): the same order each time
  for (int round = -1; round < arguments.rounds; ++round) {  // the first warms up
    // What runs before leaves the caches to what runs after: each comes after another each time.
    std::vector<Measurement*> order;
    for (Measurement& one : all) order.push_back(&one);
    std::shuffle(order.begin(), order.end(), random);
    for (Measurement* measured : order) {
      Measurement& one = *measured;
      const double seconds = one.timed ? one.timed() : seconds_of(one.work);
      if (round >= 0) one.seconds.push_back(seconds);
    }
  }
  const double copy_rate = all.front().bytes / all.front().median();
  std::printf("%lld million values, %s; medians of %d rounds\n",
              static_cast<long long>(arguments.values / 1'000'000), machine.c_str(),
              arguments.rounds);
  for (Measurement& one : all) {
    const double rate = one.bytes / one.median();
    std::printf("%-34s %7.3f ms  %7.2f GB/s  %3.0f%% of the copy\n", one.name.c_str(),
                1e3 * one.median() / one.calls, rate / 1e9, 100 * rate / copy_rate);
  }
}

}  // namespace sftrun::bench
