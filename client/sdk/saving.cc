// Client, Run's calls that save, Save and Part: each calls its counterpart in client/cpp.
#include "client/sdk/objects.h"

namespace ckptd::inline abi0 {

using internal::Access;
using internal::Guard;
namespace core = ::ckptd::client;

// ---- Client

Result<Client> Client::ConnectWith(const std::string& endpoint, const internal::Arguments& arguments) {
  return Guard([&]() -> Result<Client> {
    auto options = internal::ToClientOptions(Access::Of(arguments));
    if (!options.ok()) return Access::ToStatus(options.status());
    auto client = core::Client::Connect(endpoint, *options);
    if (!client.ok()) return Access::ToStatus(client.status());
    return Access::Wrap<Client, internal::ClientData>(*std::move(client));
  });
}

Result<Run> Client::OpenRunWith(const std::string& root, const internal::Arguments& arguments) {
  return Guard([&]() -> Result<Run> {
    auto options = internal::ToRunOptions(Access::Of(arguments));
    if (!options.ok()) return Access::ToStatus(options.status());
    auto run = data_->client.OpenRun(root, *options);
    if (!run.ok()) return Access::ToStatus(run.status());
    return Access::Wrap<Run, internal::RunData>(*std::move(run));
  });
}

const std::string& Client::endpoint() const { return data_->client.endpoint(); }

// ---- Run

std::string Run::name() const { return data_->run.name(); }
int64_t Run::attempt() const { return data_->run.attempt(); }

Result<abi0::Save> Run::SaveWith(const internal::Arguments& arguments, const std::vector<File>& files) {
  return Guard([&]() -> Result<abi0::Save> {
    auto options = internal::ToSaveOptions(Access::Of(arguments));
    if (!options.ok()) return Access::ToStatus(options.status());
    std::vector<core::FileSource> sources;
    for (const File& file : files) sources.push_back({file.path, file.pieces});
    auto save = data_->run.Save(*options, sources);
    if (!save.ok()) return Access::ToStatus(save.status());
    return Access::Wrap<abi0::Save, internal::SaveData>(*std::move(save));
  });
}

Result<Part> Run::BeginWith(const internal::Arguments& arguments) {
  return Guard([&]() -> Result<Part> {
    auto options = internal::ToSaveOptions(Access::Of(arguments));
    if (!options.ok()) return Access::ToStatus(options.status());
    auto part = data_->run.Begin(*options);
    if (!part.ok()) return Access::ToStatus(part.status());
    return Access::Wrap<Part, internal::PartData>(*std::move(part));
  });
}

// ---- Save

const std::string& Save::tag() const { return data_->save.tag(); }
int64_t Save::sequence() const { return data_->save.sequence(); }
Level Save::level() const { return static_cast<Level>(data_->save.level()); }

Timeout Save::time(Step step) const {
  const core::SaveTiming timing = data_->save.timing();
  switch (step) {
    case Step::kStall:
      return timing.stall;
    case Step::kBegin:
      return timing.begin;
    case Step::kMap:
      return timing.map;
    case Step::kCopy:
      return timing.copy;
    case Step::kSeal:
      return timing.seal;
  }
  return Timeout(0);  // A step of a later header.
}

Status Save::Wait(Level level, Timeout timeout) {
  return Guard([&] { return Access::ToStatus(data_->save.Wait(static_cast<core::Level>(level), timeout)); });
}

// ---- Part

bool Part::skipped() const { return data_->part.skipped(); }

Result<std::vector<std::span<std::byte>>> Part::AddFile(const std::string& path, int64_t size_bytes) {
  return Guard([&]() -> Result<std::vector<std::span<std::byte>>> {
    auto spans = data_->part.AddFile(path, size_bytes);
    if (!spans.ok()) return Access::ToStatus(spans.status());
    return *std::move(spans);
  });
}

Status Part::Truncate(const std::string& path, int64_t size_bytes) {
  return Guard([&] { return Access::ToStatus(data_->part.Truncate(path, size_bytes)); });
}

Result<Save> Part::Seal() {
  return Guard([&]() -> Result<Save> {
    auto save = data_->part.Seal();
    if (!save.ok()) return Access::ToStatus(save.status());
    return Access::Wrap<Save, internal::SaveData>(*std::move(save));
  });
}

Status Part::Abort(const std::string& message) {
  return Guard([&] { return Access::ToStatus(data_->part.Abort(message)); });
}

}  // namespace ckptd::inline abi0
