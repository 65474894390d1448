#include "client/sdk/arguments.h"

#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ckptd/version.h"
#include "storage/base/errors.h"

namespace ckptd::inline abi0::internal {
namespace {

// Takes the options out of the arguments one by one; what is left is unknown.
class Taker {
 public:
  explicit Taker(const ArgumentsData& arguments) : left_(arguments.values) {}

  template <typename Number>
  void Take(const std::string& name, Number* out) {
    if (const auto value = Find<int64_t>(name)) *out = static_cast<Number>(*value);
  }
  void Take(const std::string& name, std::string* out) {
    if (auto value = Find<std::string>(name)) *out = *std::move(value);
  }
  void Take(const std::string& name, client::Timeout* out) {
    if (const auto value = Find<int64_t>(name)) *out = client::Timeout(*value);
  }
  void Take(const std::string& name, std::chrono::seconds* out) {
    if (const auto value = Find<int64_t>(name)) *out = std::chrono::seconds(*value);
  }
  template <typename Number>
  void Take(const std::string& name, std::optional<Number>* out) {
    if (const auto value = Find<int64_t>(name)) *out = static_cast<Number>(*value);
  }
  // All that begin with `prefix`.
  template <typename Value>
  void TakeAll(std::string_view prefix, std::map<std::string, Value>* out) {
    for (auto each = left_.lower_bound(std::string(prefix)); each != left_.end();) {
      const std::string name = each->first;
      const auto* value = std::get_if<Value>(&each->second);
      if (!name.starts_with(prefix)) break;
      if (value != nullptr) out->emplace(name.substr(prefix.size()), *value);
      each = value != nullptr ? left_.erase(each) : std::next(each);
    }
  }
  bool HasAny(std::string_view prefix) const {
    const auto first = left_.lower_bound(std::string(prefix));
    return first != left_.end() && first->first.starts_with(prefix);
  }

  template <typename Options>
  absl::StatusOr<Options> Finish(Options options) const {
    if (left_.empty()) return options;
    const std::string& name = left_.begin()->first;
    return MakeError(
        absl::StatusCode::kInvalidArgument, "UNKNOWN_OPTION",
        absl::StrCat("libckptd_client.so of version ", kVersion, " does not know the option ", name,
                     ", which this program sets; install the library that its headers came with"),
        {{"option", name}});
  }

 private:
  template <typename Value>
  std::optional<Value> Find(const std::string& name) {
    auto found = left_.find(name);
    if (found == left_.end() || !std::holds_alternative<Value>(found->second)) return std::nullopt;
    Value value = std::get<Value>(std::move(found->second));
    left_.erase(found);
    return value;
  }

  std::map<std::string, std::variant<int64_t, double, std::string>> left_;
};

client::Keep TakeKeep(Taker* taker) {
  client::Keep keep;
  taker->Take("retention.last", &keep.last);
  taker->Take("retention.best", &keep.best);
  taker->Take("retention.metric", &keep.metric);
  taker->Take("retention.highest", &keep.highest);
  taker->Take("retention.every", &keep.every);
  taker->Take("retention.newer_than", &keep.newer_than);
  return keep;
}

client::Upload TakeUpload(Taker* taker) {
  client::Upload upload;
  taker->Take("upload.url", &upload.url);
  taker->Take("upload.every", &upload.every);
  taker->Take("upload.keep_last", &upload.keep_last);
  taker->Take("upload.evict_before_upload", &upload.evict_before_upload);
  taker->Take("upload.restore", &upload.restore);
  return upload;
}

}  // namespace

absl::StatusOr<client::ClientOptions> ToClientOptions(const ArgumentsData& arguments) {
  Taker taker(arguments);
  client::ClientOptions options;
  taker.Take("name", &options.name);
  taker.Take("connect_timeout", &options.connect_timeout);
  taker.Take("keeper", &options.keeper);
  return taker.Finish(std::move(options));
}

absl::StatusOr<client::RunOptions> ToRunOptions(const ArgumentsData& arguments) {
  Taker taker(arguments);
  client::RunOptions options;
  taker.Take("rank", &options.rank);
  taker.Take("world_size", &options.world_size);
  std::string local_ranks;
  taker.Take("local_ranks", &local_ranks);
  if (!local_ranks.empty()) options.local_ranks = SplitRanks(local_ranks);
  taker.Take("launch_id", &options.launch_id);
  taker.Take("job", &options.job);
  taker.Take("run_id", &options.run_id);
  taker.Take("attempt", &options.attempt);
  if (taker.HasAny("retention.")) options.retention = TakeKeep(&taker);
  if (taker.HasAny("upload.")) options.upload = TakeUpload(&taker);
  taker.Take("share_unchanged", &options.share_unchanged);
  taker.Take("commit_timeout", &options.commit_timeout);
  taker.Take("copy_threads", &options.copy_threads);
  return taker.Finish(std::move(options));
}

absl::StatusOr<client::SaveOptions> ToSaveOptions(const ArgumentsData& arguments) {
  Taker taker(arguments);
  client::SaveOptions options;
  taker.Take("tag", &options.tag);
  taker.Take("step", &options.step);
  taker.TakeAll("metrics.", &options.metrics);
  taker.Take("suspect", &options.suspect);
  taker.TakeAll("pointers.", &options.pointers);
  taker.Take("busy", &options.busy);
  taker.Take("timeout", &options.timeout);
  return taker.Finish(std::move(options));
}

absl::StatusOr<client::OpenOptions> ToOpenOptions(const ArgumentsData& arguments) {
  Taker taker(arguments);
  client::OpenOptions options;
  taker.Take("strict", &options.strict);
  taker.Take("background", &options.background);
  return taker.Finish(options);
}

absl::StatusOr<ResumeArguments> ToResumeArguments(const ArgumentsData& arguments) {
  Taker taker(arguments);
  ResumeArguments options;
  taker.Take("timeout", &options.timeout);
  taker.Take("strict", &options.strict);
  taker.Take("allow_suspect", &options.allow_suspect);
  return taker.Finish(options);
}

Arguments::Arguments() : data_(std::make_shared<ArgumentsData>()) {}
void Arguments::Set(std::string_view name, std::string_view value) {
  data_->values.insert_or_assign(std::string(name), std::string(value));
}
void Arguments::Set(std::string_view name, int64_t value) {
  data_->values.insert_or_assign(std::string(name), value);
}
void Arguments::Set(std::string_view name, double value) {
  data_->values.insert_or_assign(std::string(name), value);
}

}  // namespace ckptd::inline abi0::internal
