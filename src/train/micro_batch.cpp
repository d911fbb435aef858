#include "sftrun/train/micro_batch.h"

namespace sftrun::train {

data::Batch micro_batch_of(const parallel::Mesh& mesh, const data::ExampleStore& examples,
                           const std::vector<data::Bin>& bins, const MicroBatchDeal& deal) {
  const int64_t rank = deal.is_same_on_all ? 0 : mesh.dp_rank();
  const int64_t first = (deal.micro_step * mesh.dp_size() + rank) * deal.size;
  return data::make_batch(examples, bins, first, deal.size);
}

}  // namespace sftrun::train
