#include "daemon/engine/upload/uploads.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/run/wire.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

using storage::v1::UploadedCheckpoint;
using storage::v1::UploadRecord;
using Checkpoints = google::protobuf::RepeatedPtrField<UploadedCheckpoint>;

constexpr Duration kFirstPause = std::chrono::seconds(1);
constexpr Duration kLongestPause = std::chrono::minutes(5);
constexpr size_t kMaxUrl = 1000;
constexpr int kMaxCount = 1'000'000;
// The record of a run that several nodes share is one value in etcd: it has this many checkpoints of the bucket at
// most, the newest ones.
constexpr int kMostKept = 1000;

int IndexOf(const Checkpoints& list, int64_t sequence) {
  for (int i = 0; i < list.size(); ++i)
    if (list[i].sequence() == sequence) return i;
  return -1;
}

void Move(Checkpoints& from, int index, Checkpoints& to) {
  *to.Add() = from[index];
  from.DeleteSubrange(index, 1);
}

// Saves are committed in another order than they began in, which is that of their sequences.
void MoveToItsPlace(Checkpoints& from, int index, Checkpoints& to) {
  Move(from, index, to);
  for (int i = to.size() - 1; i > 0 && to[i - 1].sequence() > to[i].sequence(); --i)
    to.SwapElements(i - 1, i);
}

// For one of an earlier life of the run, whose sequences say nothing beside those of this one.
void InsertByTime(const UploadedCheckpoint& earlier, Checkpoints& list) {
  int place = 0;
  while (place < list.size() && list[place].commit_time_us() <= earlier.commit_time_us()) ++place;
  *list.Add() = earlier;
  for (int i = list.size() - 1; i > place; --i) list.SwapElements(i - 1, i);
}

UploadedCheckpoint AsUploaded(const storage::v1::ManifestSummary& summary) {
  UploadedCheckpoint uploaded;
  uploaded.set_tag(summary.tag());
  uploaded.set_sequence(summary.sequence());
  uploaded.set_commit_time_us(summary.commit_time_us());
  uploaded.set_size_bytes(summary.size_bytes());
  return uploaded;
}

// Nothing was ever to be uploaded.
bool IsEmpty(const UploadRecord& record) { return record.url().empty(); }

int64_t NewestSequence(const Run& run) {
  return run.catalog.committed().empty() ? 0 : run.catalog.committed().rbegin()->first;
}

// `policy`: an UploadPolicy, or an UploadRecord that has the fields of one.
template <typename Policy>
void Apply(const Policy& policy, UploadRecord* record) {
  if (record->url() != policy.url()) {
    // What lies under the other URL stays there.
    record->clear_uploaded();
    record->clear_obsolete();
    record->set_url(policy.url());
  }
  record->set_every(std::max(1, policy.every()));
  record->set_keep_last(policy.keep_last());
  record->set_evict_before_upload(policy.evict_before_upload());
}

// The newest checkpoint of an earlier attempt; 0: there is none.
int64_t NewestBefore(const Run& run, int64_t attempt) {
  int64_t newest = 0;
  for (const auto& [sequence, checkpoint] : run.catalog.committed())
    if (checkpoint.summary.attempt() < attempt) newest = sequence;
  return newest;
}

// What a try again cannot mend: the checkpoint is not there, or not whole. Bytes that were damaged on their way
// are sent again.
bool IsLost(const absl::Status& why) {
  return ReasonOf(why) == reason::kNoCheckpoint ||
         (absl::IsDataLoss(why) && ReasonOf(why) != "CORRUPT_TRANSFER");
}

}  // namespace

// ---- what is uploaded

void Uploads::ApplyKeepLast(const Run& run, UploadRecord* record) {
  while (record->keep_last() > 0 && record->uploaded_size() > record->keep_last())
    Move(*record->mutable_uploaded(), 0, *record->mutable_obsolete());
  ForgetOldest(run, record);
}

void Uploads::ForgetOldest(const Run& run, UploadRecord* record) {
  const int excess = record->uploaded_size() - kMostKept;
  if (IsShared(run) && excess > 0) record->mutable_uploaded()->DeleteSubrange(0, excess);
}

bool Uploads::MayChange(const Run& run) const {
  const Term& term = states_.Of(&run).term;
  return !IsShared(run) || (term.leads != nullptr && term.is_loaded);
}

void Uploads::Load(Run* run) {
  states_.Of(run).record = run->ledger->record().uploads();
  DropLost(run);
}

absl::Status Uploads::Check(const Run& run, const v1::UploadPolicy& policy) const {
  if (policy.url().size() > kMaxUrl)
    return InvalidArgument(absl::StrCat("upload.url has ", policy.url().size(), " bytes; at most ", kMaxUrl));
  for (const auto& [name, value] :
       {std::pair("every", policy.every()), std::pair("keep_last", policy.keep_last())}) {
    if (value < 0 || value > kMaxCount)
      return InvalidArgument(absl::StrCat("upload.", name, " is ", value, "; it is in [1, ", kMaxCount, "]"));
  }
  if (IsShared(run) && policy.keep_last() > kMostKept) {
    return InvalidArgument(absl::StrCat("upload.keep_last is ", policy.keep_last(), "; it is at most ",
                                        kMostKept, " in a root that several nodes share, such as ",
                                        run.path));
  }
  if (run.uploads == nullptr)
    return MakeError(absl::StatusCode::kPermissionDenied, reason::kUploadNotAllowed,
                     absl::StrCat("checkpoints of ", run.path,
                                  " are not uploaded: if that is no bucket itself, "
                                  "this daemon uploads nothing"));
  return run.uploads->Check(policy.url());
}

void Uploads::OnJoined(Run* run, int64_t attempt, const v1::JoinRunRequest& request) {
  if (IsShared(*run)) {
    states_.Of(run).term.is_asked |= request.has_upload();  // The ledger has told the coordinator.
  } else if (request.rank() == 0 && attempt >= run->active_attempt) {
    SetPolicy(run, request.has_upload() ? &request.upload() : nullptr);
  }
}

void Uploads::SetPolicy(Run* run, const v1::UploadPolicy* policy) {
  UploadRecord& record = states_.Of(run).record;
  if (policy == nullptr) {
    if (IsEmpty(record)) return;
    record.set_every(0);
    return Store(run, /*now=*/false);
  }
  Apply(*policy, &record);
  Store(run, /*now=*/false);
}

void Uploads::TakeOver(Run* run, int64_t attempt, const v1::UploadPolicy& policy,
                       const std::vector<UploadIo::InBucket>& found) {
  UploadRecord& record = states_.Of(run).record;
  if (IsShared(*run)) {
    Term& term = states_.Of(run).term;
    term.taken_over_for = attempt;
    if (IsEmpty(record)) term.counted_through = std::max(term.counted_through, NewestBefore(*run, attempt));
    if (record.url() != policy.url()) {
      Apply(policy, &record);
      record.set_every(0);  // Rank 0 has not joined yet, and says what counts.
    }
  } else if (record.url() != policy.url()) {
    SetPolicy(run, &policy);  // Likewise.
  }
  for (const auto& [summary, by_daemon] : found) {
    const int64_t sequence = summary.sequence();
    const CommittedCheckpoint* ours = run->catalog.Find(sequence);
    const bool is_other = ours != nullptr && ours->summary.commit_time_us() != summary.commit_time_us();
    const bool is_known = IndexOf(record.uploaded(), sequence) >= 0 ||
                          IndexOf(record.waiting(), sequence) >= 0 ||
                          IndexOf(record.obsolete(), sequence) >= 0;
    if (by_daemon && !is_other && !is_known) InsertByTime(AsUploaded(summary), *record.mutable_uploaded());
  }
  ForgetOldest(*run, &record);
  Store(run, /*now=*/false);
}

void Uploads::OnFetched(Run* run, const storage::v1::ManifestSummary& summary) {
  UploadRecord& record = states_.Of(run).record;
  record.set_fetched_sequence(summary.sequence());
  if (IsShared(*run)) {
    int64_t& counted = states_.Of(run).term.counted_through;
    counted = std::max(counted, summary.sequence());
  }
  for (int i = record.waiting_size() - 1; i >= 0; --i) {
    if (record.waiting(i).sequence() < summary.sequence() &&
        record.waiting(i).sequence() != states_.Of(run).uploading)
      Drop(run, i, absl::StrCat("the run goes on from ", summary.tag(), " of the bucket, which is newer"));
  }
  Store(run, /*now=*/false);
}

absl::StatusOr<int64_t> Uploads::CountedThrough(const Run& run) const {
  const Term& term = states_.Of(&run).term;
  const bool leads = IsShared(run) && term.leads != nullptr && term.leads();
  if (leads && term.is_loaded) return term.counted_through;
  if (leads && !term.unread.ok()) return term.unread;
  return absl::UnavailableError("it is not known yet what is uploaded");
}

void Uploads::Announce(Run* run, int64_t sequence, int64_t sequences_above,
                       absl::AnyInvocable<void()> recorded) {
  State& state = states_.Of(run);
  if (sequence != 0) state.record.set_fetched_sequence(sequence);
  state.term.sequences_above = std::max(state.term.sequences_above, sequences_above);
  state.term.announced.push_back(std::move(recorded));
  Store(run, /*now=*/true);
}

bool Uploads::IsInBucket(const Run& run, int64_t sequence) const {
  const UploadRecord& record = states_.Of(&run).record;
  return record.fetched_sequence() == sequence || IndexOf(record.uploaded(), sequence) >= 0;
}

void Uploads::OnCommitted(Run* run, const storage::v1::ManifestSummary& summary) {
  if (IsShared(*run)) return;
  Count(run, summary);
  if (!IsEmpty(states_.Of(run).record)) Store(run, /*now=*/false);
}

void Uploads::Count(Run* run, const storage::v1::ManifestSummary& summary) {
  UploadRecord& record = states_.Of(run).record;
  // It has come back from the trash, or was found after a restart: the newer copy would be removed for it. One of an
  // earlier life of the run may have a higher sequence, and was committed earlier.
  const auto is_newer = [&summary](const UploadedCheckpoint& uploaded) {
    return uploaded.tag() == summary.tag() && uploaded.sequence() > summary.sequence() &&
           uploaded.commit_time_us() >= summary.commit_time_us();
  };
  if (std::any_of(record.uploaded().begin(), record.uploaded().end(), is_newer)) return;
  // It takes the place of one that waits. The one before it is gone.
  bool is_due = false;
  for (int i = record.waiting_size() - 1; i >= 0; --i) {
    if (record.waiting(i).tag() != summary.tag()) continue;
    is_due = true;
    Drop(run, i, "another save has taken its tag", /*replaced=*/true);
  }
  if (record.every() > 0 && summary.suspect().empty()) {
    record.set_commits(record.commits() + 1);
    is_due |= record.commits() >= record.every();
  }
  if (is_due) {
    record.set_commits(0);
    *record.add_waiting() = AsUploaded(summary);
  }
}

std::vector<int64_t> Uploads::Held(const Run& run) const {
  const State& state = states_.Of(&run);
  std::vector<int64_t> held;
  for (const UploadedCheckpoint& waiting : state.record.waiting()) {
    if (!state.record.evict_before_upload() || waiting.sequence() == state.uploading)
      held.push_back(waiting.sequence());
  }
  held.insert(held.end(), state.unwritten.begin(), state.unwritten.end());
  const auto& committed = run.catalog.committed();
  for (auto each = committed.upper_bound(WrittenThrough(run)); each != committed.end(); ++each)
    held.push_back(each->first);
  return held;
}

void Uploads::GiveUp(Run* run, const std::vector<int64_t>& sequences) {
  if (!MayChange(*run)) return;
  State& state = states_.Of(run);
  for (int i = 0; i < state.record.waiting_size(); ++i) {
    const int64_t sequence = state.record.waiting(i).sequence();
    if (sequence == state.uploading ||
        std::find(sequences.begin(), sequences.end(), sequence) == sequences.end())
      continue;
    Drop(run, i, "a save needed its room on the disk");
    Store(run, /*now=*/true);
    return hooks_.released(run);
  }
}

// ---- several nodes

void Uploads::Follow(Run* run, Instant now) {
  State& state = states_.Of(run);
  Term& term = state.term;
  const SharedUploads& nodes = *run->authority->uploads();
  const bool leads = run->authority->coordinates() && run->uploads != nullptr;
  if (term.leads != nullptr && (!leads || !term.leads())) EndTerm(run);
  if (leads && term.leads == nullptr) BeginTerm(run);
  if (nodes.version() != term.shown_version) {
    term.shown_version = nodes.version();
    OnShown(run);
  }
  if (term.leads == nullptr || term.is_reading || now < term.read_again_at) return;
  if (!term.is_loaded || NewestSequence(*run) > term.counted_through) return Read(run);
  if (term.is_unwritten && state.writes == 0 && now >= state.write_again_at) Write(run);
}

void Uploads::BeginTerm(Run* run) {
  Term& term = states_.Of(run).term;
  ++term.number;
  term.leads = run->authority->uploads()->StillCoordinates();
  term.read_again_at = Instant{};
}

// What is under way sends nothing more, and its answers are ignored. The next coordinator goes on.
void Uploads::EndTerm(Run* run) {
  State& state = states_.Of(run);
  const int64_t was_uploading = state.uploading;
  State ended;
  const SharedUploads::Known known = run->authority->uploads()->Shown();
  ended.record = known.record;
  ended.term.counted_through = known.counted_through;
  ended.waiters = std::move(state.waiters);
  ended.sent_bytes = state.sent_bytes;
  ended.done = state.done;
  ended.failed = state.failed;
  ended.term.shown_version = state.term.shown_version;
  ended.term.is_asked = state.term.is_asked;
  ended.term.number = state.term.number + 1;
  state = std::move(ended);
  if (was_uploading != 0) hooks_.changed(*run, was_uploading);
  Answer(run);
}

void Uploads::OnShown(Run* run) {
  State& state = states_.Of(run);
  const SharedUploads::Known known = run->authority->uploads()->Shown();
  if (state.term.leads != nullptr) {
    // The record is this node's own.
    const bool is_other = known.policy.SerializeAsString() != state.term.policy.SerializeAsString();
    if (is_other && state.term.is_loaded && !state.term.is_reading) Read(run);
    return;
  }
  state.term.counted_through = known.counted_through;
  const UploadRecord before = std::exchange(state.record, known.record);
  run->ledger->SetUploads(state.record);
  for (const UploadedCheckpoint& uploaded : state.record.uploaded())
    if (IndexOf(before.uploaded(), uploaded.sequence()) < 0) hooks_.changed(*run, uploaded.sequence());
  Answer(run);
}

void Uploads::Read(Run* run) {
  Term& term = states_.Of(run).term;
  term.is_reading = true;
  // The policy of these is known then; that of one that is committed meanwhile may be newer.
  run->authority->uploads()->Read([this, run, number = term.number, newest = NewestSequence(*run)](
                                      const absl::StatusOr<SharedUploads::Known>& known) {
    Term& now = states_.Of(run).term;
    if (now.number != number) return;
    now.is_reading = false;
    // Each try fails with other words, such as those of a connection.
    const bool is_other =
        known.status().code() != now.unread.code() || ReasonOf(known.status()) != ReasonOf(now.unread);
    now.unread = known.status();
    if (is_other && known.ok()) {
      observer_->OnInfo(absl::StrCat("what of ", run->path, " is to be uploaded is known again"));
    } else if (is_other) {
      observer_->OnWarning(absl::StrCat(
          "it is not known what of ", run->path,
          " is to be uploaded, and etcd is asked again: ", std::string(known.status().message())));
    }
    if (known.ok()) return OnRead(run, *known, newest);
    now.read_again_at = clock_->Now() + kFirstPause;
  });
}

// Only the coordinator writes the record: from the first reading on its own is the newest.
void Uploads::OnRead(Run* run, const SharedUploads::Known& known, int64_t newest) {
  State& state = states_.Of(run);
  if (!std::exchange(state.term.is_loaded, true)) {
    state.record = known.record;
    state.term.counted_through = state.term.written_through = known.counted_through;
  }
  TakePolicy(run, known);
  CountThrough(run, newest);
  Answer(run);
  Continue(run);
}

void Uploads::TakePolicy(Run* run, const SharedUploads::Known& known) {
  State& state = states_.Of(run);
  UploadRecord& record = state.record;
  const std::string before = record.SerializeAsString();
  state.term.policy = known.policy;
  if (known.attempt < state.term.taken_over_for) return;  // Rank 0 of that launch has not joined yet.
  if (known.policy.url().empty()) {
    if (!IsEmpty(record)) record.set_every(0);
  } else {
    if (IsEmpty(record))
      state.term.counted_through = std::max(state.term.counted_through, NewestBefore(*run, known.attempt));
    Apply(known.policy, &record);
  }
  state.term.is_unwritten |= record.SerializeAsString() != before;
}

void Uploads::CountThrough(Run* run, int64_t newest) {
  State& state = states_.Of(run);
  Term& term = state.term;
  const auto& committed = run->catalog.committed();
  const bool is_empty = IsEmpty(state.record);
  for (auto each = committed.upper_bound(term.counted_through);
       each != committed.end() && each->first <= newest; ++each) {
    term.counted_through = each->first;
    if (is_empty) continue;
    if (each->first != state.record.fetched_sequence()) Count(run, each->second.summary);
    term.is_unwritten = true;
  }
  if (term.is_unwritten) return Write(run);
  if (is_empty) term.written_through = term.counted_through;
  hooks_.released(run);
}

void Uploads::Write(Run* run) {
  State& state = states_.Of(run);
  if (state.writes > 0) return;
  ++state.writes;
  state.term.is_unwritten = false;
  run->ledger->SetUploads(state.record);
  run->authority->uploads()->Write(
      state.record, state.term.counted_through, state.term.sequences_above,
      [this, run, number = state.term.number, through = state.term.counted_through,
       uploaded = state.unwritten, announced = state.term.announced.size()](const absl::Status& written) {
        State& now = states_.Of(run);
        if (now.term.number != number) return;
        --now.writes;
        now.write_again_at = clock_->Now() + kFirstPause;
        now.term.is_unwritten |= !written.ok();
        if (!written.ok()) return;  // OnTick writes again.
        now.term.written_through = through;
        for (int64_t sequence : uploaded) now.unwritten.erase(sequence);
        const auto last = now.term.announced.begin() + static_cast<std::ptrdiff_t>(announced);
        std::vector<absl::AnyInvocable<void()>> recorded(std::move_iterator(now.term.announced.begin()),
                                                         std::move_iterator(last));
        now.term.announced.erase(now.term.announced.begin(), last);
        if (now.term.announced.empty()) now.term.sequences_above = 0;
        if (now.term.is_unwritten) Write(run);
        for (auto& tell : recorded) tell();
        hooks_.released(run);
      });
}

// What the coordinator has not counted, retention keeps. A node that does not coordinate removes nothing.
int64_t Uploads::WrittenThrough(const Run& run) const {
  if (!IsShared(run) || run.uploads == nullptr || !run.authority->coordinates())
    return std::numeric_limits<int64_t>::max();
  const Term& term = states_.Of(&run).term;
  const bool is_known = term.leads != nullptr && term.leads() && term.is_loaded;
  return is_known ? term.written_through : 0;
}

bool Uploads::IsUncounted(const Run& run, int64_t sequence) const {
  if (!IsShared(run)) return false;
  const State& state = states_.Of(&run);
  if (sequence <= state.term.counted_through) return false;
  return !IsEmpty(state.record) || state.term.is_asked ||
         !run.authority->uploads()->Shown().policy.url().empty();
}

// ---- uploading

void Uploads::OnTick(Run* run, Instant now) {
  if (run->open && IsShared(*run)) Follow(run, now);
  State& state = states_.Of(run);
  if (!IsEmpty(state.record)) Continue(run);
  if (!IsShared(*run) && !state.unwritten.empty() && state.writes == 0 && now >= state.write_again_at)
    Store(run, /*now=*/true);
  std::vector<Waiter> late;
  for (size_t i = 0; i < state.waiters.size();) {
    if (now < state.waiters[i].deadline) {
      ++i;
      continue;
    }
    late.push_back(std::move(state.waiters[i]));
    state.waiters.erase(state.waiters.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (Waiter& waiter : late) waiter.waited(absl::DeadlineExceededError("not uploaded yet"));
}

void Uploads::Continue(Run* run) {
  State& state = states_.Of(run);
  const bool may_begin =
      run->open && run->uploads != nullptr && !run->read_only && !run->scanning && MayChange(*run);
  if (state.is_busy || !may_begin || clock_->Now() < state.again_at) return;
  DropLost(run);
  UploadRecord& record = state.record;
  if (record.waiting().empty()) {
    if (!record.obsolete().empty()) RemoveWhenStored(run, UploadedCheckpoint(record.obsolete(0)));
    return;
  }
  const UploadedCheckpoint next = record.waiting(0);
  // What this run has left there under the same tag goes first: a tag has one checkpoint.
  for (int i = record.uploaded_size() - 1; i >= 0; --i) {
    if (record.uploaded(i).tag() != next.tag()) continue;
    Move(*record.mutable_uploaded(), i, *record.mutable_obsolete());
    Store(run, /*now=*/true);
  }
  for (const UploadedCheckpoint& obsolete : record.obsolete()) {
    if (obsolete.tag() == next.tag()) return RemoveWhenStored(run, UploadedCheckpoint(obsolete));
  }
  Upload(run, next);
}

void Uploads::DropLost(Run* run) {
  State& state = states_.Of(run);
  bool dropped = false;
  for (int i = state.record.waiting_size() - 1; i >= 0; --i) {
    const int64_t sequence = state.record.waiting(i).sequence();
    if (sequence == state.uploading) continue;
    const bool is_there = run->catalog.Find(sequence) != nullptr && !run->catalog.IsLeaving(sequence);
    if (is_there && !run->catalog.IsDamaged(sequence)) continue;
    // This node may not have seen it yet, as that of another one.
    if (IsShared(*run) && !is_there && NewestSequence(*run) <= sequence) continue;
    Drop(run, i, is_there ? "it is damaged" : "it was removed before");
    dropped = true;
  }
  if (dropped) Store(run, /*now=*/true);
}

// What has arrived of it is removed from the bucket. Perhaps all of it has, and a daemon that was killed could not
// write that down: that is removed only if another checkpoint needs its place.
void Uploads::Drop(Run* run, int index, const std::string& why, bool replaced) {
  State& state = states_.Of(run);
  observer_->OnWarning(absl::StrCat("checkpoint ", run->path, "/", state.record.waiting(index).tag(),
                                    " is not uploaded to ", state.record.url(), ": ", why));
  state.record.mutable_waiting(index)->set_given_up(!replaced);
  Move(*state.record.mutable_waiting(), index, *state.record.mutable_obsolete());
}

void Uploads::Upload(Run* run, const UploadedCheckpoint& next) {
  State& state = states_.Of(run);
  state.is_busy = true;
  state.uploading = next.sequence();
  state.arrived = std::make_shared<std::atomic<int64_t>>(0);
  hooks_.changed(*run, next.sequence());
  run->uploads->Upload(state.record.url(), next, state.term.leads, state.arrived,
                       [this, run, next, url = state.record.url(),
                        number = state.term.number](const absl::StatusOr<int64_t>& sent) {
                         State& now = states_.Of(run);
                         if (now.term.number != number) return;
                         now.is_busy = false;
                         now.uploading = 0;
                         // It is not where the run's checkpoints go since: it still waits.
                         if (now.record.url() != url) return Continue(run);
                         OnUploaded(run, next, sent);
                       });
}

void Uploads::OnUploaded(Run* run, const UploadedCheckpoint& what, const absl::StatusOr<int64_t>& sent) {
  State& state = states_.Of(run);
  UploadRecord& record = state.record;
  const int index = IndexOf(record.waiting(), what.sequence());
  if (!sent.ok()) {
    // Of several nodes, this one may not see it yet where another one has made it: DropLost knows.
    const bool is_lost =
        IsLost(sent.status()) && !(IsShared(*run) && ReasonOf(sent.status()) == reason::kNoCheckpoint);
    if (is_lost && index >= 0) {
      ++state.failed;
      Drop(run, index, std::string(sent.status().message()));
      Store(run, /*now=*/true);
    } else {
      OnFailed(run, what, sent.status());
    }
    hooks_.changed(*run, what.sequence());
    return Answer(run);
  }
  OnSucceeded(run);
  state.sent_bytes += *sent;
  ++state.done;
  if (index >= 0) {
    MoveToItsPlace(*record.mutable_waiting(), index, *record.mutable_uploaded());
    state.unwritten.insert(what.sequence());
  }  // Else it was given up meanwhile, and is obsolete.
  ApplyKeepLast(*run, &record);
  observer_->OnInfo(absl::StrCat("checkpoint ", run->path, "/", what.tag(), " is in ", record.url(), ": ",
                                 *sent, " bytes sent"));
  Store(run, /*now=*/true);
  hooks_.changed(*run, what.sequence());
  Answer(run);
  Continue(run);
}

void Uploads::RemoveWhenStored(Run* run, const UploadedCheckpoint& next) {
  const State& state = states_.Of(run);
  if (IsShared(*run) || state.stored == state.changes) return Remove(run, next);
  if (state.writes == 0 && clock_->Now() >= state.write_again_at) Store(run, /*now=*/true);
}

void Uploads::Remove(Run* run, const UploadedCheckpoint& next) {
  State& state = states_.Of(run);
  state.is_busy = true;
  run->uploads->Remove(state.record.url(), next, state.term.leads,
                       [this, run, next, number = state.term.number](const absl::Status& removed) {
                         if (states_.Of(run).term.number == number) OnRemoved(run, next, removed);
                       });
}

void Uploads::OnRemoved(Run* run, const UploadedCheckpoint& what, const absl::Status& removed) {
  State& state = states_.Of(run);
  state.is_busy = false;
  // It was given up, and its last upload had ended well: it counts, as the others there do.
  const bool is_there = what.given_up() && ReasonOf(removed) == "OBJECT_EXISTS";
  if (!removed.ok() && !is_there) return OnFailed(run, what, removed);
  OnSucceeded(run);
  if (const int index = IndexOf(state.record.obsolete(), what.sequence()); index >= 0 && is_there) {
    state.record.mutable_obsolete()->at(index).set_given_up(false);
    MoveToItsPlace(*state.record.mutable_obsolete(), index, *state.record.mutable_uploaded());
    ApplyKeepLast(*run, &state.record);
  } else if (index >= 0) {
    state.record.mutable_obsolete()->DeleteSubrange(index, 1);
  }
  Store(run, /*now=*/true);
  Continue(run);
}

void Uploads::OnFailed(Run* run, const UploadedCheckpoint& what, const absl::Status& why) {
  State& state = states_.Of(run);
  ++state.failed;
  const Duration pause =
      std::min<Duration>(kFirstPause * (int64_t{1} << std::min(state.tries, 10)), kLongestPause);
  if (state.tries++ == 0) {
    observer_->OnWarning(absl::StrCat("uploads of ", run->path, " to ", state.record.url(), " fail (",
                                      what.tag(), "): ", std::string(why.message()),
                                      "; saves go on, and uploads are tried again"));
  }
  state.failing = what.sequence();
  state.error = why;
  state.again_at = clock_->Now() + pause;
  state.again_unix_us =
      clock_->UnixMicros() + std::chrono::duration_cast<std::chrono::microseconds>(pause).count();
}

void Uploads::OnSucceeded(Run* run) {
  State& state = states_.Of(run);
  if (state.tries > 0)
    observer_->OnInfo(absl::StrCat("uploads of ", run->path, " to ", state.record.url(), " go on"));
  state.tries = 0;
  state.failing = 0;
  state.error = absl::OkStatus();
  state.again_at = Instant{};
}

// Retention follows when the record is on disk.
void Uploads::Store(Run* run, bool now) {
  State& state = states_.Of(run);
  if (IsShared(*run)) {
    state.term.is_unwritten = true;
    return Write(run);
  }
  run->ledger->SetUploads(state.record);
  ++state.changes;
  if (!now) return;
  ++state.writes;
  run->ledger->WriteHistory(
      [this, run, stored = state.unwritten, changes = state.changes](const absl::Status& written) {
        State& after = states_.Of(run);
        --after.writes;
        after.write_again_at = clock_->Now() + kFirstPause;
        if (!written.ok()) return;  // OnTick writes again what retention, or a removal, waits for.
        after.stored = std::max(after.stored, changes);
        for (int64_t sequence : stored) after.unwritten.erase(sequence);
        hooks_.released(run);
        Continue(run);
      });
}

// ---- waiting and looking

void Uploads::Wait(Run* run, int64_t sequence, const std::string& tag, Instant deadline, Waited waited) {
  states_.Of(run).waiters.push_back({sequence, tag, deadline, std::move(waited)});
  Answer(run);
}

void Uploads::Answer(Run* run) {
  State& state = states_.Of(run);
  std::vector<Waiter> still;
  std::vector<std::pair<Waiter, absl::Status>> ready;
  for (Waiter& waiter : std::exchange(state.waiters, {})) {
    if (IndexOf(state.record.waiting(), waiter.sequence) >= 0 || IsUncounted(*run, waiter.sequence)) {
      still.push_back(std::move(waiter));
    } else {
      absl::Status how = WhyNotUploaded(*run, waiter);
      ready.emplace_back(std::move(waiter), std::move(how));
    }
  }
  state.waiters = std::move(still);
  for (auto& [waiter, how] : ready) waiter.waited(how);
}

absl::Status Uploads::WhyNotUploaded(const Run& run, const Waiter& waiter) const {
  const UploadRecord& record = states_.Of(&run).record;
  if (IndexOf(record.uploaded(), waiter.sequence) >= 0) return absl::OkStatus();
  std::string why = "the run has no upload";
  if (IndexOf(record.obsolete(), waiter.sequence) >= 0)
    why = "it was given up, or newer ones have taken its place in the bucket; the daemon's log says why";
  else if (record.every() > 0)
    why = absl::StrCat("it is not its turn (every=", record.every(), ")");
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNotUploaded,
                   absl::StrCat(waiter.tag, " is committed and not uploaded: ", why), {{"tag", waiter.tag}});
}

void Uploads::Describe(const Run& run, int64_t sequence, v1::Checkpoint* checkpoint) const {
  const State& state = states_.Of(&run);
  const bool is_done = IndexOf(state.record.uploaded(), sequence) >= 0;
  if (!is_done && IndexOf(state.record.waiting(), sequence) < 0) return;
  v1::CheckpointUpload& upload = *checkpoint->mutable_upload();
  upload.set_url(absl::StrCat(state.record.url(), "/", checkpoint->tag()));
  upload.set_state(is_done                       ? v1::CheckpointUpload::DONE
                   : state.uploading == sequence ? v1::CheckpointUpload::UPLOADING
                                                 : v1::CheckpointUpload::WAITING);
  if (state.uploading == sequence) upload.set_sent_bytes(state.arrived->load(std::memory_order_relaxed));
  if (state.failing == sequence) {
    *upload.mutable_error() = ErrorToWire(state.error);
    if (!state.is_busy) SetTime(state.again_unix_us, upload.mutable_next_try_time());
  }
}

void Uploads::Describe(const Run& run, v1::Run* description) const {
  const State& state = states_.Of(&run);
  if (IsEmpty(state.record)) return;
  v1::RunUploads& uploads = *description->mutable_uploads();
  uploads.mutable_policy()->set_url(state.record.url());
  uploads.mutable_policy()->set_every(state.record.every());
  uploads.mutable_policy()->set_keep_last(state.record.keep_last());
  uploads.mutable_policy()->set_evict_before_upload(state.record.evict_before_upload());
  for (const UploadedCheckpoint& waiting : state.record.waiting()) {
    v1::Checkpoint& checkpoint = *uploads.add_waiting();
    checkpoint.set_tag(waiting.tag());
    checkpoint.set_sequence(waiting.sequence());
    checkpoint.set_size_bytes(waiting.size_bytes());
    SetTime(waiting.commit_time_us(), checkpoint.mutable_commit_time());
    Describe(run, waiting.sequence(), &checkpoint);
  }
  uploads.set_kept(state.record.uploaded_size());
  uploads.set_sent_bytes(state.sent_bytes);
  uploads.set_done(state.done);
  uploads.set_failed(state.failed);
}

std::vector<std::pair<Run*, int64_t>> Uploads::UnderWay() const {
  std::vector<std::pair<Run*, int64_t>> under_way;
  for (const auto& [run, state] : states_) {
    if (state.uploading != 0 && run->catalog.Find(state.uploading) != nullptr)
      under_way.emplace_back(run, state.uploading);
  }
  return under_way;
}

bool Uploads::IsActive(const Run& run) const {
  const State& state = states_.Of(&run);
  return state.is_busy || state.writes > 0 || state.term.is_unwritten || !state.unwritten.empty() ||
         !state.record.waiting().empty() || !state.record.obsolete().empty();
}

void Uploads::Forget(const Run* run) { states_.Forget(run); }

}  // namespace ckptd
