#include "gzip_members.h"

#include <arrow/buffer.h>
#include <arrow/result.h>

namespace sftrun::arrow_readers {
namespace {

class GzipMembers final : public arrow::io::InputStream {
 public:
  GzipMembers(std::shared_ptr<arrow::io::InputStream> raw, arrow::util::Codec& codec)
      : raw_(std::move(raw)), codec_(codec) {}

  arrow::Status Close() override { return raw_->Close(); }
  bool closed() const override { return raw_->closed(); }
  arrow::Result<int64_t> Tell() const override { return position_; }

  arrow::Result<int64_t> Read(int64_t num_bytes, void* out) override {
    auto* bytes = static_cast<uint8_t*>(out);
    int64_t done = 0;
    while (done < num_bytes) {
      if (!is_inside_) {
        ARROW_ASSIGN_OR_RAISE(is_inside_, begin_member());
        if (!is_inside_) break;
      }
      ARROW_ASSIGN_OR_RAISE(const bool has_input, has_more_input());
      ARROW_ASSIGN_OR_RAISE(const auto step,
                            decompressor_->Decompress(input_left(), input_->data() + begin_,
                                                      num_bytes - done, bytes + done));
      begin_ += step.bytes_read;
      done += step.bytes_written;
      is_inside_ = !decompressor_->IsFinished();
      const bool is_stuck = step.bytes_read == 0 && step.bytes_written == 0;
      if (is_inside_ && is_stuck && !has_input)
        return arrow::Status::IOError("Truncated compressed stream");
    }
    position_ += done;
    return done;
  }

  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t num_bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(num_bytes));
    ARROW_ASSIGN_OR_RAISE(const int64_t done, Read(num_bytes, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(done));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }

 private:
  int64_t input_left() const { return input_ ? input_->size() - begin_ : 0; }

  /// Reads more input if all of it was consumed; false at the end of the file.
  arrow::Result<bool> has_more_input() {
    constexpr int64_t kReadBytes = 1 << 16;
    if (input_left() > 0) return true;
    ARROW_ASSIGN_OR_RAISE(input_, raw_->Read(kReadBytes));
    begin_ = 0;
    return input_left() > 0;
  }

  /// Skips padding and starts the next member; false at the end of the file.
  arrow::Result<bool> begin_member() {
    for (;;) {
      ARROW_ASSIGN_OR_RAISE(const bool has_input, has_more_input());
      if (!has_input) return false;
      while (input_left() > 0 && input_->data()[begin_] == 0) ++begin_;
      if (input_left() > 0) break;
    }
    if (decompressor_) {
      ARROW_RETURN_NOT_OK(decompressor_->Reset());
    } else {
      ARROW_ASSIGN_OR_RAISE(decompressor_, codec_.MakeDecompressor());
    }
    return true;
  }

  std::shared_ptr<arrow::io::InputStream> raw_;
  arrow::util::Codec& codec_;
  std::shared_ptr<arrow::util::Decompressor> decompressor_;
  std::shared_ptr<arrow::Buffer> input_;  ///< the current input, consumed up to `begin_`
  int64_t begin_ = 0, position_ = 0;
  bool is_inside_ = false;  ///< within a member
};

}  // namespace

std::shared_ptr<arrow::io::InputStream> read_gzip_members(
    std::shared_ptr<arrow::io::InputStream> raw, arrow::util::Codec& codec) {
  return std::make_shared<GzipMembers>(std::move(raw), codec);
}

}  // namespace sftrun::arrow_readers
