#include "tests/contract/three_nodes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/cluster/node/node_save.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/save/save_end.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::SaveState;

namespace {

std::string PhaseOf(const SaveState& state) { return SaveState::Phase_Name(state.phase()); }

// Written down again: an oracle that called IsLater would change its mind with it.
bool ComesAfter(const SaveState& before, const SaveState& after) {
  const auto place = [](const SaveState& state) {
    static const std::map<SaveState::Phase, int> places = {
        {SaveState::PROPOSED, 1},   {SaveState::ADMITTED, 2},  {SaveState::SEALED, 3},
        {SaveState::PUBLISHING, 4}, {SaveState::COMMITTED, 5}, {SaveState::ENDED, 5},
    };
    const auto found = places.find(state.phase());
    return found == places.end() ? 0 : found->second;
  };
  return place(before) < place(after);
}

std::string TextOf(const SaveState& state) {
  if (!state.has_end()) return PhaseOf(state);
  std::string text = absl::StrCat(PhaseOf(state), " ", state.end().reason());
  if (!state.end().node().empty()) absl::StrAppend(&text, " of ", state.end().node());
  if (state.end().ranks_size() > 0)
    absl::StrAppend(&text, ", ranks ", absl::StrJoin(state.end().ranks(), " "));
  return text;
}

}  // namespace

// ---- nodes

void ThreeNodes::SetUp() {
  nodes_.OnTick([this] { Tick(); });
  for (int i = 0; i < kNodes; ++i) {
    all_[i].name = absl::StrCat("node", i + 1);
    all_[i].rank = i;
    Start(all_[i]);
    Join(all_[i], 1);
  }
  Activate(all_[0], 1);
  RunUntil([this] { return Coordinator() != nullptr; });
}

void ThreeNodes::TearDown() {
  CheckInvariants();
  nodes_.OnTick(nullptr);
  for (Node& node : all_) {
    if (node.registration != nullptr) Kill(node);
  }
  nodes_.DeliverLateCopies();
}

void ThreeNodes::Start(Node& node) {
  node.registration = nodes_.Start(node.name);
  node.client = static_cast<SimulatedEtcd::Client*>(nodes_.ClientOf(*node.registration));
  node.replaced = node.coordinator_over = false;
  const NodeIdentity& identity = node.registration->identity();
  const std::string prefix = nodes_.prefix() + "run/";
  node.etcd = std::make_unique<PausableEtcd>(node.client, &node.pause);
  node.ledger = std::make_unique<EtcdLedger>(node.etcd.get(), etcd_.clock(),
                                             EtcdLedger::Options{prefix, identity, "test"});
  node.io = root_.Open({&node.pause});
  node.election = std::make_unique<RunCoordinator>(
      node.etcd.get(), etcd_.clock(), RunCoordinator::Options{prefix, identity, "test"},
      [this, &node](const RunCoordinator::Leadership& leadership) { OnLeadership(node, leadership); },
      [&node](const absl::Status&) { node.replaced = true; });
  node.saves = std::make_unique<SharedSaves>(node.etcd.get(), etcd_.clock(),
                                             SharedSaves::Options{prefix, identity, "test", PostOf(node)},
                                             HooksOf(node));
  node.election->Start();
  node.saves->Start();
}

std::function<void(absl::AnyInvocable<void()>)> ThreeNodes::PostOf(Node& node) {
  return [this, &node](absl::AnyInvocable<void()> work) {
    etcd_.After(std::chrono::milliseconds(1),
                [&node, work = std::move(work)]() mutable { node.pause.Deliver(std::move(work)); });
  };
}

void ThreeNodes::OnLeadership(Node& node, const RunCoordinator::Leadership& leadership) {
  node.coordinator = nullptr;
  node.coordinator_over = false;
  if (!leadership.mine) return;
  SaveCoordinator::Options options;
  options.prefix = nodes_.prefix() + "run/";
  options.node = node.registration->identity();
  options.run = "test";
  options.ended_kept_for = ended_kept_for_;
  SaveCoordinator::Hooks hooks;
  hooks.latest_begin_us = [] { return int64_t{0}; };
  hooks.term_begun = [] {};
  hooks.lost = [&node](const absl::Status& why) {
    node.lost.push_back(ReasonOf(why));
    node.coordinator_over = true;
  };
  node.coordinator = std::make_unique<SaveCoordinator>(node.etcd.get(), etcd_.clock(), node.io.get(), options,
                                                       leadership, std::move(hooks));
  node.coordinator->Start();
}

SharedSaves::Hooks ThreeNodes::HooksOf(Node& node) {
  SharedSaves::Hooks hooks;
  hooks.changed = [&node](const SaveName& name, const SharedSave& save) {
    Part& part = node.parts.at(name);
    EXPECT_EQ(part.heard, "") << "nothing is said after the end";
    const bool lost_prepared = part.save.sequence != save.sequence;
    const bool had_one = part.save.sequence != 0 && part.save.state.phase() != SaveState::OPEN;
    EXPECT_TRUE(lost_prepared ? !had_one : ComesAfter(part.save.state, save.state)) << "old news";
    part.save = save;
    if (!HasEnded(save.state)) return;
    part.heard = TextOf(save.state);
    part.error = save.state.has_end() ? std::string(ErrorOf(save.state.end()).message()) : "";
  };
  hooks.failed = [&node](const SaveName& name, const absl::Status& why) {
    Part& part = node.parts.at(name);
    EXPECT_EQ(part.heard, "");
    part.heard = "FAILED " + ReasonOf(why);
    part.error = std::string(why.message());
  };
  hooks.released = [this, &node](const SaveName& name) {
    Part& part = node.parts.at(name);
    EXPECT_FALSE(part.released) << "twice";
    part.released = true;
    const std::vector<SaveState> history = HistoryOf(name);
    part.released_early = !history.empty() && history.back().phase() != SaveState::ENDED;
  };
  hooks.lost = [&node](const absl::Status& why) {
    node.lost.push_back(ReasonOf(why));
    node.replaced = true;
  };
  return hooks;
}

void ThreeNodes::Kill(Node& node) {
  node.coordinator = nullptr;
  node.saves = nullptr;
  node.election = nullptr;
  node.io = nullptr;
  node.ledger = nullptr;
  node.etcd = nullptr;
  node.pause.Drop();
  nodes_.Kill(node.registration);
}

// Trainers begin again what has not ended. What was sealed has outlived the daemon; other memory has not.
void ThreeNodes::Restart(Node& node) {
  if (node.registration != nullptr) Kill(node);
  Start(node);
  for (auto& [name, part] : node.parts) {
    if (!part.heard.empty()) {
      part.released = true;  // With the daemon.
      continue;
    }
    part.memory_lost = part.answered && !part.sealed;
    part.answered = part.durable = part.released = false;
    part.save = SharedSave();
    if (part.sealed) {
      node.saves->BeginSealed(name);
    } else {
      node.saves->Begin(name, part.deadline);
    }
  }
}

void ThreeNodes::PauseNode(Node& node) {
  node.pause.Begin();
  nodes_.Freeze(*node.registration, true);
}

void ThreeNodes::ResumeNode(Node& node) {
  nodes_.Freeze(*node.registration, false);
  node.pause.End();
}

void ThreeNodes::CutOff(bool cut) {
  for (Node& node : all_) {
    if (node.registration != nullptr) node.client->CutOff(cut);
  }
}

ThreeNodes::Node* ThreeNodes::Coordinator() {
  ledger::v1::Coordinator coordinator;
  coordinator.ParseFromString(nodes_.Read(LedgerKeys(nodes_.prefix() + "run/").Coordinator()));
  for (Node& node : all_) {
    const bool alive = node.coordinator != nullptr && !node.coordinator_over;
    if (alive && node.registration->identity().value == coordinator.registration()) return &node;
  }
  return nullptr;
}

ThreeNodes::Node& ThreeNodes::Other() {
  for (Node& node : all_) {
    if (&node != Coordinator()) return node;
  }
  return all_[0];
}

void ThreeNodes::Join(Node& node, int64_t attempt) {
  Ledger::JoinSpec spec;
  spec.rank = node.rank;
  spec.world_size = kNodes;
  spec.launch_id = absl::StrCat("launch", attempt);
  spec.instance = absl::StrCat(attempt, ".", node.rank);
  int64_t joined = 0;
  node.ledger->Join(spec, [&](const absl::StatusOr<int64_t>& result) { joined = result.value_or(-1); });
  etcd_.caller().RunUntil([&] { return joined != 0; });
  ASSERT_EQ(joined, attempt);
}

void ThreeNodes::Activate(Node& node, int64_t attempt) {
  bool active = false;
  node.ledger->Activate(attempt, [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    active = true;
  });
  etcd_.caller().RunUntil([&] { return active; });
}

void ThreeNodes::ActLater() {
  ++attempts_;
  for (Node& node : all_) Join(node, attempts_);
  Activate(all_[0], attempts_);
}

// ---- time

void ThreeNodes::Tick() {
  for (Node& node : all_) {
    if (node.saves == nullptr || node.pause.paused()) continue;
    node.ledger->OnTick();
    node.election->OnTick();
    if (std::exchange(node.coordinator_over, false)) node.coordinator = nullptr;
    if (node.coordinator != nullptr) node.coordinator->OnTick();
    node.saves->OnTick();
    for (auto& [name, part] : node.parts) Act(node, name, part);
  }
}

void ThreeNodes::Act(Node& node, const SaveName& name, Part& part) {
  if (!part.heard.empty()) return;
  const SaveState::Phase phase = part.save.state.phase();
  const bool undecided = phase == SaveState::PROPOSED || phase == SaveState::OPEN;
  if (undecided && !part.answered && !node.held.contains("vote")) {
    part.answered = true;
    part.memory_lost = false;
    if (node.no.empty()) return node.saves->Accept(name);
    return node.saves->Fail(name, MakeError(absl::StatusCode::kResourceExhausted, node.no, "no room"));
  }
  if (phase != SaveState::ADMITTED && phase != SaveState::SEALED) return;
  if (part.memory_lost || !node.fail.empty()) {
    const std::string reason = node.fail.empty() ? reason::kStagedLost : node.fail;
    return node.saves->Fail(name, MakeError(absl::StatusCode::kAborted, reason, "a test's failure"));
  }
  part.answered = true;
  if (!part.sealed && !node.held.contains("seal")) {
    part.sealed = true;
    node.saves->Sealed(name);
  } else if (part.sealed && !part.durable && !node.held.contains("write")) {
    part.durable = true;
    node.saves->Durable(name, absl::StrCat("of ", node.name, " ", part.save.sequence));
  }
}

void ThreeNodes::RunUntil(const std::function<bool()>& done) {
  const auto lost = [](const Node& node) {
    return node.registration != nullptr && !node.pause.paused() &&
           (node.replaced || !node.registration->held());
  };
  while (!HasFailure()) {
    etcd_.caller().RunUntil([&] { return done() || std::any_of(all_.begin(), all_.end(), lost); });
    if (done()) return;
    for (Node& node : all_) {
      if (lost(node)) Restart(node);
    }
  }
}

void ThreeNodes::RunFor(Duration time) {
  const Instant end = etcd_.clock()->Now() + time;
  RunUntil([&] { return etcd_.clock()->Now() >= end; });
}

// ---- saves

void ThreeNodes::Begin(Node& node, const SaveName& name, Duration patience) {
  Part& part = node.parts[name];
  part.deadline = etcd_.clock()->Now() + patience;
  node.saves->Begin(name, part.deadline);
}

SaveName ThreeNodes::BeginAll(const std::string& tag, int64_t ordinal, Duration patience) {
  for (Node& node : all_) {
    if (node.registration != nullptr && !node.pause.paused()) Begin(node, Named(tag, ordinal), patience);
  }
  return Named(tag, ordinal);
}

void ThreeNodes::Hold(const std::string& what) {
  for (Node& node : all_) node.held = {what};
}

void ThreeNodes::LetGo() {
  for (Node& node : all_) node.held.clear();
}

void ThreeNodes::RunUntilAll(const SaveName& name, const std::string& phase) {
  RunUntil([&] {
    return std::all_of(all_.begin(), all_.end(), [&](const Node& node) {
      const auto part = node.parts.find(name);
      return node.registration == nullptr || part == node.parts.end() ||
             PhaseOf(part->second.save.state) == phase ||
             (phase == "PROPOSED" && part->second.save.state.phase() == SaveState::OPEN);
    });
  });
}

bool ThreeNodes::AllOthersHaveHeard(const Node* node, const SaveName& name) const {
  return std::all_of(all_.begin(), all_.end(), [&](const Node& other) {
    return &other == node || other.registration == nullptr || !other.parts.contains(name) ||
           !other.parts.at(name).heard.empty();
  });
}

std::string ThreeNodes::EndOfSave(const SaveName& name) {
  std::set<std::string> ends;
  RunUntil([&] {
    ends.clear();
    for (Node& node : all_) {
      if (node.registration != nullptr && node.parts.contains(name)) ends.insert(node.parts.at(name).heard);
    }
    return !ends.contains("");
  });
  return absl::StrJoin(ends, " | ");
}

std::map<std::string, std::string> ThreeNodes::KeysBelow(const std::string& prefix) {
  etcdserverpb::RangeRequest all;
  all.set_key(prefix);
  all.set_range_end(PrefixEnd(prefix));
  std::map<std::string, std::string> keys;
  etcd_.WithModel([&](EtcdModel& model) {
    const auto found = model.Range(all);
    for (const etcdserverpb::KeyValue& key : found->kvs())
      keys[key.key().substr(prefix.size())] = key.value();
  });
  return keys;
}

std::set<int64_t> ThreeNodes::KnownSaves() {
  const std::string run = nodes_.prefix() + "run/";
  std::set<int64_t> known;
  for (const auto& [key, value] : KeysBelow(LedgerKeys(run).SaveStates())) {
    SaveState state;
    EXPECT_TRUE(state.ParseFromString(value));
    if (state.phase() != SaveState::OPEN) known.insert(std::stoll(key));
  }
  for (const auto& [key, value] : KeysBelow(LedgerKeys(run).AllVotes())) known.insert(std::stoll(key));
  for (const auto& [key, value] : KeysBelow(run + "index/")) {
    ledger::v1::SaveIndex index;
    EXPECT_TRUE(index.ParseFromString(value));
    known.insert(index.sequence());
  }
  return known;
}

bool ThreeNodes::AllHaveEnded() {
  bool ended = true;
  for (const auto& [key, value] : KeysBelow(LedgerKeys(nodes_.prefix() + "run/").SaveStates())) {
    SaveState state;
    ended = ended && state.ParseFromString(value) && (HasEnded(state) || state.phase() == SaveState::OPEN);
  }
  return ended;
}

bool ThreeNodes::NothingIsInFlight() {
  const auto history = History();
  return std::all_of(root_.inflight.begin(), root_.inflight.end(), [&history](const auto& directory) {
    const auto save = history.find(directory.second);
    return save == history.end() || save->second.back().phase() == SaveState::OPEN;
  });
}

// ---- invariants

std::map<int64_t, std::vector<SaveState>> ThreeNodes::History() {
  std::map<int64_t, std::vector<SaveState>> history;
  std::set<int64_t> removed;
  const std::string prefix = LedgerKeys(nodes_.prefix() + "run/").SaveStates();
  etcd_.WithModel([&](EtcdModel& model) {
    for (const auto& event : model.Events(prefix, PrefixEnd(prefix), 1)) {
      int64_t sequence = 0;
      EXPECT_TRUE(absl::SimpleAtoi(event.kv().key().substr(prefix.size()), &sequence));
      EXPECT_FALSE(removed.contains(sequence)) << "a removed save has come back: " << sequence;
      if (event.type() == etcdserverpb::Event::DELETE) {
        EXPECT_TRUE(HasEnded(history[sequence].back())) << TextOf(history[sequence].back());
        removed.insert(sequence);
        continue;
      }
      EXPECT_TRUE(history[sequence].emplace_back().ParseFromString(event.kv().value()));
    }
  });
  return history;
}

std::vector<SaveState> ThreeNodes::HistoryOf(const SaveName& name) {
  std::vector<SaveState> found;
  for (auto& [sequence, states] : History()) {
    const SaveState& last = states.back();
    if (SaveName{last.attempt(), last.tag(), last.ordinal()} == name) found = std::move(states);
  }
  return found;
}

void ThreeNodes::CheckInvariants() {
  const auto history = History();
  for (const auto& [sequence, states] : history) CheckSave(sequence, states);
  for (const Node& node : all_) {
    for (const auto& [name, part] : node.parts) {
      const std::vector<SaveState> own = HistoryOf(name);
      if (!own.empty()) CheckPart(node, part, own);
    }
  }
  int64_t last = 0;
  for (const std::string& published : root_.published) {
    int64_t sequence = 0;
    EXPECT_TRUE(absl::SimpleAtoi(published.substr(published.find(' ') + 1), &sequence));
    EXPECT_GT(sequence, last) << "published out of order: " << absl::StrJoin(root_.published, ", ");
    last = sequence;
  }
}

// One outcome; a checkpoint if it is COMMITTED, and none if not.
void ThreeNodes::CheckSave(int64_t sequence, const std::vector<SaveState>& history) {
  for (size_t i = 1; i < history.size(); ++i) {
    const bool settled =
        history[i - 1].found() == SaveState::NOT_KNOWN && history[i].found() != SaveState::NOT_KNOWN;
    const bool replaces_another = stale_decisions_ && PhaseOf(history[i - 1]) == "PUBLISHING" &&
                                  PhaseOf(history[i]) == "PUBLISHING" &&
                                  history[i - 1].replaces() != history[i].replaces();
    EXPECT_TRUE(ComesAfter(history[i - 1], history[i]) || settled || replaces_another)
        << sequence << ": " << TextOf(history[i]) << " after " << TextOf(history[i - 1]);
  }
  const SaveState& last = history.back();
  const std::string entry = absl::StrCat(last.tag(), " ", sequence);
  const auto times = std::count(root_.published.begin(), root_.published.end(), entry);
  if (last.phase() == SaveState::COMMITTED) {
    EXPECT_EQ(times, 1) << entry;
  }
  if (last.phase() == SaveState::ENDED && last.end().reason() != reason::kIndeterminate) {
    EXPECT_EQ(times, 0) << entry;
  }
  CheckSealed(sequence, history);
  const auto manifests = root_.manifests.find(sequence);
  if (manifests == root_.manifests.end()) return;
  std::string manifest = absl::StrCat(last.time_us());
  for (const auto& [name, content] : last.inherited_pointers()) absl::StrAppend(&manifest, " ", name);
  for (const Node& node : all_) absl::StrAppend(&manifest, " ", node.name, "=of ", node.name, " ", sequence);
  for (const std::string& written : manifests->second) EXPECT_EQ(written, manifest) << "of two coordinators";
}

// What all nodes have sealed is finished, unless a part of it or its place is lost, or its parts make no
// checkpoint.
void ThreeNodes::CheckSealed(int64_t sequence, const std::vector<SaveState>& history) {
  const bool sealed = std::any_of(history.begin(), history.end(),
                                  [](const SaveState& state) { return state.phase() == SaveState::SEALED; });
  if (!sealed || history.back().phase() != SaveState::ENDED) return;
  const std::set<std::string> allowed = {"NODE_LOST",   "IO_ERROR",      "NO_SPACE",
                                         "TAG_FOREIGN", "FILE_CONFLICT", "INDETERMINATE"};
  EXPECT_TRUE(allowed.contains(history.back().end().reason()))
      << sequence << " was sealed, and is " << TextOf(history.back());
}

void ThreeNodes::CheckPart(const Node& node, const Part& part, const std::vector<SaveState>& history) {
  const SaveState& last = history.back();
  const std::string what =
      absl::StrCat(node.name, ", ", last.tag(), " ", part.save.sequence, ": heard ", part.heard);
  // What a node has given up ends, by its no or by another's.
  const bool gave_up = part.heard == "FAILED LEDGER_UNAVAILABLE" || part.heard == "FAILED FENCED" ||
                       part.heard == "FAILED SKIPPED";
  if (gave_up) {
    EXPECT_NE(last.phase(), SaveState::COMMITTED) << what;
  }
  if (!gave_up && !part.heard.empty()) {
    EXPECT_EQ(part.heard, TextOf(last)) << what;
  }
  const bool admitted = std::any_of(history.begin(), history.end(), [](const SaveState& state) {
    return state.phase() == SaveState::ADMITTED;
  });
  if (part.released_early) {
    EXPECT_FALSE(admitted) << what << ", and its memory was reused";
  }
}

}  // namespace ckptd
