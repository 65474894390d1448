// A trainer reads: opening, locating, mapping and closing checkpoints.
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "tests/sim/trainer.h"
#include "tests/sim/trainer_inl.h"

namespace ckptd::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

}  // namespace

void Trainer::LeaseGiven(const std::string& lease, int64_t sequence) {
  leases_.push_back(lease);
  world_.oracle().LeaseOpen(launch_->run, sequence, lease);
  if (random_.Percent(60))
    Later(random_.Spread(microseconds(50), seconds(2)), &Trainer::Locate, lease, sequence);
}

// Checks the bytes at once, and once more when the lease ends.
void Trainer::Locate(std::string lease, int64_t sequence) {
  if (read_leases_.contains(lease)) return;
  v1::LocateFilesRequest request;
  request.set_lease(lease);
  request.set_map(random_.Percent(world_.plan().maps));
  world_.engine()->LocateFiles(
      caller(), request,
      Expect<v1::LocateFilesResponse>(
          "LocateFiles", [this, lease, sequence](absl::StatusOr<v1::LocateFilesResponse> answer) {
            if (!answer.ok()) return;
            Located located{sequence, {}};
            std::map<int64_t, int64_t> bytes;
            for (const v1::ResidentPart& part : answer->parts()) {
              for (const v1::Segment& segment : part.segments()) bytes[segment.id()] = segment.size_bytes();
            }
            world_.Trace("  ", answer->parts_size(), " parts in ", bytes.size(), " segments",
                         answer->may_map() ? ", which it may map" : "");
            if (std::find(leases_.begin(), leases_.end(), lease) == leases_.end() ||
                read_leases_.contains(lease)) {
              // The answer comes too late to be read.
              if (answer->may_map()) MapForGood(located, std::move(bytes));
              return;
            }
            for (const v1::ResidentPart& part : answer->parts()) {
              LocatedPart& found = located.parts.emplace_back();
              found.rank = part.rank();
              for (const v1::Segment& segment : part.segments()) {
                auto memory = world_.pool()->directory().Find(session_, segment.id(), SegmentAccess::kRead);
                if (!memory.ok()) {
                  return world_.oracle().Violated(
                      absl::StrCat("segment ", segment.id(), " was located for ", Who(),
                                   ", but cannot be opened: ", std::string(memory.status().message())));
                }
                found.segments.push_back(
                    std::make_shared<Mapping>(memory->fd, memory->size, SegmentAccess::kRead));
              }
              for (const v1::FilePlacement& file : part.placements())
                found.placed[file.path()] = {file.offset(), file.size_bytes()};
            }
            world_.Count(located.parts.empty() ? "not in memory" : "read from memory");
            if (!located.parts.empty() && world_.IsPrefetched(launch_->run, sequence))
              world_.Count("prefetched and then read from memory");
            if (answer->may_map()) MapForGood(located, std::move(bytes));
            located_[lease] = std::move(located);
            ReadLocated(lease);
          }));
}

void Trainer::MapForGood(const Located& located, std::map<int64_t, int64_t> bytes) {
  world_.Count("mapped");
  std::vector<int64_t> segments;
  for (const auto& entry : bytes) segments.push_back(entry.first);
  world_.oracle().Mapped(segments);
  mapped_for_good_.push_back({session_, daemon_, located, std::move(bytes)});
  for (int i = 0; i < 2; ++i) {
    world_.schedule().After(random_.Spread(milliseconds(1), seconds(40)),
                            [self = shared_from_this()] { self->ReadMapped(); });
  }
}

void Trainer::ReadMapped() {
  for (const Mapped& mapped : mapped_for_good_) {
    if (mapped.session != session_) world_.Count("mapping unchanged after its session ended");
    Read(mapped.located);
  }
}

void Trainer::AddMapped(std::map<int64_t, int64_t>* segments) const {
  for (const Mapped& mapped : mapped_for_good_) {
    if (session_ != 0 && session_ != lost_session_ && mapped.session == session_ &&
        mapped.daemon == world_.daemon())
      segments->insert(mapped.bytes.begin(), mapped.bytes.end());
  }
}

void Trainer::ReadLocated(const std::string& lease) {
  auto found = located_.find(lease);
  if (found != located_.end()) Read(found->second);
}

void Trainer::Read(const Located& located) {
  for (const LocatedPart& part : located.parts) {
    Contents contents;
    for (const auto& [path, place] : part.placed) {
      std::vector<std::span<const std::byte>> runs;
      auto [offset, left] = place;
      for (const auto& segment : part.segments) {
        if (offset >= segment->size) {
          offset -= segment->size;
          continue;
        }
        if (left == 0) break;
        const int64_t run = std::min(left, segment->size - offset);
        runs.emplace_back(segment->data + offset, static_cast<size_t>(run));
        left -= run;
        offset = 0;
      }
      contents[path] = Digest(runs);
    }
    world_.oracle().ReadFromMemory(launch_->run, located.sequence, part.rank, contents);
  }
}

void Trainer::CloseLease(std::string lease) {
  if (std::erase(leases_, lease) == 0) return;
  ReadLocated(lease);
  located_.erase(lease);
  world_.oracle().LeaseEnded(launch_->run, lease);
  v1::CloseCheckpointRequest request;
  request.set_lease(lease);
  world_.engine()->CloseCheckpoint(caller(), request,
                                   Expect<v1::CloseCheckpointResponse>("CloseCheckpoint", [](auto) {}));
}

void Trainer::CloseLeases() {
  while (!leases_.empty()) CloseLease(leases_.back());
}

void Trainer::Open(const std::string& tag) {
  if (dead_ || !joined_) return;
  v1::OpenCheckpointRequest request;
  request.set_name(absl::StrCat(root_, "/checkpoints/", tag));
  ++opening_;
  world_.engine()->OpenCheckpoint(
      caller(), request,
      Expect<v1::OpenCheckpointResponse>(
          "OpenCheckpoint", [this](absl::StatusOr<v1::OpenCheckpointResponse> answer) {
            --opening_;
            if (!answer.ok()) return;
            world_.Count("opened");
            LeaseGiven(answer->lease(), answer->checkpoint().sequence());
            Later(random_.Spread(milliseconds(1), seconds(20)), &Trainer::CloseLease, answer->lease());
          }));
}

}  // namespace ckptd::sim
