#include "client/ckptctl/text/render.h"

#include <google/protobuf/text_format.h>

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::ctl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

constexpr int64_t kNowUs = 1'000'000'000'000'000;

TEST(RenderStatus, ShowsPoolRunsAndSavesInFlight) {
  const auto status = Parse<v1::Status>(R"(
    daemon_version: "0.1.0" state: "DEGRADED" sessions: 2 start_time { seconds: 999999940 }
    pool { total_bytes: 4294967296 used_bytes: 1073741824 ready_bytes: 2147483648 resident_bytes: 1073741824 pages: "transparent" segment_bytes: 67108864 }
    runs {
      name: "runs/00ff" path: "/data/ckpts" run_id: "gpt" uid: 1000 attempt: 3 world_size: 2 checkpoint_count: 3 num_kept_ckpts: 3
      degraded: true predicted_victims: "step_80" trash_bytes: 2048
      latest { tag: "step_100" step: 100 size_bytes: 1610612736 commit_time { seconds: 999999988 } }
      in_flight { tag: "step_110" step: 110 level: OPEN size_bytes: 1000 written_bytes: 250 world_size: 2 missing_ranks: 1 create_time { seconds: 999999998 } }
      last_failure { tag: "step_90" level: FAILED error { reason: "RANKS_MISSING" message: "ranks 1 have not sealed" } create_time { seconds: 999999900 } }
      probe { file_system: "ext4" io_backend: "io_uring" io_backend_cause: "it worked" direct_io: true fallocate: true rename_exchange: true free_bytes: 1099511627776 warnings: "tmpfs" }
    })");
  const std::string text = RenderStatus(status, kNowUs);
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("ckptd 0.1.0, DEGRADED for 1 min 0 s, 2 sessions\n"),
          HasSubstr(
              "pool 4.0 GiB: 1.0 GiB used, 0 B lent and idle, 1.0 GiB copies of checkpoints, 2.0 GiB ready"),
          HasSubstr("transparent pages, segments of 64.0 MiB")));
  EXPECT_THAT(text,
              AllOf(HasSubstr("runs/00ff  /data/ckpts\n"), HasSubstr("attempt 3, 2 ranks"),
                    HasSubstr("step_100 (step 100, 1.5 GiB, committed 12 s ago)"),
                    HasSubstr("the last 3 are kept, next to go: step_80, 2.0 KiB in trash"),
                    HasSubstr("ext4, io_uring (it worked), 1.0 TiB free"), HasSubstr("warning      tmpfs")));
  EXPECT_THAT(text,
              AllOf(HasSubstr("DEGRADED     its file system does not answer"),
                    HasSubstr("step_90 FAILED: RANKS_MISSING: ranks 1 have not sealed (1 min 40 s ago)")));
  EXPECT_THAT(text, HasSubstr("step_110   110   OPEN   250 B    1000 B  25 %  missing 1  2 s\n"));
}

TEST(RenderAllNodes, ShowsTheNodesThatAreMissingAndThoseInTroubleFirst) {
  auto cluster = Parse<v1::ClusterStatus>(R"(
    node: "a" lost_nodes: "d"
    nodes { name: "a" host: "ha" daemon_version: "0.2.0" summary {
      state: "SERVING" time { seconds: 999999996 } pool_total_bytes: 4194304 pool_used_bytes: 1048576 sessions: 8 runs: 2
      saves_in_flight: 1 oldest_save_time { seconds: 999999990 } } }
    nodes { name: "b" host: "hb" daemon_version: "0.1.0" }
    nodes { name: "c" host: "hc" daemon_version: "0.2.0" summary {
      state: "DRAINED" time { seconds: 999999940 } drain: "by uid 0: a new kernel" damaged_checkpoints: 2 } })");
  EXPECT_EQ(
      RenderAllNodes(cluster, kNowUs),
      "NODE  HOST  VERSION  STATE           POOL     USED     SESSIONS  RUNS  SAVES  OLDEST  REPORTED\n"
      "d     -     -        NOT REGISTERED  -        -        -         -     -      -       -\n"
      "b     hb    0.1.0    NO REPORT       -        -        -         -     -      -       -\n"
      "c     hc    0.2.0    DRAINED         0 B      0 B      0         0     0      -       1 min 0 s ago"
      "  drained by uid 0: a new kernel; 2 DAMAGED\n"
      "a     ha    0.2.0    SERVING         4.0 MiB  1.0 MiB  8         2     1      10 s    4 s ago\n");
  EXPECT_FALSE(AllNodesReport(cluster));
  cluster.clear_lost_nodes();
  EXPECT_FALSE(AllNodesReport(cluster)) << "b has not reported";
  *cluster.mutable_nodes(1)->mutable_summary() = cluster.nodes(0).summary();
  EXPECT_TRUE(AllNodesReport(cluster));
}

TEST(RenderStatus, SaysWhoDrainedTheDaemonAndWhatToDo) {
  const auto status = Parse<v1::Status>(R"(
    daemon_version: "0.2.0" state: "DRAINING" start_time { seconds: 999999940 }
    drain { uid: 0 message: "a new kernel" time { seconds: 999999990 } })");
  EXPECT_THAT(
      RenderStatusSummary(status, kNowUs),
      HasSubstr("drained by uid 0 10 s ago (a new kernel): takes no new saves until its restart or ckptctl "
                "drain --undo; work is under way\n"));
}

TEST(RenderStatus, SaysThatTheCheckpointsOfARootAreNotReadYet) {
  const auto status = Parse<v1::Status>(R"(
    daemon_version: "0.1.0" state: "SERVING" runs { name: "runs/00ff" path: "/data/a" uid: 1 })");
  const std::string text = RenderStatus(status, kNowUs);
  EXPECT_THAT(text, HasSubstr("checkpoints  its checkpoints are not read yet\n"));
  EXPECT_THAT(text, Not(HasSubstr("latest")));
}

TEST(RenderStatus, NamesSharedFoldersThatThisNodeDoesNotHave) {
  const auto status = Parse<v1::Status>(R"(
    state: "SERVING" cluster { node: "gpu1" registered: true
      shared_folder_problems { folder: "/shared" message: "cluster.shared_folders: \"/shared\" cannot be looked at" } })");
  EXPECT_THAT(RenderStatusSummary(status, kNowUs),
              HasSubstr("  NO FOLDER    cluster.shared_folders: \"/shared\" cannot be looked at\n"));
}

TEST(RenderStatus, SaysWhyItIsNotKnownWhatIsToBeUploaded) {
  const auto status = Parse<v1::Status>(R"(
    state: "SERVING" runs { name: "runs/00ff" path: "/data/a" uid: 1 probe {} uploads { unread: "it is torn" } })");
  EXPECT_THAT(RenderStatus(status, kNowUs), HasSubstr("uploads      NOT KNOWN: it is torn\n"));
  EXPECT_THAT(RenderStatusSummary(status, kNowUs), HasSubstr("  UPLOADS STAND STILL: it is torn\n"));
}

TEST(RenderStatusSummary, HasOneOrTwoLinesForEachRunThoseWithTroubleFirst) {
  const auto status = Parse<v1::Status>(R"(
    daemon_version: "0.1.0" state: "SERVING" sessions: 1 start_time { seconds: 999999940 }
    pool { total_bytes: 4294967296 used_bytes: 1073741824 ready_bytes: 2147483648 resident_bytes: 1073741824 pages: "transparent" segment_bytes: 67108864 }
    runs { path: "/data/a" uid: 1 checkpoint_count: 1 probe {}
      latest { tag: "step_9" step: 9 size_bytes: 1024 commit_time { seconds: 999999988 } }
      last_failure { tag: "step_8" level: FAILED create_time { seconds: 999999900 } } }
    runs { path: "/data/b" uid: 2 probe {} }
    runs { path: "/data/d" uid: 2 }
    runs { path: "/data/c\n" uid: 3 checkpoint_count: 2 degraded: true read_only: true
      latest { tag: "step_1" size_bytes: 1024 commit_time { seconds: 999999000 } }
      damaged { tag: "s1" } damaged { tag: "s2" } damaged { tag: "s3" } damaged { tag: "s4" }
      in_flight { tag: "step_4" level: OPEN size_bytes: 1000 written_bytes: 250 world_size: 2 missing_ranks: 1 create_time { seconds: 999999998 } }
      in_flight { tag: "step_5" level: SEALED world_size: 2 create_time { seconds: 999999998 } }
      last_failure { tag: "step_6" level: FAILED error { reason: "RANKS_MISSING" message: "long" } create_time { seconds: 999999900 } }
      probe { warnings: "tmpfs" warnings: "slow" } })");
  EXPECT_EQ(
      RenderStatusSummary(status, kNowUs),
      "ckptd 0.1.0, SERVING for 1 min 0 s, 1 session\n"
      "pool 4.0 GiB: 1.0 GiB used, 1.0 GiB copies of checkpoints, 2.0 GiB ready\n"
      "/data/c? (uid 3): latest step_1 (1.0 KiB, committed 16 min 40 s ago), 2 checkpoints\n"
      "  DEGRADED: its file system does not answer; READ-ONLY: a directory sync failed; the root must be "
      "scanned again; DAMAGED: s1 s2 s3 and 1 more; saving step_4 (OPEN, 25 %, missing 1, for 2 s); saving "
      "step_5 (SEALED, -, for 2 s); last failure step_6 FAILED: RANKS_MISSING (1 min 40 s ago); "
      "2 warnings\n"
      "/data/a (uid 1): latest step_9 (step 9, 1.0 KiB, committed 12 s ago), 1 checkpoint\n"
      "/data/b (uid 2): 0 checkpoints\n"
      "/data/d (uid 2): its checkpoints are not read yet\n");
  v1::Status lent = status;  // Where the rest of a full pool is.
  lent.mutable_pool()->set_lent_bytes(int64_t{1} << 20);
  EXPECT_THAT(
      RenderStatusSummary(lent, kNowUs),
      HasSubstr("1.0 GiB used, 1.0 MiB lent and idle, 1.0 GiB copies of checkpoints, 2.0 GiB ready\n"));
}

TEST(RenderStatusSummary, FitsOnAScreen) {
  v1::Status status;
  for (int i = 0; i < 40; ++i) status.add_runs()->set_path("/data/calm");
  status.mutable_runs(39)->set_degraded(true);
  const std::string text = RenderStatusSummary(status, kNowUs);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2 + 15 + 1 + 1);
  EXPECT_THAT(text,
              AllOf(HasSubstr("DEGRADED"), HasSubstr("\nand 25 more runs: see ckptctl status --verbose\n")));
  EXPECT_THAT(RenderStatusSummary({}, kNowUs), HasSubstr("no runs\n"));
}

TEST(RenderStatusSummary, CountsTheNodesAndShowsWhatSavesWaitFor) {
  const auto status = Parse<v1::Status>(R"(
    cluster {
      node: "gpu17" registered: true register_time { seconds: 999999940 }
      etcd_members { endpoint: "10.0.0.1:2379" answers: false error: "Connection refused" }
      nodes { name: "gpu17" } nodes { name: "gpu18" }
      shared_runs { root: "/shared/a" coordinator: "gpu17" saves { tag: "step_7" waits_for: "gpu18" } }
    })");
  EXPECT_THAT(RenderStatusSummary(status, kNowUs),
              HasSubstr("node gpu17, registered for 1 min 0 s\n"
                        "  etcd         10.0.0.1:2379 (Connection refused)\n"
                        "  nodes        2 registered\n"
                        "  SHARED ROOT  COORDINATOR\n"
                        "  /shared/a    gpu17\n"
                        "  SAVE              WAITS FOR\n"
                        "  /shared/a/step_7  gpu18\n"));
}

TEST(RenderStatus, SaysThatAResumeWaitsForTheBucketAndHowFarThatIs) {
  v1::Status status;
  v1::Run& run = *status.add_runs();
  run.set_path("/ckpts");
  run.mutable_uploads()->mutable_policy()->set_url("s3://bucket/run");
  v1::BucketFetch& fetch = *run.mutable_uploads()->mutable_fetching();
  EXPECT_THAT(RenderStatus(status, 0), HasSubstr("resume waits for the bucket to say"));
  fetch.set_tag("step_12");
  fetch.set_size_bytes(int64_t{8} << 30);
  fetch.set_fetched_bytes(int64_t{3} << 30);
  EXPECT_THAT(RenderStatus(status, 0),
              HasSubstr("resume waits for step_12 from the bucket: 3.0 GiB of 8.0 GiB"));
}

TEST(RenderStatus, SaysNoRunsForAnEmptyDaemon) {
  EXPECT_THAT(RenderStatus(v1::Status(), kNowUs), HasSubstr("no runs\n"));
}

TEST(RenderStatus, ShowsTheNodeItsEtcdAndTheOtherNodes) {
  const auto status = Parse<v1::Status>(R"(
    cluster {
      node: "gpu17" registered: true register_time { seconds: 999999940 } lost_leases: 2
      etcd_members { endpoint: "10.0.0.1:2379" answers: false error: "Connection refused" }
      etcd_members { endpoint: "10.0.0.2:2379" answers: true }
      etcd_members { endpoint: "10.0.0.3:2379" }
      nodes { name: "gpu17" host: "h17" daemon_version: "0.2.0" register_time { seconds: 999999940 } }
      nodes { name: "gpu18\n" host: "h18" }
    })");
  EXPECT_THAT(RenderStatus(status, kNowUs),
              HasSubstr("node gpu17, registered for 1 min 0 s, registration lost 2 times\n"
                        "  etcd         10.0.0.1:2379 (Connection refused), 10.0.0.2:2379 answers, "
                        "10.0.0.3:2379 (not asked)\n"
                        "  NODE    HOST  VERSION  REGISTERED FOR\n"
                        "  gpu17   h17   0.2.0    1 min 0 s\n"
                        "  gpu18?  h18            -\n"));
}

TEST(RenderStatus, ShowsWhoCoordinatesSharedRunsAndWhatTheirSavesWaitFor) {
  const auto status = Parse<v1::Status>(R"(
    cluster {
      node: "gpu17" registered: true register_time { seconds: 999999940 }
      shared_runs { root: "/shared/a" coordinator: "gpu17" saves { tag: "step_7" attempt: 1 waits_for: "gpu18\n" } }
      shared_runs { root: "/shared/b" saves { tag: "step_1" attempt: 2 } }
    })");
  EXPECT_THAT(RenderStatus(status, kNowUs), HasSubstr("  SHARED ROOT  COORDINATOR\n"
                                                      "  /shared/a    gpu17\n"
                                                      "  /shared/b    NONE\n"
                                                      "  SAVE              WAITS FOR\n"
                                                      "  /shared/a/step_7  gpu18?\n"
                                                      "  /shared/b/step_1  -\n"));
}

TEST(RenderStatus, SaysWhyTheNodeIsNotRegistered) {
  const auto status = Parse<v1::Status>(R"(
    cluster {
      node: "gpu17" error { reason: "NODE_NAME_TAKEN" message: "a daemon on host h1 has it" }
      nodes_error { reason: "LEDGER_REFUSED" message: "permission denied" }
    })");
  EXPECT_THAT(RenderStatus(status, kNowUs),
              HasSubstr("node gpu17, NOT REGISTERED: NODE_NAME_TAKEN: a daemon on host h1 has it\n"
                        "  nodes        unknown: LEDGER_REFUSED: permission denied\n"));
  const auto starting = Parse<v1::Status>("cluster { node: 'gpu17' }");
  EXPECT_THAT(RenderStatus(starting, kNowUs), HasSubstr("node gpu17, NOT REGISTERED yet\n"));
}

TEST(RenderStatus, SaysNothingOfNodesWithoutACluster) {
  EXPECT_THAT(RenderStatus(v1::Status(), kNowUs), Not(HasSubstr("node")));
}

TEST(RenderCheckpoints, PrintsOneLineForEach) {
  const auto list = Parse<v1::ListCheckpointsResponse>(R"(
    checkpoints { tag: "b" sequence: 2 attempt: 1 level: COMMITTED size_bytes: 10 file_count: 1 pinned: true resident: true commit_time { seconds: 999999990 } }
    checkpoints { tag: "a" step: 5 sequence: 1 attempt: 1 level: FAILED error { reason: "NO_SPACE" } create_time { seconds: 999999980 } })");
  EXPECT_EQ(RenderCheckpoints(list, kNowUs),
            "TAG  STEP  SEQUENCE  ATTEMPT  SIZE  FILES  AGE   LEVEL\n"
            "b    -     2         1        10 B  1      10 s  COMMITTED  pinned, in memory\n"
            "a    5     1         1        0 B   0      20 s  FAILED     NO_SPACE\n");
  EXPECT_EQ(RenderCheckpoints({}, kNowUs), "no checkpoints\n");
}

TEST(RenderCheckpoints, SaysWhyAManifestCannotBeRead) {
  const auto list = Parse<v1::ListCheckpointsResponse>(R"(
    checkpoints { tag: "a" damage { message: "the manifest is torn" } })");
  EXPECT_EQ(RenderCheckpoints(list, kNowUs),
            "TAG  STEP  SEQUENCE  ATTEMPT  SIZE  FILES  AGE  LEVEL\n"
            "a    -     -         -        -     -      -    DAMAGED  the manifest is torn\n");
}

TEST(RenderCheckpoints, ListsForeignOnesLastWithoutSequence) {
  const auto list = Parse<v1::ListCheckpointsResponse>(R"(
    checkpoints { tag: "b" step: 5 sequence: 7 level: COMMITTED size_bytes: 10 file_count: 1 adopted_from: "nxd" commit_time { seconds: 999999990 } }
    foreign { tag: "step_9" format: "nxd" done_time { seconds: 999999940 } size_bytes: 2048 file_count: 3 }
    foreign { tag: "step_8\n" format: "nxd" done_time { seconds: 999999880 } })");
  EXPECT_EQ(RenderCheckpoints(list, kNowUs),
            "TAG      STEP  SEQUENCE  ATTEMPT  SIZE     FILES  AGE        LEVEL\n"
            "b        5     7         -        10 B     1      10 s       COMMITTED  of nxd\n"
            "step_9   -     -         -        2.0 KiB  3      1 min 0 s  FOREIGN    nxd, its latest\n"
            "step_8?  -     -         -        -        -      2 min 0 s  FOREIGN    nxd\n");
}

TEST(RenderForeign, SaysWhatWroteItAndHowToAdoptIt) {
  const auto foreign = Parse<v1::ForeignCheckpoint>(R"(
    tag: "step_9" directory: "/data/ckpts/step_9" format: "nxd" done_time { seconds: 999999940 } size_bytes: 2048 file_count: 3)");
  EXPECT_THAT(
      RenderForeign(foreign, kNowUs),
      AllOf(HasSubstr("NeuronX Distributed"), HasSubstr("1 min 0 s ago"),
            HasSubstr("2.0 KiB (2048 bytes) in 3 files"), HasSubstr("ckptctl adopt /data/ckpts step_9\n")));
}

TEST(RenderAdoption, PrintsOneLineForEachOutcome) {
  EXPECT_EQ(RenderAdoption(Parse<v1::AdoptCheckpointsResponse>(R"(
              tag: "a" outcome: ADOPTED checkpoint { sequence: 7 size_bytes: 2048 file_count: 1 })")),
            "a  ADOPTED as sequence 7, 2.0 KiB in 1 file");
  EXPECT_EQ(RenderAdoption(Parse<v1::AdoptCheckpointsResponse>(
                R"(tag: "a" outcome: ALREADY_OURS checkpoint { sequence: 7 })")),
            "a  is already ckptd's, as sequence 7");
  EXPECT_EQ(RenderAdoption(Parse<v1::AdoptCheckpointsResponse>(
                R"(tag: "a" outcome: REFUSED error { reason: "X" message: "no\x1b" })")),
            "a  REFUSED: no? [X]");
  EXPECT_EQ(RenderAdoption(Parse<v1::AdoptCheckpointsResponse>(
                R"(tag: "a" index: 2 count: 3 read_bytes: 1024 size_bytes: 2048)")),
            "adopting a, 2 of 3: 1.0 KiB of 2.0 KiB read");
}

TEST(RenderCheckpoint, SaysThatItWasAdopted) {
  const auto checkpoint = Parse<v1::Checkpoint>(R"(
    name: "runs/1/checkpoints/s" tag: "s" level: COMMITTED sequence: 7 size_bytes: 10 file_count: 1 world_size: 1 adopted_from: "nxd"
    create_time { seconds: 999999940 } commit_time { seconds: 999999940 })");
  EXPECT_THAT(RenderCheckpoint(checkpoint, kNowUs),
              AllOf(HasSubstr("its files were written by nxd"), HasSubstr("1 min 0 s ago"),
                    Not(HasSubstr("attempt")), Not(HasSubstr("after its begin"))));
}

TEST(RenderCheckpoint, PrintsExactBytesAndEveryFile) {
  const auto checkpoint = Parse<v1::Checkpoint>(R"(
    name: "runs/1/checkpoints/s" tag: "s" level: COMMITTED size_bytes: 1610612736 file_count: 1 world_size: 1
    create_time { seconds: 999999980 } commit_time { seconds: 999999982 }
    metrics { key: "loss" value: 2.5 } files { path: "a/model.pt" size_bytes: 1610612736 rank: 0 })");
  EXPECT_THAT(
      RenderCheckpoint(checkpoint, kNowUs),
      AllOf(HasSubstr("1.5 GiB (1610612736 bytes) in 1 file of 1 rank"), HasSubstr("a/model.pt  1.5 GiB  0"),
            HasSubstr("loss=2.5"), HasSubstr(", 2 s after its begin"), Not(HasSubstr("sealed by"))));
}

TEST(RenderEnd, ReplacesControlCharacters) {
  const auto checkpoint =
      Parse<v1::Checkpoint>(R"(level: FAILED error { reason: "X" message: "a\x1b[2J\nb" })");
  EXPECT_EQ(RenderEnd(checkpoint), "FAILED: X: a?[2J?b");
}

v1::WatchResponse Event(int64_t written, double seconds, v1::Level level = v1::SEALED) {
  v1::WatchResponse event;
  event.mutable_checkpoint()->set_tag("s");
  event.mutable_checkpoint()->set_sequence(1);
  event.mutable_checkpoint()->set_level(level);
  event.mutable_checkpoint()->set_size_bytes(100 << 20);
  event.mutable_checkpoint()->set_written_bytes(written << 20);
  event.mutable_checkpoint()->mutable_create_time()->set_seconds(1000);
  event.mutable_time()->set_seconds(1000 + static_cast<int64_t>(seconds));
  return event;
}

TEST(ProgressLines, ComputesRateAndTimeLeftFromTheProgressSeen) {
  ProgressLines lines;
  EXPECT_THAT(lines.Line(Event(0, 1)),
              AllOf(HasSubstr("s  SEALED  0 B of 100 MiB  0 %"), Not(HasSubstr("/s"))));
  EXPECT_THAT(lines.Line(Event(20, 2)), AllOf(HasSubstr("20 %"), Not(HasSubstr("/s"))));
  EXPECT_THAT(lines.Line(Event(60, 4)), AllOf(HasSubstr("60 %"), HasSubstr("20.0 MiB/s  2 s left")));
  EXPECT_THAT(lines.Line(Event(100, 6, v1::COMMITTED)),
              HasSubstr("s  COMMITTED  100 MiB  6 s after its begin"));
}

TEST(ProgressLines, HasTheRateOfAnUploadAfterThatOfItsSave) {
  ProgressLines lines;
  const auto uploading = [](int64_t mebibytes, int64_t seconds) {
    v1::WatchResponse event = Event(100, static_cast<double>(seconds), v1::COMMITTED);
    v1::CheckpointUpload& upload = *event.mutable_checkpoint()->mutable_upload();
    upload.set_state(v1::CheckpointUpload::UPLOADING);
    upload.set_sent_bytes(mebibytes << 20);
    return event;
  };
  lines.Line(Event(20, 1));
  lines.Line(Event(100, 2, v1::COMMITTED));
  EXPECT_THAT(lines.Line(uploading(10, 10)),
              AllOf(HasSubstr("uploading, 10.0 MiB of 100 MiB"), Not(HasSubstr("/s"))));
  EXPECT_THAT(lines.Line(uploading(30, 20)), HasSubstr("30.0 MiB of 100 MiB  2.0 MiB/s  35 s left"));
}

TEST(RenderStatusSummary, ShowsUploadsInFlight) {
  const auto status = Parse<v1::Status>(R"(
    runs { path: "/data/a" uploads {
      waiting { tag: "step_1" size_bytes: 2097152 upload { state: UPLOADING sent_bytes: 1048576 } }
      waiting { tag: "step_2" size_bytes: 2097152 upload { state: WAITING } } } })");
  EXPECT_THAT(RenderStatusSummary(status, kNowUs), HasSubstr("\n  step_1 uploading, 1.0 MiB of 2.0 MiB\n"));
}

TEST(ProgressLines, ShowsReadersWithTheirRateUntilTheyEnd) {
  ProgressLines lines;
  const auto at = [&](int64_t read, int64_t seconds, bool ended = false) {
    v1::WatchResponse event;
    v1::Restore& restore = *event.mutable_restore();
    restore.set_tag("s");
    restore.set_sequence(1);
    restore.set_lease("leases/7");
    restore.set_rank(3);
    restore.set_read_bytes(read << 20);
    restore.set_total_bytes(100 << 20);
    restore.set_ended(ended);
    event.mutable_time()->set_seconds(1000 + seconds);
    return lines.Line(event);
  };
  EXPECT_THAT(at(20, 1),
              AllOf(HasSubstr("  s  restoring  rank 3  20.0 MiB of 100 MiB"), Not(HasSubstr("/s"))));
  EXPECT_THAT(at(60, 3), HasSubstr("60.0 MiB of 100 MiB  20.0 MiB/s  2 s left"));
  EXPECT_THAT(at(100, 5, true),
              AllOf(HasSubstr("  s  restored  rank 3  100 MiB of 100 MiB"), Not(HasSubstr("left"))));
}

TEST(ProgressLines, NamesTheRootOfEachLine) {
  ProgressLines lines;
  v1::WatchResponse save = Event(0, 1);
  save.mutable_checkpoint()->set_run("runs/1");
  save.mutable_checkpoint()->set_name("runs/1/checkpoints/s");
  save.mutable_checkpoint()->set_directory("/data/a/s");
  EXPECT_THAT(lines.Line(save), HasSubstr("  /data/a  s  SEALED"));
  v1::WatchResponse restore;
  restore.mutable_restore()->set_tag("s");
  restore.mutable_restore()->set_checkpoint("runs/1/checkpoints/s");
  EXPECT_THAT(lines.Line(restore), HasSubstr("  /data/a  s  restoring"));
  restore.mutable_restore()->set_checkpoint("runs/2/checkpoints/s");
  EXPECT_THAT(lines.Line(restore), HasSubstr("  runs/2  s  restoring")) << "no save has told its root";
}

TEST(RenderSessions, ListsEachRankWithTheMemoryOfItsProcess) {
  v1::ListSessionsResponse list;
  v1::Session& reader = *list.add_sessions();
  reader.set_pid(7);
  reader.set_leases(1);
  v1::Session& trainer = *list.add_sessions();
  trainer.set_pid(8);
  trainer.set_uid(1000);
  trainer.set_client_name("ckptd-python/0.1.0");
  trainer.set_pool_bytes(64 << 20);
  v1::Membership& membership = *trainer.add_memberships();
  membership.set_path("/data/a");
  membership.set_rank(1);
  membership.set_world_size(2);
  membership.set_attempt(3);
  EXPECT_EQ(RenderSessions(list),
            "PID  UID   CLIENT              MEMORY    READS  RANK    ATTEMPT  ROOT\n"
            "8    1000  ckptd-python/0.1.0  64.0 MiB  0      1 of 2  3        /data/a\n"
            "7    0                         0 B       1      -       -        -\n");
  EXPECT_EQ(RenderSessions({}), "no sessions\n");
}

TEST(ProgressLines, NamesTheMissingRanksOfAnOpenSave) {
  ProgressLines lines;
  v1::WatchResponse event = Event(0, 1, v1::OPEN);
  event.mutable_checkpoint()->add_missing_ranks(1);
  event.mutable_checkpoint()->add_missing_ranks(3);
  EXPECT_THAT(lines.Line(event), HasSubstr("missing 1,3"));
}

}  // namespace
}  // namespace ckptd::ctl
