// `upload` and `fetch`: checkpoints between a root and a bucket, without a daemon.
#include <filesystem>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/disk_root.h"
#include "client/ckptctl/commands/progress.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/bucket/fetch.h"
#include "storage/bucket/upload.h"

namespace ckptd::ctl {
namespace {

// The part before the last slash, and the one after it.
std::pair<std::string, std::string> SplitTag(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.rfind('/');
  if (slash == path.npos) return std::pair(std::string("."), path);
  return std::pair(slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1));
}

absl::Status NeedsUrl(const std::string& what) {
  return InvalidArgument(absl::StrCat("\"", what, "\" is no URL of a bucket (s3://BUCKET/PREFIX)"));
}

TransferOptions Options(Progress& progress, const std::string& tag) {
  TransferOptions options;
  options.progress = [&progress, tag](int64_t bytes) { progress.Show(tag, bytes); };
  return options;
}

}  // namespace

absl::StatusOr<ExitCode> Upload(const Context& context, const std::string& what, const std::string& to) {
  if (!IsBucketUrl(to)) return NeedsUrl(to);
  CKPTD_ASSIGN_OR_RETURN(const BucketUrl url, ParseBucketUrl(to));
  const auto [root_path, tag] = SplitTag(what);
  CKPTD_ASSIGN_OR_RETURN(const OpenRoot root, OpenAnyRoot(root_path));
  CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store, OpenBucket(url));
  Progress progress(context, "uploading");
  CKPTD_ASSIGN_OR_RETURN(const UploadResult result, UploadCheckpoint(*root.fs, root.handle.get(), tag, *store,
                                                                     url.prefix, Options(progress, tag)));
  if (context.json) {
    google::protobuf::Struct json;
    auto& fields = *json.mutable_fields();
    fields["tag"] = JsonText(tag);
    fields["sent_bytes"] = JsonNumber(static_cast<double>(result.sent_bytes));
    fields["arrived_bytes"] = JsonNumber(static_cast<double>(result.arrived_bytes));
    *context.out << ToJson(json);
  } else {
    *context.out << Printable(tag) << " is in " << Printable(to) << ": " << HumanBytes(result.sent_bytes)
                 << " sent, " << HumanBytes(result.arrived_bytes) << " were there\n";
  }
  return kOk;
}

absl::StatusOr<ExitCode> Fetch(const Context& context, const std::string& from, const std::string& folder) {
  if (!IsBucketUrl(from)) return NeedsUrl(from);
  const auto [bucket_root, tag] = SplitTag(from);
  CKPTD_ASSIGN_OR_RETURN(const BucketUrl url, ParseBucketUrl(bucket_root));
  CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store, OpenBucket(url));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return ErrnoError(error.value(), absl::StrCat("making ", folder));
  CKPTD_ASSIGN_OR_RETURN(const OpenRoot root, OpenAnyRoot(folder));
  Progress progress(context, "fetching");
  CKPTD_ASSIGN_OR_RETURN(
      const storage::v1::ManifestSummary summary,
      FetchCheckpoint(*store, url.prefix, tag, *root.fs, root.handle.get(), Options(progress, tag)));
  if (context.json) {
    google::protobuf::Struct json;
    auto& fields = *json.mutable_fields();
    fields["tag"] = JsonText(tag);
    fields["root"] = JsonText(root.path);
    fields["size_bytes"] = JsonNumber(static_cast<double>(summary.size_bytes()));
    *context.out << ToJson(json);
  } else {
    *context.out << Printable(tag) << " is in " << Printable(root.path) << ": "
                 << HumanBytes(summary.size_bytes()) << ", verified\n";
  }
  return kOk;
}

}  // namespace ckptd::ctl
