// The keys of a root in a bucket.
//
//   PREFIX/TAG/...                                   a checkpoint, as an upload leaves it (storage/bucket/transfer.h)
//   PREFIX/.ckptd/terms/<term>                       TermText: a daemon has opened the root, see bucket_term.h
//   PREFIX/.ckptd/record.<term>                      SharedRunRecord, by the daemon of that term; the highest counts
//   PREFIX/.ckptd/unended/<term>.<sequence>.<tag>/   what that daemon has begun at the tag, see unended.h
#ifndef CKPTD_STORAGE_COMMIT_BUCKET_BUCKET_KEYS_H_
#define CKPTD_STORAGE_COMMIT_BUCKET_BUCKET_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ckptd {

// Something that a daemon has begun at a tag: a save, or the removal of a checkpoint.
struct UnendedId {
  int64_t term = 0;
  int64_t sequence = 0;
  std::string tag;
  bool operator==(const UnendedId&) const = default;
};

class BucketKeys {
 public:
  // `prefix`: without a slash at its end.
  explicit BucketKeys(std::string prefix);

  const std::string& prefix() const { return prefix_; }
  std::string Checkpoint(const std::string& tag) const;  // Of the tag, with a slash at its end.
  std::string Manifest(const std::string& tag) const;
  std::string Claim(const std::string& tag) const;  // As an upload's: storage/bucket/upload.h.

  std::string Ours() const;  // Of ckptd's own objects, with a slash at its end; so are the next two.
  std::string Terms() const;
  std::string AllUnended() const;
  std::string Term(int64_t term) const;
  std::string Record(int64_t term) const;
  std::string Unended(const UnendedId& id) const;  // With a slash at its end.

  // What the key is of; nullopt if it is another one.
  std::optional<int64_t> TermOf(std::string_view key) const;
  std::optional<int64_t> RecordOf(std::string_view key) const;
  std::optional<UnendedId> UnendedOf(std::string_view key) const;  // Also of keys beneath it.

 private:
  const std::string prefix_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_BUCKET_BUCKET_KEYS_H_
