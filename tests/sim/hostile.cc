#include "tests/sim/hostile.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMaxSessions = 30;
constexpr int64_t kSegment = 2 << 20;

}  // namespace

Hostile::Hostile(World* world, uint64_t seed)
    : world_(*world),
      job_(world->plan().runs),
      saves_(world->plan().runs + 1),
      uid_(world->plan().UidOf(saves_)),
      random_(seed) {}

void Hostile::ActLater() {
  world_.schedule().After(random_.Spread(milliseconds(1), seconds(1)), [self = shared_from_this()] {
    if (self->ended_) return;
    self->Act();
    self->ActLater();
  });
}

void Hostile::End() {
  ended_ = true;
  const std::vector<MemberPtr> members = std::move(members_);
  members_.clear();
  for (const MemberPtr& member : members) {
    if (world_.engine() != nullptr) world_.engine()->SessionClosed(member->session, "killed");
  }
}

void Hostile::Act() {
  if (world_.engine() == nullptr) return;
  const int64_t what = random_.Below(100);
  if (members_.empty() || (what < 15 && members_.size() < kMaxSessions)) return Connect();
  MemberPtr member = members_[random_.Below(static_cast<int64_t>(members_.size()))];
  if (what < 60) {
    for (const MemberPtr& other : members_) {
      if (other->joined) member = other;
    }
    return Begin(member);
  }
  if (what < 65) return Seal(member);
  if (what < 80) return Read(member);
  if (what < 99) return Intrude(member);
  if (!member->joined || random_.Percent(5)) Leave(member);
}

void Hostile::Connect() {
  auto member = std::make_shared<Member>();
  member->session = world_.NewSession();
  members_.push_back(member);
  SessionInfo info;
  info.id = member->session;
  info.uid = uid_;
  info.client_instance = absl::StrCat("hostile", member->session);
  info.descriptors = random_.Percent(80);
  world_.engine()->SessionOpened(info);
  // Most launches have one rank, whose saves need no other rank; some wait for ranks that never come. A new
  // launch fences the one before, so new launches are rare.
  if (launches_ == 0 || random_.Percent(4)) ++launches_;
  member->world_size = launches_ % 4 == 0 ? 100 : 1;
  member->rank = static_cast<int>(random_.Below(member->world_size));
  world_.engine()->AttachRoot(
      member->session, world_.Attachment(saves_),
      world_.Expect<std::string>(
          "AttachRoot of the hostile user",
          [self = shared_from_this(), member, launch = launches_](absl::StatusOr<std::string> root) {
            if (!root.ok() || self->world_.engine() == nullptr) return;
            member->root = *root;
            v1::JoinRunRequest request;
            request.set_root(*root);
            request.set_rank(member->rank);
            request.set_world_size(member->world_size);
            request.set_launch_id(absl::StrCat("H", launch));
            self->world_.engine()->JoinRun(
                self->As(*member), request,
                self->world_.Expect<v1::JoinRunResponse>(
                    "JoinRun of the hostile user", [member](absl::StatusOr<v1::JoinRunResponse> joined) {
                      if (!joined.ok()) return;
                      member->attempt = joined->attempt();
                      member->joined = true;
                    }));
          }));
}

// Begins a save of one byte up to more than the pool has, with the longest allowed timeout.
void Hostile::Begin(const MemberPtr& member) {
  if (!member->joined) return;
  const int64_t pool = world_.plan().segments * kSegment;
  const int64_t sizes[] = {1, 1, kSegment + 1, pool / 8, pool / 3, pool / 2, pool, pool + 1};
  const SaveName name{saves_, member->attempt, absl::StrCat("h", tags_++), 1};
  v1::BeginRequest request;
  v1::SaveKey& key = *request.mutable_key();
  key.set_run(member->root);
  key.set_rank(member->rank);
  key.set_tag(name.tag);
  key.set_ordinal(name.ordinal);
  request.set_growing(random_.Percent(20));
  request.set_busy(random_.Percent(70) ? v1::WAIT : random_.Percent(50) ? v1::SUPERSEDE : v1::SKIP);
  request.mutable_timeout()->set_seconds(86400);
  request.mutable_commit_timeout()->set_seconds(86400);
  v1::FileSpec& file = *request.add_files();
  file.set_path(absl::StrCat("r", member->rank));
  file.set_size_bytes(sizes[random_.Below(std::size(sizes))]);
  const Oracle::FenceState before = world_.oracle().FenceStateOf(saves_);
  world_.oracle().RequestSent(saves_, member->attempt);
  world_.engine()->Begin(
      As(*member), request,
      world_.Expect<v1::BeginResponse>(
          absl::StrCat("Begin ", name.ToString(), " of the hostile user"),
          [self = shared_from_this(), member, name, before](absl::StatusOr<v1::BeginResponse> begun) {
            if (ReasonOf(begun.status()) == "FENCED")
              self->world_.oracle().ToldFenced(self->saves_, member->attempt);
            if (!begun.ok()) return;
            // A save that is skipped because the file system does not answer has not activated the attempt.
            if (begun->level() == v1::SKIPPED) return;
            self->world_.oracle().RequestTookEffect(self->saves_, member->attempt, before, "Begin");
            self->world_.Count("begun by a hostile user");
            std::vector<int64_t> segments;
            for (const v1::Segment& segment : begun->segments()) segments.push_back(segment.id());
            self->world_.oracle().Granted(name, member->rank, begun->sequence(), member->session, segments);
            member->begun.push_back(name);
          }));
}

// Seals without files, so that there is a durable checkpoint to read.
void Hostile::Seal(const MemberPtr& member) {
  if (member->begun.empty()) return;
  const SaveName name = member->begun.back();
  member->begun.pop_back();
  v1::SealRequest request;
  v1::SaveKey& key = *request.mutable_key();
  key.set_run(member->root);
  key.set_rank(member->rank);
  key.set_tag(name.tag);
  key.set_ordinal(name.ordinal);
  world_.oracle().SealSent(name, member->rank, member->world_size, {});
  const Oracle::FenceState before = world_.oracle().FenceStateOf(saves_);
  world_.engine()->Seal(
      As(*member), request,
      world_.Expect<v1::SealResponse>(
          absl::StrCat("Seal ", name.ToString(), " of the hostile user"),
          [self = shared_from_this(), member, name, before](absl::StatusOr<v1::SealResponse> sealed) {
            if (!sealed.ok()) return;
            self->world_.oracle().SealOk(name, member->rank, before, false, sealed->level());
            self->world_.Count("sealed by a hostile user");
          }));
}

// Opens a checkpoint and never releases the lease.
void Hostile::Read(const MemberPtr& member) {
  const int run = random_.Percent(70) ? job_ : saves_;
  if (world_.RunName(run).empty()) return;
  v1::OpenCheckpointRequest request;
  request.set_name(absl::StrCat(world_.RunName(run), "/checkpoints/latest"));
  world_.engine()->OpenCheckpoint(
      As(*member), request,
      world_.Expect<v1::OpenCheckpointResponse>(
          "OpenCheckpoint of the hostile user",
          [self = shared_from_this(), member](absl::StatusOr<v1::OpenCheckpointResponse> opened) {
            if (!opened.ok()) return;
            self->world_.schedule().After(microseconds(50), [self, member, lease = opened->lease()] {
              if (self->world_.engine() != nullptr) self->Locate(member, lease);
            });
          }));
}

void Hostile::Locate(const MemberPtr& member, const std::string& lease) {
  v1::LocateFilesRequest request;
  request.set_lease(lease);
  request.set_map(random_.Percent(50));
  world_.engine()->LocateFiles(
      As(*member), request,
      world_.Expect<v1::LocateFilesResponse>(
          "LocateFiles of the hostile user",
          [self = shared_from_this()](absl::StatusOr<v1::LocateFilesResponse> located) {
            if (located.ok() && located->parts_size() > 0) self->world_.Count("held by a hostile reader");
          }));
}

template <typename T>
Reply<T> Hostile::ExpectRefusal(const std::string& what) {
  return world_.Expect<T>(absl::StrCat(what, " of the hostile user"),
                          [self = shared_from_this(), what](absl::StatusOr<T> answer) {
                            self->world_.Count("intrusion");
                            if (answer.ok())
                              self->world_.oracle().Violated(absl::StrCat(
                                  "a hostile user's ", what, " succeeded on a run of another user"));
                          });
}

// Sends a request that names another user's run: the daemon must refuse it.
void Hostile::Intrude(const MemberPtr& member) {
  const int run = static_cast<int>(random_.Below(world_.plan().runs));
  const std::string name = world_.RunName(run);
  if (name.empty()) return;
  Engine& engine = *world_.engine();
  v1::SaveKey key;
  key.set_run(name);
  key.set_tag(absl::StrCat("again", random_.Below(3)));
  key.set_ordinal(1);
  const std::string latest = absl::StrCat(name, "/checkpoints/latest");
  const Caller caller = As(*member);
  switch (random_.Below(10)) {
    case 0: {
      RootAttachment attachment = world_.Attachment(run);
      attachment.uid = uid_;
      return engine.AttachRoot(member->session, std::move(attachment),
                               ExpectRefusal<std::string>("AttachRoot"));
    }
    case 1: {
      v1::JoinRunRequest request;
      request.set_root(name);
      request.set_world_size(1);
      request.set_launch_id("intruder");
      return engine.JoinRun(caller, request, ExpectRefusal<v1::JoinRunResponse>("JoinRun"));
    }
    case 2: {
      v1::BeginRequest request;
      *request.mutable_key() = key;
      return engine.Begin(caller, request, ExpectRefusal<v1::BeginResponse>("Begin"));
    }
    case 3: {
      v1::SealRequest request;
      *request.mutable_key() = key;
      return engine.Seal(caller, request, ExpectRefusal<v1::SealResponse>("Seal"));
    }
    case 4: {
      v1::AbortRequest request;
      if (random_.Percent(50)) {
        *request.mutable_key() = key;
      } else {
        request.set_name(absl::StrCat(name, "/checkpoints/", key.tag()));
      }
      return engine.Abort(caller, request, ExpectRefusal<v1::AbortResponse>("Abort"));
    }
    case 5: {
      v1::ResumeRequest request;
      request.set_run(name);
      return engine.Resume(caller, request, ExpectRefusal<v1::ResumeResponse>("Resume"));
    }
    case 6: {
      v1::FinishResumeRequest request;
      request.set_run(name);
      request.set_sequence(1);
      request.mutable_damage()->set_message("a lie");
      return engine.FinishResume(caller, request, ExpectRefusal<v1::FinishResumeResponse>("FinishResume"));
    }
    case 7: {
      v1::ReportDamageRequest request;
      request.set_name(latest);
      request.set_sequence(random_.Below(20));
      request.mutable_damage()->set_message("a lie");
      return engine.ReportDamage(caller, request, ExpectRefusal<v1::ReportDamageResponse>("ReportDamage"));
    }
    case 8: {
      v1::OpenCheckpointRequest request;
      request.set_name(latest);
      return engine.OpenCheckpoint(caller, request,
                                   ExpectRefusal<v1::OpenCheckpointResponse>("OpenCheckpoint"));
    }
    default:
      return engine.Prefetch(caller, latest, ExpectRefusal<v1::Checkpoint>("Prefetch"));
  }
}

void Hostile::Leave(const MemberPtr& member) {
  std::erase(members_, member);
  world_.engine()->SessionClosed(member->session, "killed");
}

}  // namespace ckptd::sim
