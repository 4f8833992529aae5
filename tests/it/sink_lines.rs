//! The sinks that need no server: file, stdout, memory.

use std::io::{BufRead, BufReader, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use outboxd::sink::file::{File, Options};
use outboxd::sink::memory::Memory;
use outboxd::sink::stdout::Stdout;
use outboxd::sink::{Lanes, PublishErrorKind, Session, Sink};
use outboxd::testing::sink::{Arrived, Bench, conformance, delivery};

use crate::support::eventually;

const SOON: Duration = Duration::from_secs(20);

/// A line back into what it says; panics when it is not whole.
fn arrived(line: &str) -> Arrived {
    let value: serde_json::Value = serde_json::from_str(line).expect(line);
    let text = |field: &str| value[field].as_str().map(str::to_owned);
    let payload = match text("payload") {
        Some(text) => text.into_bytes(),
        None => base64::engine::general_purpose::STANDARD
            .decode(text("payload_base64").unwrap())
            .unwrap(),
    };
    Arrived {
        source: text("source").unwrap(),
        seq: value["seq"].as_i64().unwrap(),
        id: text("id").unwrap().parse().unwrap(),
        kind: text("kind").unwrap(),
        ordering_key: text("ordering_key"),
        content_type: text("content_type"),
        headers: serde_json::from_value(value["headers"].clone()).unwrap(),
        occurred_at: text("occurred_at").unwrap(),
        attempt: value["attempt"].as_u64().unwrap() as u32,
        payload: payload.into(),
    }
}

fn lines(path: &Path) -> Vec<Arrived> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "a torn last line");
    text.lines().map(arrived).collect()
}

/// The path is a link, which leads to a full device while the destination is taken away.
struct FileBench {
    directory: tempfile::TempDir,
}

impl FileBench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(directory.path().join("real"), directory.path().join("link"))
            .unwrap();
        Self { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("link")
    }

    fn point_to(&self, target: &Path) {
        let new = self.directory.path().join("new");
        std::os::unix::fs::symlink(target, &new).unwrap();
        std::fs::rename(new, self.path()).unwrap();
    }
}

#[async_trait]
impl Bench for FileBench {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::new(File::new(Options { path: self.path() }))
    }

    async fn arrived(&self) -> Vec<Arrived> {
        lines(&self.directory.path().join("real"))
    }

    async fn take_away(&self) {
        self.point_to(Path::new("/dev/full"));
    }

    async fn bring_back(&self) {
        self.point_to(&self.directory.path().join("real"));
    }
}

#[tokio::test]
async fn file_conforms() {
    conformance(&FileBench::new()).await;
}

/// One pipe for each session, each read by a thread. The bench writes into them too: a word that says how
/// far the reader is, and one that makes it go away.
#[derive(Default)]
struct StdoutBench {
    read: Arc<Mutex<Vec<String>>>,
    pipes: Arc<Mutex<Vec<Pipe>>>,
    down: Arc<AtomicBool>,
}

struct Pipe {
    into: PipeWriter,
    reader: JoinHandle<()>,
    /// One word for each `READ_THIS`.
    seen: Receiver<()>,
}

const READ_THIS: &str = "read this";
const GO_AWAY: &str = "go away";

impl Pipe {
    fn say(&mut self, word: &str) -> bool {
        self.into.write_all(format!("{word}\n").as_bytes()).is_ok()
    }
}

#[async_trait]
impl Bench for StdoutBench {
    fn sink(&self) -> Arc<dyn Sink> {
        let (read, pipes) = (Arc::clone(&self.read), Arc::clone(&self.pipes));
        let down = Arc::clone(&self.down);
        Arc::new(Stdout::writing_to(move || {
            let (reader, writer) = std::io::pipe()?;
            if down.load(Ordering::Relaxed) {
                return Ok(Box::new(writer));
            }
            let read = Arc::clone(&read);
            let (see, seen) = channel();
            let reader = std::thread::spawn(move || {
                for line in BufReader::new(reader).lines() {
                    match line.unwrap().as_str() {
                        READ_THIS => see.send(()).unwrap(),
                        GO_AWAY => return,
                        line => read.lock().unwrap().push(line.to_owned()),
                    }
                }
            });
            pipes.lock().unwrap().push(Pipe {
                into: writer.try_clone()?,
                reader,
                seen,
            });
            Ok(Box::new(writer))
        }))
    }

    async fn arrived(&self) -> Vec<Arrived> {
        for pipe in self.pipes.lock().unwrap().iter_mut() {
            if pipe.say(READ_THIS) {
                pipe.seen.recv_timeout(SOON).unwrap();
            }
        }
        let read = self.read.lock().unwrap();
        read.iter().map(|line| arrived(line)).collect()
    }

    async fn take_away(&self) {
        self.down.store(true, Ordering::Relaxed);
        for mut pipe in self.pipes.lock().unwrap().drain(..) {
            pipe.say(GO_AWAY);
            pipe.reader.join().unwrap();
        }
    }

    async fn bring_back(&self) {
        self.down.store(false, Ordering::Relaxed);
    }
}

struct MemoryBench(Memory);

#[async_trait]
impl Bench for MemoryBench {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::new(self.0.clone())
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let received = self.0.received();
        received.iter().map(|r| Arrived::of(&r.delivery)).collect()
    }

    async fn take_away(&self) {
        self.0.go_down();
    }

    async fn bring_back(&self) {
        self.0.come_up();
    }

    fn looks_at_rows(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn memory_conforms() {
    conformance(&MemoryBench(Memory::new())).await;
}

#[tokio::test]
async fn memory_that_keeps_order_conforms() {
    let sink = Memory::new();
    sink.keep_order(Some(Lanes {
        count: 2,
        events: 100,
        bytes: 1 << 20,
    }));
    conformance(&MemoryBench(sink)).await;
}

async fn open(path: &Path) -> Arc<dyn Session> {
    let path = path.to_owned();
    File::new(Options { path }).open().await.unwrap()
}

#[tokio::test]
async fn file_follows_a_rotation_under_load() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let session = open(&path).await;
    let events: Vec<_> = (1..=2_000).map(delivery).collect();
    for (round, events) in events.chunks(100).enumerate() {
        let publishes = events.iter().map(|d| session.publish(d, SOON));
        let rotate = async {
            let old = directory.path().join(format!("events.{round}"));
            std::fs::rename(&path, old).unwrap();
        };
        let (results, ()) = tokio::join!(futures_util::future::join_all(publishes), rotate);
        assert!(results.iter().all(Result::is_ok));
        // Whatever the rotation met, the path leads to a file again after the next event.
        session
            .publish(&delivery(10_000 + round as i64), SOON)
            .await
            .unwrap();
        assert!(path.exists());
    }
    let mut seqs: Vec<i64> = std::fs::read_dir(directory.path())
        .unwrap()
        .flat_map(|file| lines(&file.unwrap().path()))
        .map(|arrived| arrived.seq)
        .filter(|seq| *seq < 10_000)
        .collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=2_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn two_processes_append_whole_lines_to_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let (one, two) = (open(&path).await, open(&path).await);
    let events: Vec<_> = (1..=400).map(delivery).collect();
    let publish = |session: &Arc<dyn Session>, half: usize| {
        let session = Arc::clone(session);
        let events = events[half * 200..][..200].to_vec();
        tokio::spawn(async move {
            for delivery in events {
                session.publish(&delivery, SOON).await.unwrap();
            }
        })
    };
    let (a, b) = (publish(&one, 0), publish(&two, 1));
    a.await.unwrap();
    b.await.unwrap();
    assert_eq!(lines(&path).len(), 400);
}

#[tokio::test]
async fn receipts_name_the_file_and_the_start_of_the_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let session = open(&path).await;
    let mut offsets = Vec::new();
    for seq in 1..=3 {
        let receipt = session.publish(&delivery(seq), SOON).await.unwrap();
        assert_eq!(receipt.stream.as_deref(), Some(path.to_str().unwrap()));
        offsets.push(receipt.position.unwrap() as usize);
    }
    let text = std::fs::read_to_string(&path).unwrap();
    for (seq, offset) in (1..=3).zip(offsets) {
        let line = text[offset..].lines().next().unwrap();
        assert_eq!(arrived(line).seq, seq);
    }
}

#[tokio::test]
async fn a_missing_directory_is_said_and_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("later/events.jsonl");
    let sink = File::new(Options { path: path.clone() });
    let error = sink.open().await.err().unwrap().to_string();
    assert!(error.contains("later/events.jsonl"), "{error}");
    assert!(sink.check(&[]).await.is_err());
    std::fs::create_dir(directory.path().join("later")).unwrap();
    assert!(sink.check(&[]).await.unwrap().is_empty());
    let session = sink.open().await.unwrap();
    session.publish(&delivery(1), SOON).await.unwrap();
    std::fs::remove_dir_all(directory.path().join("later")).unwrap();
    let error = session.publish(&delivery(2), SOON).await.unwrap_err();
    assert_eq!(
        error.kind,
        PublishErrorKind::Unavailable {
            connection_lost: true
        }
    );
}

#[tokio::test]
async fn stdout_conforms() {
    conformance(&StdoutBench::default()).await;
}

#[tokio::test]
async fn a_slow_reader_of_stdout_is_waited_for_and_not_lost() {
    let (reader, writer) = std::io::pipe().unwrap();
    let writer = Mutex::new(Some(writer));
    let sink = Stdout::writing_to(move || Ok(Box::new(writer.lock().unwrap().take().unwrap())));
    let session = sink.open().await.unwrap();
    // More than a pipe holds.
    let events: Vec<_> = (1..=2_000).map(delivery).collect();
    let short = Duration::from_millis(200);
    let results =
        futures_util::future::join_all(events.iter().map(|d| session.publish(d, short))).await;
    assert!(
        results.iter().any(|result| {
            matches!(result, Err(error) if error.kind == PublishErrorKind::Unknown)
        })
    );
    let read = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::clone(&read);
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines() {
            lines.lock().unwrap().push(arrived(&line.unwrap()).seq);
        }
    });
    session.publish(&delivery(5_000), SOON).await.unwrap();
    eventually(SOON, "the last line is read", || async {
        let read = read.lock().unwrap();
        let last = read.last().copied();
        (last == Some(5_000))
            .then_some(())
            .ok_or(format!("{last:?}"))
    })
    .await;
    assert!(read.lock().unwrap().is_sorted());
}

/// Runs the ignored test below in a process whose files may have 16 KiB at most: a disk that is full in the
/// middle of a group.
#[tokio::test]
async fn a_full_disk_tears_no_line_and_takes_no_blame() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let limited = r#"trap "" XFSZ; ulimit -f 32; exec "$0" "$@""#;
    let output = std::process::Command::new("sh")
        .args(["-c", limited])
        .arg(std::env::current_exe().unwrap())
        .args(["sink_lines::on_a_full_disk", "--exact", "--ignored"])
        .env("OUTBOXD_TEST_FILE", &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
    let before = lines(&path).len();
    let session = open(&path).await;
    session.publish(&delivery(999), SOON).await.unwrap();
    assert_eq!(lines(&path).len(), before + 1);
}

#[tokio::test]
#[ignore = "run by the test above, in a process with a file size limit"]
async fn on_a_full_disk() {
    // Alone it has nothing to show.
    let Some(path) = std::env::var_os("OUTBOXD_TEST_FILE").map(PathBuf::from) else {
        return;
    };
    let lost = PublishErrorKind::Unavailable {
        connection_lost: true,
    };
    let mut acknowledged = Vec::new();
    for round in 0..20 {
        let session = open(&path).await;
        let events: Vec<_> = (round * 10..round * 10 + 10).map(delivery).collect();
        let publishes = events.iter().map(|d| session.publish(d, SOON));
        let results = futures_util::future::join_all(publishes).await;
        for (result, delivery) in results.into_iter().zip(&events) {
            match result {
                Ok(_) => acknowledged.push(delivery.event.seq),
                Err(error) => assert_eq!(error.kind, lost, "{error}"),
            }
        }
        session.close().await;
    }
    assert!(!acknowledged.is_empty() && acknowledged.len() < 200);
    // What was not acknowledged is not there, not even in part.
    let stored: Vec<i64> = lines(&path).iter().map(|arrived| arrived.seq).collect();
    assert_eq!(stored, acknowledged);
}
