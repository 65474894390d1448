// Run's calls that read, CheckpointInfo, Checkpoint and MappedFile: each calls its counterpart in client/cpp.
#include "client/sdk/objects.h"

namespace ckptd::inline abi0 {

using internal::Access;
using internal::Guard;
namespace core = ::ckptd::client;

// ---- Run

Result<std::optional<Checkpoint>> Run::ResumeWith(const internal::Arguments& arguments) {
  using Found = std::optional<Checkpoint>;
  return Guard([&]() -> Result<Found> {
    auto options = internal::ToResumeArguments(Access::Of(arguments));
    if (!options.ok()) return Access::ToStatus(options.status());
    auto found = data_->run.Resume(options->timeout, options->strict, options->allow_suspect);
    if (!found.ok()) return Access::ToStatus(found.status());
    if (!found->has_value()) return Found();
    return Found(Access::Wrap<Checkpoint, internal::CheckpointData>(**std::move(found)));
  });
}

Result<Checkpoint> Run::OpenWith(const std::string& tag, const internal::Arguments& arguments) {
  return Guard([&]() -> Result<Checkpoint> {
    auto options = internal::ToOpenOptions(Access::Of(arguments));
    if (!options.ok()) return Access::ToStatus(options.status());
    auto opened = data_->run.Open(tag, *options);
    if (!opened.ok()) return Access::ToStatus(opened.status());
    return Access::Wrap<Checkpoint, internal::CheckpointData>(*std::move(opened));
  });
}

Result<std::optional<CheckpointInfo>> Run::Latest() {
  using Found = std::optional<CheckpointInfo>;
  return Guard([&]() -> Result<Found> {
    auto latest = data_->run.Latest();
    if (!latest.ok()) return Access::ToStatus(latest.status());
    return latest->has_value() ? Found(Access::ToInfo(**latest)) : Found();
  });
}

Result<std::vector<CheckpointInfo>> Run::List() {
  return Guard([&]() -> Result<std::vector<CheckpointInfo>> {
    auto list = data_->run.List();
    if (!list.ok()) return Access::ToStatus(list.status());
    std::vector<CheckpointInfo> result;
    for (const core::CheckpointInfo& info : *list) result.push_back(Access::ToInfo(info));
    return result;
  });
}

Result<CheckpointInfo> Run::Prefetch(const std::string& tag, Timeout timeout) {
  return Guard([&]() -> Result<CheckpointInfo> {
    auto info = data_->run.Prefetch(tag, timeout);
    if (!info.ok()) return Access::ToStatus(info.status());
    return Access::ToInfo(*info);
  });
}

// ---- CheckpointInfo

namespace internal {

CheckpointInfo Access::ToInfo(const core::CheckpointInfo& info) {
  auto data = std::make_shared<InfoData>(InfoData{info, {}});
  for (const core::FileInfo& file : info.files)
    data->files.push_back({file.path, file.size_bytes, file.rank});
  return CheckpointInfo(std::move(data));
}

}  // namespace internal

const std::string& CheckpointInfo::name() const { return data_->info.name; }
const std::string& CheckpointInfo::tag() const { return data_->info.tag; }
std::optional<int64_t> CheckpointInfo::step() const { return data_->info.step; }
int64_t CheckpointInfo::sequence() const { return data_->info.sequence; }
int64_t CheckpointInfo::attempt() const { return data_->info.attempt; }
Level CheckpointInfo::level() const { return static_cast<Level>(data_->info.level); }
int CheckpointInfo::world_size() const { return data_->info.world_size; }
int64_t CheckpointInfo::size_bytes() const { return data_->info.size_bytes; }
int CheckpointInfo::file_count() const { return data_->info.file_count; }
bool CheckpointInfo::pinned() const { return data_->info.pinned; }
bool CheckpointInfo::resident() const { return data_->info.resident; }
const std::string& CheckpointInfo::suspect() const { return data_->info.suspect; }
const std::string& CheckpointInfo::damage() const { return data_->info.damage; }
const std::map<std::string, double>& CheckpointInfo::metrics() const { return data_->info.metrics; }
const std::vector<FileInfo>& CheckpointInfo::files() const { return data_->files; }

// ---- Checkpoint

std::span<std::byte> MappedFile::bytes() const { return data_->file.bytes(); }

CheckpointInfo Checkpoint::info() const { return Access::ToInfo(data_->checkpoint.info()); }

Result<std::vector<std::byte>> Checkpoint::Read(const std::string& path) {
  return Guard([&]() -> Result<std::vector<std::byte>> {
    auto bytes = data_->checkpoint.Read(path);
    if (!bytes.ok()) return Access::ToStatus(bytes.status());
    return *std::move(bytes);
  });
}

Status Checkpoint::ReadInto(const std::string& path, int64_t offset, std::span<std::byte> into) {
  return Guard([&] { return Access::ToStatus(data_->checkpoint.ReadInto(path, offset, into)); });
}

Status Checkpoint::ReadRanges(const std::vector<Range>& ranges) {
  return Guard([&] {
    std::vector<core::ReadRange> wanted;
    for (const Range& range : ranges) wanted.push_back({range.path, range.offset, range.into});
    return Access::ToStatus(data_->checkpoint.ReadRanges(wanted));
  });
}

Result<std::optional<MappedFile>> Checkpoint::Map(const std::string& path) {
  using Mapped = std::optional<MappedFile>;
  return Guard([&]() -> Result<Mapped> {
    auto mapped = data_->checkpoint.Map(path);
    if (!mapped.ok()) return Access::ToStatus(mapped.status());
    if (!mapped->has_value()) return Mapped();
    return Mapped(Access::Wrap<MappedFile, internal::MapData>(**std::move(mapped)));
  });
}

std::vector<CheckpointInfo> Checkpoint::passed_over() const {
  std::vector<CheckpointInfo> result;
  for (const core::CheckpointInfo& info : data_->checkpoint.passed_over())
    result.push_back(Access::ToInfo(info));
  return result;
}

Status Checkpoint::Finish(Timeout timeout) {
  return Guard([&] { return Access::ToStatus(data_->checkpoint.Finish(timeout)); });
}

}  // namespace ckptd::inline abi0
